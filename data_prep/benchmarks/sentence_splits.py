"""Splits whose examples are sentences with one label per word: what named entities and parts of speech share."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from data_prep.benchmarks.splits import Split
from fairseq_interference.data.readers.layouts import LAYOUTS
from fairseq_interference.data.readers.sentence import LabelFile, Sentence
from fairseq_interference.data.readers.writing import format_sentences


@dataclass
class SentenceSplit(Split[Sentence]):
    """Labelled sentences.

    Args:
        labels: of each sentence, one label per word; empty lists if unlabelled.
    """

    source: LabelFile
    labels: list[list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.labels = [sentence.labels for sentence in self.examples]

    @staticmethod
    def key(example: Sentence) -> Hashable:
        return tuple(example.words)

    def gold(self) -> str:
        labels = self.labels if self.source.labelled else None
        if self.drawn_from is None:
            return format_sentences(self.source, labels)
        format = self.source.format if self.source.format in LAYOUTS else None
        return format_sentences(self.examples, labels, format, self.lang)

    def fields(self) -> Iterator[dict[str, Any]]:
        for sentence, labels in zip(self.examples, self.labels):
            yield {"words": sentence.words, "labels": labels if self.source.labelled else None}

    def sizes(self) -> dict[str, int]:
        return {**super().sizes(), "words": sum(len(sentence.words) for sentence in self.examples)}
