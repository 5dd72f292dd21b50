"""Cross entropy over sentence pairs, logged per language, with accuracy."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_interference.criterions._finetuning import FinetuningCriterion, Measure, bits, check_smoothing, share
from fairseq_interference.data.tagging import IGNORE

HEAD = "nli"


# The host's parser reads real types: no postponed annotations in this file.
@dataclass
class NliCriterionConfig(FairseqDataclass):
    label_smoothing: float = field(default=0.0, metadata={"help": "share of the target spread evenly over all labels"})


@register_criterion("xlm_nli", dataclass=NliCriterionConfig)
class NliCriterion(FinetuningCriterion):
    """Mean over pairs; sample size is the number of labelled pairs.

    Args:
        task: an ``xlm_nli`` task.
    """

    fields = ("correct",)
    measures: ClassVar[dict[str, Measure]] = {"loss": bits, "accuracy": share("correct")}

    def __init__(self, task: Any, label_smoothing: float = 0.0) -> None:
        super().__init__(task)
        self.label_smoothing = check_smoothing(label_smoothing)

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss (sum over pairs, nats), number of labelled pairs, logging output.

        Args:
            model: model with a classification head ``nli``.
            sample: batch of :func:`fairseq_interference.data.sentence_pairs.collate_pairs`.
        """
        target, group = sample["target"], sample["group"]
        scores = model(**sample["net_input"], classification_head_name=HEAD)[0].float()  # B x labels
        losses = torch.nn.functional.cross_entropy(
            scores, target, ignore_index=IGNORE, reduction="none", label_smoothing=self.label_smoothing
        )
        counted = target != IGNORE
        correct = self.by_language((scores.argmax(dim=-1) == target) & counted, group)
        logging_output = self.log(sample, losses.detach(), group, counted, [correct], model.training)
        return losses.sum(), sample["sample_size"], logging_output
