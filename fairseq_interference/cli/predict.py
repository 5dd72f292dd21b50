"""``predict``: what a fine-tuned checkpoint makes of a file, in the file's own format, one for each gold example."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from fairseq_interference.errors import DONE, UsageError
from fairseq_interference.languages import check_code
from fairseq_interference.stages import write_text

HELP = "label words or pairs, or answer questions, with a fine-tuned checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb."""
    from fairseq_interference.data.readers.layouts import FORMATS

    parser.add_argument("--checkpoint", required=True, metavar="FILE", help="checkpoint of a fine-tuning run")
    parser.add_argument("--input", required=True, metavar="FILE", help="official file, or prepared/…/<split>.jsonl")
    parser.add_argument("--lang", required=True, metavar="CODE", help="language of the file (qa: of its contexts)")
    parser.add_argument("--output", required=True, metavar="FILE", help="where the predictions go")
    parser.add_argument("--format", default="auto", metavar="NAME", help="layout of --input [%(default)s]")
    parser.add_argument(
        "--output-format", choices=FORMATS, help="layout of labelled words (default: the official file's)"
    )
    parser.add_argument("--n-best", type=int, metavar="N", help="qa: write N answers with scores, JSON Lines")
    parser.add_argument("--batch-size", type=int, metavar="N", help="most examples in a batch")
    parser.add_argument(
        "--max-tokens", type=int, default=8192, metavar="N", help="most tokens in a batch [%(default)s]"
    )
    parser.add_argument("--fallback-lang", metavar="CODE", help="language whose parts serve an unknown --lang")
    parser.add_argument("--cpu", action="store_true", help="stay on the CPU")


def run(args: argparse.Namespace) -> int:
    """Read, predict, write; returns the exit code."""
    from fairseq_interference.evaluation.downstream import KINDS
    from fairseq_interference.evaluation.predict import load_finetuned

    check_code(args.lang, "--lang")
    for flag in ("batch_size", "max_tokens", "n_best"):
        if getattr(args, flag) is not None and getattr(args, flag) < 1:
            raise UsageError("At least 1.", where="--" + flag.replace("_", "-"), value=getattr(args, flag))
    if Path(args.output).is_dir():
        raise UsageError("This is a folder.", where="--output", value=args.output)
    if not Path(args.input).is_file():
        raise UsageError("There is no such file.", where="--input", value=args.input)
    loaded = load_finetuned(args.checkpoint, fallback_lang=args.fallback_lang, cpu=args.cpu)
    kind = KINDS[loaded.task.kind]
    for flag, wanted in (("n_best", ("qa",)), ("output_format", ("ner", "pos"))):
        if getattr(args, flag) is not None and kind.name not in wanted:
            raise UsageError(f"This says nothing about {kind.name}.", where="--" + flag.replace("_", "-"))
    file = kind.read(args.input, args.format, args.lang, loaded.task.labels)
    limits: dict[str, Any] = {"batch_size": args.batch_size, "max_tokens": args.max_tokens}
    if args.n_best is None:
        found = kind.predict(loaded, file, args.lang, **limits)
        kind.write(args.output, args.input, file, found, args.lang, args.output_format)
    else:
        found = kind.predict(loaded, file, args.lang, **limits, n_best=args.n_best)
        lines = ({"id": q.id, "n_best": [answer._asdict() for answer in answers]} for q, answers in zip(file, found))
        write_text(args.output, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    print(f"{args.output}: {kind.unit(found)}")
    return DONE
