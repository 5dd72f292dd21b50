"""Gradient conflict along a run (``--conflict-every N``): cosines between the languages' gradients of a training batch.

Wang, Lipton, Tsvetkov 2020, section 2.2 and Fig. 3, in a cheap mode: the batch is the update's own, not one of 4,096
sentences, so single values are noisy and shrunk towards 0. Shared parameters only; at the weights before the update.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional, Union

import torch
from fairseq.logging import metrics

from fairseq_interference.appended_state import language_of
from fairseq_interference.errors import DataError, UsageError
from fairseq_interference.optim import bilevel, cosines
from fairseq_interference.optim.meta_replay import MicroBatch, Replay, rank_and_world
from fairseq_interference.optim.meta_step import check_wrapper, wrappers
from fairseq_interference.optim.presence import PresenceMixin
from fairseq_interference.stages import write_text

FILE = "conflict.jsonl"  # beside the checkpoints
SINGLE = "every update is of one language: nothing to compare"
PathLike = Union[str, Path]


class Conflict:
    """Measures and logs; owns the file.

    Args:
        every: measure in updates 0, N, 2N, ….
        languages: codes; ids are positions.
        folder: where the checkpoints are.
    """

    uncertain = False  # what Replay asks its owner

    def __init__(self, every: int, languages: Sequence[str], folder: PathLike) -> None:
        self.every, self.codes = every, list(languages)
        self.path = Path(folder) / FILE
        self.batches: list[MicroBatch] = []
        self.criterion: Any = None

    def is_due(self, update: int) -> bool:
        return update % self.every == 0

    def start(self, optimizer: Any, model: Any, criterion: Any, update: int) -> None:
        """Before the first update of this process: drop what a run that was stopped had measured beyond it."""
        check_wrapper(optimizer, model, "--conflict-every")
        self.criterion = criterion
        if rank_and_world()[0] == 0 and self.path.is_file():
            kept = [row for row in read_rows(self.path) if row["update"] < update]
            write_text(self.path, "".join(_line(row) for row in kept))

    def measure(self, optimizer: Any, model: Any, update: int) -> None:
        """Log the cosines of this update's languages. All workers; generators and gradients stay as they are."""
        before, batches, self.batches = bilevel.rng_state(), self.batches, []
        *_, inner = wrappers(model)
        work = Replay(self, optimizer, inner, self.criterion, batches, update, [])
        theta = [p for p in inner.parameters() if p.requires_grad and language_of(p) is None]
        found = cosines.pairs(work.language_gradients(theta))
        bilevel.set_rng_state(before)
        self._log({(self.codes[one], self.codes[other]): value for (one, other), value in found.items()}, work, update)

    def _log(self, found: dict[tuple[str, str], Optional[float]], work: Replay, update: int) -> None:
        counts = dict(zip(self.codes, map(int, work.predictions().tolist())))
        known = {pair: value for pair, value in found.items() if value is not None}
        if not known:
            return
        for (one, other), value in known.items():
            metrics.log_scalar(f"conflict_{one}_{other}", value, priority=1870, round=4)
        mean = sum(known.values()) / len(known)
        metrics.log_scalar("conflict", mean, priority=1865, round=4)
        if rank_and_world()[0] == 0:
            row = {"update": update, "conflict": mean, "predictions": counts}
            row["pairs"] = [[one, other, value] for (one, other), value in found.items()]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8", newline="\n") as stream:
                stream.write(_line(row))


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def read_rows(path: PathLike) -> list[dict[str, Any]]:
    """Rows of a run: ``update`` (updates that the weights had seen), ``conflict`` (mean over pairs), ``predictions``
    (language -> their number), ``pairs`` (language, language, cosine or None). A cut last line is left out.

    Raises:
        DataError: no such file, or not one of these.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(
            "This run has measured no conflict.", where=path, next_step="train with --conflict-every 10, or so"
        )
    text = path.read_text(encoding="utf-8")
    try:
        rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        if not all(isinstance(row["update"], int) and isinstance(row["pairs"], list) for row in rows):
            raise ValueError("not rows of a run")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError("This file is broken.", where=path, value=str(error)) from None
    return rows


class ConflictMixin(PresenceMixin):
    """For tasks with ``languages`` and ``--conflict-every``. Place before other mixins: it keeps whole batches."""

    cfg: Any
    _conflict: Optional[Conflict] = None

    def check_conflict(self) -> None:
        """Raise :class:`UsageError` where ``--conflict-every`` would have no effect."""
        if self.cfg.conflict_every and len(self.languages) < 2:
            codes = ",".join(self.languages)
            what = "One language has nothing to be in conflict with."
            raise UsageError(what, where="--conflict-every", value=codes, next_step="leave the flag out")

    def train_step(
        self, sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int, ignore_grad: bool = False
    ) -> Any:
        """The host's step; in an update that is measured the sample and the generators' state are kept."""
        if not self.cfg.conflict_every:
            return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        if self._conflict is None:
            self._conflict = Conflict(int(self.cfg.conflict_every), self.languages, self.cfg.save_dir)
            self._conflict.start(optimizer, model, criterion, update_num)
        self.presence.watch(model, optimizer)
        if self.presence.is_new_update():  # what was kept before was given up (out of memory, overflow)
            self._conflict.batches = []
        rng = bilevel.rng_state()
        result = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        if self._conflict.is_due(update_num) and not ignore_grad:
            self._conflict.batches.append(MicroBatch(sample, rng, torch.as_tensor(result[1]).detach()))
        return result

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """Measure at the weights before the step, then step."""
        if self._conflict is not None and self._conflict.is_due(update_num):
            self._conflict.measure(optimizer, model, update_num)
        super().optimizer_step(optimizer, model, update_num)
