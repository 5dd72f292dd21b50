"""``--optimizer surgery``: languages' gradients of shared parameters are projected, then another optimizer steps.

A task's ``train_step`` hands each micro-batch over here, and it runs language by language, without any reduction: the
passes together are as long as the plain one. The host calls ``all_reduce_grads`` between the last backward pass and
normalisation, clipping and unscaling. There each language's gradient is reduced over workers, the gradients are
projected (``gradient_surgery.py``), and their sum takes the place of ``.grad``. Projections follow the scale of
the gradients, so that what the host does afterwards means what it always means.
"""

# No postponed annotations here: the host's parser needs the fields' real types.

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.optim import register_optimizer
from omegaconf import II

from fairseq_interference.errors import UsageError
from fairseq_interference.optim import gradient_surgery, parts, wrapping
from fairseq_interference.optim.language_gradients import LanguageGradients
from fairseq_interference.optim.meta_step import check_wrapper, wrappers
from fairseq_interference.optim.presence import check_optimizer

logger = logging.getLogger(__name__)
METHODS = ChoiceEnum(list(gradient_surgery.METHODS))
GROUPS = ChoiceEnum(["auto", "whole", "layer", "tensor"])
BETA = 0.01
PATIENCE = 50  # updates in a row with one language each before that is said
_ORDERS = 0x509E
InnerOptions: Any = wrapping.inner_options()


@dataclass
class SurgeryConfig(InnerOptions):
    """Options of the surgery, and those of the optimizers that may stand behind it."""

    surgery: METHODS = field(  # type: ignore[valid-type]
        default="pcgrad",
        metadata={
            "help": "pcgrad: what of a gradient goes against another language's is taken away; gradvac: a cosine below "
            "its usual value is raised to it; none: the plain sum (control)"
        },
    )
    surgery_inner: wrapping.INNER_CHOICES = field(
        default="adam", metadata={"help": "optimizer that takes the step, with its own options"}
    )
    surgery_groups: GROUPS = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "parameters that are looked at together: whole (pcgrad's default), layer (gradvac's; embeddings "
            "and the rest are two more groups), tensor"
        },
    )
    surgery_beta: Optional[float] = field(
        default=None, metadata={"help": f"gradvac: rate at which targets follow the cosines (default: {BETA})"}
    )
    seed: int = II("common.seed")
    fp16: bool = II("common.fp16")
    fp16_no_flatten_grads: bool = II("common.fp16_no_flatten_grads")
    memory_efficient_fp16: bool = II("common.memory_efficient_fp16")
    memory_efficient_bf16: bool = II("common.memory_efficient_bf16")


def check_config(cfg: Any) -> None:
    """Raise :class:`UsageError` for settings out of range, without effect, or that melt parameters together."""
    method = str(cfg.surgery)
    if cfg.surgery_beta is not None and method != "gradvac":
        raise UsageError("Only gradvac has targets.", where=f"--surgery {method}", value="--surgery-beta")
    if cfg.surgery_beta is not None and not 0 < cfg.surgery_beta <= 1:
        raise UsageError("Not a rate.", where="--surgery-beta", value=cfg.surgery_beta, allowed="over 0, at most 1")
    if method == "none" and str(cfg.surgery_groups) != "auto":
        raise UsageError("Nothing is projected.", where="--surgery none", value="--surgery-groups")
    if cfg.memory_efficient_fp16 or cfg.memory_efficient_bf16:
        flags = "--memory-efficient-fp16/--memory-efficient-bf16"
        raise UsageError("Surgery needs fp32 masters.", where=flags, next_step="use --bf16 or --fp16")
    if cfg.fp16 and not cfg.fp16_no_flatten_grads:
        raise UsageError(
            "Flattened half precision melts all parameters into one.",
            where="--fp16",
            next_step="add --fp16-no-flatten-grads (or use --bf16 or --amp)",
        )


def groups_of(names: Sequence[str], how: str) -> dict[str, list[int]]:
    """Name of a group -> positions of its parameters: of a layer of the encoder, embeddings, or the rest."""
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        layer = re.search(r"(?:^|\.)(layers\.\d+)\.", name)
        outside = "embeddings" if "embed" in name else "rest"
        group = {"whole": "whole", "tensor": name, "layer": layer[1] if layer else outside}[how]
        found.setdefault(group, []).append(place)
    return found


@register_optimizer("surgery", dataclass=SurgeryConfig)
class Surgery(wrapping.WrappingOptimizer):
    """Gradient surgery before any registered optimizer.

    Raises:
        UsageError: settings out of range or without effect; at the first update, a run in which nothing can conflict.
    """

    def __init__(self, cfg: Any, params: Iterable[Any]) -> None:
        check_config(cfg)
        super().__init__(cfg, params, str(cfg.surgery_inner), "--surgery-inner")
        self.method = str(cfg.surgery)
        default = "layer" if self.method == "gradvac" else "whole"
        self.kind = default if str(cfg.surgery_groups) == "auto" else str(cfg.surgery_groups)
        self.targets: Optional[gradient_surgery.Matrix] = None  # (groups, languages, languages)
        self._groups: dict[str, list[int]] = {}
        self._gradients: Optional[LanguageGradients] = None
        self._saved: dict[str, Any] = {}
        self._alone: Optional[int] = 0  # updates in a row with one language; None once that was said

    # -- while the micro-batches run ----------------------------------------------------------------------------

    def language_steps(
        self,
        task: Any,
        step: Any,
        sample: Any,
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool,
    ) -> Any:
        """A micro-batch, language by language; returns what the plain ``step`` of the host returns.

        Rows without training tokens go with those of the first language. A dummy batch leaves no gradient.
        """
        unwrapped = list(wrappers(model))[-1]
        if self._gradients is None or self._gradients.model is not unwrapped:
            self._begin(task, optimizer, model)
        gradients = self._gradients
        assert gradients is not None
        gradients.begin_or_go_on(update_num)
        others = unwrapped, criterion, optimizer, update_num
        rows = {} if ignore_grad else _rows_by_language(sample["net_input"]["lang_id"], task.training_tokens(sample))
        if not rows:
            gradients.select(None)
            return step(sample, *others, ignore_grad=ignore_grad)
        results = []
        for language, mine in rows.items():
            gradients.select(language)
            part = sample if len(rows) == 1 else task.rows_of(sample, mine)
            loss, *logs = step(part, *others, ignore_grad=False)
            results.append((loss.detach(), *logs))
            gradients.keep(language)
        return parts.summed(results)

    def _begin(self, task: Any, optimizer: Any, model: Any) -> None:
        """Look at task and model once, and refuse what would make surgery do nothing."""
        check_wrapper(optimizer, model, "Gradient surgery")
        check_optimizer(optimizer)
        if str(getattr(task.cfg, "batch_composition", "mixed")) == "single":
            raise UsageError(
                "One language an update leaves nothing to project.",
                where="--batch-composition single",
                next_step="use --batch-composition mixed, or --optimizer adam",
            )
        codes = task.trained_languages()
        if len(codes) < 2:
            what = "One language cannot conflict with another."
            raise UsageError(what, where="--optimizer surgery", value=",".join(codes), next_step="use --optimizer adam")
        gradients = LanguageGradients(list(wrappers(model))[-1], list(task.languages))
        if not gradients.shared:
            what = "No parameter that is trained is shared by languages."
            raise UsageError(what, where="--optimizer surgery", next_step="use --optimizer adam")
        self._gradients = gradients
        self._groups = groups_of(gradients.names, self.kind)
        if self.method == "gradvac":
            self.targets = self._restored(np.zeros((len(self._groups), len(gradients.codes), len(gradients.codes))))
        count = f"{len(gradients.shared)} shared parameters in {len(self._groups)} groups ({self.kind})"
        logger.info("gradient surgery: %s, %s, then %s", self.method, count, self.inner_name)

    # -- at the end of the update -------------------------------------------------------------------------------

    def _check_begun(self) -> LanguageGradients:
        """Refuse a task, or a wrapper of optimizers, that does not hand micro-batches over."""
        if self._gradients is None:
            raise UsageError(
                "Nothing has parted the batches by language, so surgery would do nothing.",
                where="--optimizer surgery",
                allowed="--task xlm_masked_lm, xlm_tagging, xlm_nli, xlm_qa; no --use-bmuf",
            )
        return self._gradients

    def step(self, closure: Any = None, scale: float = 1.0, groups: Any = None) -> None:
        self._check_begun()
        super().step(closure, scale, groups)

    def all_reduce_grads(self, module: Any) -> None:
        """Reduce the languages' gradients, project them, and leave their sum in ``.grad``."""
        gradients = self._check_begun()
        if list(wrappers(module))[-1] is not gradients.model:  # a criterion with parameters
            self.inner.all_reduce_grads(module)
            return
        found = gradients.reduce(getattr(module, "process_group", None))
        if not found:  # dummy batches alone, or one that was given up
            self.inner.all_reduce_grads(module)
            return
        weights = self._weights(found, gradients.update)
        for number, places in enumerate(self._groups.values()):
            for place in places:
                tensors = [some[place] for some in found.values()]
                gradients.shared[place].grad = gradient_surgery.combine(tensors, weights[number])
                for some in found.values():
                    some[place] = None  # its memory is free for the next

    def _weights(self, found: dict[int, Any], update: int) -> list[list[float]]:
        """Weight of every language's gradient, by group; those of a plain sum if one is not finite."""
        languages = list(found)
        products = gradient_surgery.gram(list(found.values()), list(self._groups.values()))
        generator = np.random.default_rng([int(self.cfg.seed), _ORDERS, update])
        chosen = np.ix_(range(len(self._groups)), languages, languages)
        targets = None if self.targets is None else self.targets[chosen]
        beta = BETA if self.cfg.surgery_beta is None else float(self.cfg.surgery_beta)
        projection = gradient_surgery.project(products, self.method, generator, targets, beta)
        if projection is None:  # the host drops the update, or lowers the loss scale
            return [[1.0] * len(languages)] * len(self._groups)
        if self.targets is not None:
            self.targets[chosen] = targets
        self._log(projection, len(languages))
        weights: list[list[float]] = projection.weights.tolist()
        return weights

    # -- what the user sees -------------------------------------------------------------------------------------

    def _log(self, found: gradient_surgery.Projection, present: int) -> None:
        """Cosines before and after, how much was projected, and how much shorter the step's gradient has become."""
        if found.before:
            conflict = sum(value < 0 for value in found.before) / len(found.before)
            numbers = {"conflict": conflict, "cosine": sum(found.before) / len(found.before)}
            if found.after:
                numbers["cosine_after"] = sum(found.after) / len(found.after)
            if self.method != "none":
                numbers["changed"] = found.changed
            if found.norm_ratio is not None:
                numbers["norm_ratio"] = found.norm_ratio
            if self.targets is not None:
                others = ~np.eye(self.targets.shape[1], dtype=bool)
                numbers["target"] = float(self.targets[:, others].mean())
            for name, value in numbers.items():
                metrics.log_scalar(f"surgery_{name}", value, priority=1870, round=4)
        if self._alone is not None:
            self._alone = self._alone + 1 if present < 2 else 0
            if self._alone == PATIENCE:
                self._alone = None
                logger.warning("the last %d updates held one language each: surgery does nothing", PATIENCE)

    # -- saving -------------------------------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """Targets by the names of groups and the codes of languages."""
        if self._gradients is None or self.targets is None:
            return self._saved
        names = {"groups": list(self._groups), "codes": list(self._gradients.codes)}
        return {**names, "targets": torch.from_numpy(self.targets.copy())}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self._saved = state
        if self._gradients is not None and self.targets is not None:
            self.targets = self._restored(np.zeros_like(self.targets))

    def _restored(self, targets: gradient_surgery.Matrix) -> gradient_surgery.Matrix:
        """Saved targets where group and languages are still there; those of appended languages begin at 0."""
        assert self._gradients is not None
        places = {name: number for number, name in enumerate(self._groups)}
        ids = {code: number for number, code in enumerate(self._gradients.codes)}
        saved = self._saved.get("targets")
        groups = [(n, places[name]) for n, name in enumerate(self._saved.get("groups", ())) if name in places]
        codes = [(n, ids[code]) for n, code in enumerate(self._saved.get("codes", ())) if code in ids]
        if saved is not None and groups and codes:
            (old, new), (before, now) = zip(*groups), zip(*codes)
            targets[np.ix_(new, now, now)] = saved.double().cpu().numpy()[np.ix_(old, before, before)]
        return targets


def _rows_by_language(lang_id: torch.Tensor, tokens: torch.Tensor) -> dict[int, torch.Tensor]:
    """Language -> numbers of its rows, in the order of ids; rows without tokens are the first language's."""
    with_tokens = lang_id.where(tokens > 0, torch.full_like(lang_id, -1))
    languages = [number for number in torch.unique(with_tokens).tolist() if number >= 0]
    if languages:
        with_tokens[with_tokens < 0] = languages[0]
    return {number: (with_tokens == number).nonzero()[:, 0] for number in languages}
