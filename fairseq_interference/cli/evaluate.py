"""``evaluate``: score predictions against gold without a model, or the perplexity of a checkpoint on text."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any, Optional

from fairseq_interference.data.readers.labels import LabelMap
from fairseq_interference.data.readers.layouts import FORMATS
from fairseq_interference.errors import DONE, UsageError
from fairseq_interference.evaluation.metrics import SCHEMES
from fairseq_interference.evaluation.score_files import score_ner_files
from fairseq_interference.languages import check_code

HELP = "score a file of predictions (ner), or a checkpoint's perplexity (mlm)"
TASKS = ("ner", "mlm")
_MLM = "fairseq_interference.evaluation.mlm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb; those of ``--task mlm`` are added when it is asked for, since its module needs the host."""
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--lang", help="language of the data; goes into the result")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    group = parser.add_argument_group("--task ner")
    group.add_argument("--gold", metavar="FILE", help="official file")
    group.add_argument("--predictions", metavar="FILE", help="the same words with predicted labels")
    group.add_argument("--scheme", choices=tuple(SCHEMES), default="iob2", help="reading of entities [%(default)s]")
    group.add_argument("--format", default="auto", metavar="NAME", help=f"of both files: {', '.join(FORMATS)}")
    group.add_argument("--predictions-format", metavar="NAME", help="of the predictions, if it differs")
    group.add_argument("--label-map", metavar="FILE|A=B,…", help="entity types renamed in both files; A=O drops A")
    group.add_argument("--no-repair", action="store_true", help="refuse odd labels instead of repairing and counting")
    _add_later(parser)


def _add_later(parser: argparse.ArgumentParser) -> None:
    parse = parser.parse_known_args

    def parse_known_args(args: Optional[Sequence[str]] = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        if "--task=mlm" in given or ("--task", "mlm") in zip(given, given[1:]):
            importlib.import_module(_MLM).add_mlm_arguments(parser)
        return parse(given, namespace)

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]


def run(args: argparse.Namespace) -> int:
    """Score and print."""
    if args.lang is not None:
        check_code(args.lang, "--lang")
    if args.task == "mlm":
        code: int = importlib.import_module(_MLM).run_mlm(args)
        return code
    for flag in ("gold", "predictions"):
        if getattr(args, flag) is None:
            raise UsageError(f"--task ner needs --{flag}.", where=f"--{flag}", allowed="FILE")
    result = score_ner_files(
        args.gold,
        args.predictions,
        scheme=args.scheme,
        format=args.format,
        predictions_format=args.predictions_format,
        lang=args.lang,
        label_map=None if args.label_map is None else LabelMap.parse(args.label_map),
        repair=not args.no_repair,
    )
    for note in _notes(result):
        print(f"note: {note}", file=sys.stderr)
    print(json.dumps(result, ensure_ascii=False) if args.json else _table(result))
    return DONE


def _notes(result: dict[str, Any]) -> list[str]:
    rules, counts = result["rules"], result["counts"]
    notes = [
        f"{role}: {', '.join(f'{count} x {repair}' for repair, count in sorted(repairs.items()))} (docs/ner.md)"
        for role, repairs in rules["repairs"].items()
        if repairs
    ]
    if any(rules["i_without_b"].values()):
        found = "I- without B-: {gold} in gold, {predictions} in predictions".format(**rules["i_without_b"])
        meaning = "none of them as an entity" if rules["scheme"] == "iob2" else "each as the start of an entity"
        notes.append(f"{found}; --scheme {rules['scheme']} reads {meaning}")
    if not counts["gold"]:
        notes.append("the gold file has no entities: precision, recall and F1 say nothing")
    strange = [kind for kind, count in counts["per_type"].items() if not count["gold"]]
    if strange and counts["gold"]:
        notes.append(f"predicted types that gold does not have: {', '.join(strange)} (see --label-map)")
    return notes


def _table(result: dict[str, Any]) -> str:
    """Result as a person reads it: per cent, one row a type, entities in the last columns."""
    metrics, counts = result["metrics"], result["counts"]
    rows = [*metrics["per_type"].items(), ("all", metrics)]
    width = max(8, *(len(name) for name, _ in rows))
    lines = [f"{'type':<{width}} precision  recall      F1    gold predicted correct"]
    for name, row in rows:
        count = counts["per_type"].get(name, counts) if name != "all" else counts
        lines.append(
            f"{name:<{width}} {100 * row['precision']:9.2f} {100 * row['recall']:7.2f} {100 * row['f1']:7.2f} "
            f"{count['gold']:7d} {count['predicted']:9d} {count['correct']:7d}"
        )
    lines.append(f"token accuracy {100 * metrics['accuracy']:.2f} over {counts['tokens']} words")
    scheme, lang = result["rules"]["scheme"], result["lang"] or "not given"
    lines.append(f"{result['n']} sentences, scheme {scheme}, language {lang}")
    return "\n".join(lines)
