"""L0 masks on the shared weights of an encoder's layers: a set of gates for every language.

Wang, Lipton, Tsvetkov 2020, Eq. 1. Covered are the matrices of attention (q, k, v, out) and of the feed-forward
sub-layer (fc1, fc2) that all languages share; embeddings, norms, adapters and the masked-LM head are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_interference.modules import hard_concrete

ATTENTION, FEED_FORWARD = "attention", "feed-forward"
PROJECTIONS = {
    **dict.fromkeys((f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")), ATTENTION),
    **dict.fromkeys(("fc1", "fc2"), FEED_FORWARD),
}
GRANULARITIES = ("weight", "row", "unit", "head")
NAME = "l0_masks"  # of the module in the model, and of its keys in a checkpoint
SIZE = "_size"  # in the place of a language: weights behind a gate of the group


class Group(NamedTuple):
    """Gates that belong together.

    Attributes:
        layer: 0 is the lowest.
        component: attention or feed-forward.
        kind: head, unit, or the matrix whose rows or weights they gate.
        shape: of the gates.
        size: weights behind one gate.
        masked: parameter name -> what its values are multiplied with, given the gates.
    """

    layer: int
    component: str
    kind: str
    shape: tuple[int, ...]
    size: int
    masked: Mapping[str, Callable[[Tensor], Tensor]]

    @property
    def key(self) -> str:
        """Name of its parameters, without dots."""
        return f"{self.layer}|{self.component}|{self.kind}"


def groups_of(encoder: Any, granularity: Sequence[str], prefix: str) -> list[Group]:
    """Groups of an encoder.

    ``weight``: a gate a weight. ``row``: a gate an output of each matrix, with its bias. ``head``: a gate an attention
    head. ``unit``: a gate a unit of the feed-forward sub-layer. Where a sub-layer is not shared it has no group.

    Args:
        encoder: its ``layers`` hold ``self_attn`` and ``fc1``, ``fc2`` as the host names them.
        granularity: one of ``weight``, ``row``, or ``head`` and ``unit``, one or both.
        prefix: of ``encoder`` in the names of the model's parameters, with its dot.
    """
    found = []
    for number, layer in enumerate(list(encoder.layers._modules.values())):  # iterating would apply layer drop
        stem = f"{prefix}layers.{number}."
        if "head" in granularity and hasattr(layer, "self_attn"):
            found.append(_heads(number, layer, stem))
        if "unit" in granularity and hasattr(layer, "fc1"):
            found.append(_units(number, layer, stem))
        for kind in ("row", "weight"):
            if kind in granularity:
                found += _matrices(number, layer, stem, by_row=kind == "row")
    return found


def _heads(number: int, layer: Any, stem: str) -> Group:
    out = layer.self_attn.out_proj.weight  # (C, C), a column for each output of a head
    width = out.size(1) // layer.heads
    size = 4 * width * out.size(0) + 3 * width
    masked = {f"{stem}self_attn.out_proj.weight": lambda gates: gates.repeat_interleave(width)}
    return Group(number, ATTENTION, "head", (layer.heads,), size, masked)


def _units(number: int, layer: Any, stem: str) -> Group:
    units, width = layer.fc1.weight.shape
    return Group(number, FEED_FORWARD, "unit", (units,), 2 * width + 1, {f"{stem}fc2.weight": lambda gates: gates})


def _matrices(number: int, layer: Any, stem: str, by_row: bool) -> Iterator[Group]:
    for path, component in PROJECTIONS.items():
        holder = layer
        for part in path.split("."):
            holder = getattr(holder, part, None)
        if holder is None:
            continue
        rows, columns = holder.weight.shape
        kind, weight = path.split(".")[-1], f"{stem}{path}.weight"
        if by_row:
            both = {weight: lambda gates: gates[:, None], f"{stem}{path}.bias": lambda gates: gates}
            yield Group(number, component, kind, (rows,), columns + 1, both)
        else:
            yield Group(number, component, kind, (rows, columns), 1, {weight: lambda gates: gates})


class Masks(nn.Module):
    """``log_alpha`` of every language and group, in fp32 whatever the model is in.

    Args:
        groups: what is gated.
        codes: languages.
        droprate: at which gates are dropped in the beginning.

    Attributes:
        updates: number of updates so far; the host's trainer tells.
    """

    def __init__(self, groups: Sequence[Group], codes: Sequence[str], droprate: float = 0.1) -> None:
        super().__init__()
        self.groups, self.codes = list(groups), list(codes)
        self.updates = 0
        for group in groups:
            self.register_buffer(f"{SIZE}|{group.key}", torch.tensor(group.size))
            for code in codes:
                parameter = nn.Parameter(hard_concrete.initial(group.shape, droprate))
                self.register_parameter(f"{code}|{group.key}", parameter)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return super()._apply(lambda x: fn(x).float() if x.is_floating_point() else fn(x), recurse)  # type: ignore[no-untyped-call]

    def set_num_updates(self, updates: int) -> None:
        self.updates = updates

    def log_alpha(self, code: str, group: Group) -> Tensor:
        """Of one language, in the group's shape."""
        parameter: Tensor = self._parameters[f"{code}|{group.key}"]  # type: ignore[assignment]
        return parameter

    def weights(self, model: nn.Module, code: str, sampled: bool) -> dict[str, Tensor]:
        """Masked values of the parameters that a language's gates cover, for ``torch.func.functional_call``."""
        draw = hard_concrete.sample if sampled else hard_concrete.gate
        return masked(model, [(group, draw(self.log_alpha(code, group))) for group in self.groups])

    def expected(self, code: str) -> Tensor:
        """Expected share of the covered weights that a language keeps, in [0, 1]; differentiable."""
        kept = sum(group.size * hard_concrete.probability(self.log_alpha(code, group)).sum() for group in self.groups)
        return torch.as_tensor(kept) / self.total

    @torch.no_grad()
    def sparsity(self, code: str) -> float:
        """Share of the covered weights whose gate is exactly 0 in evaluation."""
        dropped = sum(
            group.size * float((hard_concrete.gate(self.log_alpha(code, group)) == 0).sum()) for group in self.groups
        )
        return dropped / self.total

    @property
    def total(self) -> int:
        """Weights that one language's gates cover."""
        return sum(group.size * math.prod(group.shape) for group in self.groups)


def masked(model: nn.Module, gates: Sequence[tuple[Group, Tensor]]) -> dict[str, Tensor]:
    """Parameters times their gates, in the parameters' dtype."""
    found: dict[str, Tensor] = {}
    for group, values in gates:
        for name, spread in group.masked.items():
            weight = model.get_parameter(name)
            found[name] = weight * spread(values.to(weight.device)).to(weight.dtype)
    return found


@contextmanager
def masked_in_place(model: nn.Module, gates: Sequence[tuple[Group, Tensor]]) -> Iterator[None]:
    """Let a model run with masked weights; they are put back by copy, bit for bit."""
    values = masked(model, gates)
    before = {name: model.get_parameter(name).detach().clone() for name in values}
    with torch.no_grad():
        for name, value in values.items():
            model.get_parameter(name).copy_(value)
        try:
            yield
        finally:
            for name, value in before.items():
                model.get_parameter(name).copy_(value)
