"""Parts of speech: read the official file of a treebank, write predictions in its own layout.

Formats: ``conllu``, ``conll-tab`` (XTREME's udpos), ``conll-blank`` (MasakhaPOS), ``words`` (test files without tags),
``prepared`` and ``auto`` (told by content). The tags are the 17 of Universal Dependencies 2
(https://universaldependencies.org/u/pos/). Words are the syntactic words: a range ``1-2`` and an empty node ``8.1`` are
kept in the file and are no words. ``_`` is no tag: such a word is predicted and never scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Optional, Union

from fairseq_interference.data.prepared import NO_LABEL
from fairseq_interference.data.readers.columns import read_columns
from fairseq_interference.data.readers.json_lines import read_json_lines
from fairseq_interference.data.readers.labels import parse_pairs
from fairseq_interference.data.readers.layouts import CONLLU, LAYOUTS, Layout, detect
from fairseq_interference.data.readers.lines import PathLike, bare, is_blank, read_lines
from fairseq_interference.data.readers.sentence import LabelFile, Sentence
from fairseq_interference.data.readers.writing import format_sentences, write
from fairseq_interference.errors import DataError, UsageError

__all__ = ["FORMATS", "TAGS", "Sentence", "TagReader", "format_sentences", "parse_tag_map", "read", "write"]

_OPEN = ("ADJ", "ADV", "INTJ", "NOUN", "PROPN", "VERB")
_CLOSED = ("ADP", "AUX", "CCONJ", "DET", "NUM", "PART", "PRON", "SCONJ")
TAGS = tuple(sorted((*_OPEN, *_CLOSED, "PUNCT", "SYM", "X")))
FORMATS = ("auto", "conllu", "conll-tab", "conll-blank", "words", "prepared")


def parse_tag_map(text: str) -> dict[str, str]:
    """``CONJ=CCONJ,adj=ADJ`` to a map from the tags of a file; ``_`` on the right leaves words without a tag.

    Raises:
        UsageError: malformed, or a tag on the right that is none of the 17.
    """
    allowed = f"TAG=TAG,…; on the right {' '.join(TAGS)} or {NO_LABEL}"
    found = parse_pairs(text, "--tag-map", allowed)
    for source, target in found.items():
        if target not in (*TAGS, NO_LABEL):
            raise UsageError("This is no tag.", where="--tag-map", value=f"{source}={target}", allowed=allowed)
    return found


class TagReader:
    """Reads the tags of one file; see ``columns.ReadsLabels``.

    Args:
        path: what errors name.
        tag_map: tag of the file -> one of ``TAGS`` or ``_``.
        repair: for the layout; a tag is never repaired.
    """

    alone: Optional[str] = None

    def __init__(self, path: PathLike, tag_map: Optional[Mapping[str, str]] = None, *, repair: bool = True) -> None:
        self.path = str(path)
        self.map = dict(tag_map or {})
        self.repair = repair
        self.repairs: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    def sentence(self, raws: Sequence[str], lines: Sequence[int]) -> list[str]:
        """Tags of one sentence.

        Raises:
            DataError: a tag that is none of the 17 and is not mapped; names file:line.
        """
        return [self._tag(raw, line) for raw, line in zip(raws, lines)]

    def _tag(self, raw: str, line: int) -> str:
        tag = self.map.get(raw, raw)
        if tag in TAGS or tag == NO_LABEL:
            if tag == NO_LABEL != raw:
                self.dropped[raw] += 1
            return tag
        alike = {"CONJ": "CCONJ"}.get(raw.upper(), raw.upper())  # the name that UD 1 had
        raise DataError(
            "This is none of the 17 tags of Universal Dependencies 2.",
            where=f"{self.path}:{line}",
            value=raw,
            allowed=" ".join(TAGS),
            next_step=f"--tag-map {raw or 'TAG'}={alike if alike in TAGS else 'X'}, if that is what it means",
        )


def read(
    path: PathLike, format: str = "auto", *, repair: bool = True, tag_map: Optional[Mapping[str, str]] = None
) -> LabelFile:
    """Read a file of tagged words.

    Args:
        format: one of ``FORMATS``.
        repair: take odd lines by the rules of readers/columns.py and count them; False refuses them.
        tag_map: tag of the file -> one of ``TAGS``, or ``_`` for none.

    Returns:
        The sentences; one tag or ``_`` per word. A file with ``_`` alone is unlabelled.

    Raises:
        UsageError: unknown format.
        DataError: not data at all, unknown layout, a line that does not fit, a tag that is none of the 17 and not
            mapped, a file whose forms were removed; names file:line.
    """
    lines = read_lines(path)
    layout = _layout(format, lines, path)
    tags = TagReader(path, tag_map, repair=repair)
    file = read_json_lines(lines, layout, tags) if isinstance(layout, str) else read_columns(lines, layout, tags)
    if all(word == NO_LABEL for sentence in file for word in sentence.words):
        raise DataError(
            "Every form is `_`: the text was removed from this treebank.",
            where=path,
            next_step="merge the text in again, as the README of the treebank says",
        )
    if all(tag == NO_LABEL for labels in file.labels for tag in labels):
        for sentence in file:
            sentence.labels = []
        file.labelled = False
    return file


def _layout(format: str, lines: Sequence[str], path: PathLike) -> Union[Layout, str]:
    if format not in FORMATS:
        raise UsageError("Unknown format.", where="--format", value=format, allowed=", ".join(FORMATS))
    if format in ("conllu", "prepared"):
        return CONLLU if format == "conllu" else format
    if format != "auto":
        return LAYOUTS[format]
    if _is_conllu(lines):
        return CONLLU
    found = detect(lines, path)
    name = found if isinstance(found, str) else found.name
    if name not in FORMATS:
        raise DataError(
            f"This looks like {name}, a layout of named entities.",
            where=path,
            allowed=", ".join(FORMATS[1:]),
            next_step="name the layout with --format",
        )
    return found


def _is_conllu(lines: Sequence[str]) -> bool:
    """Whether the first line that is neither blank nor a comment has ten columns and starts with a digit."""
    for number, full in enumerate(lines, 1):
        line = bare(full, number)
        if not is_blank(line) and not line.startswith("#"):
            return line.count("\t") == 9 and line[:1].isdigit()
    return False
