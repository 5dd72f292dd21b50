"""Named entities: official files to the prepared form.

    python -m data_prep.benchmarks.ner --out prepared/mine --input en:test:wikigold.conllu te:train:Telugu-train.txt \\
        --label-map en:wikigold te:il-ner --split dev=0.1

Writes OUT/labels.txt and, per language and split, SPLIT.jsonl (id, lang, words, labels, source_line), SPLIT.gold (the
same sentences in the official layout with the prepared labels: what predictions are scored against) and
SPLIT.meta.json. docs/ner.md says what is read and what is done about the oddities of each corpus.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Optional

from data_prep.benchmarks import common
from data_prep.benchmarks.common import by_language, parse_fractions, parse_inputs, per_language
from data_prep.benchmarks.ner_splits import NerSplit, label_list
from data_prep.benchmarks.splits import of_language, prepare_splits
from fairseq_interference.data.readers.labels import LabelMap
from fairseq_interference.data.readers.layouts import FORMATS
from fairseq_interference.data.readers.ner import read

PROG = "python -m data_prep.benchmarks.ner"
MAPS = Path(__file__).with_name("maps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    common.add_arguments(parser, FORMATS)
    shipped = ", ".join(sorted(path.stem for path in MAPS.glob("*.yaml")))
    common.add_map_argument(parser, "--label-map", f"A=B,C=O or a YAML file or one of {shipped}")
    parser.add_argument(
        "--scheme", choices=("keep", "iob2"), default="keep", help="iob2: an I- that starts an entity becomes B- [keep]"
    )
    parser.add_argument("--labels", type=Path, metavar="FILE", help="a fixed label file; any other label is an error")


def load_maps(texts: Sequence[str], langs: Iterable[str]) -> dict[str, LabelMap]:
    """Language -> its label map; a bare name is one of the maps beside this file."""
    found = per_language(texts, "--label-map", langs)
    shipped = {path.stem: path for path in MAPS.glob("*.yaml")}
    return {lang: LabelMap.parse(str(shipped.get(text, text))) for lang, text in found.items()}


def prepare(args: argparse.Namespace) -> int:
    """Run the command: read all files, draw the splits that are missing, count leaks, write.

    Raises:
        InterferenceError: a file that cannot be read, a train file without labels, nothing to draw from.
    """
    inputs = parse_inputs(args.input)
    langs = by_language(inputs)
    maps = load_maps(args.label_map, langs)
    formats = per_language(args.format, "--format", langs)
    make = partial(NerSplit, scheme=args.scheme)
    splits: list[NerSplit] = []
    for lang, paths in langs.items():
        format, label_map = formats.get(lang, "auto"), maps.get(lang)
        files = {
            split: read(path, format, repair=not args.no_repair, label_map=label_map) for split, path in paths.items()
        }
        splits += of_language(make, lang, files, parse_fractions(args.split), args.seed)
    settings = {
        "formats": formats,
        "label_maps": {lang: found.as_settings() for lang, found in maps.items()},
        "scheme": args.scheme,
    }
    return prepare_splits(args, inputs, splits, label_list(splits, args.labels), settings)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command; see :func:`data_prep.benchmarks.common.command`."""
    return common.command(PROG, __doc__, add_arguments, prepare, argv)


if __name__ == "__main__":
    sys.exit(main())
