"""Labels for words in many languages: named entities, parts of speech."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.tasks import register_task
from torch import Tensor

from fairseq_interference.criterions.xlm_tagging import HEAD, TaggingCriterion
from fairseq_interference.data.companions import Companions
from fairseq_interference.data.prepared import NO_LABEL, LabelledSentence, has_entities, read_sentences
from fairseq_interference.data.readers.entities import iob2_entities
from fairseq_interference.data.tagging import IGNORE, Example, WordEncoder, collate, make_examples
from fairseq_interference.errors import DataError
from fairseq_interference.tasks._finetuning import FinetuningTask
from fairseq_interference.tasks._finetuning_config import FinetuningConfig


# The host's parser reads real types: no postponed annotations in this file.
@dataclass
class TaggingConfig(FinetuningConfig):
    tokens_per_window: Optional[int] = field(
        default=None, metadata={"help": "tokens of a window over a long sentence (default: the model's positions)"}
    )


@register_task("xlm_tagging", dataclass=TaggingConfig)
class TaggingTask(FinetuningTask):
    """Fine-tune a pretrained encoder to label words; score other languages with it."""

    cfg: TaggingConfig
    criterion = TaggingCriterion
    benchmark = "data_prep.benchmarks.ner"
    units = "sentences"
    head = f"token_heads.{HEAD}"

    def __init__(self, cfg: TaggingConfig, companions: Companions) -> None:
        super().__init__(cfg, companions)
        self.is_scored = has_entities(self.labels)
        self.kind = "ner" if self.is_scored else "pos"
        self._ids = {NO_LABEL: IGNORE, **{label: number for number, label in enumerate(self.labels)}}
        self._encoder: Optional[WordEncoder] = None

    def add_head(self, model: Any) -> None:
        model.register_token_head(HEAD, len(self.labels))

    @property
    def limit(self) -> int:
        """Tokens of a window, which the model and ``--tokens-per-window`` allow."""
        return min(self.cfg.tokens_per_window or super().limit, super().limit)

    @property
    def encoder(self) -> WordEncoder:
        """Words to windows, for the model that was built."""
        if self._encoder is None or self._encoder.limit != self.limit:
            self._encoder = WordEncoder(self.dictionary, self.tokenizer, self.limit)
        return self._encoder

    def read_records(self, path: Path) -> list[LabelledSentence]:
        sentences = read_sentences(path, self.labels)
        for sentence in sentences:
            if sentence.labels is None:
                raise DataError("This sentence has no labels.", where=sentence.where)
        return sentences

    def is_labelled(self, record: LabelledSentence) -> bool:
        return any(label != NO_LABEL for label in record.labels or ())

    def group_of(self, record: LabelledSentence) -> tuple[str, ...]:
        return tuple(record.words)

    def encode(self, record: LabelledSentence, lang: str, lang_id: int, group: int, training: bool) -> list[Example]:
        """A sentence in windows, one example each in training."""
        rows = self.encoder.rows(record.words, lang)
        labels = [self._ids[label] for label in record.labels or ()]
        return make_examples(rows, labels, lang_id, group, separate=training)

    def collate(self, examples: Sequence[Example], ids: Sequence[int]) -> dict[str, Any]:
        return collate(examples, ids, pad=self.dictionary.pad())

    def rows_of(self, sample: dict[str, Any], rows: Tensor) -> dict[str, Any]:
        part, words = super().rows_of(sample, rows), sample["words"]
        number = torch.full_like(sample["net_input"]["lang_id"], -1)
        number[rows] = torch.arange(len(rows), device=rows.device)
        kept = number[words["row"]] >= 0
        mine = {key: words[key][kept] for key in ("row", "column", "label", "group")}
        # in training a row is an example of its own
        return {**part, "words": {**mine, "row": number[mine["row"]], "count": words["count"][rows]}}

    def count_entities(self, gold: Sequence[int], predicted: Sequence[int]) -> tuple[int, int, int]:
        """Right, predicted and gold entities (strict IOB2) of one sentence of label ids."""
        wanted, given = ({*iob2_entities([self.labels[i] for i in ids])} for ids in (gold, predicted))
        return len(wanted & given), len(given), len(wanted)
