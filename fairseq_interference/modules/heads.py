"""Heads on the encoder's output."""

from __future__ import annotations

from typing import Callable, Optional

import torch
from torch import Tensor, nn


class TokenHead(nn.Module):
    """One score per class for every token.

    Args:
        dim: C.
        num_classes: number of classes.
        inner_dim: size of a hidden layer; None for a linear head, as the field uses for NER and POS.
        dropout: probability before each linear layer.
        activation: of the hidden layer.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        inner_dim: Optional[int] = None,
        dropout: float = 0.0,
        activation: Callable[[Tensor], Tensor] = torch.tanh,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.activation = activation
        self.dense = nn.Linear(dim, inner_dim) if inner_dim else None
        self.out_proj = nn.Linear(inner_dim or dim, num_classes)
        for linear in (self.dense, self.out_proj):
            if linear is not None:
                nn.init.normal_(linear.weight, std=0.02)
                nn.init.zeros_(linear.bias)

    @property
    def num_classes(self) -> int:
        return self.out_proj.out_features

    @property
    def inner_dim(self) -> Optional[int]:
        return None if self.dense is None else self.dense.out_features

    def forward(self, features: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, classes)."""
        x: Tensor = self.dropout(features)
        if self.dense is not None:
            x = self.dropout(self.activation(self.dense(x)))
        scores: Tensor = self.out_proj(x)
        return scores
