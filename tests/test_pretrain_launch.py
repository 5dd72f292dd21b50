"""Configurations to commands: every file of run/configs parses, errors are named, dry runs print the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from pretrain_world import data_folder

from fairseq_interference import launch
from fairseq_interference.errors import DataError, UsageError
from fairseq_interference.finetune import grid_of

REPOSITORY = Path(__file__).resolve().parent.parent
CONFIGS = sorted((REPOSITORY / "run" / "configs").glob("*/*.yaml"))
CHECKED = [path for path in CONFIGS if path.parent.name == "tiny"] + [
    path for path in CONFIGS if path.parent.name == "paper" and path.stem in ("mono_te", "joint_en_te_kn", "attn_en_hi")
]
pytestmark = pytest.mark.usefixtures("plugin")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_configuration_is_readable(path: Path) -> None:
    config = launch.read_config(path)
    assert config.task and config.arch
    if path.parent.name == "paper" and config.task == "xlm_masked_lm":
        assert config.data and config.save_dir == f"checkpoints/paper/{path.stem}"
        assert "_".join(config.langs) in path.stem
        assert config.arch.replace("xlm_", "") == path.stem[: -len("_".join(config.langs)) - 1]


@pytest.mark.parametrize("path", CHECKED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_host_knows_every_flag(path: Path) -> None:
    launch.check_flags(launch.read_config(path))


@pytest.mark.parametrize("task", ["ner", "pos", "qa", "xnli"])
def test_the_host_knows_every_cell_of_a_published_grid(task: str) -> None:
    config = launch.read_config(REPOSITORY / f"run/configs/paper/{task}_wang2020.yaml")
    cells = grid_of(config.grid)
    assert len(cells) == len(set(map(tuple, cells))) == (9 if task == "xnli" else 6)
    for cell in (cells[0], cells[-1]):
        launch.check_flags(launch.override(config, cell))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: xlm_masked_lm\narch: xlm_joint_tiny\nlr: 0.1\n", "Unknown or missing keys"),
        ("task: xlm_masked_lm\n", "no arch"),
        ("task: xlm_masked_lm\narch: xlm_joint_tiny\nlangs: [en, no]\n", 'put it in quotes: "no"'),
        ("- a\n", "table of keys"),
        ("a: [\n", "not YAML"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        launch.read_config(write(tmp_path / "broken.yaml", text))


def config(**values: object) -> launch.TrainConfig:
    given = {"task": "xlm_masked_lm", "arch": "xlm_adpt_tiny", "langs": ("aa", "bb"), "data": "D", "save_dir": "S"}
    return launch.TrainConfig(**{**given, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("fp32", []), ("amp", ["--amp"]), ("bf16", ["--bf16"]), ("fp16", ["--fp16", "--fp16-no-flatten-grads"])],
)
def test_precision_and_backend(precision: str, expected: list[str]) -> None:
    command = launch.train_command(config(precision=precision), gpus=4)
    assert [flag for flag in command if flag.startswith(("--amp", "--bf16", "--fp16"))] == expected
    assert command[command.index("--ddp-backend") + 1] == "legacy_ddp"
    assert command[command.index("--distributed-world-size") + 1] == "4"
    assert "--cpu" in launch.train_command(config(), gpus=0) and "--cpu" not in command


def test_settings_replace_keys_and_flags() -> None:
    changed = launch.override(
        config(train={"max-update": 5, "lr": 0.1}), ["max_update=7", "arch=xlm_ffn_tiny", "fp16-init-scale=4"]
    )
    assert changed.arch == "xlm_ffn_tiny" and changed.train == {"lr": 0.1, "max_update": "7", "fp16-init-scale": "4"}
    assert launch.flags({"a-b": True, "c": False, "d": None, "e": [1, 2], "f_g": 3}) == [
        "--a-b",
        "--e",
        "1,2",
        "--f-g",
        "3",
    ]
    with pytest.raises(UsageError, match="--set"):
        launch.override(config(), ["max_update"])


def test_settings_are_text_and_not_yaml() -> None:
    """Norwegian is no truth value, and a seed is not octal."""
    given = ["train-langs=no", "seed=010", "lr=[1", "save-interval=null", "bf16=true", "no-save=false"]
    command = launch.flags(launch.override(config(train={"seed": 1, "save-interval": 2}), given).train)
    assert command == ["--train-langs", "no", "--seed", "010", "--lr", "[1", "--bf16"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"task: t\narch: a\nlangs: [no]\n", "in quotes"),
        (b"task: t\narch: a\ntrain: {train-langs: no}\n", "in quotes"),
        (b"\xff\xfe", "This is not YAML"),
        (b"train: [1", "This is not YAML"),
    ],
)
def test_configurations_that_yaml_reads_otherwise(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        launch.read_config(tmp_path / "c.yaml")


def test_a_misspelt_flag_is_refused() -> None:
    with pytest.raises(UsageError, match="max-updates-typo"):
        launch.check_flags(config(train={"max-updates-typo": 5}))


def test_c9_a_start_resets_everything_together(tmp_path: Path) -> None:
    command = launch.train_command(config(init_from="x.pt"), gpus=0)
    assert command[command.index("--finetune-from-model") + 1] == "x.pt"
    with pytest.raises(DataError, match="no such checkpoint"):
        launch.check(config(data=str(tmp_path), init_from="x.pt"))


def test_ranks_on_one_machine() -> None:
    commands = launch.rank_commands(["fairseq-train", "D"], 2)
    assert [command[command.index("--distributed-rank") + 1] for command in commands] == ["0", "1"]
    assert all("--distributed-no-spawn" in command and "gloo" in command for command in commands)
    assert len({command[command.index("--distributed-init-method") + 1] for command in commands}) == 1


def test_the_script_prints_the_command_and_runs_nothing(tmp_path: Path) -> None:
    import ddp

    data = data_folder(tmp_path / "data", {"xa": 5, "xb": 5})
    script = ["bash", REPOSITORY / "run" / "pretrain.sh", "--config", REPOSITORY / "run/configs/tiny/adpt.yaml"]
    import sys

    arguments = [*script, "--data", data, "--save-dir", tmp_path / "save", "--dry-run"]
    done = ddp.run_command(arguments, PYTHON=sys.executable, CUDA_VISIBLE_DEVICES="")
    line = next(line for line in done.log.splitlines() if line.startswith("+ "))
    assert line.startswith("+ fairseq-train ") and "--arch xlm_adpt_tiny" in line and "--langs xa,xb" in line
    assert not (tmp_path / "save").exists()
    failed = ddp.run_command(
        [*arguments[:-1], "--data", tmp_path / "none", "--dry-run"], check=False, PYTHON=sys.executable
    )
    assert failed.returncode == 1 and "no such data folder" in failed.log and "Traceback" not in failed.log
    failed = ddp.run_command([*arguments, "--set", "temperature=0.7"], check=False, PYTHON=sys.executable)
    assert failed.returncode == 2 and "--temperature" in failed.log and "Traceback" not in failed.log
