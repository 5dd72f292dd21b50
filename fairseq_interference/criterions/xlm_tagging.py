"""Cross entropy over words, logged per language, with entity F1 in validation."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_interference.criterions._finetuning import (
    FinetuningCriterion,
    Measure,
    Meters,
    bits,
    check_smoothing,
    share,
    total,
)
from fairseq_interference.data.tagging import IGNORE

HEAD = "tagging"


# The host's parser reads real types: no postponed annotations in this file.
@dataclass
class TaggingCriterionConfig(FairseqDataclass):
    label_smoothing: float = field(default=0.0, metadata={"help": "share of the target spread evenly over all labels"})


def _f1(meters: Meters, lang: str) -> float:
    """2 TP / (predicted + gold), which is the harmonic mean of precision and recall."""
    entities = total(meters, "predicted", lang) + total(meters, "gold", lang)
    return 200 * total(meters, "tp", lang) / max(entities, 1)


@register_criterion("xlm_tagging", dataclass=TaggingCriterionConfig)
class TaggingCriterion(FinetuningCriterion):
    """Mean over words; sample size is the number of labelled words.

    Args:
        task: an ``xlm_tagging`` task.
    """

    fields = ("correct", "tp", "predicted", "gold")
    measures: ClassVar[dict[str, Measure]] = {"loss": bits, "accuracy": share("correct")}
    validated: ClassVar[dict[str, Measure]] = {"f1": _f1}

    def __init__(self, task: Any, label_smoothing: float = 0.0) -> None:
        super().__init__(task)
        self.label_smoothing = check_smoothing(label_smoothing)

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss (sum over words, nats), number of labelled words, logging output.

        Args:
            model: model with a token head ``tagging``.
            sample: batch of :func:`fairseq_interference.data.tagging.collate`.
        """
        words = sample["words"]
        logits, _ = model(**sample["net_input"], token_head_name=HEAD)  # B x T x labels
        scores = logits[words["row"], words["column"]].float()  # W x labels
        losses = torch.nn.functional.cross_entropy(
            scores, words["label"], ignore_index=IGNORE, reduction="none", label_smoothing=self.label_smoothing
        )
        counted, predicted = words["label"] != IGNORE, scores.argmax(dim=-1)
        correct = self.by_language((predicted == words["label"]) & counted, words["group"])
        entities = self._entities(words, predicted, model.training)
        own = [correct, *entities.unbind(1)]
        logging_output = self.log(sample, losses.detach(), words["group"], counted, own, model.training)
        return losses.sum(), sample["sample_size"], logging_output

    def _entities(self, words: dict[str, Tensor], predicted: Tensor, training: bool) -> Tensor:
        """(languages, 3): right, predicted and gold entities; sentences are stitched from their windows."""
        counts = torch.zeros(len(self.task.log_languages), 3, dtype=torch.float64)
        if training or not self.task.is_scored:
            return counts
        gold, guess, group = words["label"].tolist(), predicted.tolist(), words["group"].tolist()
        first = 0
        for count in words["count"].tolist():
            span = slice(first, first + count)
            if IGNORE not in gold[span]:
                found = self.task.count_entities(gold[span], guess[span])
                counts[group[first]] += torch.tensor(found, dtype=torch.float64)
            first += count
        return counts
