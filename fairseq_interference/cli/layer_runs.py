"""Runs of ``diagnose layers``: each is a run of :mod:`fairseq_interference.finetune` in a folder of its own.

``OUT/layers/runs/PROBE-PART-LAYERS/seedN`` holds a run, ``starts/`` the checkpoints with weights drawn anew,
``logs/`` what was said, ``records/`` the records. A run that has its scores in ``rows.jsonl`` is done; its checkpoints
go unless they are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq_interference import finetune, launch, processes
from fairseq_interference.analysis import layers
from fairseq_interference.analysis.layers import Cell
from fairseq_interference.analysis.study import Ledger, Row
from fairseq_interference.convert.checkpoint import FILE
from fairseq_interference.data.prepared import find_split
from fairseq_interference.errors import DONE, FAILED, DataError, StageError, UsageError
from fairseq_interference.evaluation.downstream import KINDS
from fairseq_interference.evaluation.finetuned import RECORD_FILE
from fairseq_interference.languages import parse_codes
from fairseq_interference.stages import file_hash

OPTIONS = ("config", "selection", "rules", "fallback_lang", "precision", "gpus")  # handed on to fine-tuning as they are
OWN = ("freeze", "lr-scale")  # settings by which probes work
SAID_TO = ("bash", "-c", 'exec "$@" >>"$0" 2>&1')  # followed by a log and a command


class Grid:
    """The runs of a study.

    Args:
        args: of ``diagnose layers``.
        names: of the checkpoint's parameters.
    """

    def __init__(self, args: argparse.Namespace, names: Sequence[str]) -> None:
        self.args = args
        self.names = names
        self.out: Path = args.out / "layers"
        self.module = [sys.executable, "-m", "fairseq_interference.finetune"]

    def folder(self, cell: Cell) -> Path:
        return self.out / "runs" / cell.name / f"seed{cell.seed}"

    def log(self, cell: Cell) -> Path:
        return self.out / "logs" / f"{cell.name}.seed{cell.seed}.log"

    def start(self, cell: Cell) -> Path:
        """Checkpoint that a run starts from."""
        if cell.probe != "reinit":
            return Path(self.args.checkpoint)
        return self.out / "starts" / f"{cell.name}.seed{cell.seed}" / FILE

    def settings(self, cell: Cell) -> list[str]:
        """What a probe changes in fine-tuning."""
        if cell.probe == layers.LAST:
            return [f"freeze={','.join(layers.patterns_below(self.names, len(cell.layers)))}"]
        patterns = layers.patterns_of(self.names, cell.layers, cell.part)
        if cell.probe == "freeze":
            return [f"freeze={','.join(patterns)}"]
        if cell.probe == "enlarge":
            return [f"lr-scale={','.join(f'{pattern}=x{cell.factor:g}' for pattern in patterns)}"]
        return []

    def arguments(self, cell: Cell, start: Path) -> list[str]:
        """Of ``fairseq_interference.finetune``."""
        args = self.args
        found = ["--task", args.task, "--checkpoint", str(start), "--data", str(args.data)]
        found += ["--train-lang", args.train_lang, "--eval-langs", args.eval_langs, "--splits", args.split]
        for name in OPTIONS:
            if getattr(args, name) is not None:
                found += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
        found += ["--seeds", str(cell.seed), "--out", str(self.folder(cell).parent)]
        found += ["--results", str(self.out / "records" / cell.name), *(["--force"] if args.force else [])]
        settings = [*args.set, *self.settings(cell)]
        return found + (["--set", *settings] if settings else [])

    def parsed(self, cell: Cell, *more: str) -> argparse.Namespace:
        """The same, read; a start that is not written yet is stood in for by the checkpoint."""
        parser = finetune.build_parser(self.args.task)
        return parser.parse_args([*more, *self.arguments(cell, Path(self.args.checkpoint))[2:]])

    def check(self, cell: Cell) -> None:
        """Check the flags of a run as the run would.

        Raises:
            InterferenceError: what is wrong with them.
        """
        args = self.parsed(cell, "--dry-run")
        config = launch.override(launch.read_config(args.config), " ".join(self.args.set).split())
        given = [name for name in OWN if any(key.replace("_", "-") == name for key in config.train)]
        if given:
            what = "Probes set this themselves."
            raise UsageError(what, where="--set, --config", value=", ".join(given), next_step="leave it out")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            finetune.finetune(args)

    def depends_on(self) -> dict[str, Any]:
        """What every run depends on; seeds, probes and layers may be added to."""
        args = self.parsed(Cell(layers.BASELINE, "", (), 0))
        gold = [find_split(args.data, lang, args.splits) for lang in finetune.all_languages(args)]
        return {
            "task": args.task,
            "train_langs": parse_codes(args.train_lang),
            "eval_langs": parse_codes(args.eval_langs),
            "split": args.splits,
            "rules": getattr(args, "rules", None),
            "set": list(args.set),
            "config, checkpoint, training data": finetune.fingerprint(args, []),
            "gold": [file_hash(path) for path in gold],
        }

    # -- running --------------------------------------------------------------------------------------------------

    def show(self, cells: Sequence[Cell], done: Optional[Ledger]) -> None:
        """Check and print the command of every run that is left."""
        print(f"{len(cells)} runs")
        checked: set[str] = set()
        for number, cell in enumerate(cells, 1):
            if cell.name not in checked:
                self.check(cell)
                checked.add(cell.name)
            about = f"# run {number}: {cell.key}"
            if done is not None and done.get(cell.key) is not None:
                print(f"{about}: done")
                continue
            print(about + (f"; its start is written first: {self.start(cell)}" if cell.probe == "reinit" else ""))
            script = f"run/finetune_{finetune.SCRIPTS[self.args.task]}.sh"
            print(f"+ bash {script} {shlex.join(self.arguments(cell, self.start(cell))[2:])}", flush=True)

    def run(self, cells: Sequence[Cell], ledger: Ledger, jobs: int) -> None:
        """Run what is left; their rows are in the ledger when this returns."""
        left = [cell for cell in cells if ledger.get(cell.key) is None]
        for cell in cells:
            if cell not in left:
                self._clear(cell)
        for begin in range(0, len(left), jobs):
            some = left[begin : begin + jobs]
            for number, cell in enumerate(some, begin + 1 + len(cells) - len(left)):
                print(f"layers: run {number} of {len(cells)}, {cell.key}", file=sys.stderr, flush=True)
                self._prepare(cell)
            self._run(some)
            for cell in some:
                ledger.add(cell.key, self.rows(cell))
                self._clear(cell)

    def forget(self) -> None:
        """Remove what runs with other settings have left."""
        for name in ("runs", "starts", "records", "logs"):
            shutil.rmtree(self.out / name, ignore_errors=True)

    def _prepare(self, cell: Cell) -> None:
        self.log(cell).parent.mkdir(parents=True, exist_ok=True)
        if cell.probe == "reinit":
            from fairseq_interference.convert.reinit import reinitialise

            patterns = layers.patterns_of(self.names, cell.layers, cell.part)
            chosen = layers.fitting(self.names, patterns)
            with said_to(self.log(cell)):
                reinitialise(self.args.checkpoint, chosen, cell.seed, self.start(cell).parent, self.args.force)

    def _run(self, cells: Sequence[Cell]) -> None:
        """Side by side; one thread each if there are several."""
        few = len(cells) > 1
        commands = [
            [*SAID_TO, str(self.log(cell)), *self.module, *self.arguments(cell, self.start(cell))] for cell in cells
        ]

        def work(command: list[str]) -> None:
            logging.disable(logging.NOTSET)
            if few:
                import torch

                torch.set_num_threads(1)
            log, arguments = Path(command[len(SAID_TO)]), command[len(SAID_TO) + 1 + len(self.module) :]
            with said_to(log):
                raise SystemExit(finetune.main(arguments))

        on_cpu = launch.visible_gpus() == 0  # accelerators do not survive a fork
        code, _ = processes.run(commands, fork=on_cpu, work=work)
        if code not in (DONE, FAILED, UsageError.exit_code):
            raise SystemExit(code)
        if code != DONE:
            logs = [self.log(cell) for cell in cells]
            raise StageError("A run has failed.", where=", ".join(map(str, logs)), value=_end_of(logs))

    def rows(self, cell: Cell) -> list[Row]:
        """Scores of a finished run."""
        args = self.parsed(cell)
        metric = KINDS[args.task].main
        scores, seconds = {}, None
        for lang in finetune.all_languages(args):
            path = self.folder(cell) / "scores" / f"{args.data.name}.{lang}.{args.splits}" / RECORD_FILE
            record = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(record, str):
                raise DataError("A language has no score.", where=path, value=record)
            seconds = record["cost"]["seconds"]
            scores[lang] = (int(record["evaluation"]["n"]), 100 * float(record["evaluation"]["metrics"][metric]))
        return layers.score_rows(cell, scores, parse_codes(args.train_lang), seconds)

    def _clear(self, cell: Cell) -> None:
        if self.args.keep_checkpoints:
            return
        for folder in (self.folder(cell), *([self.start(cell).parent] if cell.probe == "reinit" else [])):
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # its lock; the folder of the probe once no seed is left in it
                folder.with_name(f".{folder.name}.lock").unlink()
                folder.parent.rmdir()


@contextlib.contextmanager
def said_to(log: Path) -> Iterator[None]:
    """What this process and its children say goes into a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    with open(log, "ab") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), kept):
            os.dup2(copy, number)
            os.close(copy)


def _end_of(logs: Sequence[Path], lines: int = 6) -> str:
    """Last lines of the log that was written to last."""
    newest = max(logs, key=lambda log: log.stat().st_mtime)
    return "\n" + "\n".join(newest.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
