"""Tables of sentence pairs, TAB between the columns: with or without csv quoting, with or without a header.

Without quoting one line is one row and ``"`` is a character like others. With quoting, as Python's csv module writes
it, a field with ``"`` stands in quotes with inner ones doubled, and may hold TAB and LF.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from fairseq_interference.data.readers.lines import bare, is_blank, shown
from fairseq_interference.errors import DataError

PREMISE = ("sentence1", "premise")
HYPOTHESIS = ("sentence2", "hypothesis", "hypo")
LABEL = ("gold_label", "label")
LANG = ("language", "lang")
ID = ("pairid", "id", "idx")
_CELL = re.compile(r'"((?:[^"]|"")*)"|([^"\t]*)')
_OF_LANGUAGE = re.compile(r"_[a-z]{2,3}")  # myXNLI: sentence1_sw


class Cell(NamedTuple):
    """A field: what it says, and where that stands in its row, outer quotes left out."""

    text: str
    start: int
    end: int
    quoted: bool = False


class Row(NamedTuple):
    """A row: number of its first line from 1, its text without CR and byte order mark, what was left out, fields."""

    line: int
    text: str
    left: str
    right: str
    cells: list[Cell]


class Columns(NamedTuple):
    """How many columns there are, and which holds what."""

    width: int
    premise: int
    hypothesis: int
    label: Optional[int]
    lang: Optional[int] = None
    id: Optional[int] = None
    header: bool = False


class TableSource:
    """A row of a table around its label."""

    def __init__(self, row: Row, label: Optional[int]) -> None:
        self.before = row.left + row.text
        self.after = row.right
        self.label: Optional[str] = None
        if label is not None:
            cell = row.cells[label]
            self.label = cell.text
            self.before = row.left + row.text[: cell.start]
            self.after = row.text[cell.end :] + row.right

    def render(self, label: Optional[str]) -> str:
        if self.label is not None:
            return self.before + (self.label if label is None else label) + self.after
        return self.before + ("" if label is None else f"\t{label}") + self.after


def rows(lines: Sequence[str], quoted: bool, path: str) -> Iterator[Row]:
    """Rows of a table.

    Raises:
        DataError: a blank line, or a quote that does not end; names file:line.
    """
    held: list[str] = []
    quotes = first = 0
    for number, line in enumerate(lines, 1):
        if not held and is_blank(bare(line, number)):
            raise DataError("This line is blank.", where=f"{path}:{number}", allowed="one pair a line")
        first = first if held else number
        held.append(line)
        quotes += line.count('"')
        if not quoted or quotes % 2 == 0:
            yield _row("\n".join(held), first, quoted, path)
            held, quotes = [], 0
    if held:
        raise _bad_quote(held[0], f"{path}:{first}")


def _row(full: str, number: int, quoted: bool, path: str) -> Row:
    text = bare(full, number)
    at = full.index(text) if text else 0
    cells = _quoted_cells(text, f"{path}:{number}") if quoted else _plain_cells(text)
    return Row(number, text, full[:at], full[at + len(text) :], cells)


def _plain_cells(text: str) -> list[Cell]:
    cells, at = [], 0
    for part in text.split("\t"):
        cells.append(Cell(part, at, at + len(part)))
        at += len(part) + 1
    return cells


def _quoted_cells(text: str, where: str) -> list[Cell]:
    cells, at = [], 0
    while at <= len(text):
        found = _CELL.match(text, at)
        if found is None or text[found.end() : found.end() + 1] not in ("", "\t"):
            raise _bad_quote(text, where)
        group = 2 if found[1] is None else 1
        cells.append(Cell(found[group].replace('""', '"'), *found.span(group), quoted=group == 1))
        at = found.end() + 1
    return cells


def _bad_quote(text: str, where: str) -> DataError:
    return DataError(
        "A quoted field does not end as it should.",
        where=where,
        value=shown(text),
        allowed='"…" with inner quotes doubled',
        next_step="--format tsv, if quotes are characters like others in this file",
    )


def is_quoted(lines: Sequence[str], path: str) -> bool:
    """Whether a table is csv-quoted: every ``"`` fits, and some field needed its quotes or all fields have them.

    A TAB or LF between quotes shows nothing where every line has as many TABs as the others: they part columns there.
    """
    if not any('"' in line for line in lines):
        return False
    try:
        cells = [cell for row in rows(lines, True, path) for cell in row.cells]
    except DataError:
        return False
    marked = [cell for cell in cells if cell.quoted]
    held = any(mark in cell.text for cell in marked for mark in "\t\n")
    even = len({line.count("\t") for line in lines if not is_blank(line)}) == 1
    if len(marked) == len(cells) or (held and even):
        return len(marked) == len(cells)
    return held or any('"' in cell.text for cell in marked)


def columns(first: Row, where: str) -> Columns:
    """Columns from the first row: its names if it is a header, else premise, hypothesis and perhaps label.

    Raises:
        DataError: neither a header nor two or three columns.
    """
    names = [cell.text.strip().lower() for cell in first.cells]
    premise, hypothesis = _find(names, PREMISE), _find(names, HYPOTHESIS)
    if premise is not None and hypothesis is not None:
        label, lang, id_ = (_find(names, wanted) for wanted in (LABEL, LANG, ID))
        return Columns(len(names), premise, hypothesis, label, lang, id_, header=True)
    if len(names) not in (2, 3):
        raise DataError(
            f"This is no layout of sentence pairs that is known here: {len(names)} columns without a header.",
            where=where,
            value=shown(first.text),
            allowed="premise TAB hypothesis [TAB label]; a header with sentence1 and sentence2; JSON lines",
        )
    return Columns(len(names), 0, 1, 2 if len(names) == 3 else None)


def _find(names: Sequence[str], wanted: Sequence[str]) -> Optional[int]:
    for name in wanted:
        for place, given in enumerate(names):
            if given == name or (given.startswith(name) and _OF_LANGUAGE.fullmatch(given[len(name) :])):
                return place
    return None
