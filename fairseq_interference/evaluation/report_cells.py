"""The parts of a report's tables: cells with mean and sd over seeds, differences, transfer gaps.

Nothing is filled in: a cell without a record stays empty, a sd needs two seeds, a claim needs ``MIN_SEEDS``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from fairseq_interference.evaluation.records import Record

MIN_SEEDS = 3  # with fewer a difference is shown, but nothing is claimed from it
CLEAR = 2.0  # pooled standard deviations
Repeat = tuple[int, Optional[int]]


@dataclass(frozen=True)
class Metric:
    """How a metric is shown: ``scale`` times the recorded value, ``digits`` after the point."""

    label: str
    scale: float = 100.0
    digits: int = 1
    higher_is_better: bool = True
    unit: str = "points"


TASK_METRICS = {"f1": Metric("F1"), "accuracy": Metric("accuracy"), "em": Metric("exact match")}
PRETRAIN_METRICS = {
    "perplexity_per_token": Metric("perplexity per token", 1.0, 2, False, ""),
    "perplexity_per_character": Metric("perplexity per character", 1.0, 3, False, ""),
    "accuracy": TASK_METRICS["accuracy"],  # of sentence retrieval
}
METRICS = {**TASK_METRICS, **PRETRAIN_METRICS}


@dataclass(frozen=True)
class Cell:
    """Values of one table cell, one per repeat: (seed, seed of pre-training or None)."""

    values: tuple[float, ...] = ()
    repeats: tuple[Repeat, ...] = ()

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> Optional[float]:
        return statistics.fmean(self.values) if self.values else None

    @property
    def sd(self) -> Optional[float]:
        """Sample standard deviation (n - 1 below the line), None for fewer than two values."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def pooled_sd(first: Cell, second: Cell) -> Optional[float]:
    """Pooled sample standard deviation, None unless both cells have two values."""
    if first.sd is None or second.sd is None:
        return None
    squares = (first.n - 1) * first.sd**2 + (second.n - 1) * second.sd**2
    return math.sqrt(squares / (first.n + second.n - 2))


@dataclass(frozen=True)
class Difference:
    """``value`` = mean of the model minus mean of the reference, in the metric's own unit."""

    language: str
    column: str
    value: Optional[float]
    sd: Optional[float]
    n: tuple[int, int]
    higher_is_better: bool = True

    @property
    def verdict(self) -> str:
        """``missing``, ``too few``, ``same`` (within 2 pooled sd), ``gain`` or ``loss``."""
        if self.value is None:
            return "missing"
        if min(self.n) < MIN_SEEDS or self.sd is None:
            return "too few"
        if abs(self.value) <= CLEAR * self.sd:
            return "same"
        return "gain" if (self.value > 0) == self.higher_is_better else "loss"


def difference(language: str, column: str, model: Cell, reference: Cell, higher_is_better: bool = True) -> Difference:
    """Mean of ``model`` minus mean of ``reference``, with their pooled sd."""
    value = None if model.mean is None or reference.mean is None else model.mean - reference.mean
    return Difference(language, column, value, pooled_sd(model, reference), (model.n, reference.n), higher_is_better)


@dataclass(frozen=True)
class Table:
    """One language x model table.

    Args:
        kind: ``within-language``, ``zero-shot`` or ``pretrain``.
        source: languages fine-tuned on (zero-shot only).
        metric: key of ``METRICS``.
        rules: how it was scored; other rules, other table.
        cells: (language, column) -> Cell; absent pairs are missing.
        monolingual: columns of models pre-trained on one language.
        pretrained: (language, column) -> the languages pre-trained on, joined by commas.
        records: what the cells were made from.
    """

    kind: str
    benchmark: str
    split: str
    source: tuple[str, ...]
    metric: str
    rules: str
    languages: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    monolingual: frozenset[str]
    pretrained: Mapping[tuple[str, str], str] = field(repr=False, default_factory=dict)
    records: tuple[Record, ...] = field(repr=False, default=())

    def cell(self, language: str, column: str) -> Cell:
        return self.cells.get((language, column), Cell())

    @property
    def shown(self) -> Metric:
        return METRICS[self.metric]

    @property
    def missing(self) -> list[tuple[str, str]]:
        return [(lang, col) for lang in self.languages for col in self.columns if not self.cell(lang, col).n]

    @property
    def examples(self) -> dict[str, list[int]]:
        """Language -> how many examples it was measured on: several numbers if its cells are not comparable."""
        found: dict[str, set[int]] = {lang: set() for lang in self.languages}
        for record in self.records:
            found[record["evaluation"]["language"]].add(record["evaluation"]["n"])
        return {lang: sorted(sizes) for lang, sizes in found.items() if sizes}

    @property
    def reference(self) -> Optional[str]:
        """Column of the monolingual models, if the table has one."""
        return next((column for column in self.columns if column in self.monolingual), None)

    def interference(self) -> dict[str, list[Difference]]:
        """Column -> difference to the monolingual model per language; empty for zero-shot or without mono models."""
        if self.kind == "zero-shot" or self.reference is None:
            return {}
        return {
            column: [
                difference(
                    lang, column, self.cell(lang, column), self.cell(lang, self.reference), self.shown.higher_is_better
                )
                for lang in self.languages
            ]
            for column in self.columns
            if column not in self.monolingual
        }

    def _measured(self, language: str) -> bool:
        return any(self.cell(language, column).n for column in self.columns)

    def transfer_gap(self) -> dict[str, Cell]:
        """Column -> P_src - mean P_other, one value per repeat that has every language measured in the table."""
        others = [lang for lang in self.languages if lang not in self.source and self._measured(lang)]
        if self.kind != "zero-shot" or len(self.source) != 1 or not others:
            return {}
        gaps = {}
        for column in self.columns:
            by_repeat = [dict(zip(c.repeats, c.values)) for c in (self.cell(lang, column) for lang in others)]
            source = self.cell(self.source[0], column)
            pairs = [
                (repeat, value - statistics.fmean(values[repeat] for values in by_repeat))
                for repeat, value in zip(source.repeats, source.values)
                if all(repeat in values for values in by_repeat)
            ]
            gaps[column] = Cell(tuple(gap for _, gap in pairs), tuple(repeat for repeat, _ in pairs))
        return gaps
