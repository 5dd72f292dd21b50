"""The column layouts of label files, and telling them apart by content."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional, Union

from fairseq_interference.data.readers.lines import bare, is_blank, shown
from fairseq_interference.errors import DataError, UsageError

LRM = "\u200e"
INDEX = re.compile(r"\d+")
NOT_A_WORD = re.compile(r"\d+-\d+|\d+\.\d+")  # multiword ranges and empty nodes of CoNLL-U
_PREFIX = re.compile(r"([a-z][a-z0-9_-]{1,15}):")


@dataclass(frozen=True)
class Layout:
    """Where word and label stand in a line.

    Args:
        name: what ``--format`` calls it.
        separator: TAB, or blank (runs of blanks count as one).
        columns: cells of a line; 0: two or more, the same number in the whole file.
        word: column of the word.
        label: column of the label, -1 is the last; None: the file has no labels.
        first_index: number of the first word in column 0; None: there is no such column.
        comments: lines that start with ``# `` (or are ``#``) and are not tokens.
        header: the first line, where there is one.
        sentence_id: column of a sentence number that changes between sentences.
        joined: labels have no hyphen.
        prefixed: words carry ``lang:``.
        marked: words carry a left-to-right mark.
        newline: end of a line, without LF, where a file is written from nothing.
        gap: the line between two sentences, where a file is written from nothing.
    """

    name: str
    separator: str = "\t"
    columns: int = 2
    word: int = 0
    label: Optional[int] = -1
    first_index: Optional[int] = None
    comments: bool = False
    header: str = ""
    sentence_id: Optional[int] = None
    joined: bool = False
    prefixed: bool = False
    marked: bool = False
    newline: str = ""
    gap: str = ""


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("panx", prefixed=True),
        Layout("conll-tab"),
        Layout("conll-blank", separator=" ", columns=0),
        Layout("indexed", columns=3, word=1, first_index=0),
        Layout("uner", columns=5, word=1, label=2, first_index=1, comments=True),
        Layout("mahaner", columns=3, label=1, header="words\tlabels\tsentence_id", sentence_id=2, joined=True),
        Layout("newsfane", marked=True, newline="\r", gap="\t"),
        Layout("words", columns=1, label=None),
    )
}
CONLLU = Layout("conllu", columns=10, word=1, label=3, first_index=1, comments=True)  # of tags alone, not of entities
JSON_FORMATS = ("masakhanerx", "prepared")
# Corpora by name, for --format
ALIASES = {
    "iob2": "uner",
    "wikineural": "indexed",
    "wikigold": "indexed",
    "wikiann": "indexed",
    "masakhaner": "conll-blank",
    "il-ner": "conll-tab",
    "hiner": "conll-tab",
}
FORMATS = ("auto", "conll", *LAYOUTS, *JSON_FORMATS, *ALIASES)


def resolve(format: str, lines: Sequence[str], path: Union[str, Path]) -> Union[Layout, str]:
    """The layout of a file: what ``format`` names, or what the lines show.

    Returns:
        A :class:`Layout`, or one of ``JSON_FORMATS``.

    Raises:
        UsageError: unknown format.
        DataError: ``auto``, and no layout fits.
    """
    name = ALIASES.get(format, format)
    if name in JSON_FORMATS:
        return name
    if name == "conll":
        name = "conll-tab" if any("\t" in line for line in lines if line.strip()) else "conll-blank"
    if name in LAYOUTS:
        return LAYOUTS[name]
    if name != "auto":
        raise UsageError("Unknown format.", where="--format", value=format, allowed=", ".join(FORMATS))
    return detect(lines, path)


def detect(lines: Sequence[str], path: Union[str, Path]) -> Union[Layout, str]:
    """Tell the layout from all lines of a file.

    Raises:
        DataError: no layout fits; says what was seen, where, and what is allowed.
    """
    texts = [(number, bare(line, number)) for number, line in enumerate(lines, 1)]
    texts = [(number, text) for number, text in texts if not is_blank(text)]
    if not texts:
        raise DataError("The file has no lines with content.", where=path)
    number, first = texts[0]
    if first.startswith("{"):
        return _detect_json(first, f"{path}:{number}")
    if first == LAYOUTS["mahaner"].header:
        return LAYOUTS["mahaner"]
    tabbed = [item for item in texts if "\t" in item[1]]
    others = sum("\t" not in text and not text.startswith("#") for _, text in texts)
    return _detect_tabs(tabbed, path) if tabbed and len(tabbed) >= others else _detect_blanks(texts, path)


def _detect_json(first: str, where: str) -> str:
    if '"words"' in first:
        return "prepared"
    if '"text"' in first and '"spans"' in first:
        return "masakhanerx"
    raise DataError(
        "These JSON lines are of no known kind.",
        where=where,
        value=shown(first),
        allowed="text and spans (masakhanerx), or words and labels (prepared)",
    )


def _detect_tabs(texts: list[tuple[int, str]], path: Union[str, Path]) -> Layout:
    counts = Counter(text.count("\t") + 1 for _, text in texts)
    columns = counts.most_common(1)[0][0]
    number, line = next(item for item in texts if item[1].count("\t") + 1 == columns)
    indexed = all(INDEX.match(text) for _, text in texts)
    if columns == 2:
        return _two_columns([text.partition("\t")[0] for _, text in texts])
    if columns == 3 and indexed:
        return replace(LAYOUTS["indexed"], first_index=int(INDEX.match(line)[0]))  # type: ignore[index]
    if columns == 5 and indexed:
        return LAYOUTS["uner"]
    seen = "CoNLL-U, which has no column for entities" if columns == 10 and indexed else f"{columns} columns"
    raise _unknown(seen, line, f"{path}:{number}")


def _two_columns(words: list[str]) -> Layout:
    found = _PREFIX.match(words[0])
    if found and all(word.startswith(found[0]) for word in words):
        return LAYOUTS["panx"]
    if 2 * sum(word.startswith(LRM) for word in words) > len(words):
        return LAYOUTS["newsfane"]
    return LAYOUTS["conll-tab"]


def _detect_blanks(texts: list[tuple[int, str]], path: Union[str, Path]) -> Layout:
    counts = Counter(len(list(filter(None, text.split(" ")))) for _, text in texts)
    columns, _ = counts.most_common(1)[0]
    number, line = texts[0]
    if columns == 1 and len(counts) == 1:
        return LAYOUTS["words"]
    if columns == 1:
        number, line = next(item for item in texts if " " in item[1].strip(" "))
        raise _unknown("lines with one column and lines with more", line, f"{path}:{number}")
    return replace(LAYOUTS["conll-blank"], columns=columns)


def _unknown(seen: str, line: str, where: str) -> DataError:
    return DataError(
        f"This is no layout that is known here: {seen}.",
        where=where,
        value=shown(line),
        allowed="word and label with TAB or blank; index, word, label; UNER's five columns; "
        "words, labels, sentence_id; JSON lines",
        next_step="name the layout with --format: " + ", ".join(FORMATS),
    )
