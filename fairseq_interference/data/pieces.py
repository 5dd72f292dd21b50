"""Piece ids of many texts: made on all cores, kept beside the prepared split, read again in a second.

Equal texts are encoded once. What is kept depends on the texts, the tokenizer and the dictionary alone; a file that was
damaged or cannot be written is made anew, or done without.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fairseq_interference.data.alignment import align
from fairseq_interference.data.examples import Symbols
from fairseq_interference.data.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

FOLDER = ".encoded"  # in a prepared benchmark
FEW = 2000  # texts that are encoded at once, in this process
_CHUNK = 256
_worker: Any = None  # tokenizer, language and whether spans are wanted, in a worker process


class Encoded(NamedTuple):
    """A text.

    Args:
        ids: (N,) of its pieces.
        spans: (N, 2) characters that each was made of; without alignment (0, 2).
    """

    ids: NDArray[np.int32]
    spans: NDArray[np.int32]


class Pieces:
    """Encodes texts; remembers what it has been given to learn.

    Args:
        tokenizer, dictionary: of the checkpoint; ``digest`` tells the dictionary from others.
        folder: where encodings are kept; None keeps none.
    """

    def __init__(
        self, tokenizer: Tokenizer, dictionary: Symbols, digest: str = "", folder: Optional[Path] = None
    ) -> None:
        self.tokenizer = tokenizer
        self.dictionary = dictionary
        self.digest = digest
        self.folder = folder
        self._known: dict[tuple[str, bool], dict[str, Encoded]] = {}

    def encode(self, text: str, lang: str, aligned: bool = False) -> Encoded:
        """One text; ``aligned`` locates its pieces in it.

        Raises:
            TokenizerError: a step of the tokenizer cannot be followed.
        """
        known = self._known.get((lang, aligned), {}).get(text)
        return known if known is not None else self._encoded([_encode(self.tokenizer, text, lang, aligned)])[0]

    def learn(self, texts: Sequence[str], lang: str, aligned: bool = False) -> None:
        """Encode many texts, on all cores."""
        known = self._known.setdefault((lang, aligned), {})
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if not new:
            return
        path = self._file(new, lang, aligned)
        found = None if path is None else _read(path, len(new))
        if found is None:
            found = self._encoded(_encode_all(self.tokenizer, new, lang, aligned))
            if path is not None:
                _write(path, found)
        known.update(zip(new, found))

    def _encoded(self, pairs: Sequence[tuple[list[str], list[tuple[int, int]]]]) -> list[Encoded]:
        index = self.dictionary.index
        ids: dict[str, int] = {}
        found = []
        for pieces, spans in pairs:
            numbers = []
            for piece in pieces:
                number = ids.get(piece)
                if number is None:
                    number = ids[piece] = index(piece)
                numbers.append(number)
            located = np.array(spans, dtype=np.int32).reshape(-1, 2)
            found.append(Encoded(np.array(numbers, dtype=np.int32), located))
        return found

    def _file(self, texts: Sequence[str], lang: str, aligned: bool) -> Optional[Path]:
        if self.folder is None or len(texts) < FEW:
            return None
        key = hashlib.sha256(f"1 {self.tokenizer.digest} {self.digest} {lang} {aligned}".encode())
        for text in texts:
            key.update(b"%d " % len(text))
            key.update(text.encode("utf-8", "surrogatepass"))
        return self.folder / f"{key.hexdigest()[:32]}.npz"


def _encode(tokenizer: Tokenizer, text: str, lang: str, aligned: bool) -> tuple[list[str], list[tuple[int, int]]]:
    if not aligned:
        return tokenizer.encode_line(text, lang), []
    found = align(tokenizer, text, lang)
    return found.pieces, found.spans


def _encode_chunk(texts: Sequence[str]) -> list[tuple[list[str], list[tuple[int, int]]]]:
    tokenizer, lang, aligned = _worker
    return [_encode(tokenizer, text, lang, aligned) for text in texts]


def _set_worker(tokenizer: Tokenizer, lang: str, aligned: bool) -> None:
    global _worker
    _worker = tokenizer, lang, aligned


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _encode_all(
    tokenizer: Tokenizer, texts: Sequence[str], lang: str, aligned: bool
) -> list[tuple[list[str], list[tuple[int, int]]]]:
    chunks = [texts[first : first + _CHUNK] for first in range(0, len(texts), _CHUNK)]
    settings = (tokenizer, lang, aligned)
    if len(texts) < FEW or cores() == 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [_encode(tokenizer, text, lang, aligned) for text in texts]
    context = multiprocessing.get_context("fork")  # as the host's loaders; nothing of the host runs in it
    with ProcessPoolExecutor(min(cores(), len(chunks)), context, _set_worker, settings) as pool:
        return [pair for chunk in pool.map(_encode_chunk, chunks) for pair in chunk]


def _write(path: Path, found: Sequence[Encoded]) -> None:
    """All texts in three arrays."""
    ends = np.cumsum([len(one.ids) for one in found])
    ids, spans = (np.concatenate(parts) for parts in zip(*found))
    partial = path.with_name(f"{path.stem}.{os.getpid()}.tmp.npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(partial, ends=ends, ids=ids, spans=spans)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        logger.warning("encodings are not kept: %s", error)


def _read(path: Path, count: int) -> Optional[list[Encoded]]:
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            ends, ids, spans = file["ends"], file["ids"], file["spans"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        logger.warning("%s is damaged and made anew: %s", path, error)
        return None
    if len(ends) != count or (count and ends[-1] != len(ids)):
        return None
    first = np.concatenate([[0], ends[:-1]])
    aligned = len(spans) == len(ids)
    none: Union[Any, NDArray[np.int32]] = spans[:0]
    return [Encoded(ids[a:b], spans[a:b] if aligned else none) for a, b in zip(first.tolist(), ends.tolist())]
