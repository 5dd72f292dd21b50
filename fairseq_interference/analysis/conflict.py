"""Gradient conflict along runs, as ``--conflict-every`` has measured it: means over windows of updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_interference.analysis.gradient_figures import COSINE, FEW, pair_of, span
from fairseq_interference.analysis.gradients import statistics
from fairseq_interference.analysis.plots import Curve, Figure, Lines
from fairseq_interference.analysis.study import Row, Study, number

TITLE = "Gradient conflict along a run"
NAME = "conflict"
WINDOWS = 20  # points of a curve, at most
ENOUGH = 10  # measurements of a window, if there are that many for four windows
MEAN = "mean of pairs"


def study(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Study:
    """Tables of runs.

    Args:
        runs: folder -> rows of its ``conflict.jsonl``.
    """
    cosines: list[Row] = []
    windows: list[Row] = []
    names = [Path(folder).name for folder in runs]
    for folder, lines in runs.items():
        run = folder if names.count(Path(folder).name) > 1 else Path(folder).name
        rows = [
            {"run": run, "update": line["update"], "one": one, "other": other, "cosine": number(value)}
            for line in lines
            for one, other, value in line["pairs"]
        ]
        means = [
            {"run": run, "update": line["update"], "one": None, "other": None, "cosine": line["conflict"]}
            for line in lines
        ]
        cosines += rows
        for pair in dict.fromkeys((row["one"], row["other"]) for row in [*rows, *means]):
            windows += _windows([row for row in [*rows, *means] if (row["one"], row["other"]) == pair])
    return Study(NAME, {"runs": list(runs), "windows": WINDOWS}, {"windows": windows, "cosines": cosines})


def _windows(rows: Sequence[Row]) -> list[Row]:
    """Rows of a pair (of the mean over pairs: one and other None), in equal parts."""
    size = max(-(-len(rows) // WINDOWS), min(ENOUGH, -(-len(rows) // 4)))
    found = []
    for begin in range(0, len(rows), size):
        part = rows[begin : begin + size]
        first, last = part[0]["update"], part[-1]["update"]
        place = {"run": part[0]["run"], "one": part[0]["one"], "other": part[0]["other"], "first": first, "last": last}
        found.append({**place, **statistics([row["cosine"] for row in part])})
    return found


def figures(study: Study) -> list[Figure]:
    """One panel a run."""
    runs: dict[str, list[Row]] = {}
    for row in study.tables["windows"]:
        runs.setdefault(row["run"], []).append(row)
    panels, sizes = [], []
    for run, rows in runs.items():
        pairs = [row for row in rows if row["one"] is not None]
        languages = {code for row in pairs for code in (row["one"], row["other"])}
        if len(languages) > FEW:
            pairs = [row for row in rows if row["one"] is None]
        curves: dict[str, list[Row]] = {}
        for row in pairs:
            curves.setdefault(MEAN if row["one"] is None else pair_of(row), []).append(row)
        sizes += [row["n"] for row in pairs]
        drawn = {name: _curve(some) for name, some in curves.items()}
        panels.append(Lines(run, drawn, "update", COSINE, zero=True, integers=True))
    return [
        Figure(
            "conflict-updates",
            f"Cosine between gradients of training batches\nmeans of {span(sizes)} batches; band: 95 % interval",
            "Below 0 the languages of a batch pull the shared weights apart. A training batch is small: noise shrinks "
            "its cosines towards 0, so read sign and trend here, and sizes in the study of checkpoints.",
            panels,
        )
    ]


def _curve(rows: Sequence[Row]) -> Curve:
    x = [(row["first"] + row["last"]) / 2 for row in rows]
    return Curve(x, *([row[key] for row in rows] for key in ("mean", "low", "high")))
