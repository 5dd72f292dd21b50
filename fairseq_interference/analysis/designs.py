"""Corpus size and similarity: what interference does when one of them is changed (Wang et al. 2020, section 3.1).

Models are arms of a study (folders of records, :mod:`fairseq_interference.evaluation.paired`). A language's
interference is an arm's score minus the score of the arm without the other language, paired by seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Optional

from scipy import stats

from fairseq_interference.analysis import plots
from fairseq_interference.analysis.study import Row, Study
from fairseq_interference.errors import UsageError
from fairseq_interference.evaluation.paired import Arms, Measure, paired_difference

LOSS = "loss"  # nats per token; the other measures are in points
FEWEST = 5  # settings that a rank correlation is given for


class Comparison(NamedTuple):
    """A language, an arm, and the arm that its scores are compared with."""

    language: str
    arm: str
    baseline: str


def parse_comparisons(texts: Sequence[str], arms: Iterable[str]) -> list[Comparison]:
    """Read ``LANG:ARM:BASELINE``.

    Raises:
        UsageError: not of this form, or no such arm.
    """
    known, found = list(arms), []
    for text in texts:
        parts = text.split(":")
        if len(parts) != 3 or not all(parts):
            raise UsageError("This is no comparison.", where="--compare", value=text, allowed="LANG:ARM:BASELINE")
        missing = [arm for arm in parts[1:] if arm not in known]
        if missing:
            raise UsageError(
                "There is no such arm.", where="--compare", value=", ".join(missing), allowed=", ".join(known)
            )
        found.append(Comparison(*parts))
    return found


def score_rows(arms: Arms) -> list[Row]:
    """Mean and sample sd over seeds of every arm and measure; losses in nats per token, other measures in points."""
    rows = []
    for arm, measures in arms.items():
        for measure, values in sorted(measures.items()):
            numbers = list(values.values())
            sd = statistics.stdev(numbers) if len(numbers) > 1 else None
            place = {"arm": arm, **_place(measure)}
            rows.append({**place, "n": len(numbers), "mean": statistics.fmean(numbers), "sd": sd})
    return rows


def _place(measure: Measure) -> Row:
    return {"measure": measure.name, "trained_on": measure.source, "language": measure.language, "split": measure.split}


def difference_rows(arms: Arms, comparisons: Sequence[Comparison]) -> list[Row]:
    """Arm minus baseline, paired by seed, with 95 % intervals, of all measures that both have of the language.

    Fine-tuned models are compared within the language. ``interference`` is the difference with the sign that makes
    worse positive.
    """
    rows = []
    for language, arm, baseline in comparisons:
        for measure in sorted(arms[arm].keys() & arms[baseline].keys()):
            if measure.language != language or measure.source not in ("", language):
                continue
            found = paired_difference(arms[arm][measure], arms[baseline][measure])
            if found is not None:
                sign = 1.0 if measure.name == LOSS else -1.0
                rows.append(
                    {
                        **{"language": language, "arm": arm, "baseline": baseline, "measure": measure.name},
                        **{"mean": found.mean, "low": found.low, "high": found.high, "n": found.n},
                        "interference": sign * found.mean,
                    }
                )
    return rows


def curve_rows(arm: str, seed: int, validations: Iterable[Mapping[str, float]], languages: Sequence[str]) -> list[Row]:
    """Validation loss and perplexity of one run, for its languages.

    Args:
        validations: ``update``, ``epoch`` and ``loss_LANG`` in bits per predicted token.
    """
    rows = []
    for entry in validations:
        for language in languages:
            bits = entry.get(f"loss_{language}")
            if bits is not None:
                place = {"arm": arm, "seed": seed, "language": language, "update": int(entry["update"])}
                epoch = round(float(entry["epoch"]), 3)
                rows.append({**place, "epoch": epoch, "loss": bits * math.log(2), "perplexity": 2.0 ** min(bits, 1000)})
    return rows


def correlation_rows(settings: Sequence[Row], pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """Spearman's rank correlation between columns over settings that have both; None with fewer than five."""
    rows = []
    for one, other in pairs:
        both = [(row[one], row[other]) for row in settings if row[one] is not None and row[other] is not None]
        rho = p_value = None
        if len(both) >= FEWEST and all(len({pair[side] for pair in both}) > 1 for side in (0, 1)):
            found = stats.spearmanr(*zip(*both))
            rho, p_value = float(found.statistic), float(found.pvalue)
        rows.append({"of": one, "with": other, "n": len(both), "rho": rho, "p": p_value})
    return rows


# -- figures ------------------------------------------------------------------------------------------------------


def curve_figure(study: Study) -> Optional[plots.Figure]:
    """Validation perplexity over updates: a panel a language, a curve an arm (paper: Fig. 2)."""
    rows = study.tables["curves"]
    if not rows:
        return None
    panels = []
    for language in dict.fromkeys(row["language"] for row in rows):
        mine = [row for row in rows if row["language"] == language]
        curves = {arm: _curve([row for row in mine if row["arm"] == arm]) for arm in _arms(mine)}
        panels.append(plots.Lines(language, curves, "update", "validation perplexity", integers=True))
    seeds = len({row["seed"] for row in rows})
    return plots.Figure(
        f"{study.name}-curves",
        f"Validation perplexity, mean over {seeds} seeds, band: range",
        "Lower is better; a curve that turns upwards overfits its text. Where the curve of two languages ends above "
        "that of one, the languages interfere.",
        panels,
    )


def _arms(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["arm"] for row in rows))


def _curve(rows: Sequence[Row]) -> plots.Curve:
    updates = sorted({row["update"] for row in rows})
    values = [[row["perplexity"] for row in rows if row["update"] == update] for update in updates]
    means = [statistics.fmean(some) for some in values]
    return plots.Curve(updates, means, [min(some) for some in values], [max(some) for some in values])


def difference_figure(study: Study) -> Optional[plots.Figure]:
    """Differences with intervals, a panel a measure (paper: Tables 4 and 5)."""
    rows = study.tables["differences"]
    panels = []
    for measure in dict.fromkeys(row["measure"] for row in rows):
        some = [row for row in rows if row["measure"] == measure]
        values = {f"{r['language']}: {r['arm']} − {r['baseline']}": (r["mean"], r["low"], r["high"]) for r in some}
        unit = "nats; right is worse" if measure == LOSS else "points; left is worse"
        panels.append(plots.Intervals(measure, values, f"difference ({unit})"))
    if not panels:
        return None
    seeds = _seeds(rows)
    return plots.Figure(
        f"{study.name}-differences",
        f"Differences between models, paired by seed, 95 % interval, n = {seeds} seeds",
        "A row compares one language in two models; the seeds agree where the interval leaves out 0 (filled).",
        panels,
        columns=1,
    )


def _seeds(rows: Sequence[Row]) -> str:
    counts = sorted({row["n"] for row in rows})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
