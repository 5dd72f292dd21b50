"""Extractive question answering: read the official file of a benchmark.

Formats: ``squad`` (SQuAD 1.1 JSON: SQuAD, XQuAD, MLQA, TyDi QA gold passage), ``tydi`` (TyDi QA primary task, JSON
lines with offsets in bytes), ``prepared`` (our own form) and ``auto`` (told by content). docs/qa.md lists the oddities.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from fairseq_interference.data.readers.lines import PathLike, bare, is_blank, read_lines, shown
from fairseq_interference.data.readers.questions import Answer, QaFile, Question, character_at, locate
from fairseq_interference.errors import DataError, UsageError

__all__ = ["FORMATS", "Answer", "QaFile", "Question", "read"]

FORMATS = ("auto", "squad", "tydi", "prepared")
#: names of languages in TyDi QA -> code
TYDI_LANGUAGES = {
    **{"arabic": "ar", "bengali": "bn", "english": "en", "finnish": "fi", "indonesian": "id", "japanese": "ja"},
    **{"korean": "ko", "russian": "ru", "swahili": "sw", "telugu": "te", "thai": "th"},
}
_TYDI_ID = re.compile(r"([a-z]+)-(-?\d+)-\d+")
_MLQA_NAME = re.compile(r"context-([a-z-]+?)-question-([a-z-]+?)(?=[._]|$)")
_QUESTION_KEY = re.compile(r'"question"\s*:')


def read(path: PathLike, format: str = "auto", *, lang: Optional[str] = None, repair: bool = True) -> QaFile:
    """Read a file of questions.

    Args:
        format: one of ``FORMATS``.
        lang: code of the language of the contexts; of a file in several languages (TyDi) only its questions are taken.
            None takes all.
        repair: repair wrong offsets by the rules of :func:`~.questions.locate` and count it; False refuses them.

    Raises:
        UsageError: unknown format, or a language other than that in the file's name.
        DataError: not data at all, unknown layout, an answer that is not in its context, labelled and unlabelled
            questions mixed, no question in the language; names file:line where it can.
    """
    if format not in FORMATS:
        raise UsageError("Unknown format.", where="--format", value=format, allowed=", ".join(FORMATS))
    lines = read_lines(path)
    reader = _Reader(str(path), lang, repair)
    found = format if format != "auto" else _told_by_content(lines, str(path))
    file = {"squad": reader.squad, "tydi": reader.tydi, "prepared": reader.prepared}[found](lines)
    if not file.questions:
        others = ", ".join(f"{count} {name}" for name, count in sorted(file.others.items()))
        raise DataError("The file has no questions in this language.", where=path, value=lang, allowed=others or None)
    return file


def languages_of_name(path: PathLike) -> Optional[tuple[str, str]]:
    """(language of the contexts, of the questions) in a file name of MLQA: ``dev-context-ar-question-en.json``."""
    found = _MLQA_NAME.search(Path(path).name)
    return (found.group(1), found.group(2)) if found else None


def _told_by_content(lines: list[str], path: str) -> str:
    first = next(n for n, line in enumerate(lines, 1) if not is_blank(bare(line, n)))
    try:
        record = json.loads(bare(lines[first - 1], first))
    except (ValueError, RecursionError):
        return "squad"
    keys = set(record) if isinstance(record, dict) else set()
    if "data" in keys:
        return "squad"
    if "document_plaintext" in keys:
        return "tydi"
    if {"context", "question"} <= keys:
        return "prepared"
    predictions = {"minimal_answer", "passage_answer_index"} <= keys
    raise DataError(
        "These are predictions, not questions." if predictions else "This is no layout of question answering.",
        where=f"{path}:{first}",
        value=", ".join(sorted(keys)) or shown(lines[first - 1]),
        allowed="SQuAD 1.1 JSON, or JSON lines of the TyDi QA primary task or of the prepared form",
    )


def load(text: str, where: str) -> Any:
    """JSON, without half surrogate pairs.

    Raises:
        DataError: not JSON, or text that no UTF-8 file can hold.
    """
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise DataError("Half a surrogate pair is no character.", where=where) from None
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise DataError("This is not JSON.", where=f"{where}:{line}" if line else where, value=str(error)) from None
    return value


class _Reader:
    """Reads one file; collects what was repaired and left out."""

    def __init__(self, path: str, lang: Optional[str], repair: bool) -> None:
        self.path = path
        self.lang = lang
        self.repair = repair
        self.repairs: Counter[str] = Counter()
        self.others: Counter[str] = Counter()

    # --- SQuAD 1.1 -----------------------------------------------------------------------------------------------

    def squad(self, lines: list[str]) -> QaFile:
        text = "\n".join([bare(lines[0], 1), *lines[1:]])
        name = languages_of_name(self.path)
        if name and self.lang and name[0] != self.lang:
            raise UsageError(
                "The file's name states another language of the contexts.",
                where=self.path,
                value=self.lang,
                allowed=name[0],
            )
        entries = list(_entries(load(text, self.path), self.path))
        numbers = _question_lines(text, len(entries))
        questions = []
        for number, (place, context, entry) in zip(numbers, entries):
            where = f"{self.path}:{number} {place}" if number else f"{self.path} {place}"
            id = _id(entry, where)
            found = _TYDI_ID.fullmatch(id)
            if found and self._is_other(found.group(1)):
                continue
            answers = self._answers(entry, context, where)
            questions.append(Question(id, context, _text(entry, "question", where), answers, number))
        return self._file(questions, "squad", name[1] if name else None)

    def _answers(self, entry: dict[str, Any], context: str, where: str) -> Optional[tuple[Answer, ...]]:
        """None if there are none: no list, an empty one, or the empty texts that XTREME puts there."""
        given = entry.get("answers")
        if entry.get("is_impossible") is True:
            return ()
        if given is None:
            return None
        if not isinstance(given, list) or not all(isinstance(answer, dict) for answer in given):
            raise DataError("`answers` must be a list of objects.", where=where, value=shown(str(given)))
        texts = [_text(answer, "text", where) for answer in given]
        if not any(texts):
            return None
        return tuple(self._answer(context, answer["text"], answer.get("answer_start"), where) for answer in given)

    def _answer(self, context: str, text: str, start: Any, where: str) -> Answer:
        if not text.strip() or not isinstance(start, int) or isinstance(start, bool):
            value = f"answer_start {start!r}, text {shown(text)!r}"
            raise DataError("An answer needs a text and a number answer_start.", where=where, value=value)
        place, needed = locate(context, text, start, where)
        self._note(needed, where)
        return Answer(text, place)

    # --- TyDi QA, primary task -----------------------------------------------------------------------------------

    def tydi(self, lines: list[str]) -> QaFile:
        questions = []
        for number, record in self._records(lines):
            where = f"{self.path}:{number}"
            if self._is_other(_text(record, "language", where)):
                continue
            context = _text(record, "document_plaintext", where)
            answers = self._minimal_answers(record.get("annotations"), context, where)
            id = str(record.get("example_id", number))
            questions.append(Question(id, context, _text(record, "question_text", where), answers, number))
        return self._file(questions, "tydi", None)

    def _minimal_answers(self, annotations: Any, context: str, where: str) -> Optional[tuple[Answer, ...]]:
        if annotations is None or annotations == []:
            return None
        found = []
        for annotation in annotations if isinstance(annotations, list) else [None]:
            minimal = annotation.get("minimal_answer") if isinstance(annotation, dict) else None
            bounds: list[Any] = [None]
            if isinstance(minimal, dict):
                bounds = [minimal.get(f"plaintext_{end}_byte") for end in ("start", "end")]
            if not all(isinstance(bound, int) for bound in bounds):
                raise DataError("An annotation needs a minimal answer.", where=where, value=shown(str(annotation)))
            if bounds == [-1, -1]:
                continue
            start, end = (character_at(context, bound) for bound in bounds)
            if start is None or end is None or start >= end:
                size = len(context.encode())
                raise DataError(
                    "A minimal answer is empty, ends outside the document or inside a character.",
                    where=where,
                    value="–".join(map(str, bounds)),
                    allowed=f"byte offsets of UTF-8, 0–{size}, or -1 and -1 for none",
                )
            found.append(Answer(context[start:end], start))
        return tuple(found)

    # --- our own form --------------------------------------------------------------------------------------------

    def prepared(self, lines: list[str]) -> QaFile:
        questions = []
        languages: set[Any] = set()
        for number, record in self._records(lines):
            where = f"{self.path}:{number}"
            languages.add(record.get("question_lang"))
            answers: Optional[tuple[Answer, ...]] = None
            if record.get("answers") is not None:
                answers = self._answers(record, _text(record, "context", where), where) or ()
            id, context, question = _id(record, where), *(_text(record, key, where) for key in ("context", "question"))
            questions.append(Question(id, context, question, answers, number))
        return self._file(questions, "prepared", languages.pop() if len(languages) == 1 else None)

    # --- shared --------------------------------------------------------------------------------------------------

    def _records(self, lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(lines, 1):
            if not is_blank(bare(line, number)):
                record = load(bare(line, number), f"{self.path}:{number}")
                if not isinstance(record, dict):
                    raise DataError("This line is not a JSON object.", where=f"{self.path}:{number}", value=shown(line))
                yield number, record

    def _is_other(self, name: str) -> bool:
        if self.lang is None or TYDI_LANGUAGES.get(name, name) == self.lang:
            return False
        self.others[name] += 1
        return True

    def _note(self, repair: Optional[str], where: str) -> None:
        if repair is None:
            return
        if not self.repair:
            raise DataError(f"An answer would need a repair ({repair}), and repairs are off.", where=where)
        self.repairs[repair] += 1

    def _file(self, questions: list[Question], format: str, question_lang: Optional[str]) -> QaFile:
        bare_ones = [question for question in questions if question.answers is None]
        for question in questions:
            if not question.context.strip() or not question.question.strip():
                where = f"{self.path}:{question.line or 1}"
                raise DataError("A question or its context is empty.", where=where, value=question.id)
        if bare_ones and len(bare_ones) < len(questions):
            raise DataError(
                "Some questions have answers and some have none.",
                where=f"{self.path}:{bare_ones[0].line or 1}",
                value=f"{len(bare_ones)} of {len(questions)} without, the first has id {bare_ones[0].id!r}",
                allowed='answers for all or for none; "is_impossible": true for a question without answer',
            )
        return QaFile(questions, self.path, format, not bare_ones, question_lang, self.repairs, self.others)


def _entries(document: Any, path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every question of a SQuAD file: its place, its context, its object."""
    articles = document.get("data") if isinstance(document, dict) else None
    for number, article in _objects(articles, "data", path):
        for second, paragraph in _objects(article.get("paragraphs"), f"data[{number}].paragraphs", path):
            place = f"data[{number}].paragraphs[{second}]"
            context = _text(paragraph, "context", f"{path} {place}")
            for third, entry in _objects(paragraph.get("qas"), f"{place}.qas", path):
                yield f"{place}.qas[{third}]", context, entry


def _objects(value: Any, name: str, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise DataError(
            "This is not SQuAD 1.1 JSON.", where=f"{path} {name}", value=shown(str(value)), allowed="a list of objects"
        )
    return iter(enumerate(value))


def _question_lines(text: str, count: int) -> list[Optional[int]]:
    """Line of every key ``"question"``; a quote inside a text is escaped, so that none is taken for a key."""
    places = [found.start() for found in _QUESTION_KEY.finditer(text)]
    if len(places) != count:  # the key is used elsewhere too
        return [None] * count
    lines: list[Optional[int]] = []
    line, here = 1, 0
    for place in places:
        line, here = line + text.count("\n", here, place), place
        lines.append(line)
    return lines


def _id(record: dict[str, Any], where: str) -> str:
    """An id is a text; a whole number is taken as one."""
    value = record.get("id")
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(record, "id", where)


def _text(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise DataError(f"The text `{key}` is missing.", where=where, value=shown(str(value)))
    return value
