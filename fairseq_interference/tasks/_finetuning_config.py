"""Options of all tasks of fine-tuning."""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II, MISSING

from fairseq_interference.data.prepared import find_split
from fairseq_interference.errors import DataError, UsageError

SELECTIONS = ("source-dev", "target-dev", "all-dev")


# The host's parser reads real types: no postponed annotations in this file.
@dataclass
class FinetuningConfig(FairseqDataclass):
    data: str = field(default=MISSING, metadata={"help": "prepared benchmark: <lang>/*.jsonl, labels.txt"})
    train_langs: Optional[str] = field(
        default=None, metadata={"help": "languages to train on, en or en,hi", "argparse_alias": "--source-lang"}
    )
    eval_langs: Optional[str] = field(default=None, metadata={"help": "languages whose dev split is read besides"})
    langs: Optional[str] = field(default=None, metadata={"help": "languages of the checkpoint; checked, never needed"})
    selection: ChoiceEnum(list(SELECTIONS)) = field(  # type: ignore[valid-type]
        default="source-dev",
        metadata={"help": "dev splits behind loss and scores: of --train-langs, of --eval-langs, or of both"},
    )
    few_shot: int = field(
        default=0,
        metadata={
            "help": "train on so many examples of each of --eval-langs besides: drawn by --seed from the dev split, "
            "which loses them; 0: none"
        },
    )
    gap_every: int = field(
        default=0,
        metadata={
            "help": "every so many updates, take dev scores of all languages besides (validation.jsonl); they select "
            "nothing; 0: never"
        },
    )
    freeze: Optional[str] = field(
        default=None,
        metadata={
            "help": "parameters that are not trained, by their names: patterns with * and ?, separated by commas "
            "(encoder.sentence_encoder.layers.[0-3].*)"
        },
    )
    head_lr: str = field(
        default="x1", metadata={"help": "rate of the head: x10 is ten times --lr, 0.001 itself; follows the scheduler"}
    )
    lr_scale: Optional[str] = field(
        default=None,
        metadata={
            "help": "rates of parameters by their names, as factors of --lr: PATTERN=x10,PATTERN=x0.1; patterns as "
            "those of --freeze, none of which may overlap; they follow the scheduler"
        },
    )
    fallback_lang: Optional[str] = field(
        default=None, metadata={"help": "language whose parts serve a language that the checkpoint does not know"}
    )
    companions: Optional[str] = field(
        default=None,
        metadata={
            "help": "folder or checkpoint with dict.txt, languages.txt and tokenizer/ (default: that of "
            "--finetune-from-model, --restore-file or --save-dir, in this order)"
        },
    )
    finetune_from_model: Optional[str] = II("checkpoint.finetune_from_model")
    restore_file: Optional[str] = II("checkpoint.restore_file")
    save_dir: Optional[str] = II("checkpoint.save_dir")
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")
    maximize_best_checkpoint_metric: bool = II("checkpoint.maximize_best_checkpoint_metric")
    disable_validation: bool = II("dataset.disable_validation")
    seed: int = II("common.seed")


def selection(cfg: Any, train: list[str], others: list[str]) -> list[str]:
    """Languages whose dev splits select the best checkpoint."""
    chosen = {"source-dev": train, "target-dev": others, "all-dev": [*train, *others]}[str(cfg.selection)]
    return list(dict.fromkeys(chosen))


def check_gap(cfg: Any, train: list[str], others: list[str]) -> None:
    """``--gap-every`` needs a gap: validation, and dev splits of the others.

    Raises:
        UsageError: without effect. DataError: a language without a dev split.
    """
    every, targets = cfg.gap_every, [lang for lang in others if lang not in train]
    if every < 0 or (every and (cfg.disable_validation or not targets)):
        allowed = "0 or more, with validation and a language in --eval-langs that is not in --train-langs"
        raise UsageError("The gap between what?", where="--gap-every", value=every, allowed=allowed)
    missing = [lang for lang in targets if every and not find_split(cfg.data, lang, "dev").is_file()]
    if missing:
        advice = "prepare one, or leave the language out of --eval-langs"
        where = find_split(cfg.data, missing[0], "dev")
        raise DataError("A language of --gap-every has no dev split.", where=where, next_step=advice)
