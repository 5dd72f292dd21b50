"""Windows over a question and its context, and the tokens of an answer. Nothing here knows tensors or models.

A row is ``<s> question </s> </s> part of the context </s>``, as the host's encoders were trained on pairs. Tokens count
from 0; tokens of the context are those of :func:`fairseq_interference.data.alignment.align`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from fairseq_interference.errors import DataError, UsageError

Span = tuple[int, int]
SPECIALS = 4  # <s>, two </s> between, </s>


@dataclass(frozen=True)
class QaLimits:
    """Sizes in tokens; the defaults are those of XTREME (Hu et al. 2020, its script for SQuAD).

    Args:
        max_length: of a row, special symbols included.
        stride: tokens from the beginning of one window to that of the next (not their overlap).
        max_query_length: a longer question loses its end.
        max_answer_length: of an answer that is decoded.
    """

    max_length: int = 384
    stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30

    def validate(self) -> None:
        """Raise one :class:`UsageError` that names every flag that does not fit."""
        wrong = [
            f"--{name.replace('_', '-')} {value} (>= 1)"
            for name, value in vars(self).items()
            if isinstance(value, bool) or not isinstance(value, int) or value < 1
        ]
        if wrong:
            raise UsageError("A length is not positive.", value=", ".join(wrong))
        room = self.max_length - SPECIALS - self.max_query_length
        if room < self.stride:
            raise UsageError(
                "Windows would leave tokens of the context out.",
                where="--stride",
                value=f"stride {self.stride}, {max(room, 0)} tokens of context beside a question of "
                f"{self.max_query_length} in a row of {self.max_length}",
                allowed=f"1–{room}"
                if room > 0
                else f"--max-length >= {SPECIALS + self.max_query_length + self.stride}",
                next_step="lower --stride or --max-query-length, or raise --max-length",
            )


@dataclass(frozen=True)
class QaWindow:
    """One row of a question.

    Args:
        first: first token of the context in the row.
        stop: behind the last one.
        offset: column of the row that ``first`` stands in.
        answer: (first, last) column of the answer; None if not all of it lies in this window.
    """

    first: int
    stop: int
    offset: int
    answer: Optional[Span]

    def row(self, question: Sequence[int], context: Sequence[int], bos: int, eos: int) -> list[int]:
        """Token ids of the row, at most ``max_length``."""
        asked = question[: self.offset - 3]
        return [bos, *asked, eos, eos, *context[self.first : self.stop], eos]


def strided(length: int, capacity: int, stride: int) -> list[Span]:
    """Windows of ``capacity`` tokens that begin every ``stride`` tokens, up to the first that reaches the end.

    Returns:
        ``(first, behind the last)`` of each; none if there are no tokens. Every token is in a window.

    Raises:
        UsageError: the stride would skip tokens.
    """
    if not 1 <= stride <= capacity and length > capacity:
        raise UsageError(
            "Windows would leave tokens of the context out.",
            where="--stride",
            value=f"stride {stride}, room for {max(capacity, 0)} tokens of {length}",
            allowed=f"1–{capacity}" if capacity > 0 else "a longer --max-length or a shorter --max-query-length",
        )
    spans: list[Span] = []
    while length and (not spans or spans[-1][1] < length):
        begin = stride * len(spans)
        spans.append((begin, min(begin + capacity, length)))
    return spans


def question_windows(question: int, context: int, limits: QaLimits, answer: Optional[Span] = None) -> list[QaWindow]:
    """Rows of one question.

    Args:
        question: its number of tokens.
        context: number of tokens of its context.
        answer: (first, last) token of the answer in the context; None if there is none.

    Raises:
        UsageError: beside this question the stride would skip tokens.
        DataError: the answer is outside the context.
    """
    if answer is not None and not 0 <= answer[0] <= answer[1] < context:
        raise DataError("An answer is outside its context.", value=answer, allowed=f"tokens 0–{context - 1}")
    asked = min(question, limits.max_query_length)
    offset = asked + 3
    found = []
    for first, stop in strided(context, limits.max_length - SPECIALS - asked, limits.stride):
        inside = answer is not None and first <= answer[0] and answer[1] < stop
        columns = (answer[0] - first + offset, answer[1] - first + offset) if answer and inside else None
        found.append(QaWindow(first, stop, offset, columns))
    return found


def token_span(spans: Sequence[Span], start: int, end: int) -> Optional[Span]:
    """The tokens that an answer needs: the fewest that hold all of its characters.

    Args:
        spans: characters of every token, as ``align`` gives them.
        start: first character of the answer.
        end: behind its last one.

    Returns:
        (first, last) token; None if no token holds a character of it (blanks, or what the tokenizer drops).
    """
    first = bisect_right([behind for _, behind in spans], start)
    while first < len(spans) and spans[first][0] == spans[first][1]:
        first += 1
    last = bisect_left([begin for begin, _ in spans], end) - 1
    while last >= 0 and spans[last][0] == spans[last][1]:
        last -= 1
    return (first, last) if first <= last else None
