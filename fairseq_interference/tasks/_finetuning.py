"""What the tasks of fine-tuning share: a pretrained checkpoint, languages to train on and to validate, batches."""

import logging
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Optional

import numpy as np
from fairseq.data import Dictionary, data_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_interference.criterions._finetuning import FinetuningCriterion, check_metric
from fairseq_interference.data.companions import Companions, check_companions, write_companions
from fairseq_interference.data.dictionary import digest_of_file
from fairseq_interference.data.examples import ExampleDataset
from fairseq_interference.data.iterator import LanguageBatchIterator
from fairseq_interference.data.pieces import FOLDER, Pieces
from fairseq_interference.data.prepared import LABELS_FILE, check_labels, find_split, languages_in, read_labels
from fairseq_interference.data.pretrained import companions_of, pretrained_positions, starting_checkpoint
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import CheckpointError, DataError, LanguageError, UsageError
from fairseq_interference.languages import LanguageList, parse_codes
from fairseq_interference.optim.head_rate import freeze, scales_of, set_rates
from fairseq_interference.optim.presence import PresenceMixin, has_language_parts, inner_optimizer
from fairseq_interference.optim.rates import Rate
from fairseq_interference.stages import write_json, write_text
from fairseq_interference.tasks._finetuning_config import FinetuningConfig, check_gap, selection
from fairseq_interference.tasks._validation import LoggedValidation

logger = logging.getLogger(__name__)

FEW_SHOT_FILE = "few_shot.json"  # lines of dev splits that were trained on, beside the checkpoints
_FEW_SHOT = 0xF5
#: the host's name of a split -> the prepared file's
SPLITS = {"train": "train", "valid": "dev", "dev": "dev", "test": "test"}


class FinetuningTask(PresenceMixin, LoggedValidation, FairseqTask):
    """Fine-tune a pretrained encoder on some languages; validate others with it.

    Args:
        cfg: see :class:`FinetuningConfig`.
        companions: languages, dictionary and tokenizer of the pretrained checkpoint.

    Attributes:
        criterion: its namesake; knows the names of the measures.
        kind: of its scores: ner, pos, nli or qa.
        benchmark: module that prepares its data, for messages. units: what its examples are.
        head: name of the head's parameters, up to its first dot but one.
        labels: the fixed label list of the benchmark; empty for a task that ``has_labels`` not.
        is_scored: whether validation takes measures that training does not.
    """

    cfg: FinetuningConfig
    criterion: ClassVar[type[FinetuningCriterion]]
    kind: str
    benchmark: ClassVar[str]
    units: ClassVar[str]
    head: ClassVar[str]
    has_labels: ClassVar[bool] = True
    is_scored: bool = False

    def __init__(self, cfg: FinetuningConfig, companions: Companions) -> None:
        super().__init__(cfg)
        self.companions = companions
        self.languages: LanguageList = companions.languages
        self.dictionary = Dictionary.load(str(companions.dict_path))
        self.dictionary.add_symbol("<mask>")
        self.train_langs = parse_codes(cfg.train_langs or "", "--train-langs")
        self.eval_langs = parse_codes(cfg.eval_langs or "", "--eval-langs")
        self.select_languages = selection(cfg, self.train_langs, self.eval_langs)
        self.log_languages = list(dict.fromkeys(self.train_langs + self.eval_langs))
        self.few_shot_langs = [lang for lang in self.eval_langs if cfg.few_shot and lang not in self.train_langs]
        self.labels = read_labels(Path(cfg.data) / LABELS_FILE) if self.has_labels else []
        self.few_shot_lines: dict[str, list[int]] = {}
        self._scored: list[str] = []
        self._tokenizer: Optional[Tokenizer] = None
        self._pieces: Optional[Pieces] = None
        self._limit: Optional[int] = None
        self._language_specific = True

    # -- what a task has of its own -----------------------------------------------------------------------------

    def add_head(self, model: Any) -> None:
        """Register the head on the pretrained encoder."""
        raise NotImplementedError

    def read_records(self, path: Path) -> list[Any]:
        """The labelled records of a prepared split, whose file is there."""
        raise NotImplementedError

    def texts(self, records: Sequence[Any], lang: str) -> Iterable[tuple[list[str], str, bool]]:
        """Texts that are worth to be encoded all at once, their language, and whether they are to be aligned."""
        return ()

    def is_labelled(self, record: Any) -> bool:
        """Whether a record can be trained on."""
        return True

    def group_of(self, record: Any) -> Any:
        """Records of one group are never parted: equal sentences, pairs of one premise, questions of one context."""
        raise NotImplementedError

    def encode(self, record: Any, lang: str, lang_id: int, group: int, training: bool) -> list[Any]:
        """Examples of a record: none if it is empty, several if training may part its rows.

        Args:
            lang_id: id that routes its rows. group: number of its language in logs.
        """
        raise NotImplementedError

    def collate(self, examples: Sequence[Any], ids: Sequence[int]) -> dict[str, Any]:
        """A sample with ``sample_size``, ``target`` and ``net_input``."""
        raise NotImplementedError

    # -- set-up -------------------------------------------------------------------------------------------------

    @classmethod
    def setup_task(cls, cfg: FinetuningConfig, **kwargs: Any) -> "FinetuningTask":
        """Read dictionary, languages and tokenizer; check the flags against them."""
        companions = companions_of(cfg)
        if companions.tokenizer_dir is None:
            raise CheckpointError(
                "The checkpoint was trained without a tokenizer, so text cannot be encoded.",
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
        task = cls(cfg, companions)
        if not kwargs.get("from_checkpoint"):
            task._check_flags()
        return task

    def _check_flags(self) -> None:
        """Everything that can be known before a model is built."""
        Rate.parse(self.cfg.head_lr, "--head-lr")
        scales_of(self.cfg.lr_scale)
        if not self.train_langs:
            raise UsageError(
                "Fine-tuning needs a language to train on.",
                where="--train-langs",
                allowed=",".join(languages_in(self.cfg.data)),
            )
        if self.cfg.few_shot < 0 or (self.cfg.few_shot and not self.few_shot_langs):
            allowed = "0 or more, with a language in --eval-langs that is not in --train-langs"
            raise UsageError("Few shots of what?", where="--few-shot", value=self.cfg.few_shot, allowed=allowed)
        check_gap(self.cfg, self.train_langs, self.eval_langs)
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
        self._scored = scored
        check_metric(self.cfg, self.validation_metrics())

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """The pretrained arch with this task's head; learns here which limits and languages it has."""
        if not from_checkpoint and self.cfg.save_dir:
            check_companions(self.cfg.save_dir, self.languages, self.companions.dict_path)
            if self.labels:
                check_labels(self.labels, self.cfg.save_dir)
        model = super().build_model(cfg, from_checkpoint)
        self.add_head(model)
        self._language_specific = has_language_parts(model.parameters())
        if not from_checkpoint:
            freeze(model, self.cfg.freeze)
        self._limit = int(model.max_positions())
        return model

    @property
    def limit(self) -> int:
        """Tokens of a row that the model takes."""
        if self._limit is None:
            raise UsageError("Build the model first: it decides how long a row is.")
        return self._limit

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.load(str(self.companions.tokenizer_dir))
        return self._tokenizer

    @property
    def pieces(self) -> Pieces:
        """Encodes texts with the checkpoint's tokenizer and dictionary."""
        if self._pieces is None:
            digest = digest_of_file(self.companions.dict_path)
            folder = Path(self.cfg.data) / FOLDER
            self._pieces = Pieces(self.tokenizer, self.dictionary, digest, folder)
        return self._pieces

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

    def prepare_optimizer(self, optimizer: Any) -> None:
        """Give the head and scaled parameters their rates; called when the host has built an optimizer."""
        if getattr(inner_optimizer(optimizer), "needs_meta_step", False):
            what = "Fine-tuning has no meta step."
            raise UsageError(what, where="--optimizer meta_adapter", next_step="use --optimizer adam")
        set_rates(optimizer, self.head, self.cfg.head_lr, self.cfg.lr_scale)

    # -- data ---------------------------------------------------------------------------------------------------

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        """Read ``train`` of --train-langs, or ``dev`` of all languages that have one (host name ``valid``)."""
        if split not in SPLITS:
            raise UsageError("Unknown split.", where="--valid-subset", value=split, allowed=",".join(SPLITS))
        if split == "train" and split in self.datasets:
            return
        examples: list[Any] = []
        for group, lang in enumerate(self.log_languages):
            path = find_split(self.cfg.data, lang, SPLITS[split])
            if split != "train" and lang not in self.select_languages and not path.is_file():
                logger.warning("%s has no %s split and is not scored during training", lang, SPLITS[split])
            elif split != "train" or lang in self.train_langs:
                examples.extend(self._read(path, lang, group, training=split == "train"))
            elif lang in self.few_shot_langs:
                examples.extend(self._read(find_split(self.cfg.data, lang, "dev"), lang, group, training=True))
        self.datasets[split] = ExampleDataset(examples, self.collate, shuffle=split == "train")
        if split == "train" and distributed_utils.get_global_rank() == 0 and self.cfg.save_dir:
            self.write_beside(Path(self.cfg.save_dir))

    def write_beside(self, save_dir: Path) -> None:
        """Write what makes a checkpoint usable later: languages, dictionary, tokenizer, labels."""
        write_companions(save_dir, self.languages, self.companions.dict_path, self.companions.tokenizer_dir)
        if self.labels:
            write_text(save_dir / LABELS_FILE, "".join(f"{label}\n" for label in self.labels))

    def _read(self, path: Path, lang: str, group: int, training: bool) -> list[Any]:
        if not path.is_file():
            raise DataError(
                "A split is missing.",
                where=path,
                allowed=f"languages there: {','.join(languages_in(self.cfg.data))}",
                next_step=f"python -m {self.benchmark} --help",
            )
        records = self.read_records(path)
        if lang in self.few_shot_langs and path.stem == "dev":
            records = self._few_shot(records, lang, path, training)
        lang_id = self.lang_id(lang)
        for many, code, aligned in self.texts(records, lang):
            self.pieces.learn(many, code, aligned)
        examples = [one for record in records for one in self.encode(record, lang, lang_id, group, training)]
        if not examples:
            raise DataError("A split has no example with text.", where=path)
        rows = sum(len(example.rows) for example in examples)
        logger.info("%s: %d %s, %d rows", path, len(records), self.units, rows)
        return examples

    def _few_shot(self, records: list[Any], lang: str, path: Path, training: bool) -> list[Any]:
        """Those of a dev split that are trained on, or the others but for what belongs to them."""
        labelled = [number for number, record in enumerate(records) if self.is_labelled(record)]
        rng = np.random.default_rng([self.cfg.seed, _FEW_SHOT, zlib.crc32(lang.encode())])
        chosen = sorted(labelled[int(place)] for place in rng.permutation(len(labelled))[: self.cfg.few_shot])
        taken = {self.group_of(records[number]) for number in chosen}
        rest = [record for record in records if self.group_of(record) not in taken]
        if len(chosen) < self.cfg.few_shot or not rest:
            value = f"{self.cfg.few_shot} of {len(labelled)} labelled {self.units}"
            raise DataError("The dev split has too few for --few-shot.", where=path, value=value)
        if training and self.cfg.save_dir and distributed_utils.get_global_rank() == 0:
            self.few_shot_lines[lang] = [number + 1 for number in chosen]
            write_json(Path(self.cfg.save_dir) / FEW_SHOT_FILE, {"split": "dev", "lines": self.few_shot_lines})
        return [records[number] for number in chosen] if training else rest

    def get_batch_iterator(
        self,
        dataset: ExampleDataset,
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
        examples = [0] * len(self.log_languages)
        for example in dataset.examples:
            examples[example.group] += 1
        settings = {
            "languages": self.languages.codes,
            "dictionary": digest_of_file(self.companions.dict_path),
            "blocks": examples,
            "seed": seed,
            "workers": num_shards,
            "batch_size": [max_sentences, max_tokens],
            "few_shot": self.cfg.few_shot,
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
        """Labelled units in each row, ``(B,)``; ``target`` is negative elsewhere."""
        counts: Tensor = sample["target"].ge(0).view(len(sample["target"]), -1).sum(1)
        return counts

    def rows_of(self, sample: dict[str, Any], rows: Tensor) -> dict[str, Any]:
        part = super().rows_of(sample, rows)
        tokens, of = (float(self.training_tokens(some).sum()) for some in (part, sample))
        part["sample_size"] = round(sample["sample_size"] * tokens / of)  # every row has so many units per token
        return part

    def trained_languages(self) -> list[str]:
        """Codes of --train-langs and of --few-shot, each with an id of its own.

        Raises:
            LanguageError: one that the checkpoint does not know, so that it goes by another's id.
        """
        codes = [*self.train_langs, *self.few_shot_langs]
        for code in codes:
            self.languages.id(code, "--train-langs or --eval-langs")
        return codes

    def validation_measures(self) -> dict[str, str]:
        """Measures of each language, and their units."""
        names = [*self.criterion.measures, *(self.criterion.validated if self.is_scored else ())]
        return {name: "bits per labelled unit" if name == "loss" else "per cent" for name in names}

    def validation_languages(self) -> list[str]:
        """Those trained on first."""
        return self.log_languages

    def log_header(self) -> dict[str, Any]:
        """Kind of scores, languages that are trained on and that select."""
        return {"kind": self.kind, "train_langs": self.train_langs, "select_langs": self.select_languages}

    def validation_metrics(self) -> list[str]:
        """Names that ``--best-checkpoint-metric`` may take."""
        return self.criterion.metric_names(self.is_scored, self._scored, len(self.log_languages) > 1)

    def max_positions(self) -> Optional[int]:
        """Tokens of a row; before the model is built, the positions of the pretrained checkpoint."""
        return self._limit or pretrained_positions(starting_checkpoint(self.cfg))

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        return self.dictionary
