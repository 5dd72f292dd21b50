"""Measures gradient conflict in a checkpoint: effective batches of every language, by accumulation.

For each draw every language gets two batches, a and b, of other blocks and masks each. Between languages i and j the
cosine is the mean of cos(a_i, b_j) and cos(b_i, a_j); within a language it is cos(a_i, b_i), the paper's En-En control:
what two batches of this size agree on when there is no other language.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_interference.analysis.gradients import ALL, Group, Measured, cosines, groups_of, measured, summary
from fairseq_interference.analysis.probe import PathLike, check_model, in_order, read_blocks, sizes
from fairseq_interference.analysis.study import ROWS_FILE, Ledger, Row, Study
from fairseq_interference.appended_state import language_of
from fairseq_interference.criterions.xlm_masked_lm import XlmMaskedLmCriterion
from fairseq_interference.data.batching import cut
from fairseq_interference.data.blocks import Blocks
from fairseq_interference.data.masking import keys
from fairseq_interference.data.multilingual import Item, MultilingualDataset
from fairseq_interference.errors import UsageError
from fairseq_interference.optim.meta_replay import moved
from fairseq_interference.stages import file_hash

NAME = "gradients"
HALVES = ("a", "b")
_DRAW = 0x6D1E


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Attributes:
        sentences: blocks of an effective batch.
        seed: of blocks, masks and dropout.
        max_tokens: of a micro-batch, padding included.
        dropout: as in training, or none.
        keep: where gradients wait for one another: ``cpu``, ``device``, or nowhere, ``recompute``.
    """

    sentences: int = 4096
    seed: int = 1
    max_tokens: int = 8192
    dropout: bool = True
    keep: str = "cpu"


class Gradients:
    """Gradients of one checkpoint.

    Args:
        loaded: its parameters and mode are changed.
        blocks: language -> its blocks.
        counts: language -> blocks of a batch.
    """

    def __init__(self, loaded: Any, blocks: Mapping[str, Blocks], counts: Mapping[str, int], plan: Plan) -> None:
        self.model, self.plan, self.counts = loaded.model.float(), plan, counts
        self.model.train(plan.dropout)
        self.criterion = XlmMaskedLmCriterion(loaded.task)
        self.device = next(self.model.parameters()).device
        self.ids = {code: loaded.languages.id(code) for code in blocks}
        self.dataset = MultilingualDataset(
            loaded.languages, blocks, loaded.task.masking(), loaded.dictionary.bos(), seed=plan.seed, temperature=1.0
        )
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        for _, parameter in named:
            parameter.requires_grad_(language_of(parameter) is None)
        self.shared = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self.groups = groups_of(name for name, _ in self.shared)

    def items(self, draw: int, code: str, half: str) -> list[Item]:
        """Blocks of a batch; a and b of a draw have none in common."""
        part, count = self.dataset.blocks[self.ids[code]], self.counts[code]
        assert part is not None
        rng = np.random.default_rng([self.plan.seed, _DRAW, zlib.crc32(code.encode()), draw])
        chosen = rng.choice(len(part), 2 * count, replace=False)
        first = HALVES.index(half) * count
        return [Item(n, self.ids[code], (int(n), draw), part[int(n)]) for n in chosen[first : first + count]]

    def micro_batches(self, draw: int, code: str, half: str) -> Iterator[dict[str, Any]]:
        """A batch in parts, masked as in training, sorted by length."""
        items = sorted(self.items(draw, code, half), key=lambda item: len(item.tokens))
        lengths = np.array([len(item.tokens) + 1 for item in items])
        for rows in cut(np.arange(len(items)), lengths, self.plan.max_tokens, None):
            yield moved(self.dataset.collater([items[int(row)] for row in rows]), self.device)

    def gradient(self, draw: int, code: str, half: str) -> list[Optional[Tensor]]:
        """Gradient of the summed loss of a batch, aligned with ``shared``; None where the loss reaches no parameter."""
        key = int(keys(self.plan.seed, draw, zlib.crc32(code.encode()), HALVES.index(half))[0])
        torch.manual_seed(key >> 1)  # dropout, the same when it is computed again
        self.model.zero_grad(set_to_none=True)
        for sample in self.micro_batches(draw, code, half):
            torch.autograd.backward(self.criterion.losses(self.model, sample)[0].sum())
        found = [parameter.grad for _, parameter in self.shared]
        self.model.zero_grad(set_to_none=True)
        if self.plan.keep == "cpu" and self.device.type != "cpu":
            found = [None if gradient is None else gradient.cpu() for gradient in found]
        return found

    def crossed(self, draw: int, tell: Callable[[str], None]) -> dict[tuple[str, str], dict[Group, Optional[float]]]:
        """(i, j) -> cosines between a_i and b_j.

        At most L + 1 gradients are held (2 with ``recompute``); 2 L are computed (L + L^2 with ``recompute``).
        """
        found = {}
        if self.plan.keep == "recompute":
            for one in self.ids:
                a = self._measured(draw, one, "a", tell)
                for other in self.ids:
                    found[one, other] = cosines(a, self._measured(draw, other, "b", tell), self.groups)
            return found
        kept = {code: self._measured(draw, code, "a", tell) for code in self.ids}
        for other in self.ids:
            b = self._measured(draw, other, "b", tell)
            for one, a in kept.items():
                found[one, other] = cosines(a, b, self.groups)
        return found

    def _measured(self, draw: int, code: str, half: str, tell: Callable[[str], None]) -> Measured:
        tell(f"{code} ({half})")
        return measured(self.gradient(draw, code, half))

    def rows(self, draw: int, tell: Callable[[str], None]) -> list[Row]:
        """Rows of a draw: one, other, layer, component, cosine; within a language first, then between two."""
        crossed, codes = self.crossed(draw, tell), list(self.ids)
        pairs = [(code, code) for code in codes]
        pairs += [(one, other) for number, one in enumerate(codes) for other in codes[number + 1 :]]
        return [
            {
                "one": one,
                "other": other,
                "layer": group.layer,
                "component": group.component,
                "cosine": _mean(crossed[one, other][group], crossed[other, one][group]),
            }
            for one, other in pairs
            for group in self.groups
        ]


def _mean(*values: Optional[float]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def compute(
    checkpoints: Sequence[PathLike],
    data: str,
    out: PathLike,
    *,
    langs: str = "",
    split: str = "train",
    draws: int = 5,
    plan: Optional[Plan] = None,
    cpu: bool = False,
    force: bool = False,
) -> Study:
    """Measure every checkpoint in every draw; what ``out`` holds already is not measured again.

    Args:
        checkpoints: of one run or several, in any order.
        data: prepared folder that has the text.
        out: folder of the study.
        langs, split: see :func:`read_blocks`.
        cpu: not on a GPU.
        force: begin anew where the settings differ.
    """
    plan, (series, told) = plan or Plan(), in_order(checkpoints)
    for note in told:
        say(note)
    opened: Optional[tuple[Ledger, dict[str, Any]]] = None
    tables: dict[str, list[Row]] = {"summary": [], "layers": [], "pairs": [], "batches": []}
    hashes = []
    for path, label, update in series:
        loaded, blocks, notes = _open(path, data, split, langs)
        counts, few = sizes(blocks, plan.sentences)
        for note in [*notes, *few]:
            if note not in told:
                told.append(note)
                say(note)
        settings = {"data": data, "split": split, "languages": list(blocks), **_of_plan(plan), **_of_text(blocks)}
        opened = opened or (Ledger(Path(out) / NAME / ROWS_FILE, settings, force), settings)
        if list(blocks) != opened[1]["languages"]:
            what = "These checkpoints do not have the same languages."
            raise UsageError(what, where=path, value=",".join(blocks), next_step="give --langs that all of them know")
        if torch.cuda.is_available() and not cpu:
            loaded.model.cuda()
        hashes.append(file_hash(path)[:16])
        study = Gradients(loaded, blocks, counts, plan)
        for draw in range(draws):
            key = f"{hashes[-1]} {draw}"
            rows = opened[0].get(key)
            if rows is None:
                rows = opened[0].add(key, study.rows(draw, partial(_tell, f"{label}: draw {draw + 1} of {draws}")))
            tables["pairs"] += [{"checkpoint": label, "update": update, "draw": draw, **row} for row in rows]
        for code, part in blocks.items():
            tables["batches"].append({"checkpoint": label, "lang": code, "blocks": len(part), "batch": counts[code]})
    tables["layers"] = summary(tables["pairs"])
    tables["summary"] = [row for row in tables["layers"] if row["layer"] is None and row["component"] == ALL]
    shown = {"checkpoints": [label for _, label, _ in series], "draws": draws, **(opened[1] if opened else {})}
    return Study(NAME, {**shown, "hashes": hashes}, tables)


def _open(path: Path, data: str, split: str, langs: str) -> tuple[Any, dict[str, Blocks], list[str]]:
    """A checkpoint that can be measured, its text, and notes on it."""
    from fairseq_interference import load

    loaded = load(str(path))
    check_model(loaded)
    return loaded, *read_blocks(loaded, data, split, langs)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"{NAME}: {text}", file=sys.stderr, flush=True)


def _tell(where: str, what: str) -> None:
    say(f"{where}, {what}")


def _of_plan(plan: Plan) -> dict[str, Any]:
    """What the numbers depend on; where gradients wait is not among it."""
    return {name: value for name, value in asdict(plan).items() if name != "keep"}


def _of_text(blocks: Mapping[str, Blocks]) -> dict[str, Any]:
    return {"tokens": [len(part.file.tokens) for part in blocks.values()]}
