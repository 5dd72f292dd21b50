"""Reads the host's memory-mapped token files (``NAME.bin`` + ``NAME.idx``) without holding file descriptors.

A file is one flat array of token ids; the index holds the length of each sentence. Sentences lie one after the
other, so a block of any kind is a slice of the flat array.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, Union

import numpy as np
import torch
from numpy.typing import NDArray

from fairseq_interference.errors import DataError

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQ")  # magic, version, type code, number of sentences
_TYPES: dict[int, Any] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
    9: np.uint32,
    10: np.uint64,
}
_REMEDY = "binarise it again with: fairseq-preprocess --only-source --dataset-impl mmap --srcdict dict.txt"


def exists(prefix: Union[str, Path]) -> bool:
    """Whether both files of ``prefix`` are there."""
    return os.path.isfile(f"{prefix}.bin") and os.path.isfile(f"{prefix}.idx")


def _mapped(path: str, dtype: Any, offset: int, count: int) -> NDArray[Any]:
    """A read-only view of ``count`` items at ``offset``; the mapping outlives its descriptor, which is closed."""
    size = offset + count * np.dtype(dtype).itemsize
    raw = torch.from_file(path, shared=False, size=size, dtype=torch.uint8).numpy()
    view = raw[offset:].view(dtype) if offset % np.dtype(dtype).itemsize == 0 else _unaligned(raw, dtype, offset, count)
    view.flags.writeable = False
    return view


def _unaligned(raw: NDArray[Any], dtype: Any, offset: int, count: int) -> NDArray[Any]:
    return np.frombuffer(
        memoryview(raw),  # type: ignore[arg-type]
        dtype=dtype,
        count=count,
        offset=offset,
    )


class TokenFile:
    """Token ids of one split of one language.

    Args:
        prefix: path without ``.bin``/``.idx``.

    Attributes:
        tokens: all token ids, ``(N,)``, mapped from the file.
        sizes: tokens of each sentence including ``</s>``, ``(S,)`` int32, mapped from the file.

    Raises:
        DataError: not a file of this kind, cut short, or without a sentence.
    """

    def __init__(self, prefix: Union[str, Path]) -> None:
        self.prefix = str(prefix)
        self._read()

    def _read(self) -> None:
        index, data = f"{self.prefix}.idx", f"{self.prefix}.bin"
        with open(index, "rb") as stream:
            head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size or head[:9] != _MAGIC:
            raise DataError("This is not a memory-mapped index.", where=index, value=head[:9], next_step=_REMEDY)
        _, version, code, count = _HEADER.unpack(head)
        if version != 1 or code not in _TYPES:
            raise DataError("Unknown index version or type code.", where=index, value=(version, code))
        if count == 0 or os.path.getsize(data) == 0:
            raise DataError(
                "This file holds no sentences.",
                where=data,
                next_step="leave the language out of --langs, or give it text and binarise again",
            )
        if os.path.getsize(index) != _HEADER.size + 12 * count:
            raise DataError("The index is cut short.", where=index, value=os.path.getsize(index), next_step=_REMEDY)
        self.sizes: NDArray[np.int32] = _mapped(index, np.int32, _HEADER.size, count)
        length = int(self.sizes.sum(dtype=np.int64))
        item = np.dtype(_TYPES[code]).itemsize
        if os.path.getsize(data) != length * item:
            raise DataError(
                "Index and data disagree about the number of tokens.",
                where=data,
                value=os.path.getsize(data) // item,
                allowed=length,
                next_step=_REMEDY,
            )
        self.tokens: NDArray[Any] = _mapped(data, _TYPES[code], 0, length)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getstate__(self) -> str:
        return self.prefix

    def __setstate__(self, prefix: str) -> None:
        self.prefix = prefix
        self._read()
