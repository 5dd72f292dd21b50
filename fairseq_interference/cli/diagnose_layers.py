"""``diagnose layers``: fine-tune with a layer frozen, drawn anew, alone or at a higher rate (Guo et al. 2023)."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

from fairseq_interference.analysis import layers
from fairseq_interference.analysis.study import Ledger, Study
from fairseq_interference.errors import DONE, CheckpointError, UsageError
from fairseq_interference.languages import parse_codes

HELP = "which layers fine-tuning needs and which it should not touch: freeze, draw anew, train alone, train faster"
FACTOR, DROP = 10.0, 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fairseq_interference.finetune import SCRIPTS, SELECTIONS

    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE", help="pretrained checkpoint")
    parser.add_argument("--task", choices=tuple(SCRIPTS), default="ner", help="kind of fine-tuning [%(default)s]")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="prepared benchmark")
    parser.add_argument("--train-lang", required=True, metavar="CODES", help="source: en, or several")
    parser.add_argument("--eval-langs", required=True, metavar="CODES", help="target languages: hi,sw,te")
    probes = f"{', '.join(layers.PROBES)}; several: separated by commas [%(default)s]"
    parser.add_argument("--probe", default="freeze,reinit", metavar="NAMES", help=probes)
    parts = f"weights of a layer: {', '.join(layers.PARTS)}; several: separated by commas [all]"
    parser.add_argument("--parts", metavar="NAMES", help=parts)
    parser.add_argument("--layers", metavar="LIST", help="1,2,3 and groups such as 1-4; 1 is the bottom [each layer]")
    parser.add_argument("--k", metavar="LIST", help="of last-k: how many layers are trained [1,2,3]")
    parser.add_argument("--factor", type=float, metavar="X", help=f"of enlarge: times the rate [{FACTOR:g}]")
    parser.add_argument("--seeds", default="1", metavar="LIST", help="of fine-tuning, one run each [%(default)s]")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings of fine-tuning [run/configs/tiny/TASK.yaml]"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--split", default="dev", help="prepared split to score [%(default)s]")
    parser.add_argument("--selection", choices=SELECTIONS, help="dev splits that choose the epoch [source-dev]")
    parser.add_argument("--rules", help="of scores, as in run/finetune_ner.sh and run/finetune_qa.sh")
    parser.add_argument("--fallback-lang", metavar="CODE", help="language whose parts serve an unknown language")
    parser.add_argument("--precision", help="as in run/finetune_ner.sh")
    parser.add_argument("--gpus", type=int, help="as in run/finetune_ner.sh")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side, one thread each [1]")
    parser.add_argument("--keep-checkpoints", action="store_true", help="keep those of finished runs")
    parser.add_argument("--suggest-sets", action="store_true", help="write the weight sets of slow-and-fast: sets.yaml")
    drop = f"with --suggest-sets: points that an obvious drop has at least [{DROP:g}]"
    parser.add_argument("--obvious-drop", type=float, metavar="POINTS", help=drop)
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the commands, run nothing")


def run(args: argparse.Namespace) -> Study:
    """Run what is left of the grid and tabulate all that is there.

    Raises:
        InterferenceError: flags that cannot be run, or a run that has failed.
        SystemExit: a dry run, or told to stop.
    """
    with quiet():
        return _run(args)


@contextmanager
def quiet() -> Iterator[None]:
    """The host's notes go into the logs of runs only; the level that it sets for all loggers is taken back."""
    level = logging.getLogger().level
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        logging.getLogger().setLevel(level)


def _run(args: argparse.Namespace) -> Study:
    from fairseq_interference import finetune, launch, processes
    from fairseq_interference.cli.layer_runs import Grid
    from fairseq_interference.stages import locked

    if not args.checkpoint.is_file():
        raise UsageError("There is no such checkpoint.", where="--checkpoint", value=str(args.checkpoint))
    if args.jobs > 1 and launch.visible_gpus():
        raise UsageError("Runs side by side are for machines without a GPU.", where="--jobs", value=args.jobs)
    names = parameter_names(args.checkpoint)
    cells = plan(args, layers.depth_of(names))
    grid = Grid(args, names)
    finetune.check(grid.parsed(cells[0]))
    path, settings = grid.out / "rows.jsonl", grid.depends_on()
    if args.dry_run:
        grid.show(cells, Ledger(path, settings) if path.is_file() and not args.force else None)
        raise SystemExit(DONE)
    with processes.leaving_when_told(), locked(grid.out):
        grid.check(cells[0])
        ledger = Ledger(path, settings, args.force)
        if args.force and not ledger.parts:
            grid.forget()
        grid.run(cells, ledger, args.jobs)
        study = tabulate(args, names, ledger)
        if args.suggest_sets:
            suggest_sets(args, names, study)
    return study


def parameter_names(checkpoint: Path) -> list[str]:
    """Names of a checkpoint's tensors."""
    import fairseq_interference

    fairseq_interference.register()
    from fairseq import checkpoint_utils

    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    if not isinstance(state.get("model"), dict):
        raise CheckpointError("The checkpoint holds no model.", where=checkpoint)
    return list(state["model"])


def plan(args: argparse.Namespace, depth: int) -> list[layers.Cell]:
    """The runs that the flags ask for.

    Raises:
        UsageError: values that are not allowed, or flags that no chosen probe looks at.
    """
    from fairseq_interference.finetune import SPLITS

    probes = _chosen(args.probe, "--probe", layers.PROBES)
    by_layer = [probe for probe in probes if probe != layers.LAST]
    idle = {
        "--k": args.k and layers.LAST not in probes,
        "--factor": args.factor is not None and "enlarge" not in probes,
    }
    idle.update({"--layers": args.layers and not by_layer, "--parts": args.parts and not by_layer})
    idle["--obvious-drop"] = args.obvious_drop is not None and not args.suggest_sets
    for flag in [flag for flag, unused in idle.items() if unused]:
        raise UsageError(f"{flag} has no effect here.", where=flag, value=f"--probe {args.probe}")
    factor = FACTOR if args.factor is None else args.factor
    if not 0 < factor < float("inf") or factor == 1:
        raise UsageError("This enlarges no rate.", where="--factor", value=factor, allowed="more than 0, not 1")
    if args.split not in SPLITS:
        raise UsageError("Unknown split.", where="--split", value=args.split, allowed=", ".join(SPLITS))
    if args.jobs < 1:
        raise UsageError("At least one run at a time.", where="--jobs", value=args.jobs)
    ks = _numbers(args.k or ",".join(map(str, range(1, min(3, depth) + 1))), "--k", 1, depth)
    groups = layers.parse_layers(args.layers, depth) if args.layers else [(n,) for n in range(1, depth + 1)]
    parts = _chosen(args.parts or "all", "--parts", layers.PARTS)
    targets = set(parse_codes(args.eval_langs)) - set(parse_codes(args.train_lang))
    if not targets:
        what = "There is no target language."
        raise UsageError(what, where="--eval-langs", value=args.eval_langs, allowed="one that is not in --train-lang")
    return layers.plan(probes, parts, groups, ks, _numbers(args.seeds, "--seeds", 0), depth, factor)


def _chosen(text: str, flag: str, allowed: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in found:
        if name not in allowed:
            raise UsageError("Unknown name.", where=flag, value=name, allowed=", ".join(allowed))
    return found


def _numbers(text: str, flag: str, low: int, high: Optional[int] = None) -> list[int]:
    found = text.split(",")
    in_range = all(re.fullmatch(r"0|[1-9]\d*", n) and low <= int(n) <= (high or int(n)) for n in found)
    if not in_range or len(set(found)) != len(found):
        allowed = f"such as {low},{low + 1}, each once" + (f", at most {high}" if high else "")
        raise UsageError("These are no numbers.", where=flag, value=text, allowed=allowed)
    return [int(n) for n in found]


def tabulate(args: argparse.Namespace, names: Sequence[str], ledger: Ledger) -> Study:
    """All finished runs of the folder, also those of other calls."""
    tables = layers.tables(row for rows in ledger.parts.values() for row in rows)
    source = parse_codes(args.train_lang)
    settings = {
        "task": args.task,
        "data": args.data.resolve().name,
        "checkpoint": str(args.checkpoint),
        "train_langs": source,
        "targets": [lang for lang in parse_codes(args.eval_langs) if lang not in source],
        "split": args.split,
        "layers": layers.depth_of(names),
        "seeds": sorted({row["seed"] for row in tables["runs"]}),
        "unit": "points (per cent); differences to the baseline, paired by seed",
        "set": list(args.set),
    }
    return Study("layers", settings, tables)


def suggest_sets(args: argparse.Namespace, names: Sequence[str], study: Study) -> None:
    """Write the four weight sets and say where."""
    from fairseq_interference.analysis import layer_sets

    found = layer_sets.suggest(
        study.tables["differences"],
        layers.depth_of(names),
        lambda chosen, part: layers.patterns_of(names, chosen, part),
        DROP if args.obvious_drop is None else args.obvious_drop,
        FACTOR if args.factor is None else args.factor,
    )
    path = layer_sets.write_sets(args.out / "layers" / layer_sets.FILE, found, dict(study.settings))
    print(f"sets:    {path}")
