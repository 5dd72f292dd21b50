"""Windows over question and context, tokens of answers, and n-best decoding against brute force."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
import qa_world
from hypothesis import given
from hypothesis import strategies as st

from fairseq_interference.data.alignment import align
from fairseq_interference.data.answers import best_answers
from fairseq_interference.data.qa_windows import QaLimits, question_windows, strided, token_span
from fairseq_interference.data.readers import qa
from fairseq_interference.errors import DataError, UsageError

FOLDER = Path(os.environ.get("INTERFERENCE_REAL_DATA", "missing")) / "qa"
FILES = sorted(str(p.relative_to(FOLDER)) for p in FOLDER.glob("*/*") if "sample_pred" not in p.name) or [
    "no real data"
]


@given(st.integers(0, 300), st.integers(1, 60), st.data())
def test_every_token_is_in_a_window(length: int, capacity: int, data: Any) -> None:
    stride = data.draw(st.integers(1, capacity))
    spans = strided(length, capacity, stride)
    assert {token for span in spans for token in range(*span)} == set(range(length))
    assert all(0 < b - a <= capacity for a, b in spans)
    assert [a for a, _ in spans] == [stride * n for n in range(len(spans))]
    assert all(b - a == capacity and b < length for a, b in spans[:-1])  # no window that adds nothing


@given(st.integers(1, 90), st.integers(1, 200), st.data())
def test_windows_know_their_answer(question: int, context: int, data: Any) -> None:
    limits = QaLimits(64, 16, 24, 5)
    limits.validate()
    first = data.draw(st.integers(0, context - 1))
    last = data.draw(st.integers(first, context - 1))
    asked, told = list(range(1000, 1000 + question)), list(range(2000, 2000 + context))
    windows = question_windows(question, context, limits, (first, last))
    for window in windows:
        row = window.row(asked, told, 0, 2)
        assert len(row) <= 64
        kept = asked[:24]
        assert row[: len(kept) + 3] == [0, *kept, 2, 2] and row[-1] == 2
        assert row[window.offset : -1] == told[window.first : window.stop]
        held = set(told[first : last + 1]) <= set(row)
        assert (window.answer is not None) == held
        if window.answer:
            assert row[window.answer[0] : window.answer[1] + 1] == told[first : last + 1]
    assert {token for w in windows for token in range(w.first, w.stop)} == set(range(context))
    assert all(window.answer is None for window in question_windows(question, context, limits))


def test_stride_that_would_skip_tokens() -> None:
    """Q6"""
    limits = QaLimits(32, 32, 12)
    with pytest.raises(UsageError, match="leave tokens of the context out") as error:
        limits.validate()
    assert "1–16" in str(error.value)
    with pytest.raises(UsageError, match="leave tokens of the context out"):
        question_windows(12, 17, limits)
    assert [(w.first, w.stop) for w in question_windows(12, 16, limits)] == [(0, 16)]
    QaLimits(32, 16, 12).validate()
    with pytest.raises(UsageError, match="--max-length >= 196"):
        QaLimits(68, 128, 64).validate()
    with pytest.raises(UsageError, match=r"--stride 0 .*--max-answer-length -1"):
        QaLimits(32, 0, 12, -1).validate()
    QaLimits().validate()
    with pytest.raises(DataError, match="outside its context"):
        question_windows(3, 5, QaLimits(), (4, 5))
    assert question_windows(3, 0, QaLimits()) == []


# --- tokens of an answer -----------------------------------------------------------------------------------------


def spans_of(draw: Any, length: int) -> list[tuple[int, int]]:
    """Ordered spans over a text: neighbours may share a character, some are empty, some characters have none."""
    spans = []
    begin = end = 0
    for _ in range(draw(st.integers(0, 14))):
        begin = draw(st.integers(max(begin, end - 1, 0), min(end + 2, length)))
        end = draw(st.integers(max(begin, end), min(max(begin, end) + 3, length)))
        spans.append((begin, end))
    return spans


@given(st.data())
def test_tokens_of_an_answer_by_brute_force(data: Any) -> None:
    spans = spans_of(data.draw, 20)
    start = data.draw(st.integers(0, 19))
    end = data.draw(st.integers(start + 1, 20))
    touching = [n for n, (a, b) in enumerate(spans) if a < b and a < end and b > start]
    assert token_span(spans, start, end) == ((touching[0], touching[-1]) if touching else None)


# --- decoding ----------------------------------------------------------------------------------------------------


def brute_force(
    context: str, spans: Any, windows: Any, starts: Any, ends: Any, n_best: int, longest: int
) -> list[tuple[str, int, int, float]]:
    found: dict[tuple[int, int], float] = {}
    for (first, stop), s, e in zip(windows, starts, ends):
        for i, j in product(range(stop - first), repeat=2):
            visible = [span for span in spans[first + i : first + j + 1] if span[0] < span[1]]
            if i <= j < i + longest and visible and s[i] + e[j] > -np.inf:
                key = visible[0][0], visible[-1][1]
                found[key] = max(found.get(key, -np.inf), s[i] + e[j])
    order = sorted(found, key=lambda key: (-found[key], key))[:n_best]
    return [(context[a:b], a, b, found[a, b]) for a, b in order]


@given(st.data(), st.integers(1, 12), st.integers(1, 6))
def test_decoding_by_brute_force(data: Any, n_best: int, longest: int) -> None:
    spans = spans_of(data.draw, 20)
    context = "abcdefghijklmnopqrst"
    capacity = data.draw(st.integers(1, 8))
    windows = strided(len(spans), capacity, data.draw(st.integers(1, capacity)))
    number = st.integers(-3, 3).map(float) | st.just(-np.inf)  # many ties
    scores = [[[data.draw(number) for _ in range(a, b)] for a, b in windows] for _ in range(2)]
    found = best_answers(context, spans, windows, *scores, n_best=n_best, max_answer_length=longest)
    assert [tuple(answer) for answer in found] == brute_force(context, spans, windows, *scores, n_best, longest)


def test_decoding_of_long_windows_by_brute_force() -> None:
    draw = np.random.default_rng(5)
    for ties in (False, True):
        context = "".join(map(chr, draw.integers(97, 123, 300)))
        spans = [(n, n + 2) for n in range(298)]
        windows = strided(298, 120, 50)
        scores = [[draw.normal(size=b - a) for a, b in windows] for _ in range(2)]
        if ties:
            scores = [[np.round(array) for array in arrays] for arrays in scores]
        found = best_answers(context, spans, windows, *scores)
        assert [tuple(answer) for answer in found] == brute_force(context, spans, windows, *scores, 20, 30)


def test_scores_that_do_not_fit() -> None:
    good = [np.zeros(2)]
    spans = [(0, 1), (1, 2)]
    assert best_answers("ab", [], [], [], []) == []
    for bad in ([np.zeros(3)], [np.array([np.nan, 0])], [np.array([np.inf, 0])], []):
        with pytest.raises(DataError):
            best_answers("ab", spans, [(0, 2)], good, bad)
    with pytest.raises(DataError):
        best_answers("ab", spans, [(1, 3)], good, good)


# --- real files --------------------------------------------------------------------------------------------------


def decode_gold(context: str, spans: Any, span: Optional[tuple[int, int]], limits: QaLimits, question: int) -> str:
    """The best answer of a model that is certain of the gold tokens."""
    windows = question_windows(question, len(spans), limits, span)
    starts, ends = [], []
    for window in windows:
        both = [np.full(window.stop - window.first, -9.0) for _ in range(2)]
        if window.answer:
            for array, column in zip(both, window.answer):
                array[column - window.offset] = 9.0
        starts.append(both[0])
        ends.append(both[1])
    held = [(window.first, window.stop) for window in windows]
    longest = limits.max_answer_length
    return best_answers(context, spans, held, starts, ends, n_best=1, max_answer_length=longest)[0].text


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return {name: qa_world.make_tokenizer(folder / name, name) for name in ("nfkc", "bytes", "moses")}


@pytest.mark.real_data
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["nfkc", "bytes", "moses"])
def test_gold_answers_of_real_files_come_back(
    real_data: Path, tokenizers: dict[str, Any], name: str, kind: str
) -> None:
    """The gold tokens decode to the gold answer, or to the whole pieces that it ends in; always out of the context.

    ``nfkc`` has one unknown piece for a run of letters that it never saw, so that its answers may be longer.
    """
    tokenizer = tokenizers[kind]
    limits = QaLimits(384, 100, 64, 200)  # any answer of 200 tokens is in one of the windows
    limits.validate()
    lang = name.split("/")[0]
    aligned: dict[str, Any] = {}
    lengths = []
    for question in list(qa.read(FOLDER / name))[:25]:
        if question.context not in aligned:
            aligned[question.context] = align(tokenizer, question.context, lang).spans
        spans = aligned[question.context]
        asked = len(tokenizer.encode_line(question.question, lang))
        windows = question_windows(asked, len(spans), limits)
        assert {token for w in windows for token in range(w.first, w.stop)} == set(range(len(spans)))
        for answer in question.answers or ():
            span = token_span(spans, answer.start, answer.start + len(answer.text))
            assert span is not None
            if span[1] - span[0] >= limits.max_answer_length:
                continue
            text = decode_gold(question.context, spans, span, limits, asked)
            assert answer.text.strip() in text and text in question.context
            lengths.append(len(text) - len(answer.text.strip()))
    if kind != "nfkc":
        assert max(lengths, default=0) <= 12
        assert sum(extra == 0 for extra in lengths) >= 0.9 * len(lengths)
