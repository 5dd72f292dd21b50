"""Score checkpoints and write the records: what was run is read from the checkpoint, what it is worth is measured.

    python -m fairseq_interference.evaluation.checkpoint_records --task ner --checkpoint C … --data prepared/NAME \\
        --langs en,hi --results results

One process scores any number of checkpoints. ``ner``, ``pos``, ``nli`` and ``qa`` predict SPLIT of each language, write
the predictions in the official format and score the two files; ``mlm`` measures perplexity on prepared text,
``retrieval`` how often sentences of parallel text find each other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

from fairseq_interference.errors import DONE, CheckpointError, UsageError, exit_code
from fairseq_interference.evaluation.records import Record, make_record, setting_of, write_record
from fairseq_interference.languages import parse_codes
from fairseq_interference.launch import COST_FILE

SECTIONS = (
    "common",
    "optimization",
    "dataset",
    "checkpoint",
    "model",
    "task",
    "criterion",
    "optimizer",
    "lr_scheduler",
)
DOWNSTREAM = ("ner", "pos", "nli", "qa")


def plain(value: Any) -> Any:
    """``value`` as JSON holds it; options that are not set are left out."""
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if hasattr(value, "_get_node"):  # omegaconf
        from omegaconf import OmegaConf

        value = OmegaConf.to_container(value, resolve=True, enum_to_str=True)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool)) else str(value)


def _start_of(checkpoint: Optional[str]) -> dict[str, Any]:
    """State of the checkpoint that a run started from; empty if it is not there."""
    if not checkpoint or not Path(checkpoint).is_file():
        return {}
    from fairseq import checkpoint_utils

    return dict(checkpoint_utils.load_checkpoint_to_cpu(checkpoint))


def _seconds(state: Mapping[str, Any]) -> float:
    return float((state.get("extra_state") or {}).get("previous_training_time") or 0.0)


def parameters_of(model: Any) -> dict[str, int]:
    """Parameters that all languages share, of one language, and of all."""
    shared, specific, languages = 0, 0, set()
    for parameter in model.parameters():
        language = (getattr(parameter, "optim_overrides", None) or {}).get("interference", {}).get("lang")
        if language is None:
            shared += parameter.numel()
        else:
            specific += parameter.numel()
            languages.add(language)
    return {
        "shared": shared,
        "per_language": specific // len(languages) if languages else 0,
        "total": shared + specific,
    }


def _cost(path: Path, model: Any, started_from: Optional[str]) -> dict[str, Any]:
    """Updates, tokens and seconds as the trainer counted them, memory as the launcher saw it.

    The host goes on counting the seconds of the checkpoint that a run started from: they are taken off; without
    that checkpoint they are not known. A restart at the start of an epoch empties the host's meters: tokens are then
    the mean of an update since, times the updates.
    """
    from fairseq import checkpoint_utils

    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates")
    extra, start = state.get("extra_state") or {}, _start_of(started_from)
    meters = {name: meter for _, name, _, meter in (extra.get("metrics") or {}).get("default", ())}
    words = meters.get("wpb") or {}
    tokens = None
    if updates and words.get("count"):  # tensors after a run of several workers
        tokens = round(float(words["sum"]) / float(words["count"]) * updates)
    known = "previous_training_time" in extra and (start or not started_from)
    beside = path.parent / COST_FILE
    peak = json.loads(beside.read_text(encoding="utf-8"))["peak_memory_bytes"] if beside.is_file() else None
    return {
        "parameters": parameters_of(model),
        "updates": updates,
        "tokens": tokens,
        "seconds": round(_seconds(state) - _seconds(start), 3) if known else None,
        "peak_memory_bytes": peak,
    }


class Scored:
    """A loaded checkpoint and what its records have in common."""

    def __init__(self, path: Path, name: Optional[str] = None) -> None:
        from fairseq_interference import load

        self.path = path
        self.loaded = load(str(path))
        cfg = self.loaded.cfg
        config = {section: plain(cfg[section]) for section in SECTIONS if cfg.get(section) is not None}
        started_from = config["checkpoint"].get("finetune_from_model")
        pretrained = _start_of(started_from).get("cfg")
        if pretrained is not None:
            config["pretrain_seed"] = int(pretrained["common"]["seed"])
        self.run = {
            "id": name or path.resolve().parent.name,
            "arch": config["model"].get("arch") or config["model"]["_name"],
            "languages": self.loaded.languages.codes,
            "config": config,
            "seed": int(cfg["common"]["seed"]),
        }
        self.cost = _cost(path, self.loaded.model, started_from)

    def record(self, setting: str, train_langs: Sequence[str], evaluation: Mapping[str, Any]) -> Record:
        run = {**self.run, "setting": setting, "train_langs": list(train_langs)}
        return make_record(run=run, evaluation=evaluation, cost=self.cost)


def downstream_record(
    scored: Scored, data: Path, lang: str, split: str, predictions: Path, rules: Optional[str] = None
) -> Union[Record, str]:
    """Predict ``data/lang/split.jsonl``, write it in the official format, score the two files.

    Args:
        scored: a fine-tuned checkpoint.
        data: prepared benchmark.
        predictions: file that gets the predictions.
        rules: of the score, where its kind has several (``evaluate --rules``).

    Returns:
        The record, or why there is none.
    """
    from fairseq_interference.evaluation.downstream import KINDS

    task = scored.loaded.task
    kind = KINDS[task.kind]
    if split == "dev" and lang in task.few_shot_langs:
        return f"{task.cfg.few_shot} of its {task.units} were trained on: not scored"
    result = kind.predict_split(scored.loaded, data, lang, split, predictions, rules)
    if result is None:
        return "no labels: predicted, not scored"
    shots = {"few_shot": task.cfg.few_shot} if task.cfg.few_shot else {}
    evaluation = {
        "benchmark": data.name,
        "split": split,
        "language": lang,
        "n": result["n"],
        "metrics": result["metrics"],
        "rules": {**{name: result["rules"][name] for name in kind.stable}, **shots},
    }
    return scored.record(setting_of(lang, task.train_langs), task.train_langs, evaluation)


def mlm_record(scored: Scored, data: Path, lang: str, split: str, max_lines: Optional[int] = None) -> Record:
    """Perplexity of a masked language model on ``data/lang/split``."""
    from fairseq_interference.evaluation.mlm import mlm_perplexity

    result = mlm_perplexity(scored.path, data=data, lang=lang, split=split, max_lines=max_lines)
    rules = {name: rule for name, rule in result["rules"].items() if name != "split"}
    evaluation = {
        "benchmark": "mlm",
        "split": split,
        "language": lang,
        "n": result["n"],
        "metrics": result["metrics"],
        "rules": rules,
    }
    return scored.record("pretrain", scored.run["languages"], evaluation)


def retrieval_record(scored: Scored, args: argparse.Namespace) -> Record:
    """Retrieval between two languages; the record is of the second, the benchmark is called after the first."""
    from fairseq_interference.evaluation.retrieval import pairs_of, parse_langs, retrieve

    langs = parse_langs(args.langs)
    result = retrieve(scored.loaded, pairs_of(args), langs, layer=args.layer)
    evaluation = {
        "benchmark": f"{args.benchmark}-{langs[0]}",
        "split": args.split,
        "language": langs[1],
        **{name: result[name] for name in ("n", "metrics", "rules")},
    }
    return scored.record("pretrain", scored.run["languages"], evaluation)


def make_parser() -> argparse.ArgumentParser:
    from fairseq_interference.evaluation.retrieval import add_text_arguments

    parser = argparse.ArgumentParser(prog="run/evaluate.sh", description="Score checkpoints and write their records.")
    parser.add_argument("--task", choices=(*DOWNSTREAM, "mlm", "retrieval"), default="ner")
    parser.add_argument("--checkpoint", nargs="+", required=True, type=Path, metavar="FILE")
    parser.add_argument("--data", type=Path, help="prepared benchmark, or data-bin (mlm)")
    parser.add_argument("--langs", metavar="xx,yy", help="languages to score (default: all of the checkpoint)")
    parser.add_argument("--split", default="test", help="[%(default)s]")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the records [%(default)s]")
    parser.add_argument("--rules", help="of the scores: iob2 or conlleval (ner), squad or mlqa (qa) [the first]")
    parser.add_argument("--max-lines", type=int, metavar="N", help="mlm, retrieval: read only the first lines")
    parser.add_argument("--run-id", metavar="NAME", help="name of the run, for one checkpoint (default: its folder's)")
    group = parser.add_argument_group("--task retrieval (--langs: of source and target)")
    group.add_argument("--benchmark", default="retrieval", metavar="NAME", help="name of the text [%(default)s]")
    add_text_arguments(group)
    return parser


def _check_flags(args: argparse.Namespace) -> None:
    """Every flag that the task needs is there, and none that it does not read."""
    retrieval = args.task == "retrieval"
    for flag in ("source", "langs") if retrieval else ("data",):
        if not getattr(args, flag):
            raise UsageError(f"--task {args.task} needs --{flag}.", where=f"--{flag}")
    for flag in ("data",) if retrieval else ("source", "target", "columns"):
        if getattr(args, flag):
            raise UsageError(f"--{flag} says nothing about --task {args.task}.", where=f"--{flag}")


def _score_all(args: argparse.Namespace) -> int:
    _check_flags(args)
    if args.run_id and len(args.checkpoint) > 1:
        raise UsageError("One name for several checkpoints.", where="--run-id", value=args.run_id)
    if args.max_lines is not None and args.max_lines < 1:
        raise UsageError("At least 1.", where="--max-lines", value=args.max_lines)
    names = [path.resolve().parent.name for path in args.checkpoint]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        what = "These checkpoints would have one name, and one would replace the other's records."
        raise UsageError(what, where="--checkpoint", value=",".join(twice), next_step="score each with a --run-id")
    for checkpoint in args.checkpoint:
        _score(args, checkpoint)
    return DONE


def _score(args: argparse.Namespace, checkpoint: Path) -> None:
    from fairseq_interference.evaluation.mlm import split_file

    scored = Scored(checkpoint, args.run_id)
    wanted = "mlm" if args.task == "retrieval" else args.task
    if getattr(scored.loaded.task, "kind", "mlm") != wanted:
        what = "This checkpoint was trained for something else."
        raise CheckpointError(what, where=checkpoint, value=scored.run["config"]["task"]["_name"], allowed=wanted)
    if args.task == "retrieval":
        _keep(args, scored, retrieval_record(scored, args))
        return
    langs = parse_codes(args.langs) if args.langs else scored.run["languages"]
    for lang in langs:
        if args.task == "mlm" and not args.langs and not split_file(args.data, lang, args.split).exists():
            print(f"{scored.run['id']} {lang}: no {args.split} split, not scored", file=sys.stderr)
            continue
        if args.task != "mlm":
            predictions = checkpoint.parent / "predictions" / f"{args.data.name}.{lang}.{args.split}"
            record = downstream_record(scored, args.data, lang, args.split, predictions, args.rules)
            if isinstance(record, str):
                print(f"{scored.run['id']} {lang}: {record} ({predictions})")
                continue
        else:
            record = mlm_record(scored, args.data, lang, args.split, args.max_lines)
        _keep(args, scored, record)


def _keep(args: argparse.Namespace, scored: Scored, record: Record) -> None:
    path = write_record(args.results, record)
    shown = {k: round(v, 4) for k, v in record["evaluation"]["metrics"].items() if isinstance(v, float)}
    print(f"{scored.run['id']} {record['evaluation']['language']}: {shown} -> {path}", flush=True)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Score every checkpoint in every language; returns the exit code."""
    args = make_parser().parse_args(argv)
    return exit_code("evaluate", lambda: _score_all(args))


if __name__ == "__main__":
    sys.exit(main())
