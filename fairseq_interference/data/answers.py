"""n-best answers from start and end scores over windows: pure functions on arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairseq_interference.errors import DataError

Span = tuple[int, int]


class ScoredAnswer(NamedTuple):
    """An answer: ``text == context[start:end]``; the score is that of its start plus that of its end."""

    text: str
    start: int
    end: int
    score: float


def best_answers(
    context: str,
    spans: Sequence[Span],
    windows: Sequence[Span],
    start_scores: Sequence[Any],
    end_scores: Sequence[Any],
    *,
    n_best: int = 20,
    max_answer_length: int = 30,
) -> list[ScoredAnswer]:
    """The best distinct answers of a question over all of its windows.

    A pair of tokens is an answer if both are in one window, the end is not before the start, it has at most
    ``max_answer_length`` tokens and its characters are not all blank. Pairs with the same characters, in one window or
    in several, are one answer with the best of their scores. Of equal scores the earlier start, then the earlier end
    comes first.

    Args:
        context: the original text.
        spans: (N,) characters of every token of the context, as ``align`` gives them.
        windows: (first, behind the last) token of each of the K windows.
        start_scores: K arrays (W,), one score for each token of the window, in any unit that may be added.
        end_scores: the same for ends.

    Returns:
        At most ``n_best`` answers, best first; none for a context without tokens. -inf excludes a token.

    Raises:
        DataError: numbers of windows, tokens and scores differ, or a score is NaN or +inf.
    """
    if not len(windows) == len(start_scores) == len(end_scores):
        value = f"{len(windows)} windows, {len(start_scores)} and {len(end_scores)} arrays of scores"
        raise DataError("Every window needs start and end scores.", value=value)
    begins, ends = _characters(spans)
    best: dict[Span, float] = {}
    for (first, stop), starts, stops in zip(windows, start_scores, end_scores):
        scored = _check(starts, first, stop, len(spans)), _check(stops, first, stop, len(spans))
        for answer, score in _of_window(*scored, begins[first:stop], ends[first:stop], n_best, max_answer_length):
            best[answer] = max(score, best.get(answer, -np.inf))
    order = sorted(best, key=lambda answer: (-best[answer], answer))[:n_best]
    return [ScoredAnswer(context[start:end], start, end, best[start, end]) for start, end in order]


def _characters(spans: Sequence[Span]) -> tuple[Any, Any]:
    """First character if an answer begins at a token, and end if it ends there, so that no outer blank is in it."""
    nowhere = max((end for _, end in spans), default=0)
    begins = np.array([begin if begin < end else nowhere for begin, end in spans], dtype=np.int64)
    ends = np.array([end if begin < end else 0 for begin, end in spans], dtype=np.int64)
    return np.minimum.accumulate(begins[::-1])[::-1], np.maximum.accumulate(ends)


def _check(scores: Any, first: int, stop: int, tokens: int) -> Any:
    found = np.asarray(scores, dtype=np.float64)
    if not 0 <= first < stop <= tokens or found.shape != (stop - first,):
        value = f"tokens {first}–{stop} of {tokens}, scores of shape {found.shape}"
        raise DataError("Scores do not fit their window.", value=value)
    if np.isnan(found).any() or np.isposinf(found).any():
        raise DataError("A score is no number.", value="NaN or +inf", next_step="look at the loss of the training")
    return found


def _of_window(
    starts: Any, stops: Any, begins: Any, ends: Any, n_best: int, max_answer_length: int
) -> Iterator[tuple[Span, float]]:
    """The ``n_best`` distinct answers of one window of W tokens, best first."""
    width = min(max_answer_length, len(starts))
    rows, lengths = np.meshgrid(np.arange(len(starts)), np.arange(width), indexing="ij")
    lasts = rows + lengths  # (W, L): last token of the answer
    inside = lasts < len(starts)
    rows, lasts = rows[inside], lasts[inside]
    first, behind, score = begins[rows], ends[lasts], starts[rows] + stops[lasts]
    possible = (first < behind) & np.isfinite(score)
    first, behind, score = first[possible], behind[possible], score[possible]
    wanted = 4 * n_best
    while True:
        chosen = np.arange(len(score))
        if wanted < len(score):  # all that are as good as the last one, so that ties do not depend on the cut
            chosen = np.flatnonzero(score >= np.partition(score, -wanted)[-wanted])
        order = chosen[np.lexsort((behind[chosen], first[chosen], -score[chosen]))]
        found: dict[Span, float] = {}
        for number in order:
            found.setdefault((int(first[number]), int(behind[number])), float(score[number]))
            if len(found) == n_best:
                break
        if len(found) == n_best or len(chosen) == len(score):
            return iter(found.items())
        wanted *= 4
