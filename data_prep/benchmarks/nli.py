"""Sentence pairs: official files to the prepared form.

    python -m data_prep.benchmarks.nli --out prepared/xnli --input en:train:train-en.tsv en:dev:dev-en.tsv \\
        sw:dev:dev-sw.tsv sw:test:test-sw.tsv

Writes OUT/labels.txt and, per language and split, SPLIT.jsonl (id, lang, premise, hypothesis, label, source_line),
SPLIT.gold (the official file with the prepared labels: what predictions are scored against) and SPLIT.meta.json.
docs/nli.md says what is read and what is done about the oddities of each corpus.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Optional

from data_prep.benchmarks import common
from data_prep.benchmarks.common import by_language, parse_fractions, parse_inputs, per_language
from data_prep.benchmarks.splits import Split, of_language, prepare_splits
from fairseq_interference.data.prepared import read_labels
from fairseq_interference.data.readers.labels import parse_pairs
from fairseq_interference.data.readers.nli import (
    FORMATS,
    LABEL_SETS,
    NO_MAJORITY,
    Pair,
    PairFile,
    format_pairs,
    read,
)
from fairseq_interference.errors import UsageError

PROG = "python -m data_prep.benchmarks.nli"


@dataclass
class NliSplit(Split[Pair]):
    """Sentence pairs. Pairs without a majority label are left out of train, and kept without a label elsewhere.

    Args:
        undecided: how many there were.
    """

    source: PairFile
    undecided: int = field(init=False)

    unit: ClassVar[str] = "pairs"

    def __post_init__(self) -> None:
        decided = [pair for pair in self.examples if pair.label is not None]
        self.undecided = len(self.examples) - len(decided) if self.source.labelled else 0
        if self.name == "train":
            self.examples = decided

    @staticmethod
    def key(example: Pair) -> Hashable:
        return (example.premise, example.hypothesis)

    @classmethod
    def group(cls, example: Pair) -> Hashable:
        return example.premise  # XNLI has three hypotheses for each

    def counts(self) -> Counter[str]:
        return Counter(pair.label for pair in self.examples if pair.label is not None)

    def gold(self) -> str:
        whole = self.drawn_from is None and len(self.examples) == len(self.source)
        pairs: Sequence[Pair] = self.source if whole else self.examples
        return format_pairs(pairs, [pair.label for pair in pairs], self.source.header)

    def fields(self) -> Iterator[dict[str, Any]]:
        for pair in self.examples:
            own = {} if pair.id is None else {"id": pair.id}
            yield {**own, "premise": pair.premise, "hypothesis": pair.hypothesis, "label": pair.label}

    def notes(self) -> list[str]:
        done = "left out" if self.name == "train" else "predicted, not scored"
        undecided = [f"{self.undecided} pairs have no majority label (`{NO_MAJORITY}`): {done}"]
        return [*super().notes(), *(undecided if self.undecided else [])]

    def as_json(self) -> dict[str, Any]:
        return {**super().as_json(), "without_majority": self.undecided}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    common.add_arguments(parser, FORMATS)
    common.add_map_argument(parser, "--label-map", "0=entailment,1=neutral,2=contradiction; - on the right: no label")
    parser.add_argument(
        "--labels",
        metavar="SET",
        help=f"label set: {', '.join(LABEL_SETS)} or a FILE, one label a line [the one that the files use]",
    )


def given_labels(text: Optional[str]) -> tuple[str, ...]:
    """The label set that ``--labels`` names; empty without the flag."""
    return () if text is None else LABEL_SETS.get(text) or tuple(read_labels(Path(text)))


def common_labels(splits: Sequence[NliSplit]) -> tuple[str, ...]:
    """The label set of all files.

    Raises:
        UsageError: they have different ones, or none has labels.
    """
    sets = {split.source.label_set: split.source.path for split in splits if split.source.label_set}
    if len(sets) == 1:
        return next(iter(sets))
    what = "The files have different label sets." if sets else "No file has labels, so the label set must be named."
    seen = "; ".join(f"{Path(path).name}: {' '.join(labels)}" for labels, path in sets.items())
    raise UsageError(what, where="--labels", value=seen or None, allowed=f"{', '.join(LABEL_SETS)} or a FILE")


def prepare(args: argparse.Namespace) -> int:
    """Run the command: read all files, draw the splits that are missing, count leaks, write.

    Raises:
        InterferenceError: a file that cannot be read, a label outside the set, nothing to draw from.
    """
    inputs = parse_inputs(args.input)
    langs = by_language(inputs)
    texts = per_language(args.label_map, "--label-map", langs)
    maps = {lang: parse_pairs(text, "--label-map", "0=entailment,1=neutral") for lang, text in texts.items()}
    formats = per_language(args.format, "--format", langs)
    labels = given_labels(args.labels)
    splits: list[NliSplit] = []
    for lang, paths in langs.items():
        options: dict[str, Any] = {"lang": lang, "labels": labels, "label_map": maps.get(lang)}
        options.update(format=formats.get(lang, "auto"), repair=not args.no_repair)
        files = {split: read(path, **options) for split, path in paths.items()}
        splits += of_language(NliSplit, lang, files, parse_fractions(args.split), args.seed)
    settings = {"formats": formats, "label_maps": maps}
    return prepare_splits(args, inputs, splits, labels or common_labels(splits), settings)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command; see :func:`data_prep.benchmarks.common.command`."""
    return common.command(PROG, __doc__, add_arguments, prepare, argv)


if __name__ == "__main__":
    sys.exit(main())
