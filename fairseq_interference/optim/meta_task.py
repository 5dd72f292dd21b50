"""The part of a task that keeps micro-batches and takes the bilevel step (``--optimizer meta_adapter``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_interference.appended_state import language_of
from fairseq_interference.errors import UsageError
from fairseq_interference.optim import bilevel, meta_options, parts
from fairseq_interference.optim.meta_replay import some_rows
from fairseq_interference.optim.meta_step import MetaStep, check_wrapper, wrappers
from fairseq_interference.optim.presence import PresenceMixin


class MetaMixin(PresenceMixin):
    """For tasks with ``languages`` and the options of :class:`MetaOptions`; with other optimizers it does nothing.

    The task sets ``meta.validation`` when it loads its training data.
    """

    cfg: Any
    takes_meta_step = True
    _meta: Optional[MetaStep] = None
    _criterion: Any = None

    @property
    def meta(self) -> MetaStep:
        if self._meta is None:
            self._meta = MetaStep(self.cfg, self.languages)
        return self._meta

    @property
    def _is_meta(self) -> bool:
        return meta_options.optimizer_of(self.cfg) == meta_options.OPTIMIZER

    def train_step(
        self, sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int, ignore_grad: bool = False
    ) -> Any:
        """The host's step; the sample and the generators' state are kept for the end of the update."""
        if not self._is_meta:
            return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        count = meta_options.parts(self.cfg) if self.meta.is_due(update_num) else 1
        if self._criterion is not criterion:
            check_wrapper(optimizer, model)
            _check_parts(meta_options.parts(self.cfg), model)
            self._criterion = criterion
        self.presence.watch(model, optimizer)
        if self.presence.is_new_update():
            self.meta.begin()
        results = []
        pieces = list(split(sample, count)) if count > 1 and not ignore_grad else [sample]
        phi = [p for p in model.parameters() if language_of(p) is not None] if count > 1 else []
        group = len(self.meta.micro_batches)
        for number, piece in enumerate(pieces):
            rng, before = bilevel.rng_state(), _gradients(phi)
            with model.no_sync() if number < len(pieces) - 1 and hasattr(model, "no_sync") else nullcontext():
                self.meta.is_running = True
                results.append(super().train_step(piece, model, criterion, optimizer, update_num, ignore_grad))
                self.meta.is_running = False
            added = {key: value - before.get(key, 0.0) for key, value in _gradients(phi).items()}
            self.meta.keep(piece, rng, results[-1][1], ignore_grad, group=group, phi=added)
        return parts.summed(results)

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """The bilevel step, or without it the ordinary one."""
        if not self._is_meta:
            super().optimizer_step(optimizer, model, update_num)
            return
        present = self.presence.silence_absent(optimizer, model)
        self.meta.step(optimizer, model, self._criterion, update_num, sorted(present or ()))


def split(sample: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Parts of a batch: rows k, k + count, …; none is empty."""
    rows = len(sample["target"])
    for first in range(min(count, rows)):
        yield some_rows(sample, slice(first, None, count))


def _gradients(parameters: list[Any]) -> dict[int, Tensor]:
    return {id(p): p.grad.detach().clone() for p in parameters if p.grad is not None}


def _check_parts(count: int, model: Any) -> None:
    if count > 1 and any(isinstance(layer, torch.nn.parallel.DistributedDataParallel) for layer in wrappers(model)):
        raise UsageError(
            "torch's data parallelism reduces gradients as they come, so those of a part cannot be told apart.",
            where="--meta-cross-batch-fraction",
            next_step="use --ddp-backend legacy_ddp",
        )
