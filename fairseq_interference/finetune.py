"""Fine-tune a pretrained checkpoint, once per seed; predict and score every language; write records.

    bash run/finetune_ner.sh --checkpoint FILE --data prepared/NAME --train-lang en --eval-langs hi,sw --seeds 1,2,3

``finetune_pos.sh``, ``finetune_xnli.sh`` and ``finetune_qa.sh`` take the same flags.

One process does it all: finished seeds and scores are skipped, an unfinished training goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from fairseq_interference import launch, processes
from fairseq_interference.data.prepared import LABELS_FILE, find_split
from fairseq_interference.errors import DONE, DataError, StageError, UsageError, exit_code
from fairseq_interference.evaluation.finetuned import model_flags, score_runs, splits_there
from fairseq_interference.evaluation.metrics import SCHEMES
from fairseq_interference.evaluation.metrics_qa import RULES
from fairseq_interference.languages import parse_codes
from fairseq_interference.stages import file_hash, write_json, write_text

SETTINGS_FILE, TRAINED_FILE = "settings", "finetuned"  # beside the checkpoints of a seed
BEST = "checkpoint_best.pt"
SPLITS = ("train", "dev", "test")
SCORES = {"ner": tuple(SCHEMES), "qa": RULES}  # the first one is the default
SCRIPTS = {"ner": "ner", "pos": "pos", "nli": "xnli", "qa": "qa"}  # kind of task -> name of its script
OWN = {"seed": "seeds", "data": "data", "save-dir": "out", "eval-langs": "eval-langs", "few-shot": "few-shot"}
OWN.update({"train-langs": "train-lang", "source-lang": "train-lang"})
OWN.update({"selection": "selection", "finetune-from-model": "checkpoint"})
SELECTIONS = ("source-dev", "target-dev", "all-dev")


def build_parser(task: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"finetune_{SCRIPTS[task]}.sh", description=__doc__.split("\n")[0])
    parser.set_defaults(task=task)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--train-lang", required=True, metavar="CODES")
    parser.add_argument("--eval-langs", default="", metavar="CODES")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--config", type=Path, default=launch.USER_DIR.parent / f"run/configs/tiny/{task}.yaml")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--grid", default="", metavar="config|KEY=A,B")
    parser.add_argument("--few-shot", type=int, default=0, metavar="N")
    parser.add_argument("--selection", choices=SELECTIONS, default=SELECTIONS[0])
    parser.add_argument("--splits", default="dev,test")
    if task in SCORES:
        parser.add_argument("--rules", choices=SCORES[task], default=SCORES[task][0])
    parser.add_argument("--fallback-lang", metavar="CODE")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR")
    parser.add_argument("--precision", choices=sorted(launch.PRECISIONS))
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    return parser


def check(args: argparse.Namespace) -> None:
    """Files and seeds, before the host is imported.

    Raises:
        InterferenceError: what is missing or malformed.
    """
    if not args.checkpoint.is_file():
        raise UsageError("There is no such checkpoint.", where="--checkpoint", value=str(args.checkpoint))
    if not all(path.is_file() for path in labels_of(args)) or not args.data.is_dir():
        raise UsageError(
            "This is no prepared benchmark.",
            where="--data",
            value=str(args.data),
            next_step=f"python -m data_prep.benchmarks.{args.task} --help",
        )
    if not re.fullmatch(r"(0|[1-9]\d*)(,(0|[1-9]\d*))*", args.seeds):
        raise UsageError("These are not seeds.", where="--seeds", value=args.seeds, allowed="such as 1,2,3")
    if len(set(args.seeds.split(","))) != len(args.seeds.split(",")):
        raise UsageError("A seed is named twice.", where="--seeds", value=args.seeds, allowed="each once")
    if args.selection == "target-dev" and not args.eval_langs:
        raise UsageError("Which languages select?", where="--selection target-dev", allowed="--eval-langs")
    unknown = [split for split in splits_of(args) if split not in SPLITS]
    if unknown:
        raise UsageError("Unknown split.", where="--splits", value=",".join(unknown), allowed=",".join(SPLITS))
    for lang in parse_codes(args.train_lang):
        if not find_split(args.data, lang, "train").is_file():
            raise DataError("There is nothing to train on.", where=find_split(args.data, lang, "train"))
    splits_there(args.data, all_languages(args), splits_of(args))


def labels_of(args: argparse.Namespace) -> list[Path]:
    """The label file of the benchmark; answers have none."""
    return [] if args.task == "qa" else [args.data / LABELS_FILE]


def splits_of(args: argparse.Namespace) -> list[str]:
    return [split.strip() for split in args.splits.split(",")]


def all_languages(args: argparse.Namespace) -> list[str]:
    """Training languages first, then the others to score; each once."""
    return list(dict.fromkeys([*parse_codes(args.train_lang), *parse_codes(args.eval_langs or args.train_lang)]))


def settings_of(args: argparse.Namespace) -> list[str]:
    """``KEY=VALUE`` beyond the configuration: arch and options of the checkpoint, then ours; the later one wins."""
    settings = [*model_flags(args.checkpoint), f"train-langs={args.train_lang}", f"selection={args.selection}"]
    if reads_targets(args) and args.eval_langs:
        settings.append(f"eval-langs={args.eval_langs}")
    if args.few_shot:
        settings.append(f"few-shot={args.few_shot}")
    if args.fallback_lang:
        settings.append(f"fallback-lang={args.fallback_lang}")
    return [*settings, *(part for setting in args.set for part in setting.split())]


def reads_targets(args: argparse.Namespace) -> bool:
    """Whether training reads dev splits of --eval-langs: to select, to train on, or for ``gap-every``."""
    config = launch.override(launch.read_config(args.config), [part for text in args.set for part in text.split()])
    every = [value for flag, value in config.train.items() if flag.replace("_", "-") == "gap-every"]
    gap = any(value not in (None, False) and str(value).strip() != "0" for value in every)
    return args.selection != SELECTIONS[0] or bool(args.few_shot) or gap


def searched(args: argparse.Namespace, config: launch.TrainConfig) -> str:
    """The grid of the command line, or with ``--grid config`` that of the configuration."""
    if args.grid == "config" and not config.grid:
        raise UsageError("This configuration has no grid.", where="--config", value=str(args.config))
    return config.grid if args.grid == "config" else str(args.grid)


def grid_of(text: str) -> list[list[str]]:
    """``batch-size=16,32 lr=1e-5,2e-5`` to the settings of each cell; one without settings for an empty text.

    Raises:
        UsageError: not of this form, or a key twice.
    """
    axes: dict[str, list[str]] = {}
    for part in text.split():
        key, equals, values = part.partition("=")
        key, several = key.lstrip("-").replace("_", "-"), values.split(",")
        once = key not in axes and len(set(several)) == len(several)
        if not (key and equals and all(several) and once) or "/" in part:  # a cell is the name of a folder
            allowed = "KEY=A,B KEY=C,D, each key and each of its values once, without /"
            raise UsageError("This is no grid.", where="--grid", value=part, allowed=allowed)
        if key in OWN:
            raise UsageError("The script sets this itself.", where="--grid", value=part, next_step=f"give --{OWN[key]}")
        axes[key] = [f"{key}={value}" for value in several]
    return [list(cell) for cell in itertools.product(*axes.values())]


def best_values(folders: Sequence[Path]) -> list[float]:
    """The best value of the metric that selects, in each run."""
    import fairseq_interference

    fairseq_interference.register()
    from fairseq import checkpoint_utils

    states = (checkpoint_utils.load_checkpoint_to_cpu(str(folder / BEST)) for folder in folders)
    return [float(state["extra_state"]["best"]) for state in states]


def choose(out: Path, cells: Sequence[Sequence[str]], runs: Sequence[Sequence[Path]], maximize: bool) -> int:
    """The cell with the best mean over seeds; writes what all have into ``grid.json``. The first one wins a tie."""
    values = [best_values(folders) for folders in runs]
    means = [sum(row) / len(row) for row in values]
    best = means.index(max(means) if maximize else min(means))
    rows = [{"settings": list(c), "values": v, "mean": m} for c, v, m in zip(cells, values, means)]
    write_json(out / "grid.json", {"chosen": list(cells[best]), "maximize": maximize, "cells": rows})
    for cell, row, mean in zip(cells, values, means):
        print(f"{' '.join(cell)}: {mean:.3f} ({', '.join(f'{value:.3f}' for value in row)})", file=sys.stderr)
    print(f"chosen: {' '.join(cells[best])}", file=sys.stderr)
    return best


def fingerprint(args: argparse.Namespace, cell: Sequence[str]) -> str:
    """Everything that a run depends on besides its seed."""
    files = [args.config, *labels_of(args), args.checkpoint]
    langs = parse_codes(args.train_lang)
    values = [args.train_lang, args.selection, " ".join([*args.set, *cell]), args.precision or ""]
    values += [args.fallback_lang or "", *([str(args.few_shot)] if args.few_shot else [])]
    files += [find_split(args.data, lang, "train") for lang in langs]
    if reads_targets(args):
        langs = all_languages(args)
        values.append(args.eval_langs)
    files += [path for path in (find_split(args.data, lang, "dev") for lang in langs) if path.is_file()]
    return hashlib.sha256("\0".join([*map(file_hash, files), *values]).encode()).hexdigest()[:32]


def train_seed(args: argparse.Namespace, config: launch.TrainConfig, folder: Path, wanted: str) -> int:
    """One seed, unless it is trained already.

    Raises:
        StageError: the folder holds a run with other settings.
    """
    settings = folder / SETTINGS_FILE
    if settings.is_file() and settings.read_text(encoding="utf-8").strip() != wanted:
        if not args.force:
            raise StageError(
                "This folder holds a run with other settings.",
                where=folder,
                next_step="give --force to redo it, or another --out",
            )
        if not args.dry_run:
            shutil.rmtree(folder)
    if (folder / TRAINED_FILE).is_file():
        print(f"{folder}: trained already", file=sys.stderr)
        return DONE
    print(f"{folder}: fine-tuning on {args.train_lang}", file=sys.stderr)
    if not args.dry_run:
        write_text(settings, wanted + "\n")
    code = launch.train(replace(config, save_dir=str(folder)), args.gpus, args.dry_run)
    if code == DONE and not args.dry_run:
        if not (folder / BEST).is_file():
            raise StageError(
                "The training has ended without a validation, so no checkpoint is the best one.",
                where=folder,
                next_step="give --force and, in --set, a validate-interval that divides max-epoch",
            )
        write_text(folder / TRAINED_FILE, "")
    return code


def finetune(args: argparse.Namespace) -> int:
    """Train every seed, then score them all; the exit code of the first training that has not ended well."""
    check(args)
    config = launch.read_config(args.config)
    config = replace(config, data=str(args.data), init_from=str(args.checkpoint.resolve()))
    config = replace(config, precision=args.precision or config.precision)
    config = launch.override(config, settings_of(args))
    out = args.out or Path("finetune", args.data.resolve().name, "+".join(parse_codes(args.train_lang)))
    cells, seeds = grid_of(searched(args, config)), args.seeds.split(",")
    for cell in cells:  # before anything is removed or written
        launch.check(replace(launch.override(config, cell), save_dir=str(out)))
    runs = [[out.joinpath("+".join(cell), f"seed{seed}") for seed in seeds] for cell in cells]
    for cell, folders in zip(cells, runs):
        for seed, folder in zip(seeds, folders):
            settings = launch.override(config, [*cell, f"seed={seed}"])
            code = train_seed(args, settings, folder, fingerprint(args, cell))
            if code != DONE:
                return code
    if args.dry_run:
        return DONE
    maximize = bool(config.train.get("maximize-best-checkpoint-metric"))
    chosen = choose(out, cells, runs, maximize) if args.grid else 0
    score_runs(
        [folder / BEST for folder in runs[chosen]],
        args.data,
        all_languages(args),
        splits_of(args),
        results=args.results,
        fallback_lang=args.fallback_lang,
        cpu=bool(config.train.get("cpu")),
        force=args.force,
        rules=args.rules if args.task in SCORES and args.rules != SCORES[args.task][0] else None,
    )
    print(f"records: {args.results}", file=sys.stderr)
    return DONE


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Exit codes: 0 done, 1 failed, 2 usage, 75 told to stop and saved, 130 interrupted.

    Args:
        argv: ``--task`` and the flags of the script.
    """
    task = argparse.ArgumentParser(add_help=False)
    task.add_argument("--task", choices=tuple(SCRIPTS), default="ner")
    chosen, rest = task.parse_known_args(argv)
    args = build_parser(chosen.task).parse_args(rest)
    with processes.leaving_when_told():
        return exit_code("finetune", lambda: finetune(args))


if __name__ == "__main__":
    raise SystemExit(main())
