"""Labels for words in many languages: named entities, parts of speech."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING
from torch import Tensor

from fairseq_interference.criterions.xlm_tagging import HEAD, check_metric, metric_names
from fairseq_interference.data.companions import Companions, check_companions, write_companions
from fairseq_interference.data.dictionary import digest_of_file
from fairseq_interference.data.iterator import LanguageBatchIterator
from fairseq_interference.data.prepared import (
    LABELS_FILE,
    NO_LABEL,
    check_labels,
    find_split,
    has_entities,
    languages_in,
    read_labels,
    read_sentences,
)
from fairseq_interference.data.pretrained import companions_of, pretrained_positions, starting_checkpoint
from fairseq_interference.data.readers.entities import iob2_entities
from fairseq_interference.data.tagging import IGNORE, Example, TaggingDataset, WordEncoder, make_examples
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import CheckpointError, DataError, LanguageError, UsageError
from fairseq_interference.languages import LanguageList, parse_codes
from fairseq_interference.optim.presence import PresenceMixin, has_language_parts
from fairseq_interference.stages import write_text

logger = logging.getLogger(__name__)

SELECTIONS = ("source-dev", "target-dev", "all-dev")
#: the host's name of a split -> the prepared file's
SPLITS = {"train": "train", "valid": "dev", "dev": "dev", "test": "test"}


# The host's parser reads real types: no postponed annotations in this file.
@dataclass
class TaggingConfig(FairseqDataclass):
    data: str = field(default=MISSING, metadata={"help": "prepared benchmark: labels.txt, <lang>/*.jsonl"})
    train_langs: Optional[str] = field(
        default=None, metadata={"help": "languages to train on, en or en,hi", "argparse_alias": "--source-lang"}
    )
    eval_langs: Optional[str] = field(default=None, metadata={"help": "languages whose dev split is read besides"})
    langs: Optional[str] = field(default=None, metadata={"help": "languages of the checkpoint; checked, never needed"})
    selection: ChoiceEnum(list(SELECTIONS)) = field(  # type: ignore[valid-type]
        default="source-dev",
        metadata={"help": "dev splits behind loss, accuracy and f1: of --train-langs, of --eval-langs, or of both"},
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
    tokens_per_window: Optional[int] = field(
        default=None, metadata={"help": "tokens of a window over a long sentence (default: the model's positions)"}
    )
    finetune_from_model: Optional[str] = II("checkpoint.finetune_from_model")
    restore_file: Optional[str] = II("checkpoint.restore_file")
    save_dir: Optional[str] = II("checkpoint.save_dir")
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")
    maximize_best_checkpoint_metric: bool = II("checkpoint.maximize_best_checkpoint_metric")
    disable_validation: bool = II("dataset.disable_validation")


@register_task("xlm_tagging", dataclass=TaggingConfig)
class TaggingTask(PresenceMixin, FairseqTask):
    """Fine-tune a pretrained encoder to label words; score other languages with it.

    Args:
        cfg: see :class:`TaggingConfig`.
        companions: languages, dictionary and tokenizer of the pretrained checkpoint.
        labels: the fixed label list.
    """

    cfg: TaggingConfig

    def __init__(self, cfg: TaggingConfig, companions: Companions, labels: list[str]) -> None:
        super().__init__(cfg)
        self.companions = companions
        self.languages: LanguageList = companions.languages
        self.dictionary = Dictionary.load(str(companions.dict_path))
        self.dictionary.add_symbol("<mask>")
        self.labels = labels
        self.has_entities = has_entities(labels)
        self.train_langs = parse_codes(cfg.train_langs or "", "--train-langs")
        self.eval_langs = parse_codes(cfg.eval_langs or "", "--eval-langs")
        self.select_languages = _selection(self.train_langs, self.eval_langs, cfg.selection)
        self.log_languages = list(dict.fromkeys(self.train_langs + self.eval_langs))
        self._scored: list[str] = []
        self._tokenizer: Optional[Tokenizer] = None
        self._limit: Optional[int] = None
        self._language_specific = True

    @classmethod
    def setup_task(cls, cfg: TaggingConfig, **kwargs: Any) -> "TaggingTask":
        """Read label file, dictionary, languages and tokenizer; check the flags against them."""
        companions = companions_of(cfg)
        if companions.tokenizer_dir is None:
            raise CheckpointError(
                "The checkpoint was trained without a tokenizer, so words cannot be encoded.",
                where=companions.dict_path,
                next_step="put the tokenizer/ of its data beside it, or prepare the data with data_prep/prepare.sh",
            )
        languages = companions.languages
        if cfg.langs and parse_codes(cfg.langs) != languages.codes:
            raise LanguageError(
                "--langs is not the list of the checkpoint.", value=cfg.langs, allowed=",".join(languages)
            )
        if cfg.fallback_lang:
            languages.id(cfg.fallback_lang, "--fallback-lang")
        task = cls(cfg, companions, read_labels(Path(cfg.data) / LABELS_FILE))
        if not kwargs.get("from_checkpoint"):
            task._check_flags()
        return task

    def _check_flags(self) -> None:
        """Everything that can be known before a model is built."""
        if not self.train_langs:
            raise UsageError(
                "A tagging run needs a language to train on.",
                where="--train-langs",
                allowed=",".join(languages_in(self.cfg.data)),
            )
        if self.cfg.disable_validation:
            return
        if not self.select_languages:
            raise UsageError("No language selects.", where=f"--selection {self.cfg.selection}", allowed="--eval-langs")
        scored = [lang for lang in self.log_languages if find_split(self.cfg.data, lang, "dev").is_file()]
        missing = [lang for lang in self.select_languages if lang not in scored]
        if missing:
            raise DataError(
                "A language that selects the best checkpoint has no dev split.",
                where=find_split(self.cfg.data, missing[0], "dev"),
                next_step="prepare one, change --selection, or give --disable-validation",
            )
        check_metric(self.cfg, metric_names(self.has_entities, scored, len(self.log_languages) > 1))
        self._scored = scored

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """The pretrained arch with a head ``tagging``; learns here which limits and languages it has."""
        if not from_checkpoint and self.cfg.save_dir:
            check_companions(self.cfg.save_dir, self.languages, self.companions.dict_path)
            check_labels(self.labels, self.cfg.save_dir)
        model = super().build_model(cfg, from_checkpoint)
        model.register_token_head(HEAD, len(self.labels))
        model.mark_parameters()
        self._language_specific = has_language_parts(model.parameters())
        self._limit = min(self.cfg.tokens_per_window or model.max_positions(), model.max_positions())
        return model

    @property
    def encoder(self) -> WordEncoder:
        """Words to windows, for the model that was built."""
        if self._limit is None:
            raise UsageError("Build the model first: it decides how long a window is.")
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.load(str(self.companions.tokenizer_dir))
        return WordEncoder(self.dictionary, self._tokenizer, self._limit)

    def lang_id(self, lang: str) -> int:
        """Id that routes ``lang`` through the model; ``--fallback-lang`` stands in for an unknown language.

        Raises:
            LanguageError: unknown to a model with language-specific parts, and no fall-back given.
        """
        if lang in self.languages:
            return self.languages.id(lang)
        if self.cfg.fallback_lang:
            logger.warning("%s is unknown to the checkpoint: it uses the parts of %s", lang, self.cfg.fallback_lang)
            return self.languages.id(self.cfg.fallback_lang)
        if self._language_specific:
            raise LanguageError(
                "The checkpoint has no parts for this language.",
                where="--train-langs, --eval-langs or --lang",
                value=lang,
                allowed=",".join(self.languages),
                next_step="give --fallback-lang to use another language's parts",
            )
        logger.warning("%s was not among the languages of pre-training (%s)", lang, ",".join(self.languages))
        return 0

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Read ``train`` of --train-langs, or ``dev`` of all languages that have one (host name ``valid``)."""
        if split not in SPLITS:
            raise UsageError("Unknown split.", where="--valid-subset", value=split, allowed=",".join(SPLITS))
        if split == "train" and split in self.datasets:
            return
        examples: list[Example] = []
        for group, lang in enumerate(self.log_languages):
            path = find_split(self.cfg.data, lang, SPLITS[split])
            if split == "train" and lang not in self.train_langs:
                continue
            if split != "train" and lang not in self.select_languages and not path.is_file():
                logger.warning("%s has no %s split and is not scored during training", lang, SPLITS[split])
                continue
            examples.extend(self._read(path, group, lang, separate=split == "train"))
        self.datasets[split] = TaggingDataset(examples, self.dictionary.pad(), shuffle=split == "train")
        if split == "train":
            self._write_companions()

    def _write_companions(self) -> None:
        """What makes the checkpoint usable later: languages, dictionary, tokenizer, labels."""
        if distributed_utils.get_global_rank() != 0 or not self.cfg.save_dir:
            return
        write_companions(self.cfg.save_dir, self.languages, self.companions.dict_path, self.companions.tokenizer_dir)
        write_text(Path(self.cfg.save_dir) / LABELS_FILE, "".join(f"{label}\n" for label in self.labels))

    def _read(self, path: Path, group: int, lang: str, separate: bool) -> list[Example]:
        if not path.is_file():
            raise DataError(
                "A split is missing.",
                where=path,
                allowed=f"languages there: {','.join(languages_in(self.cfg.data))}",
                next_step="python -m data_prep.benchmarks.ner --help",
            )
        lang_id, ids = self.lang_id(lang), {label: number for number, label in enumerate(self.labels)}
        ids.setdefault(NO_LABEL, IGNORE)
        encoder, examples, words = self.encoder, [], 0
        sentences = read_sentences(path, self.labels)
        for sentence in sentences:
            if sentence.labels is None:
                raise DataError("This sentence has no labels.", where=sentence.where)
            rows = encoder.rows(sentence.words, lang)
            labels = [ids[label] for label in sentence.labels]
            examples.extend(make_examples(rows, labels, lang_id, group, separate=separate))
            words += len(sentence.words)
        if not examples:
            raise DataError("A split has no sentence with words.", where=path)
        rows_read = sum(len(example.rows) for example in examples)
        logger.info("%s: %d sentences, %d words, %d windows", path, len(sentences), words, rows_read)
        return examples

    def get_batch_iterator(
        self,
        dataset: TaggingDataset,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        seed: int = 1,
        num_shards: int = 1,
        shard_id: int = 0,
        num_workers: int = 0,
        epoch: int = 1,
        data_buffer_size: int = 0,
        skip_remainder_batch: bool = False,
        **unused: Any,
    ) -> LanguageBatchIterator:
        """The host's call. Nothing is filtered by size; a resumed run knows what its place in the epoch depends on."""
        with data_utils.numpy_seed(seed, epoch):
            order = dataset.ordered_indices()
        windows = [0] * len(self.log_languages)
        for example in dataset.examples:
            windows[example.group] += 1
        settings = {
            "languages": self.languages.codes,
            "dictionary": digest_of_file(self.companions.dict_path),
            "blocks": windows,
            "seed": seed,
            "workers": num_shards,
            "batch_size": [max_sentences, max_tokens],
        }
        return LanguageBatchIterator(
            dataset,
            dataset.collater,
            [[np.array(batch)] for batch in dataset.batch_by_size(order, max_tokens, max_sentences)],
            settings,
            seed=seed,
            num_shards=num_shards,
            shard_id=shard_id,
            num_workers=num_workers,
            epoch=epoch,
            buffer_size=data_buffer_size,
            skip_remainder_batch=skip_remainder_batch,
        )

    def training_tokens(self, sample: dict[str, Any]) -> Tensor:
        """Labelled words in each row, ``(B,)``."""
        counts: Tensor = sample["target"].ne(IGNORE).sum(1)
        return counts

    def validation_metrics(self) -> list[str]:
        """Names that ``--best-checkpoint-metric`` may take."""
        return metric_names(self.has_entities, self._scored, len(self.log_languages) > 1)

    def count_entities(self, gold: Sequence[int], predicted: Sequence[int]) -> tuple[int, int, int]:
        """Right, predicted and gold entities (strict IOB2) of one sentence of label ids."""
        wanted, given = ({*iob2_entities([self.labels[i] for i in ids])} for ids in (gold, predicted))
        return len(wanted & given), len(given), len(wanted)

    def max_positions(self) -> Optional[int]:
        """Tokens of a window; before the model is built, the positions of the pretrained checkpoint."""
        return self._limit or pretrained_positions(starting_checkpoint(self.cfg))

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        return self.dictionary


def _selection(train: list[str], others: list[str], selection: str) -> list[str]:
    chosen = {"source-dev": train, "target-dev": others, "all-dev": [*train, *others]}[str(selection)]
    return list(dict.fromkeys(chosen))
