"""Task ``xlm_masked_lm``: multilingual masked language modelling; every sample carries its language."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING

from fairseq_interference import compat
from fairseq_interference.criterions.xlm_masked_lm import log_languages, metric_names
from fairseq_interference.data import heldout, sampling
from fairseq_interference.data.batching import Batcher
from fairseq_interference.data.blocks import MODES, Blocks
from fairseq_interference.data.companions import check_companions, write_companions
from fairseq_interference.data.dictionary import digest_of_file, words
from fairseq_interference.data.folders import DataFolders, open_folders
from fairseq_interference.data.iterator import LanguageBatchIterator
from fairseq_interference.data.masking import Masking
from fairseq_interference.data.multilingual import MultilingualDataset
from fairseq_interference.data.token_file import TokenFile
from fairseq_interference.errors import DataError, DictionaryError, UsageError
from fairseq_interference.optim import meta_options
from fairseq_interference.optim.conflict import SINGLE, ConflictMixin
from fairseq_interference.optim.meta_task import MetaMixin
from fairseq_interference.stages import write_json
from fairseq_interference.tasks._validation import LoggedValidation

logger = logging.getLogger(__name__)
BREAK_MODES = ChoiceEnum(list(MODES))
COMPOSITIONS = ChoiceEnum(["mixed", "single"])
SAMPLING_FILE = "sampling.json"


@dataclass
class XlmMaskedLmConfig(meta_options.MetaOptions):
    """Options of the task."""

    data: str = field(default=MISSING, metadata={"help": "data folder; DATA1:DATA2 are shards, one an epoch"})
    langs: str = field(
        default="", metadata={"help": "languages, in the order of their ids: en,hi,sw (default: DATA/languages.txt)"}
    )
    temperature: float = field(
        default=1.43,
        metadata={"help": "languages are seen in proportion to share^(1/T); 1: as often as they are large"},
    )
    batch_composition: COMPOSITIONS = field(  # type: ignore[valid-type]
        default="mixed", metadata={"help": "mixed: several languages in a batch; single: one language an update"}
    )
    sample_break_mode: BREAK_MODES = field(  # type: ignore[valid-type]
        default="complete",
        metadata={
            "help": "none: cut anywhere; complete: whole sentences; complete_doc: not across blank lines; eos: one"
        },
    )
    tokens_per_sample: int = field(default=256, metadata={"help": "longest block in tokens, with <s>"})
    mask_prob: float = field(default=0.15, metadata={"help": "share of tokens that are predicted"})
    leave_unmasked_prob: float = field(default=0.1, metadata={"help": "share of those that stay as they are"})
    random_token_prob: float = field(default=0.1, metadata={"help": "share of those that become a random token"})
    conflict_every: int = field(
        default=0,
        metadata={
            "help": "every N updates log the cosines between the languages' gradients of the batch, shared parameters "
            "alone (about one pass over the batch, L gradients in memory), and write conflict.jsonl; 0: never"
        },
    )
    seed: int = II("common.seed")
    dataset_impl: Optional[str] = II("dataset.dataset_impl")
    train_subset: str = II("dataset.train_subset")
    valid_subset: str = II("dataset.valid_subset")
    update_freq: Any = II("optimization.update_freq")  # noqa: RUF009 (a string, as in the fields above)
    save_dir: str = II("checkpoint.save_dir")
    finetune_from_model: Optional[str] = II("checkpoint.finetune_from_model")

    def check(self) -> None:
        """Raise one :class:`UsageError` that names every option out of range."""
        sampling.check_temperature(self.temperature)
        wrong = [
            f"--{name.replace('_', '-')} {getattr(self, name)}"
            for name in ("mask_prob", "leave_unmasked_prob", "random_token_prob")
            if not 0 <= getattr(self, name) <= 1
        ]
        if self.mask_prob == 0:
            wrong.append("--mask-prob 0")
        if self.leave_unmasked_prob + self.random_token_prob > 1:
            wrong.append("--leave-unmasked-prob + --random-token-prob > 1")
        if self.tokens_per_sample < 3:
            wrong.append(f"--tokens-per-sample {self.tokens_per_sample} (at least 3)")
        if self.dataset_impl not in (None, "mmap", "None"):
            wrong.append(f"--dataset-impl {self.dataset_impl} (this task reads mmap)")
        if self.conflict_every < 0:
            wrong.append(f"--conflict-every {self.conflict_every} (at least 0)")
        if self.conflict_every > 0 and str(self.batch_composition) == "single":
            wrong.append(f"--conflict-every {self.conflict_every} (--batch-composition single: {SINGLE})")
        wrong += meta_options.out_of_range(self)
        if wrong:
            raise UsageError("Options are out of range.", where="xlm_masked_lm", value="; ".join(wrong))


@register_task("xlm_masked_lm", dataclass=XlmMaskedLmConfig)
class XlmMaskedLmTask(ConflictMixin, MetaMixin, LoggedValidation, FairseqTask):
    """Masked language modelling over several languages.

    Attributes:
        languages: :class:`LanguageList` of the run.
        folders: where the data is.
        mask_idx: id of ``<mask>``.
    """

    cfg: XlmMaskedLmConfig

    def __init__(self, cfg: XlmMaskedLmConfig, folders: DataFolders, dictionary: Dictionary) -> None:
        super().__init__(cfg)
        self.folders = folders
        self.languages = folders.languages
        self.dictionary = dictionary
        self.dictionary_digest = digest_of_file(folders.dictionary)
        self.mask_idx = dictionary.add_symbol("<mask>")
        self.validated: list[str] = []
        self.built_model: Any = None  # for a criterion that adds to it
        self._recorded = False

    @classmethod
    def setup_task(cls, cfg: XlmMaskedLmConfig, **kwargs: Any) -> "XlmMaskedLmTask":
        """Find languages and dictionary; data is looked at when it is loaded."""
        folders = open_folders(cfg.data, cfg.langs, check_languages=False)
        dictionary = Dictionary.load(str(folders.dictionary))
        logger.info("dictionary: %d types; languages: %s", len(dictionary), repr(folders.languages))
        return cls(cfg, folders, dictionary)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Check that the run may go on in its folder, then build."""
        if not from_checkpoint:
            XlmMaskedLmConfig.check(self.cfg)
            if not torch.cuda.is_available():
                compat.keep_freed_memory()
            self.check_conflict()
            self.folders = open_folders(self.cfg.data, self.cfg.langs)
            for note in self.folders.notes:
                logger.info("%s", note)
            check_companions(self.cfg.save_dir, self.languages, self.folders.dictionary)
        self.built_model = super().build_model(cfg, from_checkpoint)
        return self.built_model

    # -- data ---------------------------------------------------------------------------------------------------

    def masking(self) -> Masking:
        """Masking with this task's dictionary and options."""
        return Masking(
            pad=self.dictionary.pad(),
            mask=self.mask_idx,
            never=(self.dictionary.pad(), self.dictionary.bos(), self.dictionary.eos()),
            words=np.array(words(self.dictionary), dtype=np.int64),
            probability=self.cfg.mask_prob,
            unchanged=self.cfg.leave_unmasked_prob,
            random=self.cfg.random_token_prob,
        )

    def _blocks(self, split: str, epoch: int) -> dict[str, Blocks]:
        found = {}
        for code, prefix in self.folders.splits(split, epoch).items():
            file = TokenFile(prefix)
            self._check_ids(file)
            length = self.cfg.tokens_per_sample - 1
            found[code] = Blocks(file, str(self.cfg.sample_break_mode), length, self.dictionary.eos())
        return found

    def _check_ids(self, file: TokenFile, most: int = 1 << 20) -> None:
        highest = int(file.tokens[:most].max())
        if highest >= len(self.dictionary):
            raise DictionaryError(
                "This file was binarised with another dictionary.",
                where=f"{file.prefix}.bin",
                value=f"token id {highest}",
                allowed=f"below {len(self.dictionary)}",
                next_step=f"binarise it again with --srcdict {self.folders.dictionary}",
            )

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split of every language that has it.

        Raises:
            DataError: a language without training data, an empty file, or no language with this split.
        """
        training = split == self.cfg.train_subset
        blocks = self._blocks(split, epoch)
        missing = [code for code in self.languages if code not in blocks]
        shard = self.folders.shard(epoch)
        if not blocks or (training and missing and len(self.folders.paths) == 1):
            raise DataError(
                f"There is no {split} data for these languages.",
                where=shard,
                value=",".join(missing),
                next_step=None if training else "prepare a valid split, or give --disable-validation",
            )
        if training:
            blocks = self._without_heldout(blocks)
        if missing:
            logger.warning("no %s data in %s for: %s", split, shard, ",".join(missing))
        self.datasets[split] = self._dataset(blocks, self.cfg.temperature if training else None, epoch)
        if training:
            self._report(blocks, epoch)
        else:
            self.validated = list(blocks)
            logger.info("%s: %s", split, ", ".join(f"{code} {len(part)} blocks" for code, part in blocks.items()))

    def _dataset(self, blocks: dict[str, Blocks], temperature: Optional[float], epoch: int) -> MultilingualDataset:
        bos, seed = self.dictionary.bos(), self.cfg.seed
        return MultilingualDataset(
            self.languages, blocks, self.masking(), bos, seed=seed, temperature=temperature, epoch=epoch
        )

    def _without_heldout(self, blocks: dict[str, Blocks]) -> dict[str, Blocks]:
        """The blocks to train on; those held out go to the meta step."""
        fraction = meta_options.heldout_fraction(self.cfg)
        train, held = heldout.hold_out(blocks, fraction, self.cfg.seed)
        if held:
            counts = ", ".join(f"{code} {len(part)} blocks" for code, part in held.items())
            logger.info("held out for the meta step: %s", counts)
            if self.cfg.finetune_from_model:
                start = self.cfg.finetune_from_model
                logger.warning("%s has trained on the text held out here, unless it held out the same", start)
        if meta_options.optimizer_of(self.cfg) == meta_options.OPTIMIZER:
            if str(self.cfg.meta_val_subset) == "valid":
                held = self._validation_blocks()
                logger.warning("the meta step sees the validation split, which selects checkpoints as well")
            self.meta.validation = heldout.ValidationBatches(self._dataset(held, 1.0, 1), self.cfg.seed)
        return train

    def _validation_blocks(self) -> dict[str, Blocks]:
        split = self.cfg.valid_subset.split(",")[0]
        blocks = self._blocks(split, 1)
        missing = [code for code in self.languages if code not in blocks]
        if not blocks:
            advice = "give --valid-subset, or use --meta-val-subset heldout"
            raise DataError("There is no validation data for the meta step.", where=split, next_step=advice)
        if missing:
            logger.warning("no validation loss in the meta step for: %s (no %s data)", ",".join(missing), split)
        return blocks

    def _report(self, blocks: dict[str, Blocks], epoch: int) -> None:
        """Print the sampling table of this shard; the first time, record it and what travels with checkpoints."""
        sizes = [len(blocks[code]) if code in blocks else 0 for code in self.languages]
        tokens = [blocks[code].tokens if code in blocks else 0 for code in self.languages]
        rows = sampling.table(self.languages, sizes, tokens, self.cfg.temperature)
        logger.info("sampling at temperature %g:\n%s", self.cfg.temperature, sampling.format_table(rows))
        if self._recorded or not _is_master():
            return
        self._recorded = True
        for note in write_companions(
            self.cfg.save_dir, self.languages, self.folders.dictionary, self.folders.tokenizer
        ):
            logger.warning("what does not travel with the checkpoint: %s", note)
        record = {"temperature": self.cfg.temperature, "shard": str(self.folders.shard(epoch)), "languages": rows}
        write_json(Path(self.cfg.save_dir) / SAMPLING_FILE, record)

    def has_sharded_data(self, split: str) -> bool:
        return len(self.folders.paths) > 1

    # -- batches ------------------------------------------------------------------------------------------------

    def get_batch_iterator(
        self,
        dataset: MultilingualDataset,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        max_positions: Any = None,
        ignore_invalid_inputs: bool = False,
        required_batch_size_multiple: int = 1,
        seed: int = 1,
        num_shards: int = 1,
        shard_id: int = 0,
        num_workers: int = 0,
        epoch: int = 1,
        data_buffer_size: int = 0,
        disable_iterator_cache: bool = False,
        skip_remainder_batch: bool = False,
        **unused: Any,
    ) -> Any:
        """The host's call; batches are cut anew each epoch, validation batches once."""
        cached = self.dataset_to_epoch_iter.get(dataset)
        if cached is not None and not dataset.training and not disable_iterator_cache:
            return cached
        dataset.set_epoch(epoch)
        self._check_positions(dataset, max_positions)
        batcher = Batcher(max_tokens, max_sentences, required_batch_size_multiple, num_shards, self._update_freq(epoch))
        single = dataset.training and str(self.cfg.batch_composition) == "single"
        settings = {
            "languages": list(self.languages.codes),
            "dictionary": self.dictionary_digest,
            "blocks": [int(count) for count in dataset.block_counts],
            "temperature": float(self.cfg.temperature),
            "composition": str(self.cfg.batch_composition),
            "sample_break_mode": str(self.cfg.sample_break_mode),
            "tokens_per_sample": int(self.cfg.tokens_per_sample),
            "seed": int(seed),
            "workers": int(num_shards),
            "update_freq": int(batcher.update_freq),
            "batch_size": [max_sentences, max_tokens, required_batch_size_multiple],
        }
        iterator = LanguageBatchIterator(
            dataset,
            dataset.collater,
            batcher.single(dataset) if single else batcher.mixed(dataset),
            settings,
            seed=seed,
            num_shards=num_shards,
            shard_id=shard_id,
            num_workers=num_workers,
            epoch=epoch,
            buffer_size=data_buffer_size,
            skip_remainder_batch=skip_remainder_batch,
        )
        if not dataset.training:
            self.dataset_to_epoch_iter[dataset] = iterator
        return iterator

    def _update_freq(self, epoch: int) -> int:
        values = self.cfg.update_freq
        values = [values] if isinstance(values, int) else list(values or [1])
        return int(values[min(epoch, len(values)) - 1])

    def _check_positions(self, dataset: MultilingualDataset, max_positions: Any) -> None:
        limits = max_positions if isinstance(max_positions, (list, tuple)) else [max_positions]
        limit = min((int(value) for value in limits if value is not None), default=None)
        longest = int(dataset.sizes.max(initial=0))
        if limit is not None and longest > limit:
            raise UsageError(
                "Blocks are longer than the model or the batch allows; none is dropped.",
                where="--tokens-per-sample",
                value=self.cfg.tokens_per_sample,
                allowed=f"at most {limit} (--max-positions, --max-tokens)",
            )

    # -- steps and logging --------------------------------------------------------------------------------------

    def validation_measures(self) -> dict[str, str]:
        """Measures of each language, and their units."""
        return {"loss": "bits per masked token", "ppl": "2 ** bits per masked token"}

    def validation_languages(self) -> list[str]:
        """All of the run."""
        return list(self.languages)

    def validation_metrics(self) -> list[str]:
        """Names that ``--best-checkpoint-metric`` may take."""
        return metric_names(self.validated)

    def reduce_metrics(self, logging_outputs: Any, criterion: Any) -> None:
        """The host's numbers, then those of each language."""
        super().reduce_metrics(logging_outputs, criterion)
        log_languages(logging_outputs, self.languages)

    def max_positions(self) -> int:
        return int(self.cfg.tokens_per_sample)

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        return self.dictionary


def _is_master() -> bool:
    from torch import distributed

    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
