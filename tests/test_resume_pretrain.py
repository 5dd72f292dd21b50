"""Resuming is exact, and runs end to end: precision, activations, appended languages, companions, two workers."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrain_world import NETWORK, RUN, TASK, build, data_folder, read_checkpoint, train_here

from fairseq_interference.errors import DataError, InterferenceError, LanguageError, ResumeError

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    # the host: CUDA's autocast by its old name
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
    # the host steps its scheduler before the first update
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
    # the host leaves its log file open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
LANGS = ("--langs", "aa,bb,cc")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("data"), {"aa": 150, "bb": 60, "cc": 20})


def differences(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Largest difference of weights and moments; infinite if the keys differ."""
    worst = 0.0
    pairs = [(one["model"], other["model"])]
    states = [state["last_optimizer_state"]["state"] for state in (one, other)]
    if states[0].keys() != states[1].keys():
        return float("inf")
    pairs += [(states[0][number], states[1][number]) for number in states[0]]
    for left, right in pairs:
        if left.keys() != right.keys():
            return float("inf")
        for name in left:
            gap = torch.as_tensor(left[name]).double() - torch.as_tensor(right[name]).double()
            worst = max(worst, float(gap.abs().max()) if gap.numel() else 0.0)
    return worst


@pytest.mark.parametrize("flags", [(), ("--update-freq", 2, "--batch-composition", "single")])
def test_d12_five_and_seven_updates_are_twelve(data: Path, tmp_path: Path, flags: tuple[Any, ...]) -> None:
    train_here(data, tmp_path / "straight", *LANGS, *flags, "--max-update", 12)
    train_here(data, tmp_path / "resumed", *LANGS, *flags, "--max-update", 5)
    train_here(data, tmp_path / "resumed", *LANGS, *flags, "--max-update", 12)
    straight = read_checkpoint(tmp_path / "straight" / "checkpoint_last.pt")
    resumed = read_checkpoint(tmp_path / "resumed" / "checkpoint_last.pt")
    assert straight["optimizer_history"][-1]["num_updates"] == 12
    assert straight["extra_state"]["train_iterator"] == resumed["extra_state"]["train_iterator"]
    assert differences(straight, resumed) == 0.0


def test_d13_resume_in_the_second_of_two_shards(tmp_path: Path) -> None:
    for name, count in (("one", 30), ("two", 50)):
        data_folder(tmp_path / name, {"aa": count, "bb": 10})
    shards = f"{tmp_path / 'one'}:{tmp_path / 'two'}"
    flags = ("--langs", "aa,bb", "--max-epoch", 3)
    train_here(shards, tmp_path / "straight", *flags)
    first = read_checkpoint(tmp_path / "straight" / "checkpoint1.pt")["optimizer_history"][-1]["num_updates"]
    train_here(shards, tmp_path / "resumed", *flags, "--max-update", first + 2)
    train_here(shards, tmp_path / "resumed", *flags)
    pair = [read_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("straight", "resumed")]
    assert differences(*pair) == 0.0


def test_d1_o4_a_language_is_appended(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save = tmp_path / "save"
    train_here(data, save, "--langs", "aa,bb", "--max-update", 5)
    old = read_checkpoint(save / "checkpoint_last.pt")
    with caplog.at_level(logging.WARNING):
        train_here(data, save, *LANGS, "--max-update", 6)
    new = read_checkpoint(save / "checkpoint_last.pt")
    assert "kept by name" in caplog.text and "begins anew" in caplog.text and "adapters.cc." in caplog.text
    assert new["extra_state"]["train_iterator"]["interference"]["languages"] == ["aa", "bb", "cc"]
    assert new["last_optimizer_state"]["state"][0]["step"] == old["last_optimizer_state"]["state"][0]["step"] + 1
    fresh = [key for key in new["model"] if ".adapters.cc." in key]
    assert fresh and not any(key in old["model"] for key in fresh)
    with pytest.raises(Exception) as caught:
        train_here(data, save, "--langs", "bb,aa,cc", "--max-update", 7)
    assert isinstance(caught.value, LanguageError) or isinstance(caught.value.__context__, LanguageError)


def test_optimizer_state_follows_its_parameter(data: Path, tmp_path: Path) -> None:
    from fairseq_interference.appended_state import fit_state, name_of

    def trained(folder: str, langs: str) -> tuple[dict[str, Any], Any]:
        task, trainer = build(data, tmp_path / folder, "--langs", langs)
        task.load_dataset("train")
        dataset = task.dataset("train")
        trainer.train_step([dataset.collater([dataset[n] for n in range(0, len(dataset), 5)])])
        names = [name_of(p, n) for n, p in enumerate(trainer.optimizer.params)]
        state = trainer.optimizer.state_dict()
        return {"names": names, "state": state}, trainer

    old, _ = trained("old", "aa,bb")
    _, trainer = trained("new", "aa,bb,cc")
    fitted = fit_state(old["state"], list(trainer.optimizer.params))
    names = [name_of(p, n) for n, p in enumerate(trainer.optimizer.params)]
    for number, name in enumerate(old["names"]):
        assert fitted["state"][names.index(name)] is old["state"]["state"][number]
    assert len(fitted["state"]) == len(old["names"])
    with pytest.raises(ResumeError, match="--reset-optimizer"):
        fit_state(old["state"], list(trainer.optimizer.params)[:-3])


def test_another_dictionary_in_the_save_folder_is_refused(data: Path, tmp_path: Path) -> None:
    from pretrain_world import WORDS, write_dictionary

    train_here(data, tmp_path / "save", *LANGS, "--max-update", 1)
    other = data_folder(tmp_path / "other", {"aa": 30, "bb": 10, "cc": 10})
    write_dictionary(other / "dict.txt", list(reversed(WORDS)))
    with pytest.raises(ResumeError, match="dictionary"):
        train_here(other, tmp_path / "save", *LANGS, "--max-update", 2)


def test_c9_adapters_are_added_to_a_checkpoint(data: Path, tmp_path: Path) -> None:
    train_here(data, tmp_path / "joint", *LANGS, "--max-update", 3, arch="xlm_joint_tiny")
    start = tmp_path / "joint" / "checkpoint_last.pt"
    flags = (*LANGS, "--max-update", 1, "--lr", 0, "--finetune-from-model", start)
    train_here(data, tmp_path / "more", *flags, arch="xlm_adpt_tiny")
    old, new = read_checkpoint(start), read_checkpoint(tmp_path / "more" / "checkpoint_last.pt")
    assert new["optimizer_history"][-1]["num_updates"] == 1, "optimizer, schedule and data begin anew"
    for key, value in old["model"].items():
        assert torch.equal(value, new["model"][key]), key
    up = [value for key, value in new["model"].items() if ".adapters." in key and ".up." in key]
    assert up and all(not value.any() for value in up)


@pytest.mark.parametrize("flags", [(), ("--ema-fp32",)])
def test_an_average_of_the_weights_can_be_kept(data: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The host's ``--store-ema``: the running average of the weights, and the list of languages as it is."""
    train_here(data, tmp_path, *LANGS, "--store-ema", "--ema-decay", 0.5, *flags, "--max-update", 3)
    train_here(data, tmp_path, *LANGS, "--store-ema", "--ema-decay", 0.5, *flags, "--max-update", 4)
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    average, weights = state["extra_state"]["ema"], state["model"]
    assert average.keys() == weights.keys()
    codes = [key for key in weights if key.endswith("language_codes")]
    assert codes and all(torch.equal(average[key], weights[key]) for key in codes)
    assert any(not torch.equal(average[key], weights[key]) for key in weights)


def test_checkpoint_activations_change_nothing(data: Path, tmp_path: Path) -> None:
    flags = (*LANGS, "--max-update", 3, "--disable-validation")
    train_here(data, tmp_path / "plain", *flags)
    train_here(data, tmp_path / "again", *flags, "--checkpoint-activations")
    pair = [read_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("plain", "again")]
    stripped = [
        {**s, "model": {k.replace("._checkpoint_wrapped_module", ""): v for k, v in s["model"].items()}} for s in pair
    ]
    assert differences(*stripped) < 1e-6


@pytest.mark.parametrize("metric", ["macro_loss", "loss_cc"])
def test_d8_languages_and_the_macro_average_select_the_best(
    data: Path, tmp_path: Path, metric: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        train_here(data, tmp_path, *LANGS, "--max-update", 4, "--best-checkpoint-metric", metric)
    best = read_checkpoint(tmp_path / "checkpoint_best.pt")["extra_state"]["best"]
    valid = next(line for line in caplog.messages if "valid on" in line)
    logged = dict(part.strip().split(" ") for part in valid.split(" | ") if len(part.strip().split(" ")) == 2)
    assert float(logged[metric]) == pytest.approx(best, abs=2e-3)
    losses = [float(logged[f"loss_{code}"]) for code in ("aa", "bb", "cc")]
    assert float(logged["macro_loss"]) == pytest.approx(sum(losses) / 3, abs=2e-3)
    assert {f"{kind}_{code}" for kind in ("loss", "ppl", "tokens") for code in ("aa", "bb", "cc")} <= logged.keys()


def test_n8_unknown_metrics_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InterferenceError, match="macro_loss"):
        train_here(data, tmp_path, *LANGS, "--max-update", 1, "--best-checkpoint-metric", "f1")


def test_u8_a_checkpoint_loads_from_anywhere(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq_interference import load
    from fairseq_interference.evaluation.mlm import mlm_perplexity

    monkeypatch.chdir(data.parent)
    train_here(data.name, tmp_path, *LANGS, "--max-update", 2)
    monkeypatch.chdir(tmp_path)
    loaded = load(str(tmp_path / "checkpoint_last.pt"))
    assert loaded.languages.codes == ["aa", "bb", "cc"]
    scores = [mlm_perplexity(tmp_path / "checkpoint_last.pt", data=data, lang="bb") for _ in range(2)]
    with pytest.raises(DataError, match="train, valid"):
        mlm_perplexity(tmp_path / "checkpoint_last.pt", data=data, lang="bb", split="tset")
    dev = mlm_perplexity(tmp_path / "checkpoint_last.pt", data=data, lang="bb", split="dev")
    assert dev["metrics"] == scores[0]["metrics"]
    assert scores[0] == scores[1] and scores[0]["n"] == 8
    metrics = scores[0]["metrics"]
    assert metrics["loss_per_token"] * metrics["tokens"] == pytest.approx(
        metrics["loss_per_character"] * metrics["characters"]
    )
    assert 20 < metrics["perplexity_per_token"] < 200


@pytest.mark.slow
def test_bf16_on_the_cpu_trains_and_resumes(data: Path, tmp_path: Path) -> None:
    import ddp

    command = [data, *TASK, "--arch", "xlm_adpt_tiny", "--save-dir", tmp_path, *NETWORK, *RUN, *LANGS, "--bf16"]
    ddp.train(*command, "--max-update", 3)
    log = ddp.train(*command, "--max-update", 5).log
    assert "num_updates=5" in log and "num_updates=3" not in log
    assert read_checkpoint(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 5


@pytest.mark.slow
def test_two_workers_resume_and_log_disjoint_languages(tmp_path: Path) -> None:
    import ddp

    data = data_folder(tmp_path / "data", {"aa": 250, "bb": 250}, valid={"aa": 6, "bb": 6})
    base = [data, *TASK, "--arch", "xlm_adpt_tiny", *NETWORK, *RUN, "--langs", "aa,bb", "--update-freq", 2]
    base += ["--batch-size-valid", 2, "--temperature", 3]

    def ranks(save: str, updates: int) -> str:
        flags = [*base, "--save-dir", tmp_path / save, "--max-update", updates]
        return ddp.train_ranks(flags, logs=tmp_path / f"{save}-{updates}")[0].log

    log = ranks("straight", 8)
    assert "bsz=16" in log, "two workers, two micro-batches, four rows"
    valid = next(line for line in log.splitlines() if "valid on" in line)
    assert "loss_aa" in valid and "loss_bb" in valid and "macro_loss" in valid
    ranks("resumed", 3)
    ranks("resumed", 8)
    pair = [read_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("straight", "resumed")]
    assert differences(*pair) <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "meta_adapter"])
def test_c3_sigterm_saves_and_the_resumed_run_is_exact(data: Path, tmp_path: Path, optimizer: str) -> None:
    import signal
    import time

    import ddp

    common = [*LANGS, "--optimizer", optimizer, "--max-update", 60]
    flags = [data, *TASK, "--arch", "xlm_adpt_tiny", *NETWORK, *RUN, *common]
    command = [*ddp.host_command("fairseq-train"), *flags, "--save-dir", tmp_path / "stopped", "--cpu"]
    command += ["--user-dir", ddp.USER_DIR]
    with subprocess.Popen(
        list(map(str, command)), env=ddp.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "num_updates=3," in line:
                process.send_signal(signal.SIGTERM)
                break
        process.stdout.read()
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.returncode == 75
    updates = read_checkpoint(tmp_path / "stopped" / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
    assert 3 <= updates < 60
    train_here(data, tmp_path / "stopped", *common)
    train_here(data, tmp_path / "straight", *common)
    pair = [read_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("straight", "stopped")]
    assert differences(*pair) == 0.0
