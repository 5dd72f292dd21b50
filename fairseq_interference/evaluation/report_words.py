"""What a table shows, in sentences. A claim needs ``MIN_SEEDS`` seeds and a difference of ``CLEAR`` pooled sd."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from fairseq_interference.evaluation.report_cells import (
    CLEAR,
    MIN_SEEDS,
    Cell,
    Difference,
    Metric,
    Table,
    difference,
)

BEYOND = f"by more than {CLEAR:g} pooled sd"
WITHIN = f"within {CLEAR:g} pooled sd"


def listing(names: Iterable[str]) -> str:
    """``a, b and c``."""
    names = list(names)
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def number(value: float, metric: Metric, signed: bool = False) -> str:
    """``value`` as the tables show it; a minus sign is a hyphen, zero has none."""
    shown = round(value * metric.scale, metric.digits) + 0.0
    return f"{shown:{'+' if signed else ''}.{metric.digits}f}"


def cell_text(cell: Cell, metric: Metric) -> str:
    """``mean ± sd (n)``; without sd for one value, ``missing`` for none."""
    if cell.mean is None:
        return "missing"
    sd = "" if cell.sd is None else f" ± {number(cell.sd, metric)}"
    return f"{number(cell.mean, metric)}{sd} ({cell.n})"


def examples_text(examples: Mapping[str, Sequence[int]]) -> str:
    """``en 100, hi 90 or 80``."""
    return ", ".join(f"{lang} {' or '.join(map(str, sizes))}" for lang, sizes in examples.items())


def title(table: Table) -> str:
    """Heading of ``table``."""
    what = f"{table.benchmark} {table.split}, {table.shown.label}"
    if table.kind == "pretrain":
        return f"Pre-training: {what}"
    if table.kind == "within-language":
        return f"Within-language: {what}"
    together = " together" if len(table.source) > 1 else ""
    return f"{'Fine-tuned' if together else 'Zero-shot, fine-tuned'} on {listing(table.source)}{together}: {what}"


def _by_verdict(differences: Sequence[Difference]) -> dict[str, list[Difference]]:
    found: dict[str, list[Difference]] = {}
    for item in differences:
        found.setdefault(item.verdict, []).append(item)
    return found


def _amounts(items: Sequence[Difference], metric: Metric) -> str:
    return listing(f"{d.language} ({number(d.value, metric, signed=True)})" for d in items if d.value is not None)


def interference_sentences(table: Table) -> list[str]:
    """Which languages gain or lose against their monolingual model, one sentence or two per model."""
    sentences = []
    for column, differences in table.interference().items():
        found, parts = _by_verdict(differences), []
        for verdict, phrase in (("gain", "gain"), ("loss", "lose (negative interference)")):
            if verdict in found:
                parts.append(f"{_amounts(found[verdict], table.shown)} {phrase} {BEYOND}")
        if "same" in found:
            parts.append(f"{_amounts(found['same'], table.shown)} stay {WITHIN}")
        if parts:
            sentences.append(f"{column} against {table.reference}: {'; '.join(parts)}.")
        if "too few" in found:
            sentences.append(
                f"{column} against {table.reference}: the difference is {_amounts(found['too few'], table.shown)}, "
                f"but fewer than {MIN_SEEDS} seeds on a side are too few to tell gain from chance."
            )
        if "missing" in found:
            names = listing(d.language for d in found["missing"])
            sentences.append(f"{column} against {table.reference}: no comparison for {names}, a cell is missing.")
    return sentences


def _ranking(cells: dict[str, Cell], higher_is_better: bool) -> list[str]:
    measured = [name for name, cell in cells.items() if cell.mean is not None]
    return sorted(measured, key=lambda name: cells[name].mean or 0.0, reverse=higher_is_better)


def _winner(language: str, cells: dict[str, Cell], higher_is_better: bool) -> Optional[tuple[str, str]]:
    """(best column, how sure) for one language, None unless two columns are measured."""
    ranking = _ranking(cells, higher_is_better)
    if len(ranking) < 2:
        return None
    best, second = cells[ranking[0]], cells[ranking[1]]
    verdict = difference(language, ranking[0], best, second, higher_is_better).verdict
    return ranking[0], {"gain": "clear", "too few": "too few"}.get(verdict, "same")


def best_sentences(table: Table) -> list[str]:
    """Which model is best on which languages, and how sure that is."""
    winners: dict[str, dict[str, list[str]]] = {}
    for language in table.languages:
        cells = {column: table.cell(language, column) for column in table.columns}
        found = _winner(language, cells, table.shown.higher_is_better)
        if found:
            winners.setdefault(found[0], {}).setdefault(found[1], []).append(language)
    reasons = {
        "clear": f"ahead of the next {BEYOND}",
        "same": f"{WITHIN} of the next",
        "too few": "too few seeds to tell from the next",
    }
    sentences = []
    for column in table.columns:
        if column in winners:
            parts = [f"{listing(winners[column][key])} ({reasons[key]})" for key in reasons if key in winners[column]]
            sentences.append(f"{column} has the best mean on {', '.join(parts)}.")
    return sentences


def gap_sentences(table: Table) -> list[str]:
    """Transfer gap per model, and which is smallest."""
    gaps = table.transfer_gap()
    if not gaps:
        return []
    known = {column: gap for column, gap in gaps.items() if gap.n}
    sentences = []
    if known:
        unit = f" {table.shown.unit}" if table.shown.unit else ""
        parts = [f"{column} {cell_text(gap, table.shown)}" for column, gap in known.items()]
        sentences.append(
            f"Transfer gap (score on {table.source[0]} minus the mean over the other languages), "
            f"in{unit or ' the units of the metric'}: {', '.join(parts)}."
        )
    found = _winner(table.source[0], known, higher_is_better=not table.shown.higher_is_better)
    if found:
        tail = {
            "clear": f"smaller than the next {BEYOND}",
            "same": f"but {WITHIN} of the next",
            "too few": "but from too few seeds to tell",
        }[found[1]]
        sentences.append(f"The smallest gap is that of {found[0]}, {tail}.")
    if lacking := [column for column in gaps if column not in known]:
        sentences.append(f"No transfer gap for {listing(lacking)}: a language or a seed is missing.")
    return sentences


def words(table: Table) -> list[str]:
    """All sentences about ``table``."""
    uneven = {lang: sizes for lang, sizes in table.examples.items() if len(sizes) > 1}
    sentences = [*interference_sentences(table), *best_sentences(table), *gap_sentences(table)]
    if table.missing:
        missing = listing(f"{language} with {column}" for language, column in table.missing)
        sentences.append(f"Missing: {missing}.")
    if uneven:
        what = "CAUTION: not every run was measured on the same examples, so what follows is no fair comparison"
        sentences.insert(0, f"{what}: {examples_text(uneven)}.")
    return sentences or ["There is one model only: nothing to compare."]
