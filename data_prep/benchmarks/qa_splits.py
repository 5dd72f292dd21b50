"""Splits of a benchmark for question answering: official or drawn, their records, counts and table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from data_prep.benchmarks.common import SPLITS, WHOLE, draw, leaks, sha256, table
from fairseq_interference.data.readers.questions import QaFile, Question
from fairseq_interference.errors import DataError, UsageError


@dataclass
class Split:
    """Questions of one language and split, ready to be written.

    Attributes:
        lang: language of the contexts.
        question_lang: language of the questions.
        leaked: (distinct questions with context that are in train too, distinct ones); None without train.
    """

    lang: str
    question_lang: str
    name: str
    source: QaFile
    drawn_from: Optional[str]
    questions: list[Question]
    leaked: Optional[tuple[int, int]] = None

    @property
    def keys(self) -> list[tuple[str, str]]:
        return [(question.context, question.question) for question in self.questions]

    @property
    def contexts(self) -> int:
        return len({question.context for question in self.questions})

    @property
    def answers(self) -> int:
        return sum(len(question.answers or ()) for question in self.questions)

    @property
    def unanswerable(self) -> int:
        return sum(question.answers == () for question in self.questions)

    @property
    def repeated_ids(self) -> int:
        return len(self.questions) - len({question.id for question in self.questions})

    def records(self) -> list[dict[str, Any]]:
        """The lines of SPLIT.jsonl, in the order of the file; ids as they are there."""
        return [
            {
                "id": question.id,
                "lang": self.lang,
                "question_lang": self.question_lang,
                "context": question.context,
                "question": question.question,
                "answers": _answers(question),
                "source_line": question.line,
            }
            for question in self.questions
        ]

    @property
    def gold(self) -> str:
        """The split as SQuAD 1.1 JSON; neighbours with one context share a paragraph."""
        paragraphs: list[dict[str, Any]] = []
        for question in self.questions:
            if not paragraphs or paragraphs[-1]["context"] != question.context:
                paragraphs.append({"context": question.context, "qas": []})
            entry: dict[str, Any] = {
                "id": question.id,
                "question": question.question,
                "answers": _answers(question) or [],
            }
            if question.answers == ():
                entry["is_impossible"] = True
            paragraphs[-1]["qas"].append(entry)
        articles = [{"title": "", "paragraphs": [paragraph]} for paragraph in paragraphs]
        return json.dumps({"version": "1.1", "data": articles}, ensure_ascii=False) + "\n"

    def as_json(self) -> dict[str, Any]:
        """What is recorded about the split, beside the records."""
        leaked = None if self.leaked is None else {"also_in_train": self.leaked[0], "distinct": self.leaked[1]}
        return {
            "format": self.source.format,
            "path": Path(self.source.path).name,
            "sha256": sha256(Path(self.source.path)),
            "gold": f"{self.name}.gold",
            "drawn_from": self.drawn_from,
            "question_lang": self.question_lang,
            "labelled": self.source.labelled,
            "questions": len(self.questions),
            "contexts": self.contexts,
            "answers": self.answers,
            "unanswerable": self.unanswerable,
            "repeated_ids": self.repeated_ids,
            "repairs": dict(self.source.repairs),
            "other_languages": dict(self.source.others),
            "leaks": leaked,
        }


def _answers(question: Question) -> Optional[list[dict[str, Any]]]:
    if question.answers is None:
        return None
    return [{"text": answer.text, "answer_start": answer.start} for answer in question.answers]


def of_language(
    lang: str, question_lang: Optional[str], files: Mapping[str, QaFile], fractions: Mapping[str, float], seed: int
) -> list[Split]:
    """The splits of one language: the official ones as they are, those that are missing drawn.

    Args:
        question_lang: language of the questions; None takes that of the file's name, else ``lang``.
        files: split (or ``all``) -> file.
        fractions: split -> share of the distinct contexts of train or all, where the language lacks the split. All
            questions about a context stay in one split.

    Raises:
        UsageError: a whole corpus and nothing to draw, or another question language than the file's name states.
        DataError: a train split, or one to draw from, without answers; a drawn split without questions.
    """
    source = WHOLE if WHOLE in files else "train"
    wanted = {split: part for split, part in fractions.items() if split not in files}
    if WHOLE in files and not wanted:
        where = f"--input {lang}:all"
        raise UsageError("A corpus without splits needs --split.", where=where, allowed="dev=0.1,test=0.1")
    found = []
    for name, file in files.items():
        if not file.labelled and name == source:
            raise DataError("A split to train on needs answers.", where=file.path, value=f"{lang}:{name}")
        asked = _question_lang(lang, question_lang, file)
        if name != source or not wanted:
            found.append(Split(lang, asked, name, file, None, list(file)))
            continue
        places = draw([question.context for question in file], wanted, seed)
        for split in ("train", *wanted):
            chosen = [question for question, place in zip(file, places) if place == split]
            found.append(Split(lang, asked, split, file, name, chosen))
    for one in found:
        _finish(one, found)
    return sorted(found, key=lambda split: SPLITS.index(split.name))


def _question_lang(lang: str, wanted: Optional[str], file: QaFile) -> str:
    if wanted and file.question_lang and wanted != file.question_lang:
        raise UsageError(
            "The file states another language of the questions.",
            where="--question-lang",
            value=wanted,
            allowed=f"{file.question_lang} ({file.path})",
        )
    return wanted or file.question_lang or lang


def _finish(split: Split, splits: Sequence[Split]) -> None:
    if not split.questions:
        raise DataError("A drawn split is empty.", where=split.source.path, value=f"{split.lang}:{split.name}")
    train = [other for other in splits if other.name == "train"]
    if train and split.name != "train":
        split.leaked = leaks(train[0].keys, split.keys)


def describe(splits: Sequence[Split]) -> str:
    """The table that is printed: sizes, then what was repaired, left out, drawn, leaked and cannot be scored."""
    rows: list[list[object]] = [["lang", "questions in", "split", "layout", "questions", "contexts", "answers"]]
    notes: list[str] = []
    for split in splits:
        sizes = [len(split.questions), split.contexts, split.answers]
        rows.append([split.lang, split.question_lang, split.name, split.source.format, *sizes])
        notes += [f"{split.lang} {split.name}: {note}" for note in _notes(split)]
    files = {split.source.path: split.source for split in splits}
    for path, file in files.items():
        if file.repairs:
            repairs = ", ".join(f"{count} x {kind}" for kind, count in sorted(file.repairs.items()))
            notes.append(f"{Path(path).name}: repaired {repairs}")
    return "\n".join([table(rows), *notes])


def _notes(split: Split) -> list[str]:
    notes = []
    if not split.source.labelled:
        notes.append("no answers in the file: it can be predicted, not scored")
    if split.drawn_from:
        notes.append(f"drawn from {split.drawn_from} ({Path(split.source.path).name}), by context")
    if split.unanswerable:
        notes.append(f"{split.unanswerable} questions that their context does not answer")
    if split.repeated_ids:
        notes.append(f"{split.repeated_ids} questions repeat an id: their order identifies them")
    if split.source.others:
        others = ", ".join(f"{count} {name}" for name, count in sorted(split.source.others.items()))
        notes.append(f"questions of other languages left out: {others}")
    if split.leaked and split.leaked[0]:
        notes.append(f"{split.leaked[0]} of {split.leaked[1]} distinct questions are also in train")
    return notes
