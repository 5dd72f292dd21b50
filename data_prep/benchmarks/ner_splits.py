"""Splits of a benchmark for named entities: official or drawn, their records, counts and table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from data_prep.benchmarks.common import SPLITS, WHOLE, draw, leaks, sha256, table
from fairseq_interference.data.prepared import has_entities, read_labels
from fairseq_interference.data.readers.entities import conlleval_entities
from fairseq_interference.data.readers.labels import OUTSIDE, to_iob2
from fairseq_interference.data.readers.layouts import LAYOUTS
from fairseq_interference.data.readers.ner import NerFile, Sentence, format_sentences
from fairseq_interference.errors import DataError, UsageError


@dataclass
class Split:
    """Sentences of one language and split, ready to be written."""

    lang: str
    name: str
    source: NerFile
    drawn_from: Optional[str]
    sentences: list[Sentence]
    labels: list[list[str]]
    changed: int = 0
    leaked: Optional[tuple[int, int]] = None
    entities: Counter[str] = field(default_factory=Counter)

    @property
    def keys(self) -> list[tuple[str, ...]]:
        return [tuple(sentence.words) for sentence in self.sentences]

    @property
    def gold(self) -> str:
        """The split in the official layout, with the prepared labels."""
        labels = self.labels if self.source.labelled else None
        if self.drawn_from is None:
            return format_sentences(self.source, labels)
        format = self.source.format if self.source.format in LAYOUTS else None
        return format_sentences(self.sentences, labels, format, self.lang)

    def as_json(self) -> dict[str, Any]:
        """What is recorded about the split, beside the records."""
        leaked = None if self.leaked is None else {"also_in_train": self.leaked[0], "distinct": self.leaked[1]}
        return {
            "format": self.source.format,
            "path": Path(self.source.path).name,
            "sha256": sha256(Path(self.source.path)),
            "gold": f"{self.name}.gold",
            "drawn_from": self.drawn_from,
            "sentences": len(self.sentences),
            "words": sum(len(sentence.words) for sentence in self.sentences),
            "entities": dict(sorted(self.entities.items())),
            "repairs": self.source.repairs,
            "dropped_by_label_map": self.source.dropped,
            "i_changed_to_b": self.changed,
            "leaks": leaked,
        }

    def records(self) -> list[dict[str, Any]]:
        """The lines of SPLIT.jsonl."""
        labels: Sequence[Optional[list[str]]] = self.labels if self.source.labelled else [None] * len(self.sentences)
        return [
            {
                "id": f"{self.lang}-{self.name}-{number}",
                "lang": self.lang,
                "words": sentence.words,
                "labels": given,
                "source_line": sentence.line,
            }
            for number, (sentence, given) in enumerate(zip(self.sentences, labels), 1)
        ]


def of_language(
    lang: str, files: Mapping[str, NerFile], fractions: Mapping[str, float], seed: int, scheme: str
) -> list[Split]:
    """The splits of one language: the official ones as they are, those that are missing drawn.

    Args:
        files: split (or ``all``) -> file.
        fractions: split -> share of the distinct sentences of train or all, where the language lacks the split.
        scheme: ``iob2`` turns an I- that starts an entity into B-; ``keep`` does not.

    Raises:
        UsageError: a whole corpus, and nothing to draw.
        DataError: a split without labels or without sentences.
    """
    source = WHOLE if WHOLE in files else "train"
    wanted = {split: part for split, part in fractions.items() if split not in files}
    if WHOLE in files and not wanted:
        where = f"--input {lang}:all"
        raise UsageError("A corpus without splits needs --split.", where=where, allowed="dev=0.1,test=0.1")
    found = []
    for name, file in files.items():
        if not file.labelled and name != "test":
            raise DataError("Only a test split may lack labels.", where=file.path, value=f"{lang}:{name}")
        if name != source or not wanted:
            found.append(Split(lang, name, file, None, list(file), file.labels))
            continue
        places = draw([tuple(sentence.words) for sentence in file], wanted, seed)
        for split in ("train", *wanted):
            chosen = [sentence for sentence, place in zip(file, places) if place == split]
            found.append(Split(lang, split, file, name, chosen, [sentence.labels for sentence in chosen]))
    for one in found:
        _finish(one, found, scheme)
    return sorted(found, key=lambda split: SPLITS.index(split.name))


def _finish(split: Split, splits: Sequence[Split], scheme: str) -> None:
    if not split.sentences:
        raise DataError("A drawn split is empty.", where=split.source.path, value=f"{split.lang}:{split.name}")
    if scheme == "iob2":
        converted = [to_iob2(labels) for labels in split.labels]
        split.labels = [labels for labels, _ in converted]
        split.changed = sum(count for _, count in converted)
    split.entities.update(kind for labels in split.labels for kind, _, _ in conlleval_entities(labels))
    train = [other for other in splits if other.name == "train"]
    if train and split.name != "train":
        split.leaked = leaks(train[0].keys, split.keys)


def label_list(splits: Sequence[Split], fixed: Optional[Path]) -> list[str]:
    """``O`` and B- and I- of every type, sorted; or the lines of the fixed file, which must hold every label.

    Raises:
        DataError: a label that the fixed file lacks; names file:line. A fixed file that lists something else.
    """
    if fixed is None:
        kinds = {kind for split in splits for kind in split.entities}
        return [OUTSIDE, *sorted(f"{prefix}-{kind}" for prefix in "BI" for kind in kinds)]
    known = read_labels(fixed)
    if OUTSIDE not in known or not has_entities(known):
        allowed = f"{OUTSIDE}, and B-TYPE or I-TYPE, one a line"
        raise DataError("These are no labels of named entities.", where=fixed, value=" ".join(known), allowed=allowed)
    for split in splits:
        for sentence, labels in zip(split.sentences, split.labels):
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


def describe(splits: Sequence[Split]) -> str:
    """The table that is printed: sizes, entities, then what was repaired, dropped, drawn and leaked."""
    kinds = sorted({kind for split in splits for kind in split.entities})
    rows: list[list[object]] = [["lang", "split", "layout", "sentences", "words", *kinds]]
    notes: list[str] = []
    for split in splits:
        words = sum(len(sentence.words) for sentence in split.sentences)
        counts = [split.entities[kind] for kind in kinds]
        rows.append([split.lang, split.name, split.source.format, len(split.sentences), words, *counts])
        notes += [f"{split.lang} {split.name}: {note}" for note in _split_notes(split)]
    files = {split.source.path: split.source for split in splits}
    for path, file in files.items():
        notes += [f"{Path(path).name}: {note}" for note in _file_notes(file)]
    return "\n".join([table(rows), *notes])


def _split_notes(split: Split) -> list[str]:
    notes = []
    if split.drawn_from:
        notes.append(f"drawn from {split.drawn_from} ({Path(split.source.path).name})")
    if split.changed:
        notes.append(f"{split.changed} I- that start an entity became B-")
    if split.leaked and split.leaked[0]:
        notes.append(f"{split.leaked[0]} of {split.leaked[1]} distinct sentences are also in train")
    return notes


def _file_notes(file: NerFile) -> list[str]:
    notes = [] if file.labelled else ["no labels"]
    if file.repairs:
        notes.append("repaired " + ", ".join(f"{count} x {kind}" for kind, count in sorted(file.repairs.items())))
    if file.dropped:
        dropped = ", ".join(f"{count} {kind}" for kind, count in sorted(file.dropped.items()))
        notes.append(f"entities dropped by the label map: {dropped}")
    return notes
