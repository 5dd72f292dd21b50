"""Parts of speech: official files to the prepared form.

    python -m data_prep.benchmarks.pos --out prepared/udpos --input en:train:en_ewt-ud-train.conllu \\
        en:dev:en_ewt-ud-dev.conllu hi:test:hi-ud-test.conllu --tag-map hi:CONJ=CCONJ,adj=ADJ

Writes OUT/labels.txt (the 17 tags) and, per language and split, SPLIT.jsonl (id, lang, words, labels, source_line),
SPLIT.gold (the official file with the prepared tags: what predictions are scored against) and SPLIT.meta.json.
docs/pos.md says what is read and what is done about the oddities of each corpus.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Optional

from data_prep.benchmarks import common
from data_prep.benchmarks.common import by_language, parse_fractions, parse_inputs, per_language
from data_prep.benchmarks.sentence_splits import SentenceSplit
from data_prep.benchmarks.splits import of_language, prepare_splits
from fairseq_interference.data.prepared import NO_LABEL
from fairseq_interference.data.readers.pos import FORMATS, TAGS, parse_tag_map, read

PROG = "python -m data_prep.benchmarks.pos"


@dataclass
class PosSplit(SentenceSplit):
    """Sentences with one tag per word."""

    counted: ClassVar[str] = "tags"

    def counts(self) -> Counter[str]:
        return Counter(tag for tags in self.labels for tag in tags)

    def notes(self) -> list[str]:
        untagged = self.counts()[NO_LABEL]
        bare = sum(set(sentence.words) == {NO_LABEL} for sentence in self.examples)
        notes = super().notes()
        if untagged:
            notes.append(f"{untagged} words have no tag (`{NO_LABEL}`): predicted, not trained on, not scored")
        if bare:
            notes.append(f"{bare} sentences hold no form but `{NO_LABEL}`")
        return notes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    common.add_arguments(parser, FORMATS)
    common.add_map_argument(parser, "--tag-map", "tags outside the 17: CONJ=CCONJ,adj=ADJ; on the right also _")


def prepare(args: argparse.Namespace) -> int:
    """Run the command: read all files, draw the splits that are missing, count leaks, write.

    Raises:
        InterferenceError: a file that cannot be read, a tag that is none of the 17, nothing to draw from.
    """
    inputs = parse_inputs(args.input)
    langs = by_language(inputs)
    maps = {lang: parse_tag_map(text) for lang, text in per_language(args.tag_map, "--tag-map", langs).items()}
    formats = per_language(args.format, "--format", langs)
    splits: list[PosSplit] = []
    for lang, paths in langs.items():
        format, tag_map = formats.get(lang, "auto"), maps.get(lang)
        files = {split: read(path, format, repair=not args.no_repair, tag_map=tag_map) for split, path in paths.items()}
        splits += of_language(PosSplit, lang, files, parse_fractions(args.split), args.seed)
    return prepare_splits(args, inputs, splits, TAGS, {"formats": formats, "tag_maps": maps})


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command; see :func:`data_prep.benchmarks.common.command`."""
    return common.command(PROG, __doc__, add_arguments, prepare, argv)


if __name__ == "__main__":
    sys.exit(main())
