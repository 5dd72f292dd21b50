"""Held-out blocks for the meta step: a seeded slice of the training data, and a batch of it for each update.

Which blocks of a language are held out depends on the seed of the data alone; which of them an update sees depends on
its number alone. A resumed run therefore sees what the straight one would have seen.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_interference.data.blocks import Blocks
from fairseq_interference.data.multilingual import Item, MultilingualDataset, Sample
from fairseq_interference.errors import DataError

_SLICE, _DRAW = 0x5A1CE, 0xD2A3
_FEW = 10_000  # blocks that may all be shuffled for every update


def hold_out(blocks: Mapping[str, Blocks], fraction: float, seed: int) -> tuple[dict[str, Blocks], dict[str, Blocks]]:
    """Split every language's blocks into those to train on and those held out, at least one each.

    What is held out of a language does not depend on which other languages there are.

    Args:
        fraction: share of the blocks that is held out; 0 holds out none.
        seed: seed of the data.

    Raises:
        DataError: a language with fewer than two blocks.
    """
    if fraction == 0:
        return dict(blocks), {}
    train, held = {}, {}
    for code, part in blocks.items():
        if len(part) < 2:
            raise DataError(
                "This language has too few blocks to hold some out.",
                where=f"{part.file.prefix}.bin",
                value=f"{len(part)} blocks",
                next_step="give more text, a smaller --tokens-per-sample, or --meta-heldout-fraction 0",
            )
        count = min(len(part) - 1, max(1, round(fraction * len(part))))
        order = np.random.default_rng([seed, _SLICE, zlib.crc32(code.encode())]).permutation(len(part))
        train[code], held[code] = part.some(np.sort(order[count:])), part.some(np.sort(order[:count]))
    return train, held


class ValidationBatches:
    """Batches of held-out (or validation) blocks, one for each update, the same whatever the number of workers.

    Args:
        dataset: the blocks of all languages; its collater masks them.
        seed: seed of the data.
    """

    def __init__(self, dataset: MultilingualDataset, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self.known = [number for number, count in enumerate(dataset.block_counts) if count]

    def batch(
        self, update: int, languages: Sequence[int], tokens: int, worker: int, workers: int, rows: int, area: int
    ) -> list[Sample]:
        """This worker's part of an update's batch, as micro-batches.

        Args:
            update: its number.
            languages: ids; each gets the same number of tokens, as far as it has them.
            tokens: of the whole batch, over all workers.
            worker, workers: which part of it.
            rows, area: most rows and most rows times longest row of a micro-batch.
        """
        items: list[Item] = []
        for language in languages:
            items += self._draw(update, language, tokens / len(languages))
        mine = sorted(items[worker::workers], key=lambda item: len(item.tokens))
        return [self.dataset.collater(part) for part in _micro_batches(mine, rows, area)]

    def _draw(self, update: int, language: int, tokens: float) -> list[Item]:
        part = self.dataset.blocks[language]
        assert part is not None
        most = min(len(part), int(tokens / int(part.sizes.min())) + 1)
        rng = np.random.default_rng([self.seed, _DRAW, language, update])
        few = len(part) <= _FEW  # a smaller batch then is the beginning of a larger one
        order = rng.permutation(len(part))[:most] if few else rng.choice(len(part), most, replace=False)
        sizes = part.sizes[order]
        middles: NDArray[Any] = np.cumsum(sizes) - sizes / 2
        count = max(1, int(np.searchsorted(middles, tokens)))  # as near as whole blocks come
        return [Item(int(block), language, (int(block), update), part[int(block)]) for block in order[:count]]


def _micro_batches(items: Sequence[Item], rows: int, area: int) -> list[list[Item]]:
    """Cut items that are sorted by length; the longest is the last."""
    found: list[list[Item]] = []
    for item in items:
        length = len(item.tokens) + 1
        if not found or len(found[-1]) >= rows or (len(found[-1]) + 1) * length > area:
            found.append([])
        found[-1].append(item)
    return found
