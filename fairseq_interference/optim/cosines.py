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
CHUNK = 1 << 22  # elements that are widened to float64 at a time: 32 MB of a gradient, or of all together


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
    keys = list(gradients)
    table = _gram([gradients[key] for key in keys])
    return {
        (keys[i], keys[j]): cosine_of([table[i][j]], [table[i][i]], [table[j][j]])
        for i, j in combinations(range(len(keys)), 2)
    }


def _gram(gradients: Sequence[Gradient]) -> list[list[float]]:
    """Dot products of every two: each element is widened once, not once a pair; (L, L)."""
    count, total = len(gradients), None
    for tensors in zip(*gradients):
        flat = [None if x is None else x.detach().reshape(-1) for x in tensors]
        there = [number for number, x in enumerate(flat) if x is not None]
        if not there:
            continue
        first = flat[there[0]]
        assert first is not None
        total = first.new_zeros((count, count), dtype=torch.float64) if total is None else total
        for begin in range(0, len(first), max(1, CHUNK // count)):
            rows = first.new_zeros((count, min(max(1, CHUNK // count), len(first) - begin)), dtype=torch.float64)
            for number in there:
                x = flat[number]
                assert x is not None
                rows[number] = x[begin : begin + rows.shape[1]]
            total += rows @ rows.T
    found: list[list[float]] = [[0.0] * count] * count if total is None else total.tolist()
    return found
