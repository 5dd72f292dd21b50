"""``predict``: a fine-tuned checkpoint's labels for a file, in the file's own format, one per gold token."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_interference.errors import DONE, UsageError
from fairseq_interference.languages import check_code

HELP = "label a file with a fine-tuned checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb."""
    from fairseq_interference.data.readers.layouts import FORMATS

    parser.add_argument("--checkpoint", required=True, metavar="FILE", help="checkpoint of a fine-tuning run")
    parser.add_argument("--input", required=True, metavar="FILE", help="official file, or prepared/…/<split>.jsonl")
    parser.add_argument("--lang", required=True, metavar="CODE", help="language of the file")
    parser.add_argument("--output", required=True, metavar="FILE", help="where the labelled file goes")
    parser.add_argument("--format", default="auto", choices=FORMATS, help="layout of --input [%(default)s]")
    parser.add_argument("--output-format", choices=FORMATS, help="layout of --output (default: the official file's)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="most sentences in a batch")
    parser.add_argument(
        "--max-tokens", type=int, default=8192, metavar="N", help="most tokens in a batch [%(default)s]"
    )
    parser.add_argument("--fallback-lang", metavar="CODE", help="language whose parts serve an unknown --lang")
    parser.add_argument("--cpu", action="store_true", help="stay on the CPU")


def run(args: argparse.Namespace) -> int:
    """Read, label, write; returns the exit code."""
    from fairseq_interference.data.readers import ner
    from fairseq_interference.evaluation.predict import load_tagger, official, predict_labels, written_format

    check_code(args.lang, "--lang")
    for flag in ("batch_size", "max_tokens"):
        if getattr(args, flag) is not None and getattr(args, flag) < 1:
            raise UsageError("At least 1.", where="--" + flag.replace("_", "-"), value=getattr(args, flag))
    if Path(args.output).is_dir():
        raise UsageError("This is a folder.", where="--output", value=args.output)
    sentences = ner.read(args.input, format=args.format)  # before the checkpoint: cheap, and may be refused
    found = load_tagger(args.checkpoint, fallback_lang=args.fallback_lang, cpu=args.cpu)
    labels = predict_labels(
        found.model, found.task, sentences.words, args.lang, batch_size=args.batch_size, max_tokens=args.max_tokens
    )
    target = official(args.input, sentences)
    layout = args.output_format or written_format(args.input, target)
    if layout is None and target.format == "words":
        layout = "conll-tab"  # a file without labels has no place for them
    ner.write(args.output, target, labels, format=layout, lang=args.lang)
    print(f"{args.output}: {len(labels)} sentences, {sum(map(len, labels))} words")
    return DONE
