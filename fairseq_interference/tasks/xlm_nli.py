"""Labels for pairs of sentences in many languages: XNLI, PAWS-X, any label set."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq.tasks import register_task

from fairseq_interference.criterions.xlm_nli import HEAD, NliCriterion
from fairseq_interference.data.companions import Companions
from fairseq_interference.data.readers import nli
from fairseq_interference.data.sentence_pairs import PairEncoder, PairExample, collate_pairs
from fairseq_interference.data.tagging import IGNORE
from fairseq_interference.errors import DataError, UsageError
from fairseq_interference.tasks._finetuning import FinetuningTask
from fairseq_interference.tasks._finetuning_config import FinetuningConfig


# The host's parser reads real types: no postponed annotations in this file.
@dataclass
class NliConfig(FinetuningConfig):
    max_length: int = field(
        default=128,
        metadata={"help": "most tokens of a pair, special symbols included; the longer sentence is cut first"},
    )


@register_task("xlm_nli", dataclass=NliConfig)
class NliTask(FinetuningTask):
    """Fine-tune a pretrained encoder to label sentence pairs; score other languages with it."""

    cfg: NliConfig
    criterion = NliCriterion
    kind = "nli"
    benchmark = "data_prep.benchmarks.nli"
    units = "pairs"
    head = f"classification_heads.{HEAD}"

    def __init__(self, cfg: NliConfig, companions: Companions) -> None:
        super().__init__(cfg, companions)
        if cfg.max_length < 6:
            raise UsageError("A pair needs more room.", where="--max-length", value=cfg.max_length, allowed=">= 6")

    def add_head(self, model: Any) -> None:
        model.register_classification_head(HEAD, num_classes=len(self.labels))

    @property
    def encoder(self) -> PairEncoder:
        """Pairs to rows, for the model that was built."""
        return PairEncoder(self.pieces, min(self.cfg.max_length, self.limit))

    def read_records(self, path: Path) -> list[nli.Pair]:
        file = nli.read(path, "jsonl", labels=self.labels)
        if not file.labelled:
            raise DataError("This split has no labels.", where=path)
        return file

    def is_labelled(self, record: nli.Pair) -> bool:
        return record.label is not None

    def group_of(self, record: nli.Pair) -> str:
        return record.premise

    def texts(self, records: Sequence[nli.Pair], lang: str) -> Iterator[tuple[list[str], str, bool]]:
        yield [text for pair in records for text in (pair.premise, pair.hypothesis)], lang, False

    def encode(self, record: nli.Pair, lang: str, lang_id: int, group: int, training: bool) -> list[PairExample]:
        """One row; a pair without a majority label has no loss and no score."""
        label = IGNORE if record.label is None else self.labels.index(record.label)
        return [PairExample([self.encoder.row(record.premise, record.hypothesis, lang)], label, lang_id, group)]

    def collate(self, examples: Sequence[PairExample], ids: Sequence[int]) -> dict[str, Any]:
        return collate_pairs(examples, ids, pad=self.dictionary.pad())
