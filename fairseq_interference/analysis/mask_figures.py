"""Figures of the masks study, from its file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from fairseq_interference.analysis import plots
from fairseq_interference.analysis.study import Row, Study

TITLE = "Whose weights are whose: L0 masks per language"


def figures(study: Study) -> list[plots.Figure]:
    """Cosines, their profile over layers, single groups, and losses under own and other masks."""
    found = [_heat(study), _profile(study), _groups(study), _losses(study)]
    return [figure for figure in found if figure is not None]


def _codes(study: Study) -> list[str]:
    return list(study.settings["languages"])


def _n(study: Study) -> str:
    return f"{study.settings['runs']} seeds"


def _heat(study: Study) -> plots.Figure:
    codes, panels = _codes(study), []
    for kind in ("centred", "raw"):
        rows = [
            r for r in study.tables["summary"] if r["kind"] == kind and r["layer"] is None and r["component"] == "all"
        ]
        values = {(r["one"], r["other"]): r["mean"] for r in rows}
        matrix = [[values.get((i, j), values.get((j, i))) for j in codes] for i in codes]
        panels.append(plots.Heat(kind, codes, codes, matrix, "cosine"))
    return plots.Figure(
        "masks-cosine",
        f"Cosine of mask parameters between languages, {_n(study)}",
        "The diagonal compares two seeds of one language: what lies below it is due to the language. Raw cosines are "
        "high for any pair when lambda pushes all gates one way; centred ones are not.",
        panels,
    )


def _profile(study: Study) -> plots.Figure:
    rows = [row for row in study.tables["summary"] if row["kind"] == "centred" and row["layer"] is not None]
    panels = []
    for component in dict.fromkeys(row["component"] for row in rows if row["component"] != "all"):
        some = [row for row in rows if row["component"] == component]
        curves = {}
        for label, within in (("within a language", True), ("between languages", False)):
            mine = [row for row in some if (row["one"] == row["other"]) == within]
            if mine:
                curves[label] = _curve(mine)
        panels.append(plots.Lines(component, curves, "layer", "centred cosine", integers=True))
    return plots.Figure(
        "masks-layers",
        f"Cosine of mask parameters by layer, mean over languages, {_n(study)}",
        "Layer 1 is the lowest. Where the lower curve comes near the upper one, the languages use the same weights; a "
        "wide gap marks language-specific layers (paper: Fig. 4a).",
        panels,
    )


def _curve(rows: Sequence[Row]) -> plots.Curve:
    layers = sorted({row["layer"] for row in rows})
    values: list[Optional[float]] = []
    for layer in layers:
        known = [row["mean"] for row in rows if row["layer"] == layer and row["mean"] is not None]
        values.append(sum(known) / len(known) if known else None)
    return plots.Curve([layer + 1 for layer in layers], values)


def _groups(study: Study) -> Optional[plots.Figure]:
    panels = []
    for one, other in dict.fromkeys((row["one"], row["other"]) for row in study.tables["groups"]):
        rows = [row for row in study.tables["groups"] if (row["one"], row["other"]) == (one, other)]
        names = [f"{_name(row)} {'S' if row['sort'] == 'specific' else 'U'}" for row in rows]
        values = [[row["value_one"], row["value_other"]] for row in rows]
        panels.append(plots.Heat(f"{one}, {other}", names, [one, other], values, "log alpha"))
    if not panels:
        return None
    return plots.Figure(
        "masks-groups",
        f"Most language-specific (S) and most universal (U) groups, mean of {_n(study)}",
        "A row is a group of weights (layer, then head, unit, row or matrix): high values are kept, low ones dropped; "
        "opposite signs mean that one language needs what the other does not (paper: Fig. 4b).",
        panels[:6],
    )


def _name(row: Row) -> str:
    return f"{row['layer'] + 1} {row['kind']} {row['gate']}"


def _losses(study: Study) -> Optional[plots.Figure]:
    codes, panels = _codes(study), []
    rows = study.tables["losses"]
    for sparsity in dict.fromkeys(row["sparsity"] for row in rows):
        cell: dict[tuple[str, str], list[Any]] = {}
        for row in rows:
            if row["sparsity"] == sparsity:
                cell.setdefault((row["mask"], row["lang"]), []).append(row["loss"])
        own = {code: _mean(cell[code, code]) for code in codes}
        matrix = [[_mean(cell[mask, lang]) - own[lang] for lang in codes] for mask in codes]
        label = "loss minus own mask's (nats)"
        panels.append(
            plots.Heat(f"{100 * sparsity:.0f} % dropped", codes, codes, matrix, label, xlabel="text", ylabel="mask of")
        )
    if not panels:
        return None
    return plots.Figure(
        "masks-losses",
        f"Loss under another language's mask, {_n(study)}",
        "A column is a language's text: positive cells say that another language's mask is worse for it than its own "
        "at the same sparsity, so that the masks mean something.",
        panels,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
