"""Hard concrete gates (Louizos, Welling, Kingma 2018): values in [0, 1] that are exactly 0 or 1 with positive chance.

``log_alpha`` is a tensor of any shape; gates and probabilities have the same shape and are computed in fp32 at least.
"""

from __future__ import annotations

import math
from typing import Optional

import torch
from torch import Tensor

BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1  # temperature, and the ends of the stretched interval
EDGE = 1e-6  # uniform noise stays this far from 0 and 1
LOWEST, HIGHEST = math.log(0.01), math.log(100)  # where log_alpha is cut
SHIFT = BETA * math.log(-GAMMA / ZETA)


def _wide(log_alpha: Tensor) -> Tensor:
    return log_alpha.to(torch.promote_types(log_alpha.dtype, torch.float32)).clamp(LOWEST, HIGHEST)


def _stretch(s: Tensor) -> Tensor:
    return (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def sample(log_alpha: Tensor, generator: Optional[torch.Generator] = None) -> Tensor:
    """A gate drawn from the distribution; differentiable (eq. 10 and 11)."""
    wide = _wide(log_alpha)
    u = torch.empty_like(wide).uniform_(generator=generator).clamp_(EDGE, 1 - EDGE)
    return _stretch(torch.sigmoid((u.log() - (-u).log1p() + wide) / BETA))


def gate(log_alpha: Tensor) -> Tensor:
    """The gate without noise, for evaluation (eq. 13): 0 up to -2.3979, 1 from 2.3979 on."""
    return _stretch(torch.sigmoid(_wide(log_alpha)))


def probability(log_alpha: Tensor) -> Tensor:
    """P(gate != 0), the expected L0 norm of a gate (eq. 12)."""
    return torch.sigmoid(_wide(log_alpha) - SHIFT)


def initial(shape: tuple[int, ...], droprate: float, generator: Optional[torch.Generator] = None) -> Tensor:
    """``log_alpha`` of gates that are dropped at about this rate: N(log((1 - d) / d), 0.01)."""
    return torch.empty(shape).normal_(math.log((1 - droprate) / droprate), 0.01, generator=generator)
