"""What a reader of extractive question answering gives, and where an answer really stands in its context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

from fairseq_interference.data.readers.lines import shown
from fairseq_interference.errors import DataError


@dataclass(frozen=True)
class Answer:
    """A gold answer: ``context[start : start + len(text)] == text``, in code points."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question about a context; nothing in it is trimmed or normalised.

    Args:
        id: as in the file; several questions may have the same.
        answers: None in an unlabelled file, empty for a question that its context does not answer.
        line: line of the file, from 1, that the question stands in; None if it is not known.
    """

    id: str
    context: str
    question: str
    answers: Optional[tuple[Answer, ...]]
    line: Optional[int]


@dataclass
class QaFile:
    """Questions of a file in its order.

    Attributes:
        question_lang: language of the questions that the file's name states (MLQA); None if it does not.
        labelled: whether the file has answers; False for the development sets that are published without.
        repairs: what was repaired -> how often.
        others: language name -> questions of other languages in the file, which were left out.
    """

    questions: list[Question]
    path: str
    format: str
    labelled: bool
    question_lang: Optional[str] = None
    repairs: dict[str, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)  # there is no map of answers: always empty

    def __len__(self) -> int:
        return len(self.questions)

    def __iter__(self) -> Iterator[Question]:
        return iter(self.questions)

    @property
    def repeated_ids(self) -> int:
        """Questions whose id another question before them has."""
        return len(self.questions) - len({question.id for question in self.questions})

    @property
    def unanswerable(self) -> int:
        """Questions that are labelled as having no answer."""
        return sum(question.answers == () for question in self.questions)


def locate(context: str, text: str, start: int, where: str) -> tuple[int, Optional[str]]:
    """Where an answer stands, and the repair that its offset needed.

    Repairs, in this order; each is taken only if the text then matches: ``utf16-offset`` (counted in UTF-16 units, one
    too many for every astral character before it), ``byte-offset`` (counted in bytes of UTF-8), ``moved`` (the offset
    is wrong, and the answer occurs exactly once).

    Raises:
        DataError: no repair fits: the answer is not in the context, or occurs several times.
    """
    if start >= 0 and context.startswith(text, start):
        return start, None
    units = {"utf16-offset": ("utf-16-le", 2), "byte-offset": ("utf-8", 1)}
    for name, (encoding, width) in units.items():
        found = character_at(context, start * width, encoding)
        if found is not None and context.startswith(text, found):
            return found, name
    first = context.find(text)
    if first >= 0 and context.find(text, first + 1) < 0:
        return first, "moved"
    times = "not in the context" if first < 0 else "in the context several times"
    raise DataError(
        f"The answer is not at its answer_start, and is {times}.",
        where=where,
        value=f"answer_start {start}, text {shown(text)!r}; there: {shown(context[max(start, 0) :][: len(text)])!r}",
        allowed="offsets in code points of the context as it is in the file",
        next_step="take the official file; normalised copies have wrong offsets",
    )


def character_at(text: str, offset: int, encoding: str = "utf-8") -> Optional[int]:
    """Number of characters in the first ``offset`` bytes of a text; None outside it or inside a character."""
    encoded = text.encode(encoding)
    if not 0 <= offset <= len(encoded):
        return None
    try:
        return len(encoded[:offset].decode(encoding))
    except UnicodeDecodeError:
        return None
