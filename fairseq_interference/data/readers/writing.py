"""Sentences with other labels, back in the layout of their corpus or in another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Protocol

from fairseq_interference.data.readers.columns import spelled
from fairseq_interference.data.readers.layouts import ALIASES, LAYOUTS, LRM, Layout
from fairseq_interference.data.readers.lines import BOM, PathLike, is_blank
from fairseq_interference.data.readers.sentence import LabelFile, Sentence
from fairseq_interference.errors import DataError, ScoringError, UsageError
from fairseq_interference.stages import write_text


class HasWords(Protocol):
    """What can be written from nothing: a sentence of a reader, or any other object with words."""

    @property
    def words(self) -> Sequence[str]: ...


def write(
    path: PathLike,
    sentences: Sequence[HasWords],
    labels: Optional[Sequence[Sequence[str]]] = None,
    format: Optional[str] = None,
    lang: Optional[str] = None,
) -> None:
    """Write sentences with other labels, words exactly as they were.

    Sentences of a reader go back into the layout that they came from, every other byte as it was. ``format`` asks
    for another layout, and is needed for sentences that did not come from a file.

    Args:
        sentences: what a reader gave, some of it, or other objects with ``words``.
        labels: one list per sentence, ``O``, ``B-X``, ``I-X`` or tags; None writes the labels of the file, unrepaired.
        format: layout to write; None keeps the one that was read.
        lang: prefix of the words in the ``panx`` layout.

    Raises:
        ScoringError: numbers of labels and words differ; names the sentence.
        UsageError: no layout known, or one that cannot be written from words.
        DataError: a word that the layout cannot hold.
    """
    write_text(path, format_sentences(sentences, labels, format, lang))


def format_sentences(
    sentences: Sequence[HasWords],
    labels: Optional[Sequence[Sequence[str]]] = None,
    format: Optional[str] = None,
    lang: Optional[str] = None,
) -> str:
    """The text that :func:`write` writes."""
    if labels is not None:
        _check_lengths(sentences, labels)
    own = isinstance(sentences, LabelFile) and sentences.format
    if format is None or (own and ALIASES.get(format, format) == own):
        return _verbatim(sentences, labels)
    wanted = {"conll": "conll-tab"}.get(format, ALIASES.get(format, format))
    if wanted not in LAYOUTS:
        raise UsageError(
            "This layout cannot be written from words alone.", where="format", value=format, allowed=", ".join(LAYOUTS)
        )
    given = labels if labels is not None else [getattr(sentence, "labels", ()) for sentence in sentences]
    return _from_words(sentences, given, LAYOUTS[wanted], lang)


def _check_lengths(sentences: Sequence[HasWords], labels: Sequence[Sequence[str]]) -> None:
    if len(sentences) != len(labels):
        raise ScoringError(
            "Sentences and predictions differ in number.",
            value=f"{len(sentences)} sentences, {len(labels)} predictions",
        )
    for number, (sentence, given) in enumerate(zip(sentences, labels), 1):
        if len(sentence.words) != len(given):
            raise ScoringError(
                "Words and labels differ in number.",
                where=f"sentence {number}",
                value=f"{len(sentence.words)} words, {len(given)} labels: {' '.join(sentence.words[:12])}",
            )


def _verbatim(sentences: Sequence[HasWords], labels: Optional[Sequence[Sequence[str]]]) -> str:
    lines: list[str] = []
    for number, sentence in enumerate(sentences):
        if not isinstance(sentence, Sentence) or sentence.source is None:
            raise UsageError("These sentences come from no file: say which layout to write.", where="format")
        chosen = number == 0 and not isinstance(sentences, LabelFile)  # what separated it from the one before is gone
        lines += [line for line in sentence.before if not (chosen and is_blank(line.rstrip("\r")))]
        lines += sentence.source.render(None if labels is None else labels[number])
    lines += sentences.tail if isinstance(sentences, LabelFile) else ["", ""]
    return "\n".join(lines)


def _from_words(
    sentences: Sequence[HasWords], labels: Sequence[Sequence[str]], layout: Layout, lang: Optional[str]
) -> str:
    lines = [layout.header] if layout.header else []
    for number, (sentence, given) in enumerate(zip(sentences, labels), 1):
        prefix = ""
        if layout.prefixed:
            prefix = f"{lang or getattr(sentence, 'lang', None) or _no_language()}:"
        if layout.label is not None and len(given) != len(sentence.words):
            raise ScoringError("A sentence has no labels.", where=f"sentence {number}")
        for place, word in enumerate(sentence.words):
            _check_word(word, layout, number)
            label = spelled(given[place], layout) if layout.label is not None else ""
            lines.append("".join((_line(layout, place, prefix + word, label, number), layout.newline)))
        if layout.sentence_id is None:
            lines.append(layout.gap + layout.newline)
    return (BOM if layout.marked else "") + "\n".join(lines) + "\n"


def _line(layout: Layout, place: int, word: str, label: str, sentence: int) -> str:
    if layout.label is None:
        return word
    cells = ["-"] * (layout.columns or 2)
    cells[layout.word] = f"{LRM}{word}" if layout.marked else word
    cells[layout.label] = label
    if layout.first_index is not None:
        cells[0] = str(place + layout.first_index)
    if layout.sentence_id is not None:
        cells[layout.sentence_id] = f"{float(sentence)}"
    return layout.separator.join(cells)


def _check_word(word: str, layout: Layout, sentence: int) -> None:
    cut = any(mark in word for mark in ("\n", "\t", layout.separator)) or word != word.strip(" \r")
    if cut or (not word and layout.separator == " "):
        raise DataError(f"The layout {layout.name} cannot hold this word.", where=f"sentence {sentence}", value=word)


def _no_language() -> str:
    raise UsageError("The panx layout needs the language of the words.", where="lang")
