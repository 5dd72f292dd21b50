"""Sentence retrieval by cosine, in both directions: pure functions on arrays. No host, no tensors.

Every sentence looks for its translation among all different sentences of the other side (accuracy@1).

* **Equal texts** are one candidate. A candidate is right if the file holds the pair anywhere: a sentence that occurs
  twice with two translations has two right answers.
* **Ties**: candidates whose cosine is within ``TIE`` of the best are equally good, and the sentence scores the share of
  them that is right, which is what a fair draw would score on average.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_interference.errors import ScoringError

TIE = 1e-9
ROWS = 512  # queries that are compared at a time
Vectors = NDArray[np.float64]
Pairs = NDArray[np.int64]


def retrieval_scores(source: Vectors, target: Vectors, pairs: Pairs) -> dict[str, Any]:
    """Accuracy@1 of a parallel text.

    Args:
        source: (S, C), one vector for each different source text.
        target: (T, C), the same for the other side.
        pairs: (N, 2), rows of ``source`` and ``target`` that translate each other.

    Returns:
        ``accuracy`` (mean of both directions), ``source_to_target`` and ``target_to_source`` between 0 and 1, each a
        mean over the N pairs; ``ties``: pairs with several best candidates, by direction; ``n``, the number of pairs.

    Raises:
        ScoringError: no pairs, or a vector that is not finite.
    """
    if not len(pairs):
        raise ScoringError("There are no pairs.")
    if not (np.isfinite(source).all() and np.isfinite(target).all()):
        raise ScoringError("A sentence vector is not finite.", next_step="look at the loss of the training")
    ours, theirs = _unit(source), _unit(target)
    forward, forward_ties = _direction(ours, theirs, pairs)
    backward, backward_ties = _direction(theirs, ours, pairs[:, ::-1])
    return {
        "accuracy": (forward + backward) / 2,
        "source_to_target": forward,
        "target_to_source": backward,
        "ties": {"source_to_target": forward_ties, "target_to_source": backward_ties},
        "n": len(pairs),
    }


def _unit(vectors: Vectors) -> Vectors:
    """(N, C) of length 1; a vector of zeros stays, and its cosines are 0."""
    vectors = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Vectors = vectors / np.where(norms > 0, norms, 1.0)
    return unit


def _direction(queries: Vectors, pool: Vectors, pairs: Pairs) -> tuple[float, int]:
    """Mean score over ``pairs`` (query, candidate), and how many of them met a tie."""
    wanted = np.unique(pairs, axis=0)  # sorted by query
    credit, tied = np.zeros(len(queries)), np.zeros(len(queries), dtype=bool)
    for start in range(0, len(queries), ROWS):
        cosine = queries[start : start + ROWS] @ pool.T  # (R, M)
        best = cosine >= cosine.max(axis=1, keepdims=True) - TIE
        first, last = np.searchsorted(wanted[:, 0], [start, start + len(cosine)])
        rows, columns = wanted[first:last, 0] - start, wanted[first:last, 1]
        right = np.bincount(rows, weights=best[rows, columns], minlength=len(cosine))
        several = best.sum(axis=1)
        credit[start : start + ROWS] = right / several
        tied[start : start + ROWS] = several > 1
    asked = pairs[:, 0]
    return math.fsum(credit[asked]) / len(pairs), int(tied[asked].sum())
