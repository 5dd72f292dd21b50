"""Visits to batches: every visit lies in exactly one batch, and no worker ever runs out of batches."""

from __future__ import annotations

from typing import Optional

import numpy as np
from numpy.typing import NDArray

from fairseq_interference.data.multilingual import MultilingualDataset
from fairseq_interference.errors import DataError, UsageError

Batch = NDArray[np.int64]


def cut(
    indices: Batch, sizes: Batch, max_tokens: Optional[int], max_sentences: Optional[int], multiple: int = 1
) -> list[Batch]:
    """Cut indices that are sorted by length into batches, the host's way; the last batch is kept whatever its size.

    Args:
        indices: ``(N,)``.
        sizes: tokens of each of them, ``(N,)``.
        max_tokens: limit for rows times longest row.
        max_sentences: limit for rows.
        multiple: rows are rounded down to this multiple where there are that many.
    """
    from fairseq.data.data_utils_fast import batch_by_size_vec

    if len(indices) == 0:
        return []
    if max_tokens is not None and int(sizes.max()) > max_tokens:
        raise UsageError(
            "A block is longer than a batch may be.",
            where="--max-tokens",
            value=max_tokens,
            allowed=f"at least {int(sizes.max())}",
            next_step="raise --max-tokens, or lower --tokens-per-sample",
        )
    found = batch_by_size_vec(
        indices, sizes, -1 if max_tokens is None else int(max_tokens), max_sentences or -1, multiple
    )
    return [np.asarray(batch, dtype=np.int64) for batch in found]


def even(batches: list[Batch], workers: int) -> list[Batch]:
    """Split the largest batches in two until the number of batches is a multiple of ``workers``.

    Raises:
        DataError: fewer blocks than workers.
    """
    batches = list(batches)
    for _ in range(-len(batches) % workers):
        largest = max(range(len(batches)), key=lambda number: len(batches[number]))
        batch = batches[largest]
        if len(batch) < 2:
            raise DataError(
                "There are fewer blocks than workers.",
                value=sum(map(len, batches)),
                allowed=f"at least {workers}",
                next_step="use fewer workers, or lower --tokens-per-sample",
            )
        batches[largest : largest + 1] = [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
    return batches


class Batcher:
    """Makes the batches of an epoch.

    Args:
        max_tokens, max_sentences, multiple: as in :func:`cut`.
        workers: number of data-parallel workers.
        update_freq: batches that each worker adds up in an update.
    """

    def __init__(
        self, max_tokens: Optional[int], max_sentences: Optional[int], multiple: int, workers: int, update_freq: int
    ) -> None:
        self.max_tokens, self.max_sentences, self.multiple = max_tokens, max_sentences, multiple
        self.workers, self.update_freq = workers, update_freq

    def _cut(self, dataset: MultilingualDataset, indices: Batch) -> list[Batch]:
        indices = dataset.by_length(indices)
        return cut(indices, dataset.sizes[indices], self.max_tokens, self.max_sentences, self.multiple)

    def mixed(self, dataset: MultilingualDataset) -> list[list[Batch]]:
        """Batches of all languages together, one group each; their number is a multiple of the workers."""
        batches = self._cut(dataset, np.arange(len(dataset), dtype=np.int64))
        return [[batch] for batch in (even(batches, self.workers) if dataset.training else batches)]

    def single(self, dataset: MultilingualDataset) -> list[list[Batch]]:
        """Groups of ``workers * update_freq`` batches of one language: each group is one update.

        An incomplete group is filled with that language's next blocks.
        """
        groups: list[list[Batch]] = []
        size = self.workers * self.update_freq
        for language in np.unique(dataset.language):
            batches = self._cut(dataset, np.flatnonzero(dataset.language == language))
            order = np.random.default_rng([dataset.seed, dataset.epoch, int(language)]).permutation(len(batches))
            batches = [batches[number] for number in order]
            missing = -len(batches) % size
            rows = max(map(len, batches))
            while missing > 0:
                more = self._cut(dataset, dataset.extend(int(language), missing * rows))[-missing:]
                batches += more
                missing -= len(more)
            groups += [batches[begin : begin + size] for begin in range(0, len(batches), size)]
        return groups
