"""What fine-tuning asks of checkpoints: the flags that build a model again, and the scores of many runs.

Each language and split of a checkpoint is a stage: what is done is skipped, and a
checkpoint is loaded only if something of it is left to do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Optional

from fairseq_interference.data.prepared import find_split, languages_in
from fairseq_interference.errors import CheckpointError, DataError
from fairseq_interference.evaluation.checkpoint_records import Scored, downstream_record
from fairseq_interference.evaluation.records import write_record
from fairseq_interference.evaluation.report_cells import TASK_METRICS
from fairseq_interference.stages import file_hash, stage, write_json

RECORD_FILE = "record.json"
#: sections of a configuration that tell one experiment from another; places and machines are in the others
EXPERIMENT = ("model", "task", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset")
PLACES = frozenset({"data", "save_dir", "restore_file", "finetune_from_model", "companions", "num_workers", "seed"})


def option(section: Any, name: str) -> Any:
    """A value of a configuration section, whatever it is made of; None if it is not there."""
    return getattr(section, name, None) if isinstance(section, argparse.Namespace) else section.get(name)


def model_flags(checkpoint: Path) -> list[str]:
    """``KEY=VALUE`` of the arch, and of every model option that would be another one without its flag."""
    import fairseq_interference

    fairseq_interference.register()
    from fairseq import checkpoint_utils
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    model = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))["cfg"]["model"]
    arch = str(option(model, "arch") or option(model, "_name"))
    if arch not in ARCH_MODEL_REGISTRY:
        raise CheckpointError("The arch of this checkpoint is not known here.", where=checkpoint, value=arch)
    preset = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[arch](preset)
    flags = [f"arch={arch}"]
    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    for action in sorted(parser._actions, key=lambda action: action.dest):
        value = option(model, action.dest)
        without = getattr(preset, action.dest, None) if action.default is None else action.default
        if value is not None and value is not False and value != without:
            flags.append(f"{action.dest.replace('_', '-')}={'true' if value is True else value}")
    return flags


def run_id(scored: Scored, benchmark: str) -> str:
    """Arch, languages, benchmark, training languages, seed and a hash of all other settings."""
    languages = scored.run["languages"]
    names = "+".join(languages) if len(languages) <= 6 else f"{len(languages)}-{scored.loaded.languages.digest[:8]}"
    config = scored.run["config"]
    settings = {
        name: {k: v for k, v in config[name].items() if k not in PLACES} for name in EXPERIMENT if name in config
    }
    settings["pretrain_seed"] = config.get("pretrain_seed")
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    train = "+".join(scored.loaded.task.train_langs)
    return ".".join([scored.run["arch"], names, benchmark, train, f"seed{scored.run['seed']}", digest])


def splits_there(data: Path, langs: Sequence[str], splits: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of language and split that are prepared.

    Raises:
        DataError: a language has none of the splits.
    """
    pairs = [(lang, split) for lang in langs for split in splits if find_split(data, lang, split).is_file()]
    missing = [lang for lang in langs if lang not in {there for there, _ in pairs}]
    if missing:
        raise DataError(
            "A language has none of these splits.",
            where=find_split(data, missing[0], splits[0]).parent,
            value=",".join(splits),
            allowed=f"languages there: {','.join(languages_in(data))}",
        )
    return pairs


class Run:
    """A fine-tuned checkpoint that is loaded at the first use.

    Args:
        checkpoint: its file.
        fallback_lang: language whose parts serve a language that the checkpoint does not know.
        cpu: stay on the CPU.
        rules: of the scores, where they have several.
    """

    def __init__(
        self,
        checkpoint: Path,
        fallback_lang: Optional[str] = None,
        cpu: bool = False,
        rules: Optional[str] = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.fallback_lang = fallback_lang
        self.cpu = cpu
        self.rules = rules
        self._scored: Optional[Scored] = None

    def scored(self, benchmark: str) -> Scored:
        """Load, once."""
        if self._scored is None:
            import torch

            self._scored = Scored(self.checkpoint)
            self._scored.run["id"] = run_id(self._scored, benchmark)
            self._scored.loaded.task.cfg.fallback_lang = self.fallback_lang
            if torch.cuda.is_available() and not self.cpu:
                self._scored.loaded.model.cuda()
        return self._scored

    def score(self, data: Path, pairs: Sequence[tuple[str, str]], results: Optional[Path], force: bool) -> list[Any]:
        """Predict and score languages and splits; write a record each, or say why there is none.

        Raises:
            StageError: scored before with another checkpoint or gold file.
        """
        settings = {"checkpoint": file_hash(self.checkpoint), "fallback_lang": self.fallback_lang}
        if self.rules:
            settings["rules"] = self.rules
        records = []
        for lang, split in pairs:
            out = self.checkpoint.parent / "scores" / f"{data.name}.{lang}.{split}"
            gold = find_split(data, lang, split)
            with stage(out, inputs={"gold": gold}, settings=settings, force=force) as folder:
                if folder is not None:
                    scored, predictions = self.scored(data.name), folder / f"{split}.predictions"
                    record = downstream_record(scored, data, lang, split, predictions, self.rules)
                    if not isinstance(record, str) and self.fallback_lang and lang not in scored.loaded.languages:
                        record["evaluation"]["rules"]["parts"] = self.fallback_lang
                    write_json(folder / RECORD_FILE, record)
            records.append(json.loads((out / RECORD_FILE).read_text(encoding="utf-8")))
            if results is not None and not isinstance(records[-1], str):
                write_record(results, records[-1])
        return records


def score_runs(
    checkpoints: Sequence[Path],
    data: Path,
    langs: Sequence[str],
    splits: Sequence[str],
    *,
    results: Optional[Path] = None,
    fallback_lang: Optional[str] = None,
    cpu: bool = False,
    force: bool = False,
    rules: Optional[str] = None,
) -> None:
    """Predict, score and record every language and split of fine-tuned checkpoints; print a score each, and of
    several runs mean and standard deviation.

    Args:
        checkpoints: files, one per run.
        data: prepared benchmark.
        langs, splits: what to score.
        results: folder of records (None: none are written).
        fallback_lang, cpu, rules: see :class:`Run`.
        force: score again what was scored with other inputs.

    Raises:
        InterferenceError: a checkpoint or a language is not there, or something was scored with other inputs.
    """
    for checkpoint in checkpoints:
        if not checkpoint.is_file():
            raise CheckpointError("There is no such checkpoint.", where=checkpoint)
    pairs = splits_there(data, langs, splits)
    values: dict[tuple[str, str, str], list[float]] = {}
    for checkpoint in checkpoints:
        records = Run(checkpoint, fallback_lang, cpu, rules).score(data, pairs, results, force)
        for (lang, split), record in zip(pairs, records):
            shown = record
            if not isinstance(record, str):
                metrics = record["evaluation"]["metrics"]
                name = next(name for name in TASK_METRICS if name in metrics)
                shown = f"{TASK_METRICS[name].label} {100 * metrics[name]:.2f}"
                values.setdefault((lang, split, TASK_METRICS[name].label), []).append(100 * metrics[name])
            print(f"{checkpoint.parent}  {lang} {split}  {shown}", flush=True)
    for (lang, split, label), found in values.items() if len(checkpoints) > 1 else ():
        print(f"{lang} {split}  {label} {mean(found):.2f} ± {stdev(found):.2f} ({len(found)} runs)", flush=True)
