"""Bytes of a data file to lines. Only LF ends a line; what is not data at all is named."""

from __future__ import annotations

from pathlib import Path
from typing import Union

from fairseq_interference.errors import DataError

BOM = "\ufeff"
BLANKS = " \t"
_LFS = b"version https://git-lfs"
_HTML = (b"<!doctype html", b"<html", b"<head")
PathLike = Union[str, Path]


def read_lines(path: PathLike) -> list[str]:
    """The lines of a UTF-8 file without their LF; CR and BOM are still there, so that the file can be written back.

    ``"\\n".join(read_lines(path))`` is the file. U+2028, U+0085, U+001C and the like end no line.

    Raises:
        DataError: missing, empty, not UTF-8 (names the line), a Git LFS pointer, an HTML page, NUL bytes.
    """
    if not Path(path).is_file():
        raise DataError("There is no such file.", where=path)
    data = Path(path).read_bytes()
    _check_kind(data, path)
    try:
        return data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            "This line is not UTF-8.",
            where=f"{path}:{number}",
            value=f"byte 0x{data[error.start]:02x} at offset {error.start}",
            next_step="convert the file, for example with `iconv -t UTF-8`",
        ) from None


def _check_kind(data: bytes, path: PathLike) -> None:
    start = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(_LFS):
        raise DataError(
            "This is a Git LFS pointer, not the data that it points to.",
            where=f"{path}:1",
            next_step="run `git lfs pull`",
        )
    if start.startswith(_HTML):
        raise DataError(
            "This is an HTML page, perhaps a sign-in or error page saved under the name of the data.",
            where=f"{path}:1",
            next_step="download the file again and look at it",
        )
    if not data.strip():
        raise DataError("The file is empty.", where=path)
    if b"\0" in data:
        number = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise DataError("The file holds NUL bytes: it is not text, or it is UTF-16.", where=f"{path}:{number}")


def bare(line: str, number: int) -> str:
    """Line ``number`` (from 1) without a trailing CR and, in line 1, without a byte order mark."""
    if line.endswith("\r"):
        line = line[:-1]
    return line[1:] if number == 1 and line.startswith(BOM) else line


def is_blank(line: str) -> bool:
    """Whether a line (see :func:`bare`) holds nothing but blanks and tabs."""
    return not line.strip(BLANKS)


def shown(line: str, limit: int = 80) -> str:
    """A line as an error shows it."""
    return line if len(line) <= limit else line[:limit] + "…"
