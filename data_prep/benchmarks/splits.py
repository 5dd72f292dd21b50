"""Splits of a benchmark, whatever its examples: official or drawn, their records, counts, table and files."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, ClassVar, Generic, Optional, Protocol, TypeVar

from data_prep.benchmarks.common import SPLITS, WHOLE, Input, draw, leaks, parse_fractions, sha256, table, write_jsonl
from fairseq_interference.data.prepared import LABELS_FILE
from fairseq_interference.errors import DONE, DataError, UsageError
from fairseq_interference.stages import check_place, stage, write_json, write_text


class Example(Protocol):
    """What a file and a split hold; ``line``: where it starts in the file, from 1, if that is known."""

    @property
    def line(self) -> Optional[int]: ...


E = TypeVar("E", bound=Example)
E_co = TypeVar("E_co", covariant=True)
S = TypeVar("S", bound="Split[Any]")


class ExampleFile(Protocol[E_co]):
    """What a reader gives: the examples of one official file.

    Attributes:
        path: the file.
        format: name of its layout.
        labelled: whether it has labels.
        repairs: repair -> how often.
        dropped: label -> how often a label map turned it into none.
    """

    path: str
    format: str
    labelled: bool
    repairs: dict[str, int]
    dropped: dict[str, int]

    def __iter__(self) -> Iterator[E_co]: ...


@dataclass
class Split(ABC, Generic[E]):
    """Examples of one language and split, ready to be written. A benchmark says what an example is.

    Args:
        source: the official file.
        drawn_from: train or all, where the split is not official.
        examples: those of the file that belong to the split, in its order.
        leaked: distinct examples that are also in train, and distinct examples; None for train.
    """

    lang: str
    name: str
    source: ExampleFile[E]
    drawn_from: Optional[str]
    examples: list[E]
    leaked: Optional[tuple[int, int]] = None

    unit: ClassVar[str] = "sentences"
    may_lack_labels: ClassVar[tuple[str, ...]] = ("test",)
    counted: ClassVar[str] = "labels"

    @staticmethod
    @abstractmethod
    def key(example: E) -> Hashable:
        """What makes two examples equal."""

    @classmethod
    def group(cls, example: E) -> Hashable:
        """Examples of one group are never drawn into different splits."""
        return cls.key(example)

    @abstractmethod
    def counts(self) -> Counter[str]:
        """What is counted of the labels, as the table and the meta file show it."""

    @abstractmethod
    def gold(self) -> str:
        """The split in the official layout with the prepared labels: what predictions are scored against."""

    @abstractmethod
    def fields(self) -> Iterator[dict[str, Any]]:
        """Of each example, what a line of SPLIT.jsonl holds between lang and source_line; ``id`` if it has one."""

    def sizes(self) -> dict[str, int]:
        """Sizes that the table shows."""
        return {self.unit: len(self.examples)}

    def notes(self) -> list[str]:
        """What the user should know about the split."""
        notes = []
        if self.drawn_from:
            notes.append(f"drawn from {self.drawn_from} ({Path(self.source.path).name})")
        if self.leaked and self.leaked[0]:
            notes.append(f"{self.leaked[0]} of {self.leaked[1]} distinct {self.unit} are also in train")
        return notes

    def as_json(self) -> dict[str, Any]:
        """What is recorded about the split, beside the records."""
        leaked = None if self.leaked is None else {"also_in_train": self.leaked[0], "distinct": self.leaked[1]}
        return {
            "format": self.source.format,
            "path": Path(self.source.path).name,
            "sha256": sha256(Path(self.source.path)),
            "gold": f"{self.name}.gold",
            "drawn_from": self.drawn_from,
            **self.sizes(),
            self.counted: dict(sorted(self.counts().items())),
            "repairs": dict(self.source.repairs),
            "dropped_by_label_map": self.source.dropped,
            "leaks": leaked,
        }

    def records(self) -> list[dict[str, Any]]:
        """The lines of SPLIT.jsonl."""
        return [
            {"id": f"{self.lang}-{self.name}-{number}", "lang": self.lang, **fields, "source_line": example.line}
            for number, (example, fields) in enumerate(zip(self.examples, self.fields()), 1)
        ]


def of_language(
    make: Callable[..., S], lang: str, files: Mapping[str, Any], fractions: Mapping[str, float], seed: int
) -> list[S]:
    """The splits of one language: the official ones as they are, those that are missing drawn.

    Args:
        make: a kind of :class:`Split`.
        files: split (or ``all``) -> file.
        fractions: split -> share of the distinct groups of train or all, where the language lacks the split.

    Raises:
        UsageError: a whole corpus, and nothing to draw.
        DataError: a split without labels or without examples.
    """
    source = WHOLE if WHOLE in files else "train"
    wanted = {split: part for split, part in fractions.items() if split not in files}
    if WHOLE in files and not wanted:
        where = f"--input {lang}:all"
        raise UsageError("A corpus without splits needs --split.", where=where, allowed="dev=0.1,test=0.1")
    found: list[S] = []
    for name, file in files.items():
        whole = make(lang, name, file, None, list(file))
        if not file.labelled and name not in whole.may_lack_labels:
            allowed = ", ".join(whole.may_lack_labels)
            value = f"{lang}:{name}"
            raise DataError("This split needs labels.", where=file.path, value=value, allowed=f"none in {allowed}")
        if name != source or not wanted:
            found.append(whole)
            continue
        places = draw([whole.group(example) for example in file], wanted, seed)
        for split in ("train", *wanted):
            chosen = [example for example, place in zip(file, places) if place == split]
            found.append(make(lang, split, file, name, chosen))
    for each in found:
        _finish(each, found)
    return sorted(found, key=lambda split: SPLITS.index(split.name))


def _finish(split: Split[Any], splits: Sequence[Split[Any]]) -> None:
    if not split.examples:
        raise DataError("A split is empty.", where=split.source.path, value=f"{split.lang}:{split.name}")
    train = [other for other in splits if other.name == "train"]
    if train and split.name != "train":
        split.leaked = leaks(map(train[0].key, train[0].examples), map(split.key, split.examples))


def describe(splits: Sequence[Split[Any]]) -> str:
    """The table that is printed: sizes, counts, then what was repaired, dropped, drawn and leaked."""
    counts = [split.counts() for split in splits]
    kinds = sorted({kind for count in counts for kind in count})
    rows: list[list[object]] = [["lang", "split", "layout", *splits[0].sizes(), *kinds]]
    notes: list[str] = []
    for split, count in zip(splits, counts):
        sizes = split.sizes().values()
        rows.append([split.lang, split.name, split.source.format, *sizes, *(count[kind] for kind in kinds)])
        notes += [f"{split.lang} {split.name}: {note}" for note in split.notes()]
    files = {split.source.path: split.source for split in splits}
    for path, file in files.items():
        notes += [f"{Path(path).name}: {note}" for note in _file_notes(file)]
    return "\n".join([table(rows), *notes])


def _file_notes(file: ExampleFile[Any]) -> list[str]:
    notes = [] if file.labelled else ["no labels"]
    if file.repairs:
        notes.append("repaired " + ", ".join(f"{count} x {kind}" for kind, count in sorted(file.repairs.items())))
    if file.dropped:
        dropped = ", ".join(f"{count} {kind}" for kind, count in sorted(file.dropped.items()))
        notes.append(f"dropped by the label map: {dropped}")
    return notes


def prepare_splits(
    args: argparse.Namespace,
    inputs: Sequence[Input],
    splits: Sequence[Split[Any]],
    labels: Sequence[str],
    settings: Mapping[str, Any],
) -> int:
    """Print the table; unless it is a dry run, write the benchmark as one stage.

    Args:
        args: with the flags of ``common.add_arguments``.
        labels: the lines of labels.txt; a benchmark without a label set has no such file.
        settings: what the result depends on besides inputs, labels and the common flags.

    Returns:
        Exit code.
    """
    print(describe(splits), flush=True)
    if labels:
        print(f"labels: {' '.join(labels)}")
    if args.dry_run:
        check_place(args.out)
        print(f"dry run: would write {args.out}")
        return DONE
    common = {
        "benchmark": args.benchmark or args.out.name,
        "labels": list(labels),
        "repair": not args.no_repair,
        "split": parse_fractions(args.split),
        "seed": args.seed if args.split else None,
    }
    files = {item.name: item.path for item in inputs}
    with stage(args.out, inputs=files, settings={**common, **settings}, force=args.force) as folder:
        if folder is None:
            print(f"{args.out} is there already")
            return DONE
        _write(folder, splits, labels)
    print(f"wrote {args.out}")
    return DONE


def _write(folder: Path, splits: Sequence[Split[Any]], labels: Sequence[str]) -> None:
    if labels:
        write_text(folder / LABELS_FILE, "".join(f"{label}\n" for label in labels))
    for split in splits:
        base = folder / split.lang
        write_jsonl(base / f"{split.name}.jsonl", split.records())
        write_text(base / f"{split.name}.gold", split.gold())
        write_json(base / f"{split.name}.meta.json", split.as_json())
    write_json(folder / "report.json", {f"{split.lang}/{split.name}": split.as_json() for split in splits})
