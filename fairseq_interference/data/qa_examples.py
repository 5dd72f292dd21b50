"""Questions and their contexts to tensors: windows as rows, answers as columns.

A window that does not hold all of the answer is labelled with column 0, ``<s>``, as is usual for SQuAD 1.1 (Hu et al.
2020 take it from BERT). Of several gold answers a window is trained on the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_interference.data.answers import ScoredAnswer, best_answers
from fairseq_interference.data.examples import collate_rows
from fairseq_interference.data.pieces import Pieces
from fairseq_interference.data.qa_windows import QaLimits, question_windows, token_span
from fairseq_interference.data.readers.questions import Question
from fairseq_interference.errors import DataError

NO_ANSWER = 0  # column of a window without the answer: that of <s>


class QaRow(NamedTuple):
    """One window.

    Args:
        tokens: (T,) token ids.
        first: first token of the context in it. stop: behind the last one.
        offset: column that ``first`` stands in.
        start, end: columns of the answer; ``NO_ANSWER`` without.
    """

    tokens: Tensor
    first: int
    stop: int
    offset: int
    start: int
    end: int


@dataclass(frozen=True)
class QaExample:
    """Windows that belong together: all of a question, or one of them in training.

    Args:
        rows: windows.
        question: what was asked, with context and gold answers; None in training.
        spans: (N, 2) characters of every token of the context.
        lang_id: id that routes the rows through the model.
        group: number of the language in logs.
    """

    rows: list[QaRow]
    question: Optional[Question]
    spans: Optional[NDArray[np.int32]]
    lang_id: int
    group: int

    @property
    def length(self) -> int:
        """Tokens of the longest row."""
        return max(len(row.tokens) for row in self.rows)

    def answers(self, starts: Sequence[Any], ends: Sequence[Any], n_best: int, longest: int) -> list[ScoredAnswer]:
        """The best answers, best first.

        Args:
            starts: scores of every column of each row. ends: the same.
            n_best: how many. longest: tokens of an answer.
        """
        assert self.question is not None and self.spans is not None
        inner = [slice(row.offset, row.offset + row.stop - row.first) for row in self.rows]
        return best_answers(
            self.question.context,
            [(int(begin), int(end)) for begin, end in self.spans],
            [(row.first, row.stop) for row in self.rows],
            [scores[part] for scores, part in zip(starts, inner)],
            [scores[part] for scores, part in zip(ends, inner)],
            n_best=n_best,
            max_answer_length=longest,
        )


class QaEncoder:
    """Questions to examples.

    Args:
        pieces: encodes with the checkpoint's tokenizer and dictionary.
        limits: sizes of windows.
    """

    def __init__(self, pieces: Pieces, limits: QaLimits) -> None:
        limits.validate()
        self.pieces = pieces
        self.limits = limits

    def examples(
        self, question: Question, question_lang: Optional[str], lang: str, lang_id: int, group: int, training: bool
    ) -> list[QaExample]:
        """One example with all windows of a question; in training one for each window.

        Raises:
            DataError: the tokenizer leaves nothing of a context, or of an answer to be trained on.
        """
        ids, spans = self.pieces.encode(question.context, lang, aligned=True)
        asked = self.pieces.encode(question.question, question_lang or lang).ids
        dictionary = self.pieces.dictionary
        answer = self._answer(question, spans)
        if training and question.answers and answer is None:
            value = f"{question.id}: {question.answers[0].text!r}"
            raise DataError("The tokenizer leaves nothing of this answer.", where=_place(question), value=value)
        rows = []
        for window in question_windows(len(asked), len(ids), self.limits, answer):
            tokens = torch.tensor(window.row(asked.tolist(), ids.tolist(), dictionary.bos(), dictionary.eos()))
            start, end = window.answer or (NO_ANSWER, NO_ANSWER)
            rows.append(QaRow(tokens, window.first, window.stop, window.offset, start, end))
        if not rows:
            where = _place(question)
            raise DataError("The tokenizer leaves nothing of this context.", where=where, value=question.id)
        if training:
            return [QaExample([row], None, None, lang_id, group) for row in rows]
        return [QaExample(rows, question, spans, lang_id, group)]

    @staticmethod
    def _answer(question: Question, spans: NDArray[np.int32]) -> Optional[tuple[int, int]]:
        if not question.answers:
            return None
        answer = question.answers[0]
        return token_span(spans.tolist(), answer.start, answer.start + len(answer.text))


def _place(question: Question) -> str:
    return f"line {question.line} of the prepared split" if question.line else f"question {question.id}, from 0"


def collate_questions(
    examples: Sequence[QaExample], ids: Optional[Sequence[int]] = None, *, pad: int
) -> dict[str, Any]:
    """A batch of B windows of S questions.

    Returns:
        the sample format of all tasks (``target``: (B, 2), first and last column of the answer), ``sample_size``:
        windows, ``group`` (B,) and, but for training, ``examples``: the S questions, whose windows follow each other.
    """
    found = {
        **collate_rows(examples, pad, ids),
        "sample_size": sum(len(example.rows) for example in examples),
        "target": torch.tensor([(row.start, row.end) for example in examples for row in example.rows]),
        "group": torch.tensor([example.group for example in examples for _ in example.rows]),
    }
    if examples[0].question is not None:
        found["examples"] = list(examples)
    return found
