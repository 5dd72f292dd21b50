"""``diagnose masks``: learn an L0 mask for every language with several seeds, and compare them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq_interference import launch
from fairseq_interference.analysis import mask_losses, masks
from fairseq_interference.analysis.study import ROWS_FILE, Ledger, Row, Study
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import CheckpointError, StageError, UsageError
from fairseq_interference.stages import file_hash, write_json

HELP = "L0 masks per language: which shared weights a language needs, and which another does (paper: Fig. 4)"
LAST = "checkpoint_last.pt"
TRAIN: dict[str, Any] = {
    **{"optimizer": "adam", "lr": 0.1, "lr-scheduler": "fixed", "batch-size": 32, "clip-norm": 0.0},
    **{"no-epoch-checkpoints": True, "save-interval-updates": 100, "keep-interval-updates": 1},
    **{"disable-validation": True, "log-interval": 20, "no-progress-bar": True, "num-workers": 0},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="pretrained model whose weights are masked")
    parser.add_argument("--data", metavar="DATA_BIN", help="text with its dictionary")
    parser.add_argument("--seeds", default="1,2,3", help="one training of masks each [%(default)s]")
    parser.add_argument("--updates", type=int, default=400, help="of each training [%(default)s]")
    parser.add_argument(
        "--granularity", default="head,unit", help="head,unit (or one of them), row, weight [%(default)s]"
    )
    parser.add_argument("--lambda", dest="strength", type=float, default=1.0, help="cost of all weights [%(default)s]")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further flags of fairseq-train")
    parser.add_argument("--masks", type=Path, nargs="+", metavar="FILE", help="masks trained elsewhere, a seed each")
    parser.add_argument(
        "--lines", type=int, default=100, help="validation lines that losses are taken on [%(default)s]"
    )


def run(args: argparse.Namespace) -> Study:
    """Train what is missing, read the masks, compare."""
    _check(args)
    paths = args.masks or [_trained(args, seed) for seed in args.seeds.split(",")]
    runs, granularity = [], set()
    for path in paths:
        state = _state(path)
        runs.append(masks.read_run(state["model"], path))
        granularity.add(str(state["cfg"]["criterion"]["l0_granularity"]))
    first = runs[0]
    if len(granularity) > 1 or any(list(one) != list(first) or _shape(one) != _shape(first) for one in runs):
        what = "These masks have other languages, gates or sizes than the first ones."
        raise UsageError(what, where="--masks", value=", ".join(map(str, paths)))
    shown = {
        **{"checkpoint": args.checkpoint and str(args.checkpoint), "data": args.data, "languages": list(first)},
        **{"runs": len(runs), "masks": [str(path) for path in paths], "granularity": granularity.pop()},
    }
    if not args.masks:
        shown |= {"updates": args.updates, "lambda": args.strength, "seeds": args.seeds.split(",")}
    pairs = masks.pair_rows(runs)
    tables = {"summary": masks.summary_rows(pairs), "pairs": pairs, "groups": masks.group_rows(runs)}
    tables["signs"] = masks.sign_rows(runs)
    tables |= _losses(args, runs, paths, str(shown["granularity"]).split(","))
    return Study("masks", shown, tables)


def _check(args: argparse.Namespace) -> None:
    if args.masks is None and (args.checkpoint is None or args.data is None):
        raise UsageError("Masks of what?", where="--checkpoint, --data", allowed="both of them, or --masks")
    if (args.checkpoint is None) != (args.data is None):
        raise UsageError("Losses need a model and text.", where="--checkpoint, --data", allowed="both or none of them")
    for path in [*(args.masks or []), *([args.checkpoint] if args.checkpoint else [])]:
        if not path.is_file():
            raise CheckpointError("There is no such checkpoint.", where=path)
    seeds = args.seeds.split(",")
    if not all(seed.isdigit() for seed in seeds) or len(set(seeds)) < len(seeds):
        raise UsageError("These are no seeds.", where="--seeds", value=args.seeds, allowed="such as 1,2,3, each once")
    for flag in ("updates", "lines"):
        if getattr(args, flag) < 1:
            raise UsageError("At least 1.", where=f"--{flag}", value=getattr(args, flag))


def _state(path: Path) -> dict[str, Any]:
    from fairseq_interference import register

    register()
    from fairseq import checkpoint_utils

    return dict(checkpoint_utils.load_checkpoint_to_cpu(str(path)))


def _shape(run: masks.Run) -> list[dict[masks.Place, int]]:
    return [{place: len(values) for place, values in mask.values.items()} for mask in run.values()]


def _trained(args: argparse.Namespace, seed: str) -> Path:
    """Checkpoint of the masks of a seed, trained with ``fairseq-train`` unless it is there.

    Raises:
        StageError: it was trained with other settings, or its training did not end well.
    """
    from fairseq_interference.evaluation.finetuned import model_flags

    folder: Path = args.out / "masks" / f"seed{seed}"
    config = launch.TrainConfig(
        task="xlm_masked_lm",
        arch="",
        criterion="l0_masked_lm",
        data=args.data,
        save_dir=str(folder),
        init_from=str(args.checkpoint),
        langs=tuple(_languages(args.checkpoint)),
        train={**TRAIN, "max-update": args.updates, "tokens-per-sample": _length(args.checkpoint)},
    )
    own = [f"l0-granularity={args.granularity}", f"l0-lambda={args.strength}", f"seed={seed}"]
    settings = [*model_flags(args.checkpoint), *own, *(part for setting in args.set for part in setting.split())]
    config = launch.override(config, settings)
    note, wanted = (
        folder / "settings.json",
        {"settings": settings, "model": file_hash(args.checkpoint), "data": args.data},
    )
    wanted["updates"] = args.updates
    before = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else None
    if before is not None and before.get("done") and {**before, "done": None} == {**wanted, "done": None}:
        return folder / LAST
    if before is not None and {**before, "done": None} != {**wanted, "done": None}:
        if not args.force:
            advice = "give --force to begin anew, or another --out"
            raise StageError("These masks were trained with other settings.", where=folder, next_step=advice)
        for path in folder.glob("*.pt"):
            path.unlink()
    write_json(note, {**wanted, "done": None})
    _tell(f"seed {seed}: training")
    code = launch.train(config)
    if code:
        raise StageError("The training of masks failed.", where=folder, value=f"exit code {code}")
    write_json(note, {**wanted, "done": True})
    return folder / LAST


def _languages(checkpoint: Path) -> list[str]:
    from fairseq_interference.data.companions import find_companions

    found = find_companions(checkpoint).languages
    if not len(found):
        raise CheckpointError("This checkpoint knows no languages.", where=checkpoint)
    return list(found)


def _length(checkpoint: Path) -> int:
    task = _state(checkpoint)["cfg"]["task"]
    length: Optional[int] = getattr(task, "tokens_per_sample", None) or task.get("tokens_per_sample")
    return int(length or 256)


def _losses(
    args: argparse.Namespace, runs: Sequence[masks.Run], paths: Sequence[Path], granularity: Sequence[str]
) -> dict[str, list[Row]]:
    """Tables that need the model: thresholds, own and other masks, and whether the own one is best."""
    if args.checkpoint is None:
        return {"thresholds": [], "losses": [], "verdicts": []}
    from fairseq_interference import load
    from fairseq_interference.evaluation import mlm

    loaded = load(str(args.checkpoint))
    tokenizer = None if loaded.tokenizer_dir is None else Tokenizer.load(loaded.tokenizer_dir)
    texts = {
        lang: mlm.read_data(args.data, lang, "valid", loaded.dictionary, tokenizer, args.lines) for lang in runs[0]
    }
    model = mask_losses.MaskedModel(loaded, granularity, texts)
    for one in runs:
        model.check(one[next(iter(one))])
    settings = {"masks": [file_hash(path) for path in paths], "model": file_hash(args.checkpoint), "lines": args.lines}
    ledger = Ledger(args.out / "masks" / ROWS_FILE, settings, force=True)
    losses = mask_losses.cross_rows(model, runs, ledger, _tell)
    thresholds = mask_losses.threshold_rows(model, runs, ledger, _tell)
    return {"thresholds": thresholds, "losses": losses, "verdicts": masks.verdict_rows(losses)}


def _tell(text: str) -> None:
    print(f"masks: {text}", file=sys.stderr, flush=True)
