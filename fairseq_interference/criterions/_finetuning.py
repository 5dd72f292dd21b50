"""What the criterions of fine-tuning share: sums per language, their averages, and the names that select the best."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, ClassVar

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics
from torch import Tensor

from fairseq_interference.errors import UsageError

DIGITS = 3
Meters = Any
Measure = Callable[[Meters, str], float]


def total(meters: Meters, name: str, lang: str) -> float:
    """A sum of a language since the meters were reset."""
    return float(meters[f"_{name}_{lang}"].sum)


def share(name: str) -> Measure:
    """100 x a sum of a language per counted unit."""
    return lambda meters, lang: 100 * total(meters, name, lang) / max(total(meters, "units", lang), 1)


def bits(meters: Meters, lang: str) -> float:
    """Loss per counted unit, in bits."""
    return total(meters, "loss", lang) / max(total(meters, "units", lang), 1) / math.log(2)


def check_smoothing(value: float) -> float:
    """Raise :class:`UsageError` unless it is a share."""
    if not 0 <= value < 1:
        raise UsageError("Not a share.", where="--label-smoothing", value=value, allowed="[0, 1)")
    return value


class FinetuningCriterion(FairseqCriterion):
    """Mean over units (words, pairs, windows); the sample size is the number of labelled units.

    Args:
        task: a fine-tuning task: languages in logs, languages that select.

    Attributes:
        fields: what is summed per language besides ``loss``, ``units`` and ``chosen`` (units of languages that select).
        measures: name -> what is logged of the sums; ``validated``: only in validation, of a task that ``is_scored``.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    measures: ClassVar[Mapping[str, Measure]] = {"loss": bits}
    validated: ClassVar[Mapping[str, Measure]] = {}

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        if not hasattr(task, "log_languages"):
            raise UsageError("This criterion belongs to a task of fine-tuning.", where="--criterion")

    def log(
        self,
        sample: dict[str, Any],
        losses: Tensor,
        group: Tensor,
        counted: Tensor,
        own: Sequence[Tensor],
        training: bool,
    ) -> dict[str, Any]:
        """The logging output of a batch of U units.

        Args:
            losses: (U,), 0 where a unit is not counted.
            group: (U,) number of each unit's language.
            counted: (U,) whether it has a label.
            own: a tensor (languages,) for each of ``fields``.
            training: all languages count for the pooled loss.
        """
        languages = self.task.log_languages
        chosen = torch.tensor([training or lang in self.task.select_languages for lang in languages])
        columns = [losses.double(), counted.double(), (counted & chosen.to(counted.device)[group]).double()]
        sums = torch.stack([x.new_zeros(len(languages)).index_add_(0, group, x) for x in columns], dim=1)
        sums = torch.cat([sums, *(x[:, None].to(sums) for x in own)], dim=1)
        found: dict[str, Any] = {
            "loss": losses.sum().detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample["sample_size"],
            "scored": float(not training and self.task.is_scored),
        }
        for number, lang in enumerate(languages):
            for place, name in enumerate(("loss", "units", "chosen", *self.fields)):
                found[f"{name}_{lang}"] = sums[number, place]
        return found

    def by_language(self, values: Tensor, group: Tensor) -> Tensor:
        """Sums (languages,) of values (U,), in float64."""
        wide = values.double()
        return wide.new_zeros(len(self.task.log_languages)).index_add_(0, group, wide)

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[dict[str, Any]]) -> None:
        """Loss in bits per unit, the other measures in per cent.

        ``loss`` pools the units of the languages that select; ``macro_loss`` and the other measures are means over
        those languages. With several languages each has its ``loss_<lang>``, ``accuracy_<lang>`` and so on.
        """
        names = list(logging_outputs[0]) if logging_outputs else []
        sums = {name: sum(float(log[name]) for log in logging_outputs) for name in names}
        languages = [name[len("units_") :] for name in names if name.startswith("units_")]
        for lang in languages:
            for name in ("loss", "units", "chosen", *cls.fields):
                metrics.log_scalar_sum(f"_{name}_{lang}", sums[f"{name}_{lang}"])
        units = sum(sums[f"chosen_{lang}"] for lang in languages)
        loss = sum(sums[f"loss_{lang}"] for lang in languages if sums[f"chosen_{lang}"])
        metrics.log_scalar("loss", loss / max(units, 1) / math.log(2), units, round=3)
        for name, measure in {**cls.measures, **(cls.validated if sums.get("scored") else {})}.items():
            metrics.log_derived("macro_loss" if name == "loss" else name, _mean_of(measure, languages))
            for lang in languages if len(languages) > 1 else []:
                if sums[f"units_{lang}"]:
                    metrics.log_derived(f"{name}_{lang}", _of(measure, lang))

    @classmethod
    def metric_names(cls, scored: bool, langs: Sequence[str], several: bool) -> list[str]:
        """What validation logs.

        Args:
            scored: whether the ``validated`` measures are there.
            langs: languages with a dev split.
            several: more than one language is logged.
        """
        names = [*cls.measures, *(cls.validated if scored else ())]
        return ["macro_loss", *names] + [f"{name}_{lang}" for lang in langs if several for name in names]

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Every key is a number that is there on every rank."""
        return True


def _of(measure: Measure, lang: str) -> Callable[[Meters], float]:
    return lambda meters: round(measure(meters, lang), DIGITS)


def _mean_of(measure: Measure, languages: Sequence[str]) -> Callable[[Meters], float]:
    def mean(meters: Meters) -> float:
        values = [measure(meters, lang) for lang in languages if total(meters, "chosen", lang)]
        return round(sum(values) / max(len(values), 1), DIGITS)

    return mean


def check_metric(cfg: Any, names: Sequence[str]) -> None:
    """Refuse a metric that validation will not have, or that would select the worst checkpoint."""
    metric = cfg.best_checkpoint_metric
    if metric not in names:
        raise UsageError(
            "No such validation metric.", where="--best-checkpoint-metric", value=metric, allowed=", ".join(names)
        )
    if ("loss" in metric) == bool(cfg.maximize_best_checkpoint_metric):
        flag = "drop" if "loss" in metric else "give"
        raise UsageError(
            "This would keep the worst checkpoint.",
            where="--best-checkpoint-metric",
            value=metric,
            next_step=f"{flag} --maximize-best-checkpoint-metric",
        )
