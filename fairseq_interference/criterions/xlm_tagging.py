"""Cross entropy over words, logged per language, with entity F1 in validation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_interference.data.tagging import IGNORE
from fairseq_interference.errors import UsageError

HEAD = "tagging"
DIGITS = 3
#: Summed per language. ``chosen`` counts the words of languages that select the best checkpoint.
FIELDS = ("loss", "words", "correct", "chosen", "tp", "predicted", "gold")


# The host's parser reads real types: no postponed annotations in this file.
@dataclass
class TaggingCriterionConfig(FairseqDataclass):
    label_smoothing: float = field(default=0.0, metadata={"help": "share of the target spread evenly over all labels"})


@register_criterion("xlm_tagging", dataclass=TaggingCriterionConfig)
class TaggingCriterion(FairseqCriterion):
    """Mean over words; sample size is the number of labelled words.

    Args:
        task: an ``xlm_tagging`` task: labels, languages in logs, languages that select.
    """

    def __init__(self, task: Any, label_smoothing: float = 0.0) -> None:
        super().__init__(task)
        if not 0 <= label_smoothing < 1:
            raise UsageError("Not a share.", where="--label-smoothing", value=label_smoothing, allowed="[0, 1)")
        if not hasattr(task, "log_languages"):
            raise UsageError("This criterion belongs to --task xlm_tagging.", where="--criterion xlm_tagging")
        self.label_smoothing = label_smoothing

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
        sums = self._sums(words, losses.detach(), scores.argmax(dim=-1), model.training)
        sample_size = sample["nwords"]
        loss = losses.sum()
        logging_output: dict[str, Any] = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample_size,
            "entities": float(not model.training and self.task.has_entities),
        }
        for number, lang in enumerate(self.task.log_languages):
            for place, name in enumerate(FIELDS):
                logging_output[f"{name}_{lang}"] = sums[number, place]
        return loss, sample_size, logging_output

    def _sums(self, words: dict[str, Tensor], losses: Tensor, predicted: Tensor, training: bool) -> Tensor:
        """(languages, FIELDS) sums in float64, on the CPU where entities are counted."""
        counted = words["label"] != IGNORE
        chosen = torch.tensor([training or lang in self.task.select_languages for lang in self.task.log_languages])
        columns = torch.stack(
            [
                losses.double(),
                counted.double(),
                ((predicted == words["label"]) & counted).double(),
                (counted & chosen.to(counted.device)[words["group"]]).double(),
            ],
            dim=1,
        )
        sums = columns.new_zeros(len(self.task.log_languages), len(FIELDS))
        sums[:, :4] = sums[:, :4].index_add(0, words["group"], columns)
        if not training and self.task.has_entities:
            sums[:, 4:] += self._entities(words, predicted).to(sums.device)
        return sums

    def _entities(self, words: dict[str, Tensor], predicted: Tensor) -> Tensor:
        """(languages, 3): right, predicted and gold entities; sentences are stitched from their windows."""
        counts = torch.zeros(len(self.task.log_languages), 3, dtype=torch.float64)
        gold, guess, group = words["label"].tolist(), predicted.tolist(), words["group"].tolist()
        first = 0
        for count in words["count"].tolist():
            span = slice(first, first + count)
            if IGNORE not in gold[span]:
                found = self.task.count_entities(gold[span], guess[span])
                counts[group[first]] += torch.tensor(found, dtype=torch.float64)
            first += count
        return counts

    @staticmethod
    def reduce_metrics(logging_outputs: Sequence[dict[str, Any]]) -> None:
        """Loss in bits per word, accuracy and F1 in per cent.

        ``loss`` pools the words of the languages that select; ``macro_loss``, ``accuracy`` and ``f1`` are means over
        those languages. With several languages each has its ``loss_<lang>``, ``accuracy_<lang>``, ``f1_<lang>``.
        """
        names = list(logging_outputs[0]) if logging_outputs else []
        total = {name: sum(float(log[name]) for log in logging_outputs) for name in names}
        languages = [name[len("words_") :] for name in names if name.startswith("words_")]
        for lang in languages:
            for name in FIELDS:
                metrics.log_scalar_sum(f"_{name}_{lang}", total[f"{name}_{lang}"])
        words = sum(total[f"chosen_{lang}"] for lang in languages)
        loss = sum(total[f"loss_{lang}"] for lang in languages if total[f"chosen_{lang}"])
        metrics.log_scalar("loss", loss / max(words, 1) / math.log(2), words, round=3)
        measures = dict(MEASURES) if total.get("entities") else {k: v for k, v in MEASURES.items() if k != "f1"}
        for name, measure in measures.items():
            metrics.log_derived("macro_loss" if name == "loss" else name, _mean_of(measure, languages))
            for lang in languages if len(languages) > 1 else []:
                if total[f"words_{lang}"]:
                    metrics.log_derived(f"{name}_{lang}", _of(measure, lang))

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Every key is a number that is there on every rank."""
        return True


Meters = Any
Measure = Callable[[Meters, str], float]


def _sum(meters: Meters, name: str, lang: str) -> float:
    return float(meters[f"_{name}_{lang}"].sum)


def _bits(meters: Meters, lang: str) -> float:
    return _sum(meters, "loss", lang) / max(_sum(meters, "words", lang), 1) / math.log(2)


def _accuracy(meters: Meters, lang: str) -> float:
    return 100 * _sum(meters, "correct", lang) / max(_sum(meters, "words", lang), 1)


def _f1(meters: Meters, lang: str) -> float:
    """2 TP / (predicted + gold), which is the harmonic mean of precision and recall."""
    entities = _sum(meters, "predicted", lang) + _sum(meters, "gold", lang)
    return 200 * _sum(meters, "tp", lang) / max(entities, 1)


MEASURES: dict[str, Measure] = {"loss": _bits, "accuracy": _accuracy, "f1": _f1}


def _of(measure: Measure, lang: str) -> Callable[[Meters], float]:
    return lambda meters: round(measure(meters, lang), DIGITS)


def _mean_of(measure: Measure, languages: Sequence[str]) -> Callable[[Meters], float]:
    def mean(meters: Meters) -> float:
        values = [measure(meters, lang) for lang in languages if _sum(meters, "chosen", lang)]
        return round(sum(values) / max(len(values), 1), DIGITS)

    return mean


def metric_names(entities: bool, scored: Sequence[str], several: bool) -> list[str]:
    """What validation logs.

    Args:
        entities: labels mark entities.
        scored: languages with a dev split.
        several: more than one language is logged.
    """
    names = [name for name in MEASURES if entities or name != "f1"]
    return ["macro_loss", *names] + [f"{name}_{lang}" for lang in scored if several for name in names]


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
