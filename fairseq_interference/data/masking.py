"""Masks a whole batch at once. What is masked depends on the seed, the epoch and the block alone.

Random numbers are counters sent through a mixing function (splitmix64), so that neither the place of a block in the
batch, nor padding, nor the number of workers matters, and a batch of any size needs a handful of array operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(11)


def mix(numbers: U64) -> U64:
    """The finaliser of splitmix64: uint64 -> uint64, each bit depends on all; works in place and returns it."""
    numbers ^= numbers >> _S30
    numbers *= _M1
    numbers ^= numbers >> _S27
    numbers *= _M2
    numbers ^= numbers >> _S31
    return numbers


def keys(*columns: Any) -> U64:
    """One key for each row of the columns (scalars are repeated): ``(B,)`` uint64."""
    shape = np.broadcast_shapes(*(np.shape(column) for column in columns))
    result: U64 = np.zeros(shape or (1,), dtype=np.uint64)
    for column in columns:
        result = mix(result + _GOLDEN + np.asarray(column).astype(np.uint64))
    return result


def uniform(numbers: U64) -> NDArray[np.float64]:
    """Numbers in [0, 1) from the upper 53 bits."""
    return (numbers >> _S11) * (1.0 / (1 << 53))


@dataclass(frozen=True)
class Masking:
    """BERT's masking.

    Args:
        pad, mask: ids of ``<pad>`` and ``<mask>``.
        never: ids that are never masked (``<s>``, ``</s>``, ``<pad>``).
        words: ids that a random token is drawn from, ``(W,)``.
        probability: share of the maskable tokens of a block that are predicted.
        unchanged, random: share of those that stay as they are, or become a random token.
    """

    pad: int
    mask: int
    never: tuple[int, ...]
    words: NDArray[np.int64]
    probability: float = 0.15
    unchanged: float = 0.1
    random: float = 0.1

    def __call__(self, tokens: NDArray[np.int64], key: U64) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Mask a batch.

        Args:
            tokens: ``(B, T)``, padded at the right.
            key: one key for each row, ``(B,)``.

        Returns:
            source and target, ``(B, T)``; the target is ``pad`` where nothing is predicted. A row with n maskable
            tokens has ``probability * n`` predictions, rounded up or down at random.
        """
        counter = np.arange(1, tokens.shape[1] + 1, dtype=np.uint64) * _GOLDEN
        draw = mix(key[:, None] + counter)  # B x T
        maskable = tokens != self.never[0]
        for token in self.never[1:]:
            maskable &= tokens != token
        wanted = (self.probability * maskable.sum(1) + uniform(keys(key, 1))).astype(np.int64)
        chosen = _smallest(draw, maskable, wanted)
        target = np.where(chosen, tokens, self.pad)
        source = tokens.copy()
        rows, columns = np.nonzero(chosen)
        draw = mix(draw[rows, columns] + _GOLDEN)
        kind = uniform(draw)
        new = np.full(len(rows), self.mask, dtype=np.int64)
        swap = kind < self.random
        new[swap] = self.words[(uniform(mix(draw[swap] + _GOLDEN)) * len(self.words)).astype(np.int64)]
        keep = (kind >= self.random) & (kind < self.random + self.unchanged)
        new[keep] = tokens[rows[keep], columns[keep]]
        source[rows, columns] = new
        return source, target


def _smallest(draw: U64, allowed: NDArray[np.bool_], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark in each row the ``wanted`` allowed cells with the smallest draws; ``(B, T)``."""
    most = int(wanted.max(initial=0))
    if most == 0:
        return np.zeros_like(allowed)
    score = np.where(allowed, draw, np.iinfo(np.uint64).max)
    ordered = np.partition(score, most - 1, axis=1)[:, :most]
    ordered.sort(axis=1)
    limit = np.take_along_axis(ordered, np.maximum(wanted - 1, 0)[:, None], axis=1)
    return (score <= limit) & allowed & (wanted > 0)[:, None]
