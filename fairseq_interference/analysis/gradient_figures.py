"""Figures of the study ``gradients``, from its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

from fairseq_interference.analysis.gradients import ALL, COMPONENTS, interval
from fairseq_interference.analysis.plots import Curve, Figure, Heat, Lines
from fairseq_interference.analysis.study import Row, Study

TITLE = "Gradient conflict"
FEW = 3  # languages whose pairs have a curve each; of more the mean is drawn
COSINE = "cosine"


def figures(study: Study) -> list[Figure]:
    """Matrix, components, layers, and curves over updates where a run has several checkpoints; for each run."""
    runs: dict[str, list[Row]] = {}
    for row in study.tables["pairs"]:
        runs.setdefault(row["checkpoint"].rpartition("/")[0], []).append(row)
    found = []
    for number, (run, rows) in enumerate(runs.items(), 1):
        suffix = f"-{number}" if len(runs) > 1 else ""
        codes, size = study.settings["languages"], _size(study, run)
        found.append(_matrix(rows, codes, size, suffix))
        last = [row for row in rows if row["checkpoint"] == rows[-1]["checkpoint"]]
        found.append(_components(last, size, suffix))
        found.append(_layers(last, codes, size, suffix))
        if len({row["update"] for row in rows}) > 1:
            found.append(_updates(rows, codes, size, suffix))
    return found


def _size(study: Study, run: str) -> str:
    batches = [row["batch"] for row in study.tables["batches"] if row["checkpoint"].rpartition("/")[0] == run]
    dropout = "" if study.settings["dropout"] else ", no dropout"
    return f"{run}: n = {study.settings['draws']} draws, {span(batches)} sentences a batch{dropout}"


def span(counts: Sequence[int]) -> str:
    """The smallest and the largest, or the one number that there is."""
    return " to ".join(str(count) for count in dict.fromkeys([min(counts, default=0), max(counts, default=0)]))


def _overall(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["layer"] is None and row["component"] == ALL]


def _at(row: Row) -> str:
    return "checkpoint" if row["update"] is None else f"update {row['update']}"


def pair_of(row: Row) -> str:
    """Name of a pair."""
    return f"{row['one']}-{row['other']}"


def _matrix(rows: Sequence[Row], codes: Sequence[str], size: str, suffix: str) -> Figure:
    names = list(dict.fromkeys(row["checkpoint"] for row in rows))
    panels = []
    for name in dict.fromkeys([names[0], names[-1]]):
        own = [row for row in _overall(rows) if row["checkpoint"] == name]
        means: dict[tuple[str, str], Optional[float]] = dict.fromkeys((row["one"], row["other"]) for row in own)
        for pair in means:
            means[pair] = interval(row["cosine"] for row in own if (row["one"], row["other"]) == pair).mean
        values = [[means.get((one, other), means.get((other, one))) for other in codes] for one in codes]
        panels.append(Heat(_at(own[0]), codes, codes, values, COSINE))
    return Figure(
        f"gradients-matrix{suffix}",
        f"Cosine between the languages' gradients, shared parameters\n{size}",
        "The diagonal compares two batches of one language: what a language agrees on with itself at this batch size. "
        "A pair far below its diagonal has less in common; below 0 it is in conflict: a step for one harms the other.",
        panels,
    )


def _components(rows: Sequence[Row], size: str, suffix: str) -> Figure:
    own = [row for row in rows if row["layer"] is None]
    pairs = list(dict.fromkeys(map(pair_of, own)))
    parts = [part for part in (ALL, *COMPONENTS) if any(row["component"] == part for row in own)]

    def mean(pair: str, part: str) -> Optional[float]:
        return interval(row["cosine"] for row in own if pair_of(row) == pair and row["component"] == part).mean

    panel = Heat(_at(own[0]), pairs, parts, [[mean(pair, part) for part in parts] for pair in pairs], COSINE)
    return Figure(
        f"gradients-components{suffix}",
        f"Cosine between gradients, by part of the network\n{size}",
        "Over all layers. A row is a pair (xx-xx: two batches of one language), a column a part of the network; "
        "compare a pair with the two languages' own rows in the same column. A cross: no gradient.",
        [panel],
    )


def _layers(rows: Sequence[Row], codes: Sequence[str], size: str, suffix: str) -> Figure:
    panels = []
    for part in (ALL, *COMPONENTS):
        own = [row for row in rows if row["layer"] is not None and row["component"] == part]
        if own:
            title = "whole layer" if part == ALL else part
            curves = curves_of(own, codes, "layer")
            panels.append(Lines(title, curves, "layer (0 is the lowest)", COSINE, zero=True, integers=True))
    return Figure(
        f"gradients-layers{suffix}",
        f"Cosine between gradients by layer, {_at(rows[0])}\n{size}\nband: 95 % interval",
        "Where the curve of a pair runs below those of its languages with themselves, that layer is fought over; below "
        "0 the languages pull it apart.",
        panels,
    )


def _updates(rows: Sequence[Row], codes: Sequence[str], size: str, suffix: str) -> Figure:
    curves = curves_of(_overall(rows), codes, "update")
    panel = Lines("", curves, "update", COSINE, zero=True, integers=True)
    return Figure(
        f"gradients-updates{suffix}",
        f"Cosine between gradients over training\n{size}\nband: 95 % interval",
        "As Fig. 3 of Wang et al. 2020: pairs of languages against the languages with themselves; the gap is what "
        "sharing costs, and below 0 the languages are in conflict.",
        [panel],
    )


def curves_of(rows: Sequence[Row], codes: Sequence[str], x: str) -> dict[str, Curve]:
    """A curve for each pair; of more than :data:`FEW` languages one for the mean within and one between languages.

    Args:
        rows: of ``pairs``, one group of parameters. x: the column to go along.
    """
    name = pair_of if len(codes) <= FEW else _kind(len(codes))
    values: dict[str, dict[Any, dict[Any, list[Optional[float]]]]] = {}
    for row in rows:
        if row[x] is not None:
            draws = values.setdefault(name(row), {}).setdefault(row[x], {})
            draws.setdefault(row["draw"], []).append(row["cosine"])
    found = {}
    for label, places in values.items():
        points = [interval(interval(some).mean for some in draws.values()) for draws in places.values()]
        found[label] = Curve(list(places), [p.mean for p in points], [p.low for p in points], [p.high for p in points])
    return found


def _kind(count: int) -> Callable[[Row], str]:
    between = f"between languages (mean of {count * (count - 1) // 2} pairs)"
    within = f"within a language (mean of {count})"
    return lambda row: within if row["one"] == row["other"] else between
