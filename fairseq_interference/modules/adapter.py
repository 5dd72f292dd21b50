"""Bottleneck adapter (Houlsby et al. 2019; Wang et al. 2020, section 5)."""

from __future__ import annotations

from typing import Callable, Optional

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
        return run_by_language(lambda language, part: self.adapters.of(language)(part), plan, x)
