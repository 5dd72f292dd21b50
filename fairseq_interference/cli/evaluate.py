"""``evaluate``: score predictions against gold without a model, or a checkpoint on text."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Optional

from fairseq_interference.cli.evaluate_words import notes, table
from fairseq_interference.data.readers import pos
from fairseq_interference.data.readers.labels import LabelMap
from fairseq_interference.data.readers.layouts import FORMATS
from fairseq_interference.errors import DONE, UsageError
from fairseq_interference.evaluation.metrics import SCHEMES
from fairseq_interference.evaluation.metrics_qa import NORMAL_FORMS, RULES
from fairseq_interference.evaluation.score_files import score_ner_files
from fairseq_interference.evaluation.score_nli import score_nli_files
from fairseq_interference.evaluation.score_pos import score_pos_files
from fairseq_interference.evaluation.score_qa import score_qa_files
from fairseq_interference.languages import check_code

HELP = "score predictions (ner, pos, nli, qa), or a checkpoint: perplexity (mlm), sentence retrieval (retrieval)"
#: task that runs a model -> its module, which needs the host, with ``add_TASK_arguments`` and ``run_TASK``
OF_MODELS = {name: f"fairseq_interference.evaluation.{name}" for name in ("mlm", "retrieval")}
TASKS = ("ner", "pos", "nli", "qa", *OF_MODELS)
#: flags that one task alone reads, with what they are unless given
ONLY: dict[str, dict[str, Any]] = {
    "ner": {"scheme": "iob2", "format": "auto", "predictions_format": None, "label_map": None, "no_repair": False},
    "pos": {"tag_map": None},
    "nli": {"labels": None},
    "qa": {"normal_form": "NFC"},
}
#: task -> what --rules may say; the first is the default
OWN_RULES: dict[str, tuple[str, ...]] = {"ner": tuple(SCHEMES), "qa": tuple(RULES)}
#: flags of files with predictions
FILES: dict[str, Any] = {"gold": None, "predictions": None, "against": None}
#: flags of a comparison, which need --against
DRAWS: dict[str, Any] = {"bootstrap": 10_000, "seed": 1}
SCORERS: dict[str, Callable[..., dict[str, Any]]] = {
    "ner": score_ner_files,
    "pos": score_pos_files,
    "nli": score_nli_files,
    "qa": score_qa_files,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb; those of a task that runs a model are added when it is asked for."""
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--lang", help="language of the data; goes into the result, and --rules mlqa depends on it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    group = parser.add_argument_group("--task ner, pos, nli, qa")
    group.add_argument("--gold", metavar="FILE", help="official file")
    group.add_argument("--predictions", metavar="FILE", help="the same examples with predicted labels or answers")
    known = "; ".join(f"{task}: {', '.join(names)}" for task, names in OWN_RULES.items())
    group.add_argument("--rules", metavar="NAME", help=f"how they are compared ({known}; the first is the default)")
    group.add_argument("--against", metavar="FILE", help="other predictions: adds the difference, by paired bootstrap")
    group.add_argument("--bootstrap", type=int, default=DRAWS["bootstrap"], metavar="N", help="draws [%(default)s]")
    group.add_argument("--seed", type=int, default=DRAWS["seed"], help="of the draws [%(default)s]")
    group = parser.add_argument_group("--task ner")
    group.add_argument("--scheme", choices=tuple(SCHEMES), default="iob2", help="the same as --rules")
    group.add_argument("--format", default="auto", metavar="NAME", help=f"of both files: {', '.join(FORMATS)}")
    group.add_argument("--predictions-format", metavar="NAME", help="of the predictions, if it differs")
    group.add_argument("--label-map", metavar="FILE|A=B,…", help="entity types renamed in both files; A=O drops A")
    group.add_argument("--no-repair", action="store_true", help="refuse odd labels instead of repairing and counting")
    group = parser.add_argument_group("--task pos")
    group.add_argument("--tag-map", metavar="A=B,…", help="tags renamed in both files; A=_ does not score A")
    group = parser.add_argument_group("--task nli")
    group.add_argument("--labels", metavar="A,B,…", help="the label set in its order (known: XNLI's, and 0,1)")
    group = parser.add_argument_group("--task qa")
    group.add_argument("--normal-form", choices=NORMAL_FORMS, default="NFC", help="of both sides [%(default)s]")
    parser.epilog = "evaluate --task mlm --help and --task retrieval --help show the flags of these tasks."
    _add_later(parser)


def _add_later(parser: argparse.ArgumentParser) -> None:
    parse = parser.parse_known_args

    def parse_known_args(args: Optional[Sequence[str]] = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        for task, module in OF_MODELS.items():
            if f"--task={task}" in given or ("--task", task) in zip(given, given[1:]):
                getattr(importlib.import_module(module), f"add_{task}_arguments")(parser)
        return parse(given, namespace)

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]


def run(args: argparse.Namespace) -> int:
    """Score and print."""
    if args.lang is not None:
        check_code(args.lang, "--lang")
    _check_flags(args)
    if args.task in OF_MODELS:
        code: int = getattr(importlib.import_module(OF_MODELS[args.task]), f"run_{args.task}")(args)
        return code
    result = _score(args)
    for note in notes(result):
        print(f"note: {note}", file=sys.stderr)
    print(json.dumps(result, ensure_ascii=False) if args.json else table(result))
    return DONE


def _check_flags(args: argparse.Namespace) -> None:
    if args.task not in OF_MODELS:
        for flag in ("gold", "predictions"):
            if getattr(args, flag) is None:
                raise UsageError(f"--task {args.task} needs --{flag}.", where=f"--{flag}", allowed="FILE")
    if args.against is None:
        for name, default in DRAWS.items():
            if getattr(args, name) != default:
                raise UsageError(
                    f"--{name} says nothing without --against.", where=f"--{name}", allowed="--against FILE"
                )
    if args.rules is not None and args.rules not in OWN_RULES.get(args.task, ()):
        allowed = "; ".join(f"--task {task}: {', '.join(names)}" for task, names in OWN_RULES.items())
        what = f"--rules says nothing about --task {args.task}." if args.task not in OWN_RULES else "No such rules."
        raise UsageError(what, where="--rules", value=args.rules, allowed=allowed)
    others = {task: flags for task, flags in ONLY.items() if task != args.task}
    for task, flags in {**others, **({", ".join(ONLY): FILES} if args.task in OF_MODELS else {})}.items():
        for name, default in flags.items():
            if getattr(args, name) != default:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} says nothing about --task {args.task}.", where=flag, allowed=f"--task {task}")


def _score(args: argparse.Namespace) -> dict[str, Any]:
    """The result of the predictions, compared with another file's where one is given."""
    how = _how(args)
    if args.against is None:
        return SCORERS[args.task](args.gold, args.predictions, **how)
    from fairseq_interference.evaluation.score_paired import compare_files

    draws = {"resamples": args.bootstrap, "seed": args.seed}
    result, other = compare_files(args.task, args.gold, args.predictions, args.against, **draws, **how)
    for note in notes(other):
        print(f"note: --against: {note}", file=sys.stderr)
    return result


def _how(args: argparse.Namespace) -> dict[str, Any]:
    """What the scorer of the task is told besides its files."""
    if args.task == "pos":
        return {"lang": args.lang, "tag_map": args.tag_map and pos.parse_tag_map(args.tag_map)}
    if args.task == "nli":
        labels = None if args.labels is None else [label.strip() for label in args.labels.split(",")]
        return {"lang": args.lang, "labels": labels}
    if args.task == "qa":
        return {"lang": args.lang, "rules": args.rules or RULES[0], "normal_form": args.normal_form}
    return {
        "lang": args.lang,
        "scheme": args.rules or args.scheme,
        "format": args.format,
        "predictions_format": args.predictions_format,
        "label_map": None if args.label_map is None else LabelMap.parse(args.label_map),
        "repair": not args.no_repair,
    }
