"""Dictionaries are compared by their symbols in order: that is what token ids mean."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Union

from fairseq_interference.errors import DictionaryError

PathLike = Union[str, Path]
FILE_NAME = "dict.txt"
_LFS = "version https://git-lfs"


def symbols_of_file(path: PathLike) -> list[str]:
    """Symbols of a ``dict.txt``, in order, with the host's checks and errors that name the line.

    Raises:
        DictionaryError: missing, not UTF-8, a Git-LFS pointer, a line without a count, or a symbol twice.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            lines = stream.read().split("\n")
    except FileNotFoundError:
        raise DictionaryError(
            "There is no dictionary.", where=path, next_step="prepare the data, or copy the dict.txt that encoded it"
        ) from None
    except UnicodeDecodeError as error:
        raise DictionaryError("The dictionary is not UTF-8.", where=path, value=str(error)) from None
    if lines[0].startswith(_LFS):
        raise DictionaryError("This is a Git-LFS pointer, not a dictionary.", where=path, next_step="run: git lfs pull")
    symbols: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if line == "" and number == len(lines):
            break
        symbol, count, overwrite = _parse(line)
        if not count.isdigit():
            raise DictionaryError("A line is not `symbol count`.", where=f"{path}:{number}", value=line)
        if symbol in symbols and not overwrite:
            raise DictionaryError("A symbol stands twice.", where=f"{path}:{number}", value=symbol)
        symbols[symbol] = number
    return list(symbols)


def _parse(line: str) -> tuple[str, str, bool]:
    """Symbol, count and the host's ``#fairseq:overwrite`` mark of one line."""
    head, _, tail = line.rstrip().rpartition(" ")
    overwrite = tail == "#fairseq:overwrite"
    if overwrite:
        head, _, tail = head.rpartition(" ")
    return head, tail, overwrite


def digest(symbols: Iterable[str]) -> str:
    """Hexadecimal sha256 of symbols in order."""
    return hashlib.sha256("\n".join(symbols).encode()).hexdigest()


def digest_of_file(path: PathLike) -> str:
    return digest(symbols_of_file(path))


def check_same(path: PathLike, reference: PathLike) -> None:
    """Raise :class:`DictionaryError` unless both files hold the same symbols in the same order."""
    if Path(path).read_bytes() == Path(reference).read_bytes():
        return
    here, there = symbols_of_file(path), symbols_of_file(reference)
    if here == there:
        return
    first = next((n for n, (a, b) in enumerate(zip(here, there)) if a != b), min(len(here), len(there)))
    raise DictionaryError(
        "This part of the data was binarised with another dictionary.",
        where=f"{path}:{first + 1}",
        value=here[first] if first < len(here) else "(end of file)",
        allowed=there[first] if first < len(there) else "(end of file)",
        next_step=f"binarise it again with --srcdict {reference}",
    )


def words(dictionary: Any) -> list[int]:
    """Ids of the host's dictionary that a random token may be: no special symbols, no padding of the dictionary."""
    special = {"<mask>"}
    return [
        number
        for number in range(dictionary.nspecial, len(dictionary))
        if dictionary[number] not in special and not dictionary[number].startswith("madeupword")
    ]
