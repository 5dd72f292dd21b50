"""``diagnose gradients``: do the languages' gradients conflict, and where in the network."""

from __future__ import annotations

import argparse
from typing import Any

from fairseq_interference.analysis.study import Study
from fairseq_interference.errors import UsageError

HELP = "cosines between languages' gradients: pairs, layers, within-language control, along training"
DEFAULTS: dict[str, Any] = {
    "data": None,
    "langs": "",
    "sentences": 4096,
    "draws": 5,
    "split": "train",
    "seed": 1,
    "max_tokens": 8192,
    "no_dropout": False,
    "keep": "cpu",
    "cpu": False,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the study; their defaults are :data:`DEFAULTS`."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", nargs="+", metavar="FILE", help="one, or several: a curve over their updates")
    source.add_argument(
        "--run",
        dest="runs",
        nargs="+",
        metavar="DIR",
        help="draw what runs with --conflict-every have measured (study `conflict`)",
    )
    group = parser.add_argument_group("--checkpoint")
    group.add_argument("--data", metavar="DIR", help="prepared data folder; the checkpoint's dictionary")
    group.add_argument("--langs", metavar="CODES", help="languages (default: the checkpoint's that the folder has)")
    group.add_argument("--sentences", type=int, metavar="N", help="blocks of text of a batch [4096, as in the paper]")
    group.add_argument("--draws", type=int, metavar="N", help="repetitions with other text; more continue a study [5]")
    group.add_argument("--split", choices=("train", "valid"), help="[train]")
    group.add_argument("--seed", type=int, help="of text, masks and dropout [1]")
    group.add_argument("--max-tokens", type=int, metavar="N", help="of a micro-batch; decides memory [8192]")
    group.add_argument("--no-dropout", action="store_true", help="instead of the checkpoint's dropout")
    group.add_argument(
        "--keep",
        choices=("cpu", "device", "recompute"),
        help="where the gradients of L languages wait: host memory (L + 1 copies of the shared weights), the GPU's, or "
        "nowhere (2 copies, (L + 1) / 2 times the passes) [cpu]",
    )
    group.add_argument("--cpu", action="store_true", help="do not use a GPU")
    parser.set_defaults(**DEFAULTS)


def run(args: argparse.Namespace) -> Study:
    """Measure checkpoints, or read runs."""
    _check(args)
    import fairseq_interference

    fairseq_interference.register()
    if args.runs:
        from fairseq_interference.analysis import conflict
        from fairseq_interference.optim.conflict import FILE, read_rows

        return conflict.study({folder: read_rows(f"{folder}/{FILE}") for folder in args.runs})
    from fairseq_interference.analysis.gradient_study import Plan, compute

    return compute(
        args.checkpoint,
        args.data,
        args.out,
        langs=args.langs,
        split=args.split,
        draws=args.draws,
        plan=Plan(args.sentences, args.seed, args.max_tokens, not args.no_dropout, args.keep),
        cpu=args.cpu,
        force=args.force,
    )


def _check(args: argparse.Namespace) -> None:
    """Raise :class:`UsageError` for flags out of range, without effect, or missing."""
    if args.runs:
        idle = [name for name, value in DEFAULTS.items() if getattr(args, name) != value]
        idle += ["force"] if args.force else []
        if idle:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
            raise UsageError("These flags have no effect on what a run has measured.", where="--run", value=flags)
        return
    if args.data is None:
        raise UsageError("Which text?", where="--data", next_step="give a folder that data_prep/prepare.sh has made")
    wrong = [f"--{name.replace('_', '-')} {getattr(args, name)}" for name in ("sentences", "draws", "max_tokens")]
    wrong = [text for text in wrong if int(text.split()[1]) < 1]
    if args.seed < 0:
        wrong.append(f"--seed {args.seed}")
    if wrong:
        raise UsageError(
            "Options are out of range.", where="diagnose gradients", value="; ".join(wrong), allowed=">= 1"
        )
