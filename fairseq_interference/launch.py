"""From a YAML file to the ``fairseq-train`` command: checks it, prints it, runs it.

    python -m fairseq_interference.launch --config run/configs/tiny/joint.yaml --data DATA --save-dir SAVE [--dry-run]

A file holds the keys of :class:`TrainConfig`; ``train`` takes any flag of ``fairseq-train`` without dashes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Optional, Union

import yaml

from fairseq_interference import processes
from fairseq_interference.errors import DataError, UsageError, exit_code
from fairseq_interference.stages import locked, write_json

USER_DIR = Path(__file__).resolve().parent
PRECISIONS = {"fp32": [], "amp": ["--amp"], "bf16": ["--bf16"], "fp16": ["--fp16", "--fp16-no-flatten-grads"]}
# legacy_ddp is the one backend that runs on CPU too and allows parameters without a gradient (absent languages, heads)
BACKEND = "legacy_ddp"
COST_FILE = "cost.json"  # beside the checkpoints, after a run has ended well: what the checkpoint does not hold


@dataclass(frozen=True)
class TrainConfig:
    """One training run.

    Attributes:
        task, arch: registered names; the criterion is the task's namesake unless given.
        langs: languages in the order of their ids.
        data: data folder, or shards ``A:B``.
        save_dir: where checkpoints go.
        init_from: checkpoint to start from with fresh optimizer, schedule, meters and data position (C9).
        precision: fp32, amp, bf16 or fp16.
        train: further flags of ``fairseq-train`` without dashes; true is a switch, false or null leaves it out.
        grid: settings that were searched, for ``--grid config`` of the fine-tuning scripts.
    """

    task: str
    arch: str
    langs: tuple[str, ...] = ()
    data: str = ""
    save_dir: str = ""
    criterion: str = ""
    init_from: str = ""
    precision: str = "fp32"
    train: dict[str, Any] = field(default_factory=dict)
    grid: str = ""


SWITCHES = {"true": True, "false": False, "null": None, "": None}  # values of key=value that are no text
NAMES = tuple(entry.name for entry in fields(TrainConfig))


def read_config(path: Union[str, Path]) -> TrainConfig:
    """Read a YAML file.

    Raises:
        UsageError: unknown or missing keys; a language code that YAML reads as something else than text.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            content = yaml.safe_load(stream)
    except FileNotFoundError:
        raise UsageError("There is no such configuration.", where="--config", value=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError("This is not YAML.", where=path, value=str(error)) from None
    if not isinstance(content, dict):
        raise UsageError("A configuration is a table of keys and values.", where=path, value=type(content).__name__)
    unknown = [str(key) for key in content if key not in NAMES]
    missing = [key for key in ("task", "arch") if key not in content]
    if unknown or missing:
        raise UsageError(
            "Unknown or missing keys.",
            where=path,
            value=", ".join([*unknown, *(f"no {key}" for key in missing)]),
            allowed=", ".join(NAMES),
            next_step="flags of fairseq-train go under `train:`",
        )
    train = content.get("train") or {}
    for name, value in train.items():
        if str(name).endswith(("lang", "langs")):
            _codes(value, f"{path}, train, {name}")
    return TrainConfig(**{**content, "langs": _codes(content.get("langs"), path), "train": train})


def _codes(value: Any, where: object) -> tuple[str, ...]:
    if value is None:
        return ()
    codes = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    for code in codes:
        if not isinstance(code, str):
            raise UsageError(
                "YAML reads this language code as something else.",
                where=where,
                value=repr(code),
                next_step='put it in quotes: "no"',
            )
    return tuple(code.strip() for code in codes)


def override(config: TrainConfig, settings: Sequence[str]) -> TrainConfig:
    """Apply ``key=value`` settings: keys of the file, or flags of ``fairseq-train``."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip().lstrip("-")
        if not equals:
            raise UsageError("This is not key=value.", where="--set", value=setting)
        name = key.replace("-", "_")
        if name == "langs":
            config = replace(config, langs=_codes(text, "--set"))
        elif name in NAMES and name != "train":
            config = replace(config, **{name: text})  # type: ignore[arg-type]
        else:
            train = {
                flag: value for flag, value in config.train.items() if flag.replace("_", "-") != key.replace("_", "-")
            }
            # not YAML: the language `no` and the seed `010` are what they look like
            config = replace(config, train={**train, key: SWITCHES.get(text.strip().lower(), text)})
    return config


def flags(values: dict[str, Any]) -> list[str]:
    """Flags of ``fairseq-train``: true is a switch, false or null is left out, lists are joined with commas."""
    found = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        found.append("--" + name.replace("_", "-"))
        if isinstance(value, (list, tuple)):
            found.append(",".join(str(part) for part in value))
        elif value is not True:
            found.append(str(value))
    return found


def executable() -> list[str]:
    """``fairseq-train`` of this Python."""
    beside = Path(sys.executable).with_name("fairseq-train")
    return [str(beside)] if beside.is_file() else [sys.executable, "-m", "fairseq_cli.train"]


def train_command(config: TrainConfig, gpus: Optional[int] = None) -> list[str]:
    """The command of a run.

    Args:
        gpus: number of GPUs; 0 trains on the CPU; None takes what is there.

    Raises:
        UsageError: no data or save folder, or an unknown precision.
    """
    if not config.data or not config.save_dir:
        raise UsageError("Where is the data, and where do checkpoints go?", where="--data, --save-dir")
    if config.precision not in PRECISIONS:
        raise UsageError(
            "Unknown precision.", where="--precision", value=config.precision, allowed=", ".join(PRECISIONS)
        )
    gpus = visible_gpus() if gpus is None else gpus
    command = [*executable(), config.data, "--user-dir", str(USER_DIR), "--task", config.task, "--arch", config.arch]
    command += ["--criterion", config.criterion or config.task, "--save-dir", config.save_dir]
    if config.langs:
        command += ["--langs", ",".join(config.langs)]
    if config.init_from:
        command += ["--finetune-from-model", config.init_from]
    train = dict(config.train)
    if gpus == 0:
        train.setdefault("cpu", True)
    elif gpus > 1:
        train.setdefault("ddp-backend", BACKEND)
        train.setdefault("distributed-world-size", gpus)
    return command + PRECISIONS[config.precision] + flags(train)


def rank_commands(command: Sequence[str], ranks: int) -> list[list[str]]:
    """Commands of ``ranks`` processes on one CPU machine, over gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = f"--distributed-world-size {ranks} --distributed-init-method tcp://127.0.0.1:{port} --distributed-no-spawn"
    shared += f" --distributed-backend gloo --ddp-backend {BACKEND}"
    return [[*command, *shared.split(), "--distributed-rank", str(rank)] for rank in range(ranks)]


def visible_gpus() -> int:
    """Number of GPUs that torch sees."""
    import torch

    return int(torch.cuda.device_count())


# -- checks ---------------------------------------------------------------------------------------------------------


def check(config: TrainConfig) -> None:
    """Check files and flags as the real run would.

    Raises:
        InterferenceError: what is missing, or the host parser's own message.
    """
    for part in config.data.split(os.pathsep):
        if not Path(part).is_dir():
            raise DataError("There is no such data folder.", where="--data", value=part)
    start = config.init_from or str(config.train.get("restore-file", ""))
    if start and not Path(start).is_file():
        raise DataError("There is no such checkpoint.", where="init_from", value=start)
    parsed = check_flags(config)
    if config.task == "xlm_masked_lm":
        from fairseq_interference.data.folders import open_folders

        for note in open_folders(config.data, ",".join(config.langs)).notes:
            print(f"note: {note}", file=sys.stderr)
    elif config.init_from:
        from fairseq import tasks

        from fairseq_interference.tasks._finetuning import FinetuningTask

        if issubclass(tasks.TASK_REGISTRY[config.task], FinetuningTask):
            tasks.setup_task(parsed.task)  # checks its flags against languages, labels and splits


def check_flags(config: TrainConfig) -> Any:
    """Let the host's own parser read the flags of a configuration (data and save folder need not be there).

    Returns:
        The host's configuration.

    Raises:
        UsageError: the parser's message, or options of the task out of range.
    """
    config = replace(config, data=config.data or "DATA", save_dir=config.save_dir or "SAVE")
    arguments = train_command(config, 0)[len(executable()) :]
    from fairseq_interference import register

    register()
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = options.parse_args_and_arch(options.get_training_parser(), arguments)
    except SystemExit:
        lines = said.getvalue().strip().splitlines() or ["unknown"]
        raise UsageError(
            "fairseq-train does not take these flags.",
            where=f"{config.task}, {config.arch}",
            value=lines[-1].split("error: ")[-1],
        ) from None
    found = convert_namespace_to_omegaconf(parsed)
    if config.task == "xlm_masked_lm":
        from fairseq_interference.tasks.xlm_masked_lm import XlmMaskedLmConfig

        XlmMaskedLmConfig.check(found.task)
    return found


# -- running --------------------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fairseq_interference.launch", description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True, help="YAML file, see run/configs")
    parser.add_argument("--data", help="data folder, or shards A:B")
    parser.add_argument("--save-dir", help="where checkpoints go")
    parser.add_argument("--init-from", help="checkpoint to start from; optimizer, schedule, meters and data begin anew")
    parser.add_argument("--precision", choices=sorted(PRECISIONS))
    parser.add_argument(
        "--gpus", type=int, help="number of GPUs (default: all); on a machine without any: of processes"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="change a key or a training flag")
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the command, run nothing")
    return parser


def launch(args: argparse.Namespace) -> int:
    """Read, override, train."""
    config = read_config(args.config)
    for name in ("data", "save_dir", "init_from", "precision"):
        if getattr(args, name):
            config = replace(config, **{name: getattr(args, name)})
    return train(override(config, args.set), args.gpus, args.dry_run)


def train(config: TrainConfig, gpus: Optional[int] = None, dry_run: bool = False) -> int:
    """Print the training command, check it, run it, and keep what it took in memory.

    Args:
        gpus: number of GPUs (None: all of them); on a machine without any: of processes.
        dry_run: run nothing.

    Returns:
        Exit code of the training.

    Raises:
        InterferenceError: what the checks found.
    """
    if gpus is not None and gpus < 0:
        raise UsageError("This is no number of processes.", where="--gpus", value=gpus, allowed=">= 0")
    on_cpu = visible_gpus() == 0 or bool(config.train.get("cpu"))
    command = train_command(config, 0 if on_cpu else gpus)
    ranks = (gpus or 1) if on_cpu else 1
    commands = rank_commands(command, ranks) if ranks > 1 else [command]
    for line in commands:
        print(
            "+ " + " ".join(shlex.quote(Path(part).name if number == 0 else part) for number, part in enumerate(line)),
            flush=True,
        )
    check(config)
    if dry_run:
        return 0
    if shutil.which(command[0]) is None:
        raise UsageError("fairseq-train is not installed.", where=command[0], next_step="bash run/setup.sh")
    cost = Path(config.save_dir) / COST_FILE
    with locked(Path(config.save_dir)):
        code, peak = processes.run(commands, fork=on_cpu)
        if code == 0:
            before = json.loads(cost.read_text(encoding="utf-8"))["peak_memory_bytes"] if cost.is_file() else 0
            write_json(cost, {"peak_memory_bytes": max(before, peak)})
    return code


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Entry point; exit codes as the console's, and the training command's own."""
    args = build_parser().parse_args(argv)
    with processes.leaving_when_told():
        return exit_code("launch", lambda: launch(args))


if __name__ == "__main__":
    raise SystemExit(main())
