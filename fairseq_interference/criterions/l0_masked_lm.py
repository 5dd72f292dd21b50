"""Criterion ``l0_masked_lm``: learn which shared weights each language needs, with the body frozen.

Wang, Lipton, Tsvetkov 2020, Eq. 1: the masked-LM loss under a language's L0 mask, plus lambda times the expected share
of the weights that the mask keeps.
"""

# No postponed annotations here: the host's parser needs the fields' real types.

from dataclasses import dataclass, field
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_interference.criterions.xlm_masked_lm import XlmMaskedLmCriterion
from fairseq_interference.errors import CheckpointError, HostError, UsageError
from fairseq_interference.modules.masks import GRANULARITIES, NAME, Masks, groups_of
from fairseq_interference.optim import meta_options

STRUCTURED = {"head", "unit"}


@dataclass
class L0MaskedLmConfig(FairseqDataclass):
    """Options of the masks."""

    l0_granularity: str = field(
        default="head,unit",
        metadata={"help": "what a gate covers: head,unit (or one of them), row of a matrix, weight"},
    )
    l0_lambda: float = field(
        default=1.0,
        metadata={"help": "nats per predicted token that keeping all weights costs: the paper's times their number"},
    )
    l0_warmup_updates: int = field(default=0, metadata={"help": "updates over which lambda rises from 0"})
    l0_init_droprate: float = field(
        default=0.1, metadata={"help": "rate at which gates are dropped in the beginning (0.5: half open)"}
    )

    def check(self) -> None:
        """Raise one :class:`UsageError` that names every option out of range."""
        wrong = []
        if not granularity_of(self.l0_granularity):
            wrong.append(f"--l0-granularity {self.l0_granularity} (allowed: head,unit, head, unit, row, weight)")
        if not self.l0_lambda >= 0:
            wrong.append(f"--l0-lambda {self.l0_lambda} (at least 0)")
        if self.l0_warmup_updates < 0:
            wrong.append(f"--l0-warmup-updates {self.l0_warmup_updates} (at least 0)")
        if not 0 < self.l0_init_droprate < 1:
            wrong.append(f"--l0-init-droprate {self.l0_init_droprate} (between 0 and 1)")
        if wrong:
            raise UsageError("Options are out of range.", where="l0_masked_lm", value="; ".join(wrong))


def granularity_of(text: str) -> list[str]:
    """Names in ``--l0-granularity``; empty if they cannot be used (together)."""
    names = [name.strip() for name in text.split(",")]
    known = set(names) <= set(GRANULARITIES) and len(set(names)) == len(names)
    return names if known and (len(names) == 1 or set(names) == STRUCTURED) else []


@register_criterion("l0_masked_lm", dataclass=L0MaskedLmConfig)
class L0MaskedLmCriterion(XlmMaskedLmCriterion):
    """Masked language modelling under L0 masks.

    The masks are a part of the model (``l0_masks``), so that they are saved, resumed and reduced like its parameters;
    all others are frozen. The rows of a language go through the body with that language's mask, without the body's
    dropout: the gates are the noise. Training draws gates, once a language and batch; validation uses those without
    noise. Losses that are logged are without the penalty.
    """

    def __init__(
        self, task: Any, l0_granularity: str, l0_lambda: float, l0_warmup_updates: int, l0_init_droprate: float
    ) -> None:
        super().__init__(task)
        L0MaskedLmConfig(
            l0_granularity=l0_granularity,
            l0_lambda=l0_lambda,
            l0_warmup_updates=l0_warmup_updates,
            l0_init_droprate=l0_init_droprate,
        ).check()
        self.weight, self.warmup = l0_lambda, l0_warmup_updates
        self.codes = list(task.languages)
        _check(task)
        model = task.built_model
        prefix = "encoder.sentence_encoder."
        groups = groups_of(model.encoder.sentence_encoder, granularity_of(l0_granularity), prefix)
        if not groups:
            what = "No weights of this arch are shared that such gates could cover."
            raise UsageError(what, where="--l0-granularity", value=l0_granularity)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        masks = Masks(groups, self.codes, l0_init_droprate)
        model.add_module(NAME, masks)
        for name, parameter in masks.named_parameters():
            parameter.param_group = "lang_specific"  # type: ignore[attr-defined]
            marks = {"name": f"{NAME}.{name}", "lang": name.split("|")[0]}
            parameter.optim_overrides = {"interference": marks}  # type: ignore[attr-defined]
        self._masks = (masks,)  # in a tuple: they are the model's parameters, not the criterion's

    @property
    def masks(self) -> Masks:
        return self._masks[0]

    def strength(self) -> float:
        """Lambda now."""
        return self.weight * min(1.0, self.masks.updates / self.warmup) if self.warmup else self.weight

    def losses(self, model: Any, sample: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Loss of every masked position under its language's mask, and its language; (N,), language by language."""
        body = _body(model)
        body.eval()
        target, languages = sample["target"], sample["net_input"]["lang_id"]
        losses, of = [], []
        for language in languages.unique().tolist():
            rows = languages == language
            weights = self.masks.weights(body, self.codes[language], sampled=self.training)
            masked = target[rows].ne(self.padding_idx)
            inputs = {name: value[rows] for name, value in sample["net_input"].items()}
            logits = torch.func.functional_call(body, weights, (), {**inputs, "masked_tokens": masked})[0]
            wide = torch.promote_types(logits.dtype, torch.float32)
            found = F.cross_entropy(logits.view(-1, logits.size(-1)).to(wide), target[rows][masked], reduction="none")
            losses.append(found)
            of.append(torch.full_like(found, language, dtype=torch.long))
        return torch.cat(losses), torch.cat(of)

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """As :class:`XlmMaskedLmCriterion`; in training the loss holds the penalty, once a predicted token."""
        loss, sample_size, logging_output = super().forward(model, sample, reduce)
        counts = sample["target"].ne(self.padding_idx).sum(1)
        for language in sample["net_input"]["lang_id"].unique().tolist():
            code = self.codes[language]
            expected = self.masks.expected(code)
            if self.training:
                predictions = counts[sample["net_input"]["lang_id"] == language].sum()
                loss = loss + self.strength() * predictions * expected
            metrics.log_scalar(f"l0_expected_{code}", float(expected.detach()), priority=1700, round=4)
            metrics.log_scalar(f"l0_sparsity_{code}", self.masks.sparsity(code), priority=1710, round=4)
        return loss, sample_size, logging_output


def _body(model: Any) -> Any:
    """The model inside its wrappers.

    Raises:
        HostError: torch's own data parallelism, which reduces gradients only of what runs through its forward.
    """
    while hasattr(model, "module"):
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            what = "Masks run beside the forward of torch's data parallelism, so their gradients would not be reduced."
            raise HostError(what, where="--ddp-backend", next_step="use --ddp-backend legacy_ddp")
        model = model.module
    return model


def _check(task: Any) -> None:
    """Raise unless the masks have a pretrained body."""
    model: Optional[Any] = getattr(task, "built_model", None)
    if model is None or not hasattr(getattr(model, "encoder", None), "sentence_encoder"):
        what = "Masks are learnt on an encoder that the task has built."
        raise UsageError(what, where="--criterion l0_masked_lm", allowed="--task xlm_masked_lm, --arch xlm_…")
    if not getattr(task.cfg, "finetune_from_model", None):
        raise CheckpointError(
            "Masks of a body with random weights mean nothing.",
            where="--criterion l0_masked_lm",
            next_step="give the pretrained checkpoint: --finetune-from-model FILE",
        )
    if meta_options.optimizer_of(task.cfg) == meta_options.OPTIMIZER:
        raise UsageError("Masks take no meta step.", where="--optimizer meta_adapter", next_step="use --optimizer adam")
