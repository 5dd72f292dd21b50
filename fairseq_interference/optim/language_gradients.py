"""One gradient per language, of the shared parameters, collected while the micro-batches of an update run.

The pass over a language's rows adds to ``.grad`` as any other; before it ``.grad`` is set to what the language has so
far, so that nothing is copied. Language-specific parameters keep their ``.grad`` all along: it is their language's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_interference.appended_state import language_of


class LanguageGradients:
    """The gradients of an update on this worker, then of all workers.

    Args:
        model: without wrappers for data parallelism.
        codes: of the languages; ids are positions.

    Attributes:
        names: of the P shared parameters that are trained.
        update: number of the update that is collected.
    """

    def __init__(self, model: Any, codes: Sequence[str]) -> None:
        self.model, self.codes = model, list(codes)
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, p in trained if language_of(p) is None]
        self.shared = [p for _, p in trained if language_of(p) is None]
        self.specific = [p for _, p in trained if language_of(p) is not None]
        self.update = 0
        self._found: dict[int, list[Optional[Tensor]]] = {}

    def begin_or_go_on(self, update: int) -> None:
        """Call before each micro-batch. One that finds no gradient begins an update: the others were given up."""
        self._forget_given_up()
        self.update = update

    def _forget_given_up(self) -> None:
        if all(parameter.grad is None for parameter in [*self.shared, *self.specific]):
            self._found = {}

    def select(self, language: Optional[int]) -> None:
        """Let backward passes add to the gradient of a language; None: to one that is not kept.

        What a pass leaves in ``.grad`` stays there as a sign of a running update.
        """
        sums = self._found.get(-1 if language is None else language) or [None] * len(self.shared)
        for parameter, gradient in zip(self.shared, sums):
            parameter.grad = gradient

    def keep(self, language: int) -> None:
        """Note what the pass of a language has left in ``.grad``."""
        self._found[language] = [parameter.grad for parameter in self.shared]

    def reduce(self, process_group: Any) -> dict[int, list[Optional[Tensor]]]:
        """Average over workers, as data parallelism does it: language -> P gradients, in the order of ids.

        A language that only other workers have counts here with zeros. What no worker's loss reaches has None. The
        gradients of language-specific parameters are averaged in place. Collective; empties this object.
        """
        self._forget_given_up()
        found, self._found = self._found, {}
        world = _world_size(process_group)
        if world == 1:
            return dict(sorted(found.items()))
        reached, specific = self._reached(found, process_group)
        handles = []
        averaged: dict[int, list[Optional[Tensor]]] = {}
        for language in range(len(self.codes)):
            if not any(reached[language]):
                continue
            mine = found.pop(language, [None] * len(self.shared))
            averaged[language] = [
                (torch.zeros_like(p) if x is None else x).detach() if known else None
                for p, x, known in zip(self.shared, mine, reached[language])
            ]
            handles += [_average(x, world, process_group) for x in averaged[language] if x is not None]
        for parameter, known in zip(self.specific, specific):
            if known:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                handles.append(_average(parameter.grad.detach(), world, process_group))
        for handle in handles:
            handle.wait()
        return averaged

    def _reached(self, found: dict[int, list[Optional[Tensor]]], group: Any) -> tuple[list[list[bool]], list[bool]]:
        """Whether any worker has a gradient: of every language and shared parameter, of every specific one."""
        device = next(self.model.parameters()).device
        rows = [[float(x is not None) for x in found.get(n, [None] * len(self.shared))] for n in range(len(self.codes))]
        flags = [*(flag for row in rows for flag in row), *(float(p.grad is not None) for p in self.specific)]
        counts = torch.tensor(flags, device=device)
        torch.distributed.all_reduce(counts, group=group)
        known = [count > 0 for count in counts.tolist()]
        width, end = len(self.shared), len(self.codes) * len(self.shared)
        return [known[first : first + width] for first in range(0, end, width)], known[end:]


def _world_size(group: Any) -> int:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 1
    return torch.distributed.get_world_size(group)


def _average(values: Tensor, world: int, group: Any) -> Any:
    values.div_(world)  # first, or half precision may overflow
    return torch.distributed.all_reduce(values, group=group, async_op=True)
