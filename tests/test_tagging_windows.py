"""Windows and stitching against brute force; alignment of words and pieces."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_interference.data.windows import owners, windows
from fairseq_interference.errors import UsageError

LENGTHS = st.integers(1, 12).flatmap(
    lambda capacity: st.tuples(st.just(capacity), st.lists(st.integers(1, capacity), max_size=40))
)


def context(lengths, span, word):
    """Pieces that the poorer side of a word misses nothing of; counted one by one."""
    start, stop = span
    left = sum(1 for w in range(start, word) for _ in range(lengths[w])) if start > 0 else 10**9
    right = sum(1 for w in range(word + 1, stop) for _ in range(lengths[w])) if stop < len(lengths) else 10**9
    return min(left, right)


@given(LENGTHS)
def test_windows_cover_overlap_and_fit(case):
    capacity, lengths = case
    spans = windows(lengths, capacity)
    assert all(sum(lengths[a:b]) <= capacity and a < b for a, b in spans)
    assert {w for span in spans for w in range(*span)} == set(range(len(lengths)))
    assert [a for a, _ in spans] == sorted({a for a, _ in spans})
    assert [b for _, b in spans] == sorted({b for _, b in spans})
    if sum(lengths) <= capacity:
        assert spans == ([(0, len(lengths))] if lengths else [])
    for (_, stop), (start, end) in zip(spans, spans[1:]):
        if end < len(lengths):
            assert sum(lengths[start:stop]) <= capacity // 2


@given(LENGTHS)
def test_each_word_belongs_to_the_window_with_most_context(case):
    capacity, lengths = case
    spans = windows(lengths, capacity)
    owner = owners(lengths, spans)
    assert len(owner) == len(lengths)
    for word, number in enumerate(owner):
        inside = [n for n, (a, b) in enumerate(spans) if a <= word < b]
        best = max(context(lengths, spans[n], word) for n in inside)
        assert number == min(n for n in inside if context(lengths, spans[n], word) == best)


def test_words_of_a_long_sentence_see_a_quarter_window_on_each_side():
    lengths = [1] * 1000
    spans = windows(lengths, 126)
    for word, number in enumerate(owners(lengths, spans)):
        assert context(lengths, spans[number], word) >= 126 // 4 - 1


def test_a_word_larger_than_the_window_is_refused():
    with pytest.raises(UsageError, match="longest word"):
        windows([1, 9], 8)


def test_batches_respect_limits_and_drop_nothing():
    pytest.importorskip("fairseq")
    from fairseq_interference.data.examples import batches_of
    from fairseq_interference.data.tagging import Example, Row

    def example(*widths):
        rows = [Row(torch.zeros(w, dtype=torch.long), torch.arange(1), torch.ones(1).long()) for w in widths]
        return Example(rows, torch.zeros(len(rows)).long(), 0, 0)

    examples = [example(3), example(4), example(9, 9, 9), example(2), example(5)]
    assert batches_of(range(5), examples, max_tokens=10) == [[0, 1], [2], [3, 4]]
    assert batches_of(range(5), examples, max_sentences=2) == [[0, 1], [2], [3, 4]]
    assert batches_of([], examples, max_tokens=10) == []
