"""How often each language is seen. Pure numpy.

P_i is proportional to share_i^(1/T), where share_i is language i's share of all blocks (XLM's exponent 0.7 is
T = 1.43). An epoch has as many blocks as the corpus; a language gets its part of them as whole passes over its blocks
plus a remainder drawn without replacement. T = 1 therefore visits each block exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairseq_interference.errors import UsageError

LOWEST, HIGHEST = 1.0, 100.0


def check_temperature(temperature: float) -> float:
    """Raise :class:`UsageError` unless 1 <= temperature <= 100."""
    if not LOWEST <= temperature <= HIGHEST:
        raise UsageError(
            "The temperature is out of range.",
            where="--temperature",
            value=temperature,
            allowed=f"{LOWEST:g} (proportional) to {HIGHEST:g} (nearly uniform); the exponent is 1/temperature",
            next_step=f"an exponent of {temperature} is --temperature {1 / temperature:g}"
            if 0 < temperature < 1
            else None,
        )
    return temperature


def probabilities(sizes: Sequence[int], temperature: float) -> NDArray[np.float64]:
    """P_i of languages with ``sizes`` blocks, ``(L,)``; a language of size 0 has probability 0."""
    share = np.asarray(sizes, dtype=np.float64)
    share = share / share.sum()
    power = np.where(share > 0, share, 1.0) ** (1.0 / check_temperature(temperature)) * (share > 0)
    return np.asarray(power / power.sum())


def epoch_counts(sizes: Sequence[int], temperature: float) -> NDArray[np.int64]:
    """Blocks of each language in an epoch, ``(L,)``; they sum to the number of blocks (largest remainders)."""
    total = int(sum(sizes))
    if temperature == 1.0:
        return np.asarray(sizes, dtype=np.int64)
    exact = probabilities(sizes, temperature) * total
    counts: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(-(exact - counts), kind="stable")[:missing]] += 1
    empty = (counts == 0) & (np.asarray(sizes) > 0)
    counts[empty] = 1  # every language is seen
    return counts


def visits(size: int, first: int, last: int, seed: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Visits ``first`` to ``last - 1`` of a language in an epoch.

    Args:
        size: number of its blocks.
        first, last: range of visits; visit n belongs to pass ``n // size``.
        seed: seed, epoch and language; the same seed gives the same endless sequence of passes.

    Returns:
        block and pass of each visit, ``(last - first,)``. Each pass is a permutation of the blocks.
    """
    numbers = np.arange(first, last, dtype=np.int64)
    passes = numbers // size
    blocks = np.empty_like(numbers)
    for number in range(int(passes[0]) if len(passes) else 0, int(passes[-1]) + 1 if len(passes) else 0):
        order = np.random.default_rng([*seed, number]).permutation(size)
        here = passes == number
        blocks[here] = order[numbers[here] - number * size]
    return blocks, passes


def table(
    codes: Sequence[str], sizes: Sequence[int], tokens: Sequence[int], temperature: float
) -> list[dict[str, object]]:
    """What is printed and recorded once: one row for each language, ids in order."""
    shares = probabilities(sizes, 1.0)
    chances = probabilities(sizes, temperature)
    counts = epoch_counts(sizes, temperature)
    return [
        {
            "language": code,
            "id": number,
            "blocks": int(sizes[number]),
            "tokens": int(tokens[number]),
            "share": round(float(shares[number]), 6),
            "probability": round(float(chances[number]), 6),
            "passes": round(float(counts[number]) / sizes[number], 4) if sizes[number] else 0.0,
        }
        for number, code in enumerate(codes)
    ]


def format_table(rows: Sequence[dict[str, object]]) -> str:
    """The rows of :func:`table` as aligned text."""
    head = list(rows[0])
    cells = [head, *([str(row[name]) for name in head] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in cells)
