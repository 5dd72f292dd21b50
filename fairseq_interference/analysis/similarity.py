"""Do distant languages interfere more? One language paired with others, near and far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from fairseq_interference.analysis import designs, plots
from fairseq_interference.analysis.study import Row, Study

TITLE = "Similarity"
COLUMNS = {
    "interference": "loss of {first} in the pair − alone (nats)",
    "conflict": "cosine of the two gradients",
    "zero_shot": "F1 of the other, trained on {first}",
}


def setting_rows(
    first: str, similarity: Mapping[str, float], study_rows: Mapping[str, Sequence[Row]], conflicts: Mapping[str, Row]
) -> list[Row]:
    """One row for each language that ``first`` was paired with.

    Args:
        similarity: of ``first`` with the others: share of words of the same root.
        study_rows: ``scores`` and ``differences`` of :mod:`designs`; the pair's arm is ``pair-LANG``.
        conflicts: arm -> ``mean``, ``low``, ``high`` of the cosine between its languages' gradients.
    """
    rows = []
    for arm in dict.fromkeys(row["arm"] for row in study_rows["differences"]):
        other = arm[len("pair-") :] if arm.startswith("pair-") else ""
        lost = _one(study_rows["differences"], arm=arm, language=first, measure=designs.LOSS)
        if not other or lost is None:
            continue
        shot = [r for r in study_rows["scores"] if (r["arm"], r["trained_on"], r["language"]) == (arm, first, other)]
        conflict = conflicts.get(arm, {})
        rows.append(
            {
                **{"language": other, "similarity": similarity.get(other)},
                **{f"interference{end}": lost[key] for end, key in (("", "mean"), ("_low", "low"), ("_high", "high"))},
                **{f"conflict{end}": conflict.get(k) for end, k in (("", "mean"), ("_low", "low"), ("_high", "high"))},
                "zero_shot": shot[0]["mean"] if shot else None,
                "zero_shot_sd": shot[0]["sd"] if shot else None,
            }
        )
    return rows


def _one(rows: Sequence[Row], **wanted: str) -> Optional[Row]:
    return next((row for row in rows if all(row[key] == value for key, value in wanted.items())), None)


def correlations(settings: Sequence[Row]) -> list[Row]:
    """Rank correlations of what was measured with similarity and with each other."""
    pairs = [("similarity", name) for name in COLUMNS] + [("conflict", "interference")]
    return designs.correlation_rows(settings, pairs)


def figures(study: Study) -> list[plots.Figure]:
    """Everything against similarity; curves and differences as in the study of corpus sizes."""
    found = (_against_similarity(study), designs.difference_figure(study), designs.curve_figure(study))
    return [figure for figure in found if figure is not None]


def _against_similarity(study: Study) -> Optional[plots.Figure]:
    rows = [row for row in study.tables["settings"] if row["similarity"] is not None]
    first = study.settings["first"]
    panels = []
    for column, label in COLUMNS.items():
        points = {row["language"]: (row["similarity"], row[column], _half(row, column)) for row in rows}
        known = {name: point for name, point in points.items() if point[1] is not None}
        if known:
            text = label.format(first=first)
            panels.append(plots.Points(_rho(study, column), known, f"similarity with {first}", text, zero=True))
    if not panels:
        return None
    return plots.Figure(
        "similarity",
        f"{first} paired with {len(rows)} languages, {study.settings['seeds']} seeds",
        "Each point is a language that the first one was paired with; rho is Spearman's rank correlation with "
        "similarity. Interference above 0: the pair is worse for the first language than training alone.",
        panels,
    )


def _half(row: Row, column: str) -> Optional[float]:
    if column == "zero_shot":
        return row["zero_shot_sd"]  # type: ignore[no-any-return]
    low, high = row[f"{column}_low"], row[f"{column}_high"]
    return None if low is None or high is None else (high - low) / 2


def _rho(study: Study, column: str) -> str:
    found = _one(study.tables["correlations"], of="similarity", **{"with": column})
    if found is None or found["rho"] is None:
        return "no rank correlation"
    chance = "p < 0.001" if found["p"] < 0.001 else f"p = {found['p']:.3f}"
    return f"rho = {found['rho']:+.2f} ({chance}, n = {found['n']})"
