"""Masked language modelling: only masked positions are projected, losses are kept per language."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics
from torch import Tensor

LOG2 = math.log(2)
# rows of the tensor "by_language"
LOSS, PREDICTIONS, TOKENS = 0, 1, 2


def perplexity(base2: Any) -> Optional[float]:
    """2 ** loss, cut at float range, rounded as the host rounds it; None if there is no loss."""
    if base2 is None:
        return None
    value = float(base2)
    return math.inf if value > 1000 else round(2**value, 2)


@register_criterion("xlm_masked_lm")
class XlmMaskedLmCriterion(FairseqCriterion):
    """Cross-entropy at masked positions, in nats, summed; the sample size is the number of masked positions.

    The logging output holds the same keys on every worker and in every batch. Losses per language travel as one
    tensor ``by_language`` ``(3, L)``: summed loss, predictions, tokens; zeros for absent languages.
    """

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self.num_languages = len(getattr(task, "languages", [])) or 1

    def losses(self, model: Any, sample: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Loss of every masked position, in nats, and its language; (N,) each, in the order of rows and places."""
        target = sample["target"]  # B x T
        masked = target.ne(self.padding_idx)
        logits = model(**sample["net_input"], masked_tokens=masked)[0]
        wide = torch.promote_types(logits.dtype, torch.float32)
        losses = F.cross_entropy(logits.view(-1, logits.size(-1)).to(wide), target[masked], reduction="none")
        return losses, sample["net_input"]["lang_id"][:, None].expand_as(masked)[masked]

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Loss, sample size and logging output of a batch; shapes as in the contract of the tasks' samples."""
        losses, languages = self.losses(model, sample)
        loss = losses.sum()
        sample_size = sample["target"].ne(self.padding_idx).sum()
        logging_output = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample_size,
            "by_language": self._by_language(sample, languages, losses.detach()),
        }
        return loss, sample_size, logging_output

    def _by_language(self, sample: dict[str, Any], of_prediction: Tensor, losses: Tensor) -> Tensor:
        totals = torch.zeros(3, self.num_languages, dtype=torch.float64, device=losses.device)
        totals[LOSS].index_add_(0, of_prediction, losses.double())
        totals[PREDICTIONS].index_add_(0, of_prediction, torch.ones_like(losses, dtype=torch.float64))
        totals[TOKENS].index_add_(0, sample["net_input"]["lang_id"], sample["net_input"]["src_lengths"].double())
        return totals

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[dict[str, Any]]) -> None:
        """Log the pooled loss (base 2) and perplexity."""
        loss = sum(float(log["loss"]) for log in logging_outputs)
        size = sum(float(log["sample_size"]) for log in logging_outputs)
        metrics.log_scalar("loss", loss / (size or 1.0) / LOG2, size, round=3)
        metrics.log_derived("ppl", lambda meters: perplexity(meters["loss"].avg))

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def metric_names(codes: Sequence[str]) -> list[str]:
    """Names that ``--best-checkpoint-metric`` may take, for languages with a valid split."""
    names = ["loss", "ppl", "macro_loss", "macro_ppl"]
    return names + [f"{kind}_{code}" for code in codes for kind in ("loss", "ppl")]


def log_languages(logging_outputs: Sequence[dict[str, Any]], codes: Sequence[str]) -> None:
    """Log loss, perplexity and tokens of each language seen, and the macro average over languages.

    ``macro_loss`` is the mean over languages that have predictions since the meters were reset.
    """
    totals = sum(log["by_language"] for log in logging_outputs if "by_language" in log)
    if not torch.is_tensor(totals):
        return
    losses, predictions, tokens = totals.tolist()
    for code, loss, count, number in zip(codes, losses, predictions, tokens):
        if number == 0:
            continue
        metrics.log_scalar_sum(f"tokens_{code}", int(number), priority=1700)
        if count > 0:
            metrics.log_scalar(f"loss_{code}", loss / count / LOG2, count, priority=1500, round=3)
            metrics.log_derived(f"ppl_{code}", _Perplexity(f"loss_{code}"), priority=1600)
    metrics.log_derived("macro_loss", _Macro(codes), priority=1400)
    metrics.log_derived("macro_ppl", _Perplexity("macro_loss", _Macro(codes)), priority=1450)


class _Macro:
    """Mean of the losses of the languages that have a meter."""

    def __init__(self, codes: Sequence[str]) -> None:
        self.names = [f"loss_{code}" for code in codes]

    def __call__(self, meters: Any) -> float:
        losses = [float(meters[name].avg) for name in self.names if name in meters and meters[name].count > 0]
        return round(sum(losses) / len(losses), 3) if losses else 0.0


class _Perplexity:
    """2 ** a loss: of a meter, or of what a function makes of the meters."""

    def __init__(self, name: str, loss: Any = None) -> None:
        self.name, self.loss = name, loss

    def __call__(self, meters: Any) -> Optional[float]:
        return perplexity(self.loss(meters) if self.loss is not None else meters[self.name].avg)
