"""Files with one JSON object a line: MasakhaNER-X (text and byte spans) and our own prepared form (words and labels).

Text with spans is cut into words without looking at the labels, so that gold and predictions have the same words: at
blanks, and before and after every punctuation mark and symbol, except an apostrophe between letters and a full stop or
comma between digits. Repairs counted: ``span-widened`` (a span that starts or ends inside a word takes the whole word),
``span-overlap`` (a span on words that an earlier one holds is left out).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Optional

import regex

from fairseq_interference.data.readers.columns import ReadsLabels
from fairseq_interference.data.readers.entities import iob2_entities
from fairseq_interference.data.readers.labels import OUTSIDE
from fairseq_interference.data.readers.lines import bare, is_blank, shown
from fairseq_interference.data.readers.sentence import LabelFile, Sentence
from fairseq_interference.errors import DataError

_WORD = regex.compile(r"(?:(?<=\p{L}\p{M}*)['’](?=\p{L})|(?<=\p{N})[.,](?=\p{N})|[^\s\p{P}\p{S}])+|[\p{P}\p{S}]")


class SpanSource:
    """A record with ``text`` and ``spans``; offsets are bytes of UTF-8. Written spans are strict entities of IOB2."""

    def __init__(self, line: str, record: dict[str, Any], words: Sequence[tuple[int, int]]) -> None:
        self.line = line
        self.record = record
        self.words = words

    def render(self, labels: Optional[Sequence[str]]) -> list[str]:
        if labels is None:
            return [self.line]
        spans = []
        for kind, first, last in iob2_entities(labels):
            spans.append({"start_byte": self.words[first][0], "limit_byte": self.words[last][1], "label": kind})
        encoded = self.record["text"].encode()
        texts = [f"{s['label']}: {encoded[s['start_byte'] : s['limit_byte']].decode()}" for s in spans]
        record = {**self.record, "spans": spans}
        if "target" in record:
            record["target"] = " $$ ".join(texts)
        return [json.dumps(record) + ("\r" if self.line.endswith("\r") else "")]


class PreparedSource:
    """A record with ``words`` and ``labels``."""

    def __init__(self, line: str, record: dict[str, Any]) -> None:
        self.line = line
        self.record = record

    def render(self, labels: Optional[Sequence[str]]) -> list[str]:
        if labels is None:
            return [self.line]
        return [json.dumps({**self.record, "labels": list(labels)}, ensure_ascii=False)]


def read_json_lines(lines: Sequence[str], format: str, labels: ReadsLabels) -> LabelFile:
    """Sentences of a file of JSON lines.

    Args:
        lines: of :func:`readers.lines.read_lines`.
        format: one of ``layouts.JSON_FORMATS``.
        labels: reads the labels.

    Raises:
        DataError: broken JSON, missing keys, offsets outside the text or inside a character; names file:line.
    """
    path = labels.path
    reader = _SpanReader(labels) if format == "masakhanerx" else _PreparedReader(labels)
    sentences: list[Sentence] = []
    before: list[str] = []
    for number, line in enumerate(lines, 1):
        if is_blank(bare(line, number)):
            before.append(line)
            continue
        sentence = reader.sentence(line, load_object(bare(line, number), f"{path}:{number}"), number)
        sentence.before, before = before, []
        sentences.append(sentence)
    if not sentences:
        raise DataError("The file has no sentences.", where=path)
    found = LabelFile(sentences, path, format, dict(labels.repairs))
    found.dropped = dict(labels.dropped)
    found.tail = before
    return found


def load_object(line: str, where: str) -> dict[str, Any]:
    """The JSON object of a line.

    Raises:
        DataError: broken JSON, half a surrogate pair, or something else than an object.
    """
    try:
        record = json.loads(line)
        if "\\ud" in line.lower():
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise DataError("Half a surrogate pair is no character.", where=where, value=shown(line)) from None
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise DataError("This line is not JSON.", where=where, value=str(error)) from None
    if not isinstance(record, dict):
        raise DataError("This line is not a JSON object.", where=where, value=shown(line))
    return record


class _PreparedReader:
    def __init__(self, labels: ReadsLabels) -> None:
        self.labels = labels

    def sentence(self, line: str, record: dict[str, Any], number: int) -> Sentence:
        words: Any = record.get("words")
        raw: Any = record.get("labels")
        where = f"{self.labels.path}:{number}"
        if not _texts(words) or not (raw is None or _texts(raw)):
            raise DataError("A prepared sentence needs words and labels.", where=where, value=shown(line))
        if raw is not None and len(raw) != len(words):
            raise DataError(
                "Words and labels differ in number.", where=where, value=f"{len(words)} words, {len(raw)} labels"
            )
        lines = [number] * len(words)
        labels = [] if raw is None else self.labels.sentence(raw, lines)
        return Sentence(words, labels, number, record.get("lang"), lines, raw or [], [], PreparedSource(line, record))


class _SpanReader:
    def __init__(self, labels: ReadsLabels) -> None:
        self.labels = labels

    def sentence(self, line: str, record: dict[str, Any], number: int) -> Sentence:
        where = f"{self.labels.path}:{number}"
        text, spans = record.get("text"), record.get("spans")
        if not isinstance(text, str) or not isinstance(spans, list):
            raise DataError("A record needs a text and a list of spans.", where=where, value=shown(line))
        starts = _byte_offsets(text)
        found = [match.span() for match in _WORD.finditer(text)]
        words = [text[start:end] for start, end in found]
        offsets = [(starts[start], starts[end]) for start, end in found]
        raw = self._raw_labels(spans, offsets, frozenset(starts), where)
        lines = [number] * len(words)
        source = SpanSource(line, record, offsets)
        return Sentence(words, self.labels.sentence(raw, lines), number, None, lines, raw, [], source)

    def _raw_labels(
        self, spans: list[Any], words: Sequence[tuple[int, int]], boundaries: frozenset[int], where: str
    ) -> list[str]:
        labels = [OUTSIDE] * len(words)
        for span in spans:
            start, limit, kind = _span(span, where)
            if start not in boundaries or limit not in boundaries or start >= limit:
                raise DataError(
                    "A span ends outside the text or inside a character.",
                    where=where,
                    value=f"{start}–{limit}",
                    allowed=f"byte offsets of UTF-8, 0–{max(boundaries)}",
                )
            inside = [number for number, (first, last) in enumerate(words) if first < limit and last > start]
            if not inside or any(labels[number] != OUTSIDE for number in inside):
                self._note("span-overlap", where)
                continue
            if (words[inside[0]][0], words[inside[-1]][1]) != (start, limit):
                self._note("span-widened", where)
            for number in inside:
                labels[number] = f"{'B' if number == inside[0] else 'I'}-{kind}"
        return labels

    def _note(self, repair: str, where: str) -> None:
        if not self.labels.repair:
            raise DataError(f"A span would need a repair ({repair}), and repairs are off.", where=where)
        self.labels.repairs[repair] += 1


def _span(span: Any, where: str) -> tuple[int, int, str]:
    if isinstance(span, dict):
        start, limit, kind = (span.get(key) for key in ("start_byte", "limit_byte", "label"))
        if isinstance(start, int) and isinstance(limit, int) and isinstance(kind, str):
            return start, limit, kind
    raise DataError(
        "A span needs start_byte, limit_byte and label.",
        where=where,
        value=shown(str(span)),
        allowed="two numbers and a text",
    )


def _byte_offsets(text: str) -> list[int]:
    """Byte offset of every character of ``text``, and of its end."""
    offsets = [0]
    for character in text:
        offsets.append(offsets[-1] + len(character.encode()))
    return offsets


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
