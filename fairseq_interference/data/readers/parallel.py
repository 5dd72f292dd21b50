"""Parallel sentences: two files line by line, or one file with both sides in columns. Only LF ends a line."""

from __future__ import annotations

from typing import NamedTuple, Optional

from fairseq_interference.data.readers.lines import PathLike, bare, read_lines, shown
from fairseq_interference.errors import DataError, UsageError


class SentencePair(NamedTuple):
    """A sentence, its translation, and their line from 1; nothing in them is trimmed or normalised."""

    source: str
    target: str
    line: int


def parse_columns(text: str, where: object = "--columns") -> tuple[int, int]:
    """``2,4`` as two different columns from 1.

    Raises:
        UsageError: anything else.
    """
    parts = text.split(",")
    if len(parts) == 2 and all(part.strip().isdecimal() for part in parts):
        first, second = (int(part) for part in parts)
        if first != second and first > 0 < second:
            return first, second
    raise UsageError("These are not two columns.", where=where, value=text, allowed="A,B, counted from 1")


def read_parallel(
    source: PathLike,
    target: Optional[PathLike] = None,
    *,
    columns: Optional[tuple[int, int]] = None,
    most: Optional[int] = None,
) -> list[SentencePair]:
    """Pairs of a parallel text in its order; blank lines are pairs too.

    Args:
        source: one sentence a line; without ``target`` a file with TAB between its columns.
        target: as many lines, each the translation of the same line.
        columns: of source and target in one file, from 1; None for a file of exactly two.
        most: only the first pairs.

    Raises:
        UsageError: columns of two files.
        DataError: files of different lengths, or a line without its columns; names file:line. As :func:`read_lines`.
    """
    if target is not None:
        if columns is not None:
            raise UsageError("Columns are those of one file.", where="--columns", next_step="leave out --target")
        return _of_two_files(source, target)[:most]
    lines = _lines(source)[:most]
    return [_of_line(line, number, columns, source) for number, line in enumerate(lines, 1)]


def _lines(path: PathLike) -> list[str]:
    lines = [bare(line, number) for number, line in enumerate(read_lines(path), 1)]
    return lines[:-1] if lines[-1] == "" else lines


def _of_two_files(source: PathLike, target: PathLike) -> list[SentencePair]:
    ours, theirs = _lines(source), _lines(target)
    if len(ours) != len(theirs):
        raise DataError(
            "Parallel files have as many lines as each other.",
            where=f"{source}, {target}",
            value=f"{len(ours)} and {len(theirs)} lines (only LF ends a line)",
            next_step="look for the first line that does not translate its counterpart",
        )
    return [SentencePair(a, b, number) for number, (a, b) in enumerate(zip(ours, theirs), 1)]


def _of_line(line: str, number: int, columns: Optional[tuple[int, int]], path: PathLike) -> SentencePair:
    cells = line.split("\t")
    first, second = columns or (1, 2)
    if len(cells) >= max(first, second) and (columns is not None or len(cells) == 2):
        return SentencePair(cells[first - 1], cells[second - 1], number)
    alone = len(cells) < 2
    raise DataError(
        "This line does not have both sides." if alone else "Which columns are the two sides?",
        where=f"{path}:{number}",
        value=f"{len(cells)} columns: {shown(line)}",
        allowed="source<TAB>target" if columns is None else f"at least {max(columns)} columns",
        next_step="give the other side as --target FILE" if alone else "--columns A,B, counted from 1",
    )
