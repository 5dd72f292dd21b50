"""Is one prediction better than another on the same examples? Paired bootstrap. No host, no tensors.

Examples (sentences, pairs, questions) are drawn with replacement, the same ones for both systems, and the metric is
computed again from what they add up to (Koehn 2004): F1 from summed counts, never a mean of F1 per sentence.

* **Interval**: the 2.5 % and 97.5 % percentiles of the drawn differences (Efron and Tibshirani 1993, chapter 13).
* **p**: twice the smaller share of draws in which the difference is <= 0 or >= 0, at most 1; (1 + k) / (1 + draws), so
  that it is never 0. It is below 0.05 where the interval leaves out 0, up to the grain of the draws.

Examples are taken to be independent. What the seeds of training change is not in it: see ``compare`` for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from fairseq_interference.errors import ScoringError, UsageError
from fairseq_interference.evaluation.metrics import SCHEMES, UNTAGGED, check_lengths, check_scheme
from fairseq_interference.evaluation.metrics_qa import answer_scores

CONFIDENCE = 0.95
LEAST = 40  # draws: fewer leave none outside a 95 % interval on either side
CELLS = 4_000_000  # examples that are drawn at a time
Numbers = NDArray[np.float64]
Metric = Callable[..., Numbers]


def micro_f1(gold: Numbers, predicted: Numbers, correct: Numbers) -> Numbers:
    """F1 from numbers of entities, of any shape; 0 where there are none."""
    return ratio(2 * correct, gold + predicted)


def ratio(right: Numbers, total: Numbers) -> Numbers:
    """Share of what is right, of any shape; 0 where there is nothing."""
    found: Numbers = np.divide(right, total, out=np.zeros(np.shape(total)), where=np.asarray(total) > 0)
    return found


def ner_counts(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str) -> Numbers:
    """(N, 3): entities of each sentence in gold, predicted, and correct; for :func:`micro_f1`.

    Raises:
        UsageError: unknown scheme. ScoringError: lengths differ, or a label that the scheme does not know.
    """
    extract = SCHEMES[check_scheme(scheme)]
    check_lengths(gold, predicted)
    both = ((set(extract(wanted)), set(extract(given))) for wanted, given in zip(gold, predicted))
    return np.array([(len(wanted), len(given), len(wanted & given)) for wanted, given in both], dtype=np.float64)


def pos_counts(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Numbers:
    """(N, 2): words of each sentence with the right tag, and words with a gold tag; for :func:`ratio`.

    Raises:
        ScoringError: lengths differ.
    """
    check_lengths(gold, predicted)
    kept = ([(a, b) for a, b in zip(*pair) if a != UNTAGGED] for pair in zip(gold, predicted))
    return np.array([(sum(a == b for a, b in pairs), len(pairs)) for pairs in kept], dtype=np.float64)


def qa_counts(
    golds: Sequence[Sequence[str]],
    predictions: Sequence[Optional[str]],
    rules: str,
    lang: Optional[str],
    normal_form: str,
) -> tuple[Numbers, Numbers]:
    """(N, 2) each for EM and for F1: the score of each question, and 1; for :func:`ratio`. No answer scores 0."""
    nothing = (0.0, 0.0)
    found = [
        nothing if given is None else answer_scores(given, wanted, rules, lang, normal_form)
        for wanted, given in zip(golds, predictions)
    ]
    scores, ones = np.array(found, dtype=np.float64).reshape(-1, 2), np.ones(len(found))
    return np.stack([scores[:, 0], ones], axis=1), np.stack([scores[:, 1], ones], axis=1)


def check_draws(resamples: int, seed: int) -> None:
    """Raise :class:`UsageError` unless so many draws with such a seed can be made."""
    if resamples < LEAST:
        raise UsageError("An interval needs more draws.", where="--bootstrap", value=resamples, allowed=f">= {LEAST}")
    if seed < 0:
        raise UsageError("A seed is not negative.", where="--seed", value=seed)


def paired_bootstrap(
    first: Numbers, second: Numbers, metric: Metric, *, resamples: int = 10_000, seed: int = 1
) -> dict[str, float]:
    """The difference of two systems on the same examples.

    Args:
        first, second: (N, K), what each of the N examples adds to the K arguments of ``metric``.
        metric: sums of columns, K arrays of one shape, to values of that shape.
        resamples: number of draws.
        seed: of the draws; the same examples are drawn whichever system comes first.

    Returns:
        ``predictions`` and ``against`` (the metric of both), ``difference`` (first minus second), ``low`` and ``high``
        (95 % interval), ``p`` (two-sided), ``better`` and ``worse``: shares of draws in which the first is.

    Raises:
        UsageError: see :func:`check_draws`. ScoringError: fewer than two examples, or two different numbers of them.
    """
    from scipy import stats

    check_draws(resamples, seed)
    if first.shape != second.shape or len(first) < 2:
        what = "A bootstrap needs the same examples on both sides, two or more."
        raise ScoringError(what, value=f"{len(first)} and {len(second)} examples")
    size = first.shape[1]

    def difference(*columns: Numbers, axis: int = -1) -> Numbers:
        sums = [column.sum(axis=axis) for column in columns]
        return metric(*sums[:size]) - metric(*sums[size:])

    result = stats.bootstrap(
        (*first.T, *second.T),
        difference,
        n_resamples=resamples,
        batch=max(1, CELLS // len(first)),
        vectorized=True,
        paired=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=np.random.default_rng(seed),
    )
    drawn = result.bootstrap_distribution
    tails = (1 + np.array([(drawn <= 0).sum(), (drawn >= 0).sum()])) / (1 + resamples)
    values = [float(metric(*side.sum(axis=0))) for side in (first, second)]
    return {
        "predictions": values[0],
        "against": values[1],
        "difference": values[0] - values[1],
        "low": float(result.confidence_interval.low),
        "high": float(result.confidence_interval.high),
        "p": min(1.0, 2 * float(tails.min())),
        "better": float((drawn > 0).mean()),
        "worse": float((drawn < 0).mean()),
    }


def rules_of_draws(resamples: int, seed: int, unit: str) -> dict[str, Any]:
    """What a comparison depends on besides its files."""
    return {
        "resamples": resamples,
        "seed": seed,
        "unit": unit,
        "interval": f"{CONFIDENCE:.0%} percentile".replace("%", " %"),
        "p": "two-sided",
    }
