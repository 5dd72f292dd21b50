"""What readers give: sentences that remember the lines they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional, Protocol

from fairseq_interference.errors import DataError


class Source(Protocol):
    """The lines of a file that a sentence came from."""

    def render(self, labels: Optional[Sequence[str]]) -> list[str]:
        """These lines with other labels; with None exactly as they were."""


@dataclass
class Sentence:
    """One sentence of a label file.

    Args:
        words: its words; marks that only belong to the layout are taken off.
        labels: one label per word (``O``, ``B-X``, ``I-X``, or a part-of-speech tag), repaired and mapped; empty if
            unlabelled.
        line: line of the first word, from 1.
        lang: language, where the file says it.
        lines: line of each word.
        raw: the labels exactly as they stand in the file.
        before: lines between the previous sentence and this one, verbatim.
        source: writes the sentence's own lines again.
    """

    words: list[str]
    labels: list[str]
    line: int = 0
    lang: Optional[str] = None
    lines: list[int] = field(default_factory=list, repr=False)
    raw: list[str] = field(default_factory=list, repr=False)
    before: list[str] = field(default_factory=list, repr=False)
    source: Optional[Source] = field(default=None, repr=False, compare=False)


class LabelFile(list[Sentence]):
    """The sentences of one file, in order.

    Attributes:
        path: the file.
        format: name of its layout.
        labelled: whether it has labels.
        repairs: repair -> how often (readers/labels.py and readers/columns.py say which).
        dropped: type -> entities that a label map turned into O.
        tail: lines after the last sentence, verbatim.
    """

    def __init__(self, sentences: Sequence[Sentence], path: str, format: str, repairs: dict[str, int]) -> None:
        super().__init__(sentences)
        self.path = path
        self.format = format
        bare = [sentence for sentence in sentences if len(sentence.labels) != len(sentence.words)]
        if bare and len(bare) < sum(bool(sentence.words) for sentence in sentences):
            raise DataError("Some sentences have labels, this one has none.", where=f"{path}:{bare[0].line}")
        self.labelled = not bare
        self.repairs = repairs
        self.dropped: dict[str, int] = {}
        self.tail: list[str] = []

    @property
    def words(self) -> list[list[str]]:
        return [sentence.words for sentence in self]

    @property
    def labels(self) -> list[list[str]]:
        return [sentence.labels for sentence in self]
