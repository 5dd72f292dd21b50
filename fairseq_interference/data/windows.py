"""Windows over sentences that are longer than a model's positions, and which window answers for which word.

Lengths count sub-word pieces. Nothing here knows tensors, labels or models.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from fairseq_interference.errors import UsageError

Span = tuple[int, int]


def windows(lengths: Sequence[int], capacity: int) -> list[Span]:
    """Overlapping windows of whole words that cover a sentence.

    Args:
        lengths: pieces per word, each between 1 and ``capacity``.
        capacity: pieces that fit into one window (without <s> and </s>).

    Returns:
        ``(first word, behind the last word)`` per window, in order; one window if the sentence fits, none if it
        is empty. Two neighbours share at most half a window, the last window is as full as it can be.

    Raises:
        UsageError: a word does not fit into a window.
    """
    if max(lengths, default=1) > capacity:
        raise UsageError("A window cannot hold the longest word.", value=capacity, allowed=f">= {max(lengths)}")
    ends = [0, *accumulate(lengths)]  # ends[i]: pieces before word i
    spans: list[Span] = []
    start = stop = 0
    while stop < len(lengths):
        stop = bisect_right(ends, ends[start] + capacity) - 1
        if stop == len(lengths) and spans:
            start = bisect_left(ends, ends[-1] - capacity)
        spans.append((start, stop))
        if stop < len(lengths):
            start = bisect_left(ends, max(ends[stop] - capacity // 2, ends[stop + 1] - capacity))
    return spans


def owners(lengths: Sequence[int], spans: Sequence[Span]) -> list[int]:
    """The window that answers for each word: the one in which the word has the most context.

    Context is the smaller of the pieces to the left and to the right of the word within the window; a side on
    which the window reaches the end of the sentence misses nothing and does not count. The first window wins a tie.

    Args:
        lengths: pieces per word.
        spans: windows as :func:`windows` makes them.
    """
    ends = [0, *accumulate(lengths)]
    best = [-1.0] * len(lengths)
    owner = [0] * len(lengths)
    for number, (start, stop) in enumerate(spans):
        for word in range(start, stop):
            left = float("inf") if start == 0 else ends[word] - ends[start]
            right = float("inf") if stop == len(lengths) else ends[stop] - ends[word + 1]
            if min(left, right) > best[word]:
                best[word], owner[word] = min(left, right), number
    return owner
