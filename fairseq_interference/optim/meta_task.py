"""The part of a task that keeps micro-batches and takes the bilevel step (``--optimizer meta_adapter``)."""

from __future__ import annotations

from typing import Any, Optional

from fairseq_interference.optim import bilevel, meta_options
from fairseq_interference.optim.meta_step import MetaStep, check_wrapper
from fairseq_interference.optim.presence import PresenceMixin


class MetaMixin(PresenceMixin):
    """For tasks with ``languages`` and the options of :class:`MetaOptions`; with other optimizers it does nothing.

    The task sets ``meta.validation`` when it loads its training data.
    """

    cfg: Any
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
        if self._criterion is not criterion:
            check_wrapper(optimizer, model)
            self._criterion = criterion
        if all(parameter.grad is None for parameter in model.parameters()):
            self.meta.begin()
        rng = bilevel.rng_state()
        loss, sample_size, log = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        self.meta.keep(sample, rng, sample_size, ignore_grad)
        return loss, sample_size, log

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """The bilevel step, or without it the ordinary one."""
        if not self._is_meta:
            super().optimizer_step(optimizer, model, update_num)
            return
        present = self.presence.silence_absent(optimizer, model)
        self.meta.step(optimizer, model, self._criterion, update_num, sorted(present or ()))
