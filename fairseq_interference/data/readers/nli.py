"""Sentence pairs: read the official file of a corpus, write predictions in its own layout.

Formats: ``tsv`` (XNLI, also with a header: XNLI 1.0, MultiNLI, myXNLI), ``tsv-quoted`` (PAWS-X as XTREME has it),
``jsonl`` (OCNLI, MultiNLI, XNLI 1.0, our own prepared form) and ``auto`` (told by content). Any label set will do;
its order is fixed, never that of a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from fairseq_interference.data.readers import tables
from fairseq_interference.data.readers.json_lines import load_object
from fairseq_interference.data.readers.lines import PathLike, bare, is_blank, read_lines, shown
from fairseq_interference.data.readers.pairs import (
    LABEL_SETS,
    NO_MAJORITY,
    Pair,
    PairFile,
    format_pairs,
    set_labels,
    write,
)
from fairseq_interference.errors import DataError, UsageError

__all__ = ["FORMATS", "LABEL_SETS", "NO_MAJORITY", "Pair", "PairFile"]
__all__ += ["format_pairs", "read", "write"]

FORMATS = ("auto", "tsv", "tsv-quoted", "jsonl")
_ABSENT = object()
_STYLES: tuple[dict[str, Any], ...] = tuple(
    {"ensure_ascii": escaped, "separators": separators}
    for escaped in (False, True)
    for separators in ((", ", ": "), (",", ":"))
)


def read(
    path: PathLike,
    format: str = "auto",
    *,
    lang: Optional[str] = None,
    labels: Sequence[str] = (),
    label_map: Optional[Mapping[str, str]] = None,
    repair: bool = True,
) -> PairFile:
    """Read a file of sentence pairs.

    Args:
        format: one of ``FORMATS``.
        lang: which language to take from a file that says the language of each pair.
        labels: the label set in the order of its ids; empty takes the one of ``LABEL_SETS`` that the file uses.
        label_map: label of the file -> label of the set, or ``-`` for none.
        repair: count empty sentences; False refuses them.

    Returns:
        The pairs; a label is None where the file has none or has ``-``. A file without labels is ``labelled = False``.

    Raises:
        UsageError: unknown format.
        DataError: not data at all, unknown layout, a line that does not fit, a label outside the set; names file:line.
    """
    if format not in FORMATS:
        raise UsageError("Unknown format.", where="--format", value=format, allowed=", ".join(FORMATS))
    lines = read_lines(path)
    last = max((number for number, line in enumerate(lines, 1) if not is_blank(bare(line, number))), default=0)
    body, tail = lines[:last], lines[last:]
    found = _detect(body, str(path)) if format == "auto" and body else format
    file, langs = (_read_objects if found == "jsonl" else _read_table)(body, str(path), found)
    if not file:
        raise DataError("The file has no pairs.", where=path)
    file = _of_language(file, langs, lang)
    file.tail = tail
    _count_empty(file, repair)
    set_labels(file, labels, label_map)
    return file


def _detect(lines: Sequence[str], path: str) -> str:
    number, first = next((i, text) for i, line in enumerate(lines, 1) if not is_blank(text := bare(line, i)))
    if first.startswith("{"):
        return "jsonl"
    if "\t" not in first:
        raise DataError(
            "This is no layout of sentence pairs that is known here.",
            where=f"{path}:{number}",
            value=shown(first),
            allowed="premise TAB hypothesis [TAB label]; a header with sentence1 and sentence2; JSON lines",
        )
    return "tsv-quoted" if tables.is_quoted(lines, path) else "tsv"


def _read_table(lines: Sequence[str], path: str, format: str) -> tuple[PairFile, list[Optional[str]]]:
    """Pairs, and the language of each where the file says it."""
    file = PairFile([], path, format)
    langs: list[Optional[str]] = []
    found = tables.rows(lines, format == "tsv-quoted", path)
    first = next(found, None)
    if first is None:
        return file, langs
    columns = tables.columns(first, f"{path}:{first.line}")
    if columns.header:
        file.header = list(lines[: first.text.count("\n") + 1])
    for row in found if columns.header else [first, *found]:
        if len(row.cells) != columns.width:
            raise DataError(
                f"This line has {len(row.cells)} columns, not {columns.width}.",
                where=f"{path}:{row.line}",
                value=shown(row.text),
                next_step="mend the file, or name the layout where the data is prepared (--format): "
                + ", ".join(FORMATS),
            )
        texts = [cell.text for cell in row.cells]
        label, lang, own = (None if at is None else texts[at] for at in (columns.label, columns.lang, columns.id))
        source = tables.TableSource(row, columns.label)
        file.append(Pair(texts[columns.premise], texts[columns.hypothesis], None, row.line, own, label, source))
        langs.append(lang)
    return file, langs


class ObjectSource:
    """A JSON object; written in the style that it was read in."""

    def __init__(self, line: str, record: dict[str, Any], key: str) -> None:
        self.line = line
        self.record = record
        self.key = key

    def render(self, label: Optional[str]) -> str:
        own = self.record.get(self.key)
        if label is None or (own is not None and label == str(own)):
            return self.line
        text = self.line.strip("\ufeff\r")
        style = next((style for style in _STYLES if json.dumps(self.record, **style) == text), _STYLES[0])
        value: Union[str, int] = int(label) if isinstance(own, int) and label.isdecimal() else label
        return self.line.replace(text, json.dumps({**self.record, self.key: value}, **style), 1)


def _read_objects(lines: Sequence[str], path: str, format: str) -> tuple[PairFile, list[Optional[str]]]:
    """Pairs, and the language of each where the file says it."""
    file = PairFile([], path, format)
    langs: list[Optional[str]] = []
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        record = load_object(bare(line, number), where)
        texts = [_value(record, names) for names in (tables.PREMISE, tables.HYPOTHESIS)]
        if not all(isinstance(text, str) for text in texts):
            raise _no_pair(record, line, where)
        key = _key(record, tables.LABEL) or "label"
        raw, lang, own = record.get(key, _ABSENT), _value(record, tables.LANG), _value(record, tables.ID)
        if isinstance(raw, bool) or not (raw in (None, _ABSENT) or isinstance(raw, (str, int))):
            raise DataError("A label is a text or a number.", where=where, value=shown(str(raw)))
        source = ObjectSource(line, record, key)
        label = None if raw is _ABSENT else NO_MAJORITY if raw is None else str(raw)
        file.append(Pair(texts[0], texts[1], None, number, None if own is None else str(own), label, source))
        langs.append(None if lang is None else str(lang))
    return file, langs


def _key(record: Mapping[str, Any], names: Sequence[str]) -> Optional[str]:
    return next((key for name in names for key in record if key.lower() == name), None)


def _value(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    key = _key(record, names)
    return None if key is None else record[key]


def _no_pair(record: Mapping[str, Any], line: str, where: str) -> DataError:
    choice = "choice1" in record
    what = "This is a choice between alternatives (COPA), not a pair of sentences." if choice else "This is no pair."
    allowed = "sentence1 and sentence2, or premise and hypothesis, both texts"
    return DataError(what, where=where, value=shown(line), allowed=allowed)


def _of_language(file: PairFile, langs: Sequence[Optional[str]], lang: Optional[str]) -> PairFile:
    """The pairs of one language, where the file says whose they are."""
    there = sorted({code for code in langs if code is not None})
    if not there or there == [lang] or (lang is None and len(there) == 1):
        return file
    if lang not in there:
        raise DataError(
            "This file has no pair of this language." if lang else "This file has several languages.",
            where=file.path,
            value=lang,
            allowed=", ".join(there),
        )
    found = PairFile((pair for pair, code in zip(file, langs) if code == lang), file.path, file.format)
    found.header = file.header
    return found


def _count_empty(file: PairFile, repair: bool) -> None:
    empty = [pair for pair in file if not (pair.premise.strip() and pair.hypothesis.strip())]
    if empty and not repair:
        raise DataError("A sentence is empty, and repairs are off.", where=f"{file.path}:{empty[0].line}")
    if empty:
        file.repairs["empty-sentence"] = len(empty)
