"""Cross entropy over the first and last token of answers, logged per language, with EM and F1 in validation."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_interference.criterions._finetuning import FinetuningCriterion, Measure, Meters, bits, total

HEAD = "qa"
START, END = 0, 1


# The host's parser reads real types: no postponed annotations in this file.
@dataclass
class QaCriterionConfig(FairseqDataclass):
    pass


def _of_questions(name: str) -> Measure:
    def measure(meters: Meters, lang: str) -> float:
        return 100 * total(meters, name, lang) / max(total(meters, "questions", lang), 1)

    return measure


def answer_scores(model: Any, net_input: dict[str, Tensor], pad: int) -> Tensor:
    """Scores (B, T, 2) of every token as first and as last one of the answer; -inf for padding."""
    scores: Tensor = model(**net_input, token_head_name=HEAD)[0].float()
    return scores.masked_fill(net_input["src_tokens"].eq(pad)[..., None], -torch.inf)


@register_criterion("xlm_qa", dataclass=QaCriterionConfig)
class QaCriterion(FinetuningCriterion):
    """Mean over windows of the mean of both losses; sample size is the number of windows.

    Args:
        task: an ``xlm_qa`` task.
    """

    fields = ("questions", "em", "f1")
    measures: ClassVar[dict[str, Measure]] = {"loss": bits}
    validated: ClassVar[dict[str, Measure]] = {"em": _of_questions("em"), "f1": _of_questions("f1")}

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss (sum over windows, nats), number of windows, logging output.

        Args:
            model: model with a token head ``qa`` of two scores.
            sample: batch of :func:`fairseq_interference.data.qa_examples.collate_questions`.
        """
        target, group = sample["target"], sample["group"]
        scores = answer_scores(model, sample["net_input"], self.padding_idx)
        both = torch.nn.functional.cross_entropy(scores, target, reduction="none")  # B x 2
        losses = both.mean(1)
        own = self._answers(sample, scores).unbind(1)
        counted = torch.ones_like(group, dtype=torch.bool)
        logging_output = self.log(sample, losses.detach(), group, counted, own, model.training)
        return losses.sum(), sample["sample_size"], logging_output

    def _answers(self, sample: dict[str, Any], scores: Tensor) -> Tensor:
        """(languages, 3): questions, EM and F1 of their best answers, summed."""
        sums = torch.zeros(len(self.task.log_languages), len(self.fields), dtype=torch.float64)
        if "examples" not in sample:
            return sums
        found, first = scores.detach().cpu().numpy(), 0
        for example in sample["examples"]:
            rows = found[first : first + len(example.rows)]
            em, f1 = self.task.score(example, rows[..., START], rows[..., END])
            sums[example.group] += torch.tensor([1.0, em, f1], dtype=torch.float64)
            first += len(example.rows)
        return sums
