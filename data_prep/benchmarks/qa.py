"""Extractive question answering: official files to the prepared form.

    python -m data_prep.benchmarks.qa --out prepared/xquad --split dev=0.1 --seed 1 \\
        --input en:train:train-v1.1.json en:test:xquad.en.json hi:test:xquad.hi.json

Writes per language of the contexts and split OUT/LANG/SPLIT.jsonl (id, lang, question_lang, context, question, answers,
source_line), SPLIT.gold (the same questions as SQuAD 1.1 JSON) and SPLIT.meta.json. docs/qa.md says what is read and
what is done about the oddities of each benchmark.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from data_prep.benchmarks.common import Input, parse_fractions, parse_inputs, per_language, write_jsonl
from data_prep.benchmarks.qa_splits import Split, describe, of_language
from fairseq_interference.data.readers.qa import FORMATS, read
from fairseq_interference.errors import DONE, exit_code
from fairseq_interference.languages import check_code
from fairseq_interference.stages import check_place, stage, write_json, write_text

PROG = "python -m data_prep.benchmarks.qa"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--out", required=True, type=Path, help="folder of the prepared benchmark, prepared/NAME")
    parser.add_argument("--benchmark", help="its name [last part of --out]")
    parser.add_argument(
        "--input",
        required=True,
        nargs="+",
        action="extend",
        metavar="LANG:SPLIT:PATH",
        help="language of the contexts; train, dev, test or all",
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
        "--question-lang",
        nargs="+",
        action="extend",
        default=[],
        metavar="[LANG:]CODE",
        help="language of the questions [from the file's name (MLQA), else that of the contexts]",
    )
    parser.add_argument("--split", metavar="dev=0.1,…", help="draw splits that a language lacks from its train or all")
    parser.add_argument("--seed", type=int, default=1, help="of the drawn splits [%(default)s]")
    parser.add_argument(
        "--no-repair", action="store_true", help="refuse wrong offsets instead of repairing and counting"
    )
    parser.add_argument("--force", action="store_true", help="redo a finished stage whose inputs or settings changed")
    parser.add_argument("--dry-run", action="store_true", help="read everything, print the table, write nothing")


def read_splits(args: argparse.Namespace, inputs: Sequence[Input]) -> list[Split]:
    """Read all files, draw the splits that are missing, count leaks.

    Raises:
        InterferenceError: a file that cannot be read, a train file without answers, nothing to draw from.
    """
    langs = list(dict.fromkeys(item.lang for item in inputs))
    formats = per_language(args.format, "--format", langs)
    asked = per_language(args.question_lang, "--question-lang", langs)
    fractions = parse_fractions(args.split)
    splits: list[Split] = []
    for lang in langs:
        files = {
            item.split: read(item.path, formats.get(lang, "auto"), lang=lang, repair=not args.no_repair)
            for item in inputs
            if item.lang == lang
        }
        question_lang = check_code(asked[lang], "--question-lang") if lang in asked else None
        splits += of_language(lang, question_lang, files, fractions, args.seed)
    return splits


def prepare(args: argparse.Namespace) -> int:
    """Run the command."""
    inputs = parse_inputs(args.input)
    splits = read_splits(args, inputs)
    print(describe(splits), flush=True)
    if args.dry_run:
        check_place(args.out)
        print(f"dry run: would write {args.out}")
        return DONE
    settings = {
        "benchmark": args.benchmark or args.out.name,
        "formats": per_language(args.format, "--format", [item.lang for item in inputs]),
        "question_langs": {f"{split.lang}:{split.name}": split.question_lang for split in splits},
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
        _write(folder, splits)
    print(f"wrote {args.out}")
    return DONE


def _write(folder: Path, splits: Sequence[Split]) -> None:
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
