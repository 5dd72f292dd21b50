"""Files with one word a line: columns to sentences, and back.

Repairs counted here: ``lone-O`` (see readers/labels.py), ``empty-word``, ``padded`` (blanks around a word or label in
a TAB layout), ``index-jump`` (a word number that does not follow), ``not-a-word`` (a range ``1-2`` or an empty node
``8.1``), ``left-to-right-mark`` (a mark before a word that belongs to the layout).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Optional, Protocol, Union

from fairseq_interference.data.readers.labels import OUTSIDE
from fairseq_interference.data.readers.layouts import INDEX, LRM, NOT_A_WORD, Layout
from fairseq_interference.data.readers.lines import bare, is_blank, shown
from fairseq_interference.data.readers.sentence import LabelFile, Sentence
from fairseq_interference.errors import DataError

DOCSTART = "-DOCSTART-"


class Row(NamedTuple):
    """A line around its label: ``left + label + right`` is the line. ``lone``: a single column ``O``."""

    left: str
    right: str
    lone: bool = False


class ColumnSource:
    """The lines of one sentence; lines that hold no word are kept as text."""

    def __init__(self, layout: Layout, rows: Sequence[Union[Row, str]], raw: Sequence[str]) -> None:
        self.layout = layout
        self.rows = tuple(rows)
        self.raw = raw

    def render(self, labels: Optional[Sequence[str]]) -> list[str]:
        lines = []
        written = self.raw if labels is None else [spelled(label, self.layout) for label in labels]
        given = iter(written)
        for row in self.rows:
            if isinstance(row, str):
                lines.append(row)
                continue
            label = next(given, "")
            if row.lone:
                lines.append(row.left + (f"{self.layout.separator}{label}" if label != OUTSIDE else "") + row.right)
            elif self.layout.label is None and label:
                lines.append(f"{row.left}\t{label}{row.right}")
            else:
                lines.append(row.left + label + row.right)
        return lines


def spelled(label: str, layout: Layout) -> str:
    """A label as the layout writes it."""
    return label[0] + label[2:] if layout.joined and label != OUTSIDE else label


class ReadsLabels(Protocol):
    """What makes labels of the label column.

    Attributes:
        path: the file, as errors name it.
        repair: repair what is odd and count it; False refuses it.
        repairs: repair -> how often; the repairs of the layout are counted here too.
        dropped: label -> how often a map turned it into none.
        alone: a line with this label and no word is read as a word; None: it is refused.
    """

    path: str
    repair: bool
    repairs: Counter[str]
    dropped: Counter[str]
    alone: Optional[str]

    def sentence(self, raws: Sequence[str], lines: Sequence[int]) -> list[str]:
        """Labels of one sentence from the raw ones and the lines that they stand in."""


def read_columns(lines: Sequence[str], layout: Layout, labels: ReadsLabels) -> LabelFile:
    """Sentences of a column file.

    Args:
        lines: of :func:`readers.lines.read_lines`.
        labels: reads the label column.

    Raises:
        DataError: a line that does not fit the layout, or an unreadable label; names file:line.
    """
    parser = _Parser(layout, labels)
    for number, line in enumerate(lines, 1):
        parser.add(number, line)
    return parser.finish()


class _Parser:
    def __init__(self, layout: Layout, labels: ReadsLabels) -> None:
        self.path = labels.path
        self.layout = layout
        self.labels = labels
        self.repairs = labels.repairs
        self.columns = layout.columns
        self.sentences: list[Sentence] = []
        self.before: list[str] = []
        self.lang: Optional[str] = None
        self.number_column = ""
        self.header = layout.header
        self._clear()

    def _clear(self) -> None:
        self.words: list[str] = []
        self.raw: list[str] = []
        self.lines: list[int] = []
        self.rows: list[Union[Row, str]] = []
        self.index = self.layout.first_index

    def add(self, number: int, full: str) -> None:
        line = bare(full, number)
        if is_blank(line):
            self._flush()
            self.before.append(full)
        elif self.header and number == 1:
            if line != self.header:
                raise self._refusal(number, line, f"The header {self.header!r} is missing.")
            self.before.append(full)
        elif self._is_comment(line):
            (self.rows or self.before).append(full)
        else:
            self._token(number, full, line)

    def finish(self) -> LabelFile:
        self._flush()
        if not self.sentences:
            raise DataError("The file has no sentences.", where=self.path)
        found = LabelFile(self.sentences, self.path, self.layout.name, dict(self.repairs))
        found.dropped = dict(self.labels.dropped)
        found.tail = self.before
        return found

    def _flush(self) -> None:
        if not self.words:
            self.before += [row for row in self.rows if isinstance(row, str)]
            self._clear()
            return
        labels = self.labels.sentence(self.raw, self.lines) if self.layout.label is not None else []
        source = ColumnSource(self.layout, self.rows, self.raw)
        self.sentences.append(
            Sentence(self.words, labels, self.lines[0], self.lang, self.lines, self.raw, self.before, source)
        )
        self.before = []
        self._clear()

    def _is_comment(self, line: str) -> bool:
        if self.layout.comments:
            return line.startswith("#") and ("\t" not in line or self.layout.first_index is not None)
        return line.startswith(DOCSTART) and line[len(DOCSTART) :].lstrip(" \t:") in ("", "O", "-X- O O", "-X- -X- O")

    def _token(self, number: int, full: str, line: str) -> None:
        if line == self.labels.alone and self.layout.label is not None and self.layout.columns in (0, 2):
            self._note(f"lone-{line}", number, line)
            at = full.index(line) + len(line)
            self._add(number, line, line, Row(full[:at], full[at:], lone=True))
            return
        cells, starts = self._cells(number, line)
        layout = self.layout
        if layout.first_index is not None and not self._count(cells[0], number, line):
            self.rows.append(full)
            return
        if layout.sentence_id is not None and cells[layout.sentence_id] != self.number_column:
            self._flush()
            self.number_column = cells[layout.sentence_id]
        offset = 1 if len(full) > len(line) and full.startswith("\ufeff") and number == 1 else 0
        word = self._word(cells[layout.word], number, line)
        if layout.label is None:
            at = offset + len(line)
            self._add(number, word, "", Row(full[:at], full[at:]))
            return
        label = cells[layout.label]
        at = offset + starts[layout.label]
        if label != label.strip(" "):
            self._note("padded", number, line)
            at += len(label) - len(label.lstrip(" "))
            label = label.strip(" ")
        self._add(number, word, label, Row(full[:at], full[at + len(label) :]))

    def _add(self, number: int, word: str, label: str, row: Row) -> None:
        self.words.append(word)
        self.raw.append(label)
        self.lines.append(number)
        self.rows.append(row)

    def _cells(self, number: int, line: str) -> tuple[list[str], list[int]]:
        """Cells of a line and the columns of text that they start in."""
        separator = self.layout.separator
        parts = line.split(separator)
        cells, starts, at = [], [], 0
        for part in parts:
            if part or separator == "\t":
                cells.append(part)
                starts.append(at)
            at += len(part) + 1
        if self.columns == 0 and len(cells) >= 2:
            self.columns = len(cells)
        if len(cells) != self.columns:
            raise self._refusal(number, line, f"This line has {len(cells)} columns, not {self.columns or '2 or more'}.")
        return cells, starts

    def _count(self, cell: str, number: int, line: str) -> bool:
        """Whether the line is a word; its number must follow the one before."""
        if NOT_A_WORD.fullmatch(cell):
            self.repairs["not-a-word"] += 1
            return False
        if not INDEX.fullmatch(cell):
            raise self._refusal(number, line, "Column 1 is not the number of a word.")
        if self.index is not None and int(cell) != self.index:
            self._note("index-jump", number, line)
        self.index = int(cell) + 1
        return True

    def _word(self, word: str, number: int, line: str) -> str:
        if self.layout.prefixed:
            lang, colon, word = word.partition(":")
            if not colon or lang != (self.lang or lang):
                raise self._refusal(number, line, f"This word does not start with `{self.lang or 'LANG'}:`.")
            self.lang = lang
        if self.layout.marked and len(word) > 1 and word.startswith(LRM):
            word = word[1:]
            self.repairs["left-to-right-mark"] += 1
        if word != word.strip(" "):
            self._note("padded", number, line)
            word = word.strip(" ")
        if not word:
            self._note("empty-word", number, line)
        return word

    def _note(self, repair: str, number: int, line: str) -> None:
        if not self.labels.repair:
            raise self._refusal(number, line, f"This line would need a repair ({repair}), and repairs are off.")
        self.repairs[repair] += 1

    def _refusal(self, number: int, line: str, what: str) -> DataError:
        return DataError(
            what,
            where=f"{self.path}:{number}",
            value=shown(line),
            allowed=f"lines of layout {self.layout.name}",
            next_step="name another layout with --format, or mend the file",
        )
