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
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from data_prep.benchmarks.common import Input, parse_fractions, parse_inputs, per_language, write_jsonl
from data_prep.benchmarks.ner_splits import Split, describe, label_list, of_language
from fairseq_interference.data.readers.labels import LabelMap
from fairseq_interference.data.readers.layouts import FORMATS
from fairseq_interference.data.readers.ner import read
from fairseq_interference.errors import DONE, exit_code
from fairseq_interference.stages import check_place, stage, write_json, write_text

PROG = "python -m data_prep.benchmarks.ner"
MAPS = Path(__file__).with_name("maps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--out", required=True, type=Path, help="folder of the prepared benchmark, prepared/NAME")
    parser.add_argument("--benchmark", help="its name [last part of --out]")
    parser.add_argument(
        "--input", required=True, nargs="+", action="extend", metavar="LANG:SPLIT:PATH", help="train, dev, test or all"
    )
    parser.add_argument(
        "--format",
        nargs="+",
        action="extend",
        default=[],
        metavar="[LANG:]NAME",
        help=f"layout of the files [auto]: {', '.join(FORMATS)}",
    )
    parser.add_argument(
        "--label-map",
        nargs="+",
        action="extend",
        default=[],
        metavar="[LANG:]MAP",
        help=f"A=B,C=O or a YAML file or one of {', '.join(sorted(path.stem for path in MAPS.glob('*.yaml')))}",
    )
    parser.add_argument(
        "--scheme", choices=("keep", "iob2"), default="keep", help="iob2: an I- that starts an entity becomes B- [keep]"
    )
    parser.add_argument("--labels", type=Path, metavar="FILE", help="a fixed label file; any other label is an error")
    parser.add_argument("--split", metavar="dev=0.1,…", help="draw splits that a language lacks from its train or all")
    parser.add_argument("--seed", type=int, default=1, help="of the drawn splits [%(default)s]")
    parser.add_argument("--no-repair", action="store_true", help="refuse odd labels instead of repairing and counting")
    parser.add_argument("--force", action="store_true", help="redo a finished stage whose inputs or settings changed")
    parser.add_argument("--dry-run", action="store_true", help="read everything, print the table, write nothing")


def load_maps(texts: Sequence[str], langs: Sequence[str]) -> dict[str, LabelMap]:
    """Language -> its label map; a bare name is one of the maps beside this file."""
    found = per_language(texts, "--label-map", langs)
    shipped = {path.stem: path for path in MAPS.glob("*.yaml")}
    return {lang: LabelMap.parse(str(shipped.get(text, text))) for lang, text in found.items()}


def read_splits(args: argparse.Namespace, inputs: Sequence[Input]) -> list[Split]:
    """Read all files, draw the splits that are missing, count leaks.

    Raises:
        InterferenceError: a file that cannot be read, a train file without labels, nothing to draw from.
    """
    langs = list(dict.fromkeys(item.lang for item in inputs))
    maps = load_maps(args.label_map, langs)
    formats = per_language(args.format, "--format", langs)
    fractions = parse_fractions(args.split)
    splits: list[Split] = []
    for lang in langs:
        files = {}
        for item in inputs:
            if item.lang == lang:
                files[item.split] = read(
                    item.path, formats.get(lang, "auto"), repair=not args.no_repair, label_map=maps.get(lang)
                )
        splits += of_language(lang, files, fractions, args.seed, args.scheme)
    return splits


def prepare(args: argparse.Namespace) -> int:
    """Run the command."""
    inputs = parse_inputs(args.input)
    splits = read_splits(args, inputs)
    labels = label_list(splits, args.labels)
    print(describe(splits), flush=True)
    print(f"labels: {' '.join(labels)}")
    if args.dry_run:
        check_place(args.out)
        print(f"dry run: would write {args.out}")
        return DONE
    maps = load_maps(args.label_map, list(dict.fromkeys(item.lang for item in inputs)))
    settings = {
        "benchmark": args.benchmark or args.out.name,
        "formats": per_language(args.format, "--format", [item.lang for item in inputs]),
        "label_maps": {lang: found.as_settings() for lang, found in maps.items()},
        "labels": labels,
        "scheme": args.scheme,
        "repair": not args.no_repair,
        "split": parse_fractions(args.split),
        "seed": args.seed if args.split else None,
    }
    with stage(
        args.out, inputs={item.name: item.path for item in inputs}, settings=settings, force=args.force
    ) as folder:
        if folder is None:
            print(f"{args.out} is there already")
            return DONE
        _write(folder, splits, labels)
    print(f"wrote {args.out}")
    return DONE


def _write(folder: Path, splits: Sequence[Split], labels: Sequence[str]) -> None:
    write_text(folder / "labels.txt", "".join(f"{label}\n" for label in labels))
    for split in splits:
        base = folder / split.lang
        write_jsonl(base / f"{split.name}.jsonl", split.records())
        write_text(base / f"{split.name}.gold", split.gold)
        write_json(base / f"{split.name}.meta.json", split.as_json())
    write_json(folder / "report.json", {f"{split.lang}/{split.name}": split.as_json() for split in splits})


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Parse, prepare, print. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    args = parser.parse_args(argv)
    return exit_code(PROG, lambda: prepare(args))


if __name__ == "__main__":
    sys.exit(main())
