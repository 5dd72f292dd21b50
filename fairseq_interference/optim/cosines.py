"""Cosines between gradients that are lists of tensors: accumulated tensor by tensor, no vector is ever built."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Optional, TypeVar

import torch
from torch import Tensor

Gradient = Sequence[Optional[Tensor]]  # aligned with parameters; None where no loss reaches one
Key = TypeVar("Key", bound=Hashable)
CHUNK = 1 << 22  # elements that are widened to float64 at a time: 32 MB


def dots(one: Gradient, other: Gradient) -> list[float]:
    """Dot product of each tensor with its counterpart, summed in float64; 0 where either is None."""
    found = [_dot(x, y) for x, y in zip(one, other) if x is not None and y is not None]
    values: Iterator[float] = iter(torch.stack(found).tolist() if found else ())  # one transfer from a device
    return [0.0 if x is None or y is None else next(values) for x, y in zip(one, other)]


def _dot(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.detach().reshape(-1), y.detach().reshape(-1)
    total = x.new_zeros((), dtype=torch.float64)
    for begin in range(0, len(x), CHUNK):
        total += torch.dot(x[begin : begin + CHUNK].double(), y[begin : begin + CHUNK].double())
    return total


def cosine_of(
    product: Sequence[float], squares: Sequence[float], others: Sequence[float], members: Optional[Iterable[int]] = None
) -> Optional[float]:
    """Cosine from what :func:`dots` gives for x·y, x·x and y·y; of the tensors with the numbers ``members``.

    None where there is no number: a gradient of 0, or one that is not finite.
    """
    chosen = range(len(product)) if members is None else list(members)
    xy, xx, yy = (sum(values[number] for number in chosen) for values in (product, squares, others))
    size = math.sqrt(xx) * math.sqrt(yy) if xx >= 0 and yy >= 0 else math.nan
    if not (math.isfinite(xy) and math.isfinite(size) and size > 0):
        return None
    return max(-1.0, min(1.0, xy / size))


def cosine(one: Gradient, other: Gradient) -> Optional[float]:
    """Between two gradients, as if each were one vector; None where there is no number."""
    return cosine_of(dots(one, other), dots(one, one), dots(other, other))


def pairs(gradients: Mapping[Key, Gradient]) -> dict[tuple[Key, Key], Optional[float]]:
    """Cosine of every two gradients, in the order of the mapping."""
    squares = {key: dots(gradient, gradient) for key, gradient in gradients.items()}
    return {
        (one, other): cosine_of(dots(gradients[one], gradients[other]), squares[one], squares[other])
        for one, other in combinations(gradients, 2)
    }
