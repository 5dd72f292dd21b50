"""Bottleneck adapter (Houlsby et al. 2019; Wang et al. 2020, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_interference.modules.dropout import dropout
from fairseq_interference.modules.language_switch import LanguageModules, SortPlan, run_by_language

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu, "tanh": torch.tanh}
LAYER_NORMS = ("none", "before", "after")
INITIAL_STD = 0.02
SHARED = "shared"  # not a language code: languages.RESERVED holds it


class Adapter(nn.Module):
    """``a(x) = x + W_up f(W_down x + b_down) + b_up``, the identity as long as W_up and b_up are 0.

    Args:
        dim: C.
        bottleneck: b.
        activation: f, one of :data:`ACTIVATIONS`.
        dropout: probability applied to the bottleneck after f.
        layer_norm: ``before`` normalises the input of W_down, ``after`` the output of W_up (then its gain
            starts at 1 and its bias at 0, which keep an all-zero output at 0), ``none`` neither.
    """

    def __init__(
        self, dim: int, bottleneck: int, activation: str = "gelu", dropout: float = 0.0, layer_norm: str = "none"
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout
        self.norm: Optional[nn.LayerNorm] = nn.LayerNorm(dim) if layer_norm != "none" else None
        self.norm_before = layer_norm == "before"
        self.down = nn.Linear(dim, bottleneck)
        self.up = nn.Linear(bottleneck, dim)
        self.reset_parameters()

    def reset_parameters(self, generator: Optional[torch.Generator] = None) -> None:
        """W_down ~ N(0, 0.02) as the host draws its layers; everything else at identity."""
        with torch.no_grad():
            self.down.weight.normal_(0.0, INITIAL_STD, generator=generator)
        for parameter in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)."""
        hidden: Tensor = self.norm(x) if self.norm is not None and self.norm_before else x
        hidden = self.activation(self.down(hidden))
        hidden = self.up(dropout(hidden, self.dropout, self.training))
        if self.norm is not None and not self.norm_before:
            hidden = self.norm(hidden)
        return x + hidden


def run_stacked(adapters: Sequence[Any], x: Tensor) -> Tensor:
    """Adapters of one shape in two batched products.

    Args:
        adapters: one :class:`Adapter` per group.
        x: (groups, n, C), group g for adapter g.

    Returns:
        (groups, n, C).
    """

    def stack(get: Callable[[Any], Tensor]) -> Tensor:
        return torch.stack([get(adapter) for adapter in adapters])

    def normalise(y: Tensor) -> Tensor:
        gain, bias = stack(lambda adapter: adapter.norm.weight), stack(lambda adapter: adapter.norm.bias)
        return F.layer_norm(y, (y.size(-1),), eps=first.norm.eps) * gain.unsqueeze(1) + bias.unsqueeze(1)

    def linear(y: Tensor, name: str) -> Tensor:
        weight = stack(lambda adapter: getattr(adapter, name).weight)
        bias = stack(lambda adapter: getattr(adapter, name).bias)
        return torch.baddbmm(bias.unsqueeze(1), y, weight.transpose(1, 2))

    first = adapters[0]
    hidden = normalise(x) if first.norm is not None and first.norm_before else x
    hidden = dropout(first.activation(linear(hidden, "down")), first.dropout, first.training)
    hidden = linear(hidden, "up")
    return x + (normalise(hidden) if first.norm is not None and not first.norm_before else hidden)


class AdapterSlot(nn.Module):
    """The adapters of one place in a layer.

    Args:
        adapters: code -> adapter; the single code ``shared`` for one adapter that serves all languages.
    """

    adapters: LanguageModules

    def __init__(self, adapters: LanguageModules) -> None:
        super().__init__()
        self.adapters = adapters
        self.shared = adapters.codes == [SHARED]

    def forward(self, x: Tensor, plan: Optional[SortPlan]) -> Tensor:
        """(B, T, C) sorted by language -> (B, T, C)."""
        if self.shared or plan is None:
            y: Tensor = self.adapters.of(0)(x)
            return y
        if plan.stacking is not None:
            adapters = [self.adapters.of(language) for language in plan.languages]
            return plan.stacking.unpad(run_stacked(adapters, plan.stacking.pad(x)), like=x)
        return run_by_language(lambda language, part: self.adapters.of(language)(part), plan, x)
