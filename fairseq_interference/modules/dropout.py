"""Dropout that is cheap on a CPU.

``F.dropout`` draws one number of the generator per element there, about 4 ns each, which is a tenth of a training step.
Here one draw of 64 bits serves four elements; on other devices the kernel of torch is used.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16  # resolution of the probability: 1.5e-5


def dropout(x: Tensor, probability: float, training: bool = True) -> Tensor:
    """Zero elements of x (any shape) with ``probability`` and scale the rest so that the mean stays.

    Differentiable to any order. Draws from torch's global generator.
    """
    if not training or probability == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    dropped = round(probability * _LEVELS)
    count = x.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    lanes = bits.view(torch.int16)[:count].view(x.shape)
    scale = _LEVELS / (_LEVELS - dropped)
    # Named after its first use: it is x * mask * scale in one pass, and differentiable.
    y: Tensor = torch.ops.aten.native_dropout_backward(x, lanes >= dropped - _LEVELS // 2, scale)
    return y


class Dropout(nn.Module):
    """:func:`dropout` as a module.

    Args:
        probability: in [0, 1).
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = float(probability)

    def forward(self, x: Tensor) -> Tensor:
        """(...) -> (...)."""
        return dropout(x, self.probability, self.training)

    def extra_repr(self) -> str:
        return f"{self.probability}"
