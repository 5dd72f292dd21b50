"""Cuts the token file of one language into blocks, in the host's four modes; nothing is dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_interference.data.token_file import TokenFile
from fairseq_interference.errors import DataError

MODES = ("none", "complete", "complete_doc", "eos")


def spans(sizes: NDArray[Any], mode: str, length: int) -> NDArray[np.int64]:
    """First and last+1 token of every block.

    Modes: ``none`` cuts every ``length`` tokens; ``complete`` fills blocks with whole sentences; ``complete_doc`` as
    well, but a blank line (a sentence of ``</s>`` alone) ends a block and belongs to none; ``eos`` makes one block of
    each sentence, blank lines left out. A sentence longer than ``length`` is cut into pieces of nearly equal size.

    Args:
        sizes: tokens of each sentence including ``</s>``, ``(S,)``.
        mode: one of :data:`MODES`.
        length: longest block in tokens, without the ``<s>`` that is put in front.

    Returns:
        ``(B, 2)`` int64.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - sizes
    if mode == "none":
        cut = np.append(np.arange(0, ends[-1], length, dtype=np.int64), ends[-1])
        return np.stack([cut[:-1], cut[1:]], axis=1)
    if mode == "eos":
        keep = np.asarray(sizes) > 1
        return split_long(np.stack([starts[keep], ends[keep]], axis=1), length)
    if mode not in MODES:
        raise ValueError(mode)
    if mode == "complete_doc" and not (np.asarray(sizes) > 1).any():
        return np.zeros((0, 2), dtype=np.int64)  # the host's cutter fails on blank lines alone
    from fairseq.data.token_block_utils_fast import _get_slice_indices_fast

    found = _get_slice_indices_fast(np.asarray(sizes, dtype=np.int64), mode, length, 1)
    return split_long(np.asarray(found, dtype=np.int64).reshape(-1, 2), length)


def split_long(blocks: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Cut blocks of more than ``length`` tokens into the fewest pieces of nearly equal size; ``(B, 2) -> (B', 2)``."""
    sizes = blocks[:, 1] - blocks[:, 0]
    if len(blocks) == 0 or sizes.max() <= length:
        return blocks
    pieces = -(-sizes // length)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start, size, count = (np.repeat(column, pieces) for column in (blocks[:, 0], sizes, pieces))
    return np.stack([start + size * number // count, start + size * (number + 1) // count], axis=1)


class Blocks:
    """Blocks of one language.

    Args:
        file: its tokens.
        mode, length: as in :func:`spans`.
        eos: id of ``</s>``.

    Attributes:
        sizes: tokens of each block with ``<s>``, ``(B,)`` int32.

    Raises:
        DataError: nothing but blank lines.
    """

    def __init__(self, file: TokenFile, mode: str, length: int, eos: int) -> None:
        self.file = file
        found = spans(file.sizes, mode, length)
        if len(found) == 0 or not (np.asarray(file.sizes) > 1).any():
            raise DataError(
                "This file holds nothing but blank lines.",
                where=f"{file.prefix}.bin",
                next_step="leave the language out of --langs, or give it text and binarise again",
            )
        self._starts = found[:, 0].copy()
        self.sizes: NDArray[np.int32] = (found[:, 1] - found[:, 0] + 1).astype(np.int32)
        self.sentences = len(file)
        self.tokens = int((self.sizes - 1).sum(dtype=np.int64))

    def some(self, numbers: NDArray[np.int64]) -> Blocks:
        """Blocks of these numbers alone."""
        found = object.__new__(Blocks)
        found.file, found.sentences = self.file, self.sentences
        found._starts, found.sizes = self._starts[numbers], self.sizes[numbers]
        found.tokens = int((found.sizes - 1).sum(dtype=np.int64))
        return found

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Token ids of a block, without ``<s>``; ``(T - 1,)``, a view of the file."""
        start = self._starts[number]
        return self.file.tokens[start : start + self.sizes[number] - 1]
