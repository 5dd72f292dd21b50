"""The bilevel step of an update: micro-batches are kept as they run, and replayed where the host steps.

When the host calls ``task.optimizer_step``, the gradients of the whole update (every micro-batch, every worker) have
been summed: they are the inner step's. ``bilevel.py`` has the mathematics; here are its closures, the all-reduces, the
precision and the order of the two optimizer steps. Wang, Lipton, Tsvetkov 2020, section 4 and appendix B.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Optional

import torch
from fairseq.logging import metrics
from fairseq.optim import AMPOptimizer
from torch import Tensor

from fairseq_interference import host_optimizers
from fairseq_interference.appended_state import language_of
from fairseq_interference.data.heldout import ValidationBatches
from fairseq_interference.errors import HostError, UsageError
from fairseq_interference.optim import bilevel, meta_options
from fairseq_interference.optim.meta_adapter import MetaAdapter, Preconditioner
from fairseq_interference.optim.meta_replay import MicroBatch, Replay
from fairseq_interference.optim.presence import inner_optimizer
from fairseq_interference.optim.rates import Rate

logger = logging.getLogger(__name__)
WARM_UP = 10  # updates until Adam's second moments are fit to precondition with
FIRST_ORDER = 1e-3  # ||cross|| / ||direct|| below which the meta step is practically first-order
PATIENCE = 50  # meta steps in a row below it before that is said


class Places:
    """Where parameters and their gradients are, in the precision of the run.

    Attributes:
        theta, phi: parameters of the model (phi: of the languages present). masters: what the optimizer moves, by id.
    """

    def __init__(self, optimizer: Any, model: Any, present: Sequence[str], in_fp32: bool = False) -> None:
        inner = inner_optimizer(optimizer)
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        moved = list(getattr(optimizer, "fp32_params", None) or trainable)
        self.masters = {id(parameter): master for parameter, master in zip(trainable, moved)}
        self.theta = [parameter for parameter in trainable if language_of(parameter) is None]
        self.phi = [parameter for parameter in trainable if language_of(parameter) in set(present)]
        self.low_precision = bool(getattr(optimizer, "fp32_params", None)) or isinstance(optimizer, AMPOptimizer)
        assert isinstance(inner, MetaAdapter)
        self.functional = in_fp32 and self.low_precision
        if self.functional:  # the passes run on the masters themselves
            self.theta, self.phi = ([self.masters[id(x)] for x in some] for some in (self.theta, self.phi))
            self.masters.update({id(master): master for master in moved})
        # what no loss reaches keeps no gradient: a zero would let weight decay move it
        self.unreached = {id(parameter) for parameter in self.theta if self.masters[id(parameter)].grad is None}

    def gradients(self, parameters: Sequence[Any]) -> list[Tensor]:
        """Final gradients, zeros where there is none."""
        masters = [self.masters[id(parameter)] for parameter in parameters]
        return [torch.zeros_like(master) if master.grad is None else master.grad for master in masters]

    def set_gradients(self, parameters: Sequence[Any], values: Optional[Sequence[Tensor]]) -> None:
        """Put gradients where the optimizer finds them; None takes them away."""
        for number, parameter in enumerate(parameters):
            master = self.masters[id(parameter)]
            known = values is not None and id(parameter) not in self.unreached
            master.grad = values[number].to(master.dtype) if values is not None and known else None


class MetaStep:
    """Keeps the micro-batches of an update, and takes the bilevel step at its end.

    Args:
        cfg: the task's options (:class:`MetaOptions`).
        languages: codes; ids are positions.
    """

    def __init__(self, cfg: Any, languages: Sequence[str]) -> None:
        self.cfg = cfg
        self.codes = list(languages)
        if len(self.codes) < 2 and str(cfg.meta_val_langs) == "others":
            raise UsageError("There are no others.", where="--meta-val-langs", value="others", allowed="all, same")
        self.inner_lr = Rate.parse(cfg.meta_inner_lr, "--meta-inner-lr")
        self.micro_batches: list[MicroBatch] = []
        self.validation: Optional[ValidationBatches] = None
        self.is_running = False  # a micro-batch that ended in an exception leaves it so
        self.uncertain = False  # the host may have divided this worker's gradient by other tokens than were kept
        self._first_order = 0
        self._told: set[str] = set()

    # -- while the micro-batches run ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget the micro-batches of before: a new update begins.

        What is there now was given up (out of memory, overflow).
        """
        self.uncertain = bool(self.micro_batches) or self.is_running
        self.is_running = False
        self.micro_batches = []

    def keep(self, sample: dict[str, Any], rng: bilevel.RngState, sample_size: Any, dummy: bool, **part: Any) -> None:
        """Note a micro-batch that has run. After a dummy batch the host forgets the tokens of those before it."""
        if dummy:
            self.uncertain = True
            return
        self.micro_batches.append(MicroBatch(sample, rng, torch.as_tensor(sample_size).detach(), **part))

    def is_due(self, update: int) -> bool:
        """Whether this update takes the meta step."""
        return update % int(self.cfg.meta_every) == 0

    def _is_turn(self, update: int, every: int) -> bool:
        """Whether what is done every so many meta steps is done in this update."""
        return bool(every) and self.is_due(update) and update // int(self.cfg.meta_every) % every == 0

    # -- at the end of the update -------------------------------------------------------------------------------

    def step(self, optimizer: Any, model: Any, criterion: Any, update: int, present: Sequence[str]) -> None:
        """Move phi of the present languages by the meta gradient, and theta by the training gradient.

        Args:
            optimizer: the host's, perhaps a precision wrapper. model: perhaps wrapped for data parallelism.
            present: codes with training tokens on any worker in this update.
        """
        unwrapped = getattr(model, "module", model)
        host_optimizers.unscale_grads(optimizer)
        self.uncertain, self.is_running = self.uncertain or self.is_running, False
        places = Places(optimizer, unwrapped, present, bool(self.cfg.meta_fd_fp32))
        g = places.gradients(places.theta)
        finite = math.isfinite(bilevel.norm(g))
        batches, self.micro_batches = self.micro_batches, []
        found, limits = None, inner_optimizer(optimizer).cfg
        if present and finite and self.is_due(update):
            work = Replay(self, optimizer, unwrapped, criterion, batches, update, present)
            if places.functional:
                work.on_masters(places.masters)
            if self._is_turn(update, self.cfg.meta_log_conflict):
                self._log_conflict(work, places)
            found = self._meta_gradient(work, places, inner_optimizer(optimizer), g)
        places.set_gradients(places.phi, found)  # without a meta gradient phi waits
        if found is not None:
            _clip(found, places, limits.meta_clip_phi, places.phi)
            if str(self.cfg.meta_order) == "paper":
                g = self._after_phi(optimizer, places, work, g)
        if finite:
            _clip(g, places, limits.meta_clip_theta, places.theta)
        host_optimizers.optimizer_step(optimizer)

    def _after_phi(self, optimizer: Any, places: Places, work: Replay, g: list[Tensor]) -> list[Tensor]:
        """Order ``paper``: step phi alone, then take theta's gradient again at the new phi."""
        places.set_gradients(places.theta, None)
        inner_optimizer(optimizer).step()
        if hasattr(optimizer, "_sync_fp32_params_to_fp16"):
            optimizer._sync_fp32_params_to_fp16()
        places.set_gradients(places.phi, None)
        again = work.theta_gradient(places.theta)
        metrics.log_scalar("meta_theta_seconds", work.seconds.get("theta", 0.0), priority=1800, round=6)
        if not math.isfinite(bilevel.norm(again)):
            again = g
        places.set_gradients(places.theta, again)
        return again

    def _meta_gradient(
        self, work: Replay, places: Places, adam: MetaAdapter, g: list[Tensor]
    ) -> Optional[list[Tensor]]:
        """The meta gradient for phi of the languages present, logged; None where it is not finite."""
        estimator, radius = meta_options.check_estimator(self.cfg, places.low_precision)
        rule = str(self.cfg.meta_inner_rule)
        if rule == "adam" and adam.steps() < WARM_UP:
            rule = "sgd_rms"
        terms = str(self.cfg.meta_terms)
        arguments: dict[str, Any] = {
            "inner_lr": self.inner_lr.of(adam.get_lr()),
            "inner_rule": rule,
            "estimator": "none" if terms == "direct" else estimator,
            "preconditioner": None,
            "train_grads": None if work.uncertain else (g, places.gradients(places.phi)),
            "reduce": work.reduce,
            "scale": work.factor,
        }
        times = 1
        if meta_options.parts(self.cfg) > 1 and not work.uncertain:
            times = work.draw(meta_options.parts(self.cfg), int(self.cfg.seed))
            arguments["train_grads"] = g, work.phi_gradients(places.phi, times)
        if estimator == "exact" and g[0].is_cuda:  # unfused attention has other dropout masks than the host's pass
            arguments["train_grads"] = None
        arguments["rng"] = [batch.rng for batch in work.chosen]
        if rule == "adam":
            arguments["preconditioner"] = Preconditioner(adam, [places.masters[id(x)] for x in places.theta], g)
        self._tell(f"{estimator} difference, radius {radius:g}" if terms != "direct" else "direct term", rule, places)
        losses = work.training_losses(times), work.validation_losses()
        gradient = partial(bilevel.meta_gradient, *losses, places.theta, places.phi, **arguments)
        checks, before = self._is_turn(work.update, self.cfg.meta_fd_check), bilevel.rng_state()
        found = gradient(radius=radius, observe=partial(self._log_direction, in_full=checks))
        work.enter(None)
        norms = self._log(found, work, adam)
        if checks and found.epsilon:
            bilevel.set_rng_state(before)  # or the validation pass would have other dropout masks, and v be another
            self._check_difference(found, gradient(radius=radius / 2))
        chosen: list[Tensor] = {"both": found.total, "direct": found.direct, "cross": found.cross}[terms]
        if not math.isfinite(sum(norms[term] for term in norms if terms in (term, "both"))):
            logger.warning("update %d: the meta gradient is not finite; language-specific parts wait", work.update)
            return None
        return chosen

    # -- what the user sees -------------------------------------------------------------------------------------

    def _tell(self, difference: str, rule: str, places: Places) -> None:
        """Say once what was chosen, and again when it changes."""
        precision = "masters in fp32" if places.functional else "low precision" if places.low_precision else "fp32"
        idle = " (--meta-fd-fp32 has no use here)" if self.cfg.meta_fd_fp32 and not places.low_precision else ""
        text = f"order {self.cfg.meta_order}, inner rule {rule}, {difference}, passes in {precision}{idle}"
        if text not in self._told:
            self._told.add(text)
            logger.info("meta step: %s", text)

    @staticmethod
    def _log_direction(w: list[Tensor], size: float, in_full: bool) -> None:
        if math.isfinite(size):
            metrics.log_scalar("meta_norm_w", size, priority=1815, round=6)
        if in_full:
            squares = torch.cat([x.float().square().flatten() for x in w])
            top = squares.topk(max(1, squares.numel() // 1000)).values.sum() / squares.sum()
            metrics.log_scalar("meta_top_share", float(top), priority=1815, round=4)

    def _log(self, found: bilevel.MetaGradient, work: Replay, adam: MetaAdapter) -> dict[str, float]:
        """Log the meta gradient; returns the norms of its terms."""
        direct, cross = bilevel.norm(found.direct), bilevel.norm(found.cross)
        ratio = cross / direct if direct > 0 else math.inf if cross > 0 else 0.0
        numbers = {"direct": direct, "cross": cross, "ratio": ratio, "lr": adam.meta_lr, "epsilon": found.epsilon}
        numbers.update({f"{part}_seconds": value for part, value in work.seconds.items()})
        for name, value in numbers.items():
            if math.isfinite(value):
                metrics.log_scalar(f"meta_{name}", value, priority=1800, round=10 if name in ("lr", "epsilon") else 6)
        for language, loss in work.validation_by_language().items():
            metrics.log_scalar(f"meta_val_loss_{self.codes[language]}", loss / math.log(2), priority=1850, round=3)
        if self.inner_lr.of(adam.get_lr()) > 0:  # at the end of a decay there is no step to look ahead
            self._first_order = self._first_order + 1 if ratio < FIRST_ORDER else 0
        if self._first_order == PATIENCE and "first-order" not in self._told and str(self.cfg.meta_terms) == "both":
            self._told.add("first-order")
            logger.warning(
                "the meta step is practically first-order: ||cross|| / ||direct|| has been under %g for %d meta steps "
                "(now %.1e); raise --meta-inner-lr or use --meta-inner-rule adam",
                FIRST_ORDER,
                PATIENCE,
                ratio,
            )
        return {"direct": direct, "cross": cross}

    def _log_conflict(self, work: Replay, places: Places) -> None:
        """Cosine between the gradients of every two languages of the batch, for shared parameters."""
        gradients = {code: work.language_gradient(code, places.theta) for code in work.present}
        cosines = []
        for number, one in enumerate(work.present):
            for other in work.present[:number]:
                value = cosine(gradients[one], gradients[other])
                if math.isfinite(value):
                    cosines.append(value)
                    metrics.log_scalar(
                        f"meta_cosine_{self.codes[other]}_{self.codes[one]}", value, priority=1860, round=4
                    )
        if cosines:
            metrics.log_scalar("meta_cosine", sum(cosines) / len(cosines), priority=1855, round=4)

    def _check_difference(self, found: bilevel.MetaGradient, half: bilevel.MetaGradient) -> None:
        gap = bilevel.norm([x - y for x, y in zip(found.cross, half.cross)]) / (bilevel.norm(half.cross) or 1.0)
        metrics.log_scalar("meta_fd_gap", gap, priority=1810, round=6)


def cosine(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Between two lists of tensors of the same shapes, as if each were one vector; nan if one is 0."""
    size = bilevel.norm(one) * bilevel.norm(other)
    return float(sum((x.double() * y.double()).sum() for x, y in zip(one, other))) / size if size else math.nan


def _clip(gradients: Sequence[Tensor], places: Places, limit: float, parameters: Sequence[Any]) -> None:
    """Scale the gradients of a group down to a norm."""
    if not limit:
        return
    norm = bilevel.norm(gradients)
    if norm > limit:
        places.set_gradients(parameters, [x * (limit / (norm + 1e-6)) for x in gradients])


def wrappers(model: Any) -> Iterator[Any]:
    """A model and what it wraps, outermost first."""
    while model is not None:
        yield model
        model = getattr(model, "module", None)


def check_wrapper(optimizer: Any, model: Any, what: str = "The bilevel step") -> None:
    """Refuse what the bilevel step (or another method) cannot run in.

    Raises:
        HostError: sharded or averaged training, with the remedy.
    """
    for name in (type(optimizer).__name__, *(type(layer).__name__ for layer in wrappers(model))):
        if any(part in name for part in ("FullyShardedDataParallel", "Sharded", "BMUF", "SlowMo", "OSS")):
            raise HostError(
                f"{what} needs every parameter and its gradient on every worker.",
                where=name,
                next_step="use --ddp-backend pytorch_ddp or legacy_ddp, and no sharding",
            )
