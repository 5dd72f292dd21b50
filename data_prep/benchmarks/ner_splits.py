"""What is particular to splits of named entities: counts of entities, IOB2, the label list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional

from data_prep.benchmarks.sentence_splits import SentenceSplit
from fairseq_interference.data.prepared import has_entities, read_labels
from fairseq_interference.data.readers.entities import conlleval_entities
from fairseq_interference.data.readers.labels import OUTSIDE, to_iob2
from fairseq_interference.errors import DataError


@dataclass
class NerSplit(SentenceSplit):
    """Sentences with named entities.

    Args:
        scheme: ``iob2`` turns an I- that starts an entity into B-; ``keep`` does not.
        changed: how many were.
    """

    scheme: str = "keep"
    changed: int = 0

    counted: ClassVar[str] = "entities"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheme == "iob2":
            converted = [to_iob2(labels) for labels in self.labels]
            self.labels = [labels for labels, _ in converted]
            self.changed = sum(count for _, count in converted)

    def counts(self) -> Counter[str]:
        return Counter(kind for labels in self.labels for kind, _, _ in conlleval_entities(labels))

    def notes(self) -> list[str]:
        changed = [f"{self.changed} I- that start an entity became B-"] if self.changed else []
        return [*changed, *super().notes()]

    def as_json(self) -> dict[str, Any]:
        return {**super().as_json(), "i_changed_to_b": self.changed}


def label_list(splits: Sequence[NerSplit], fixed: Optional[Path]) -> list[str]:
    """``O`` and B- and I- of every type, sorted; or the lines of the fixed file, which must hold every label.

    Raises:
        DataError: a label that the fixed file lacks; names file:line. A fixed file that lists something else.
    """
    if fixed is None:
        kinds = {kind for split in splits for kind in split.counts()}
        return [OUTSIDE, *sorted(f"{prefix}-{kind}" for prefix in "BI" for kind in kinds)]
    known = read_labels(fixed)
    if OUTSIDE not in known or not has_entities(known):
        allowed = f"{OUTSIDE}, and B-TYPE or I-TYPE, one a line"
        raise DataError("These are no labels of named entities.", where=fixed, value=" ".join(known), allowed=allowed)
    for split in splits:
        for sentence, labels in zip(split.examples, split.labels):
            for label, line in zip(labels, sentence.lines):
                if label not in known:
                    raise DataError(
                        "This label is not in the label file.",
                        where=f"{split.source.path}:{line}",
                        value=label,
                        allowed=" ".join(known),
                        next_step="map it with --label-map",
                    )
    return known
