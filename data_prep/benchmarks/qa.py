"""Extractive question answering: official files to the prepared form.

    python -m data_prep.benchmarks.qa --out prepared/xquad --split dev=0.1 --seed 1 \\
        --input en:train:train-v1.1.json en:test:xquad.en.json hi:test:xquad.hi.json

Writes per language of the contexts and split OUT/LANG/SPLIT.jsonl (id, lang, question_lang, context, question, answers,
source_line), SPLIT.gold (the same questions as SQuAD 1.1 JSON) and SPLIT.meta.json. docs/qa.md says what is read and
what is done about the oddities of each benchmark.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

from data_prep.benchmarks import common
from data_prep.benchmarks.common import by_language, parse_fractions, parse_inputs, per_language
from data_prep.benchmarks.splits import Split, of_language, prepare_splits
from fairseq_interference.data.readers.qa import FORMATS, read
from fairseq_interference.data.readers.questions import QaFile, Question
from fairseq_interference.errors import UsageError
from fairseq_interference.languages import check_code

PROG = "python -m data_prep.benchmarks.qa"


@dataclass
class QaSplit(Split[Question]):
    """Questions with their contexts."""

    source: QaFile

    unit: ClassVar[str] = "questions"
    may_lack_labels: ClassVar[tuple[str, ...]] = ("dev", "test")  # XTREME publishes TyDi QA's dev without answers

    @staticmethod
    def key(example: Question) -> Hashable:
        return (example.context, example.question)

    @classmethod
    def group(cls, example: Question) -> Hashable:
        return example.context

    def counts(self) -> Counter[str]:
        return Counter()

    def sizes(self) -> dict[str, int]:
        contexts = len({question.context for question in self.examples})
        answers = sum(len(question.answers or ()) for question in self.examples)
        return {**super().sizes(), "contexts": contexts, "answers": answers}

    def gold(self) -> str:
        """The split as SQuAD 1.1 JSON; neighbours with one context share a paragraph."""
        paragraphs: list[dict[str, Any]] = []
        for question in self.examples:
            if not paragraphs or paragraphs[-1]["context"] != question.context:
                paragraphs.append({"context": question.context, "qas": []})
            answers = _answers(question) or []
            entry: dict[str, Any] = {"id": question.id, "question": question.question, "answers": answers}
            if question.answers == ():
                entry["is_impossible"] = True
            paragraphs[-1]["qas"].append(entry)
        articles = [{"title": "", "paragraphs": [paragraph]} for paragraph in paragraphs]
        return json.dumps({"version": "1.1", "data": articles}, ensure_ascii=False) + "\n"

    def fields(self) -> Iterator[dict[str, Any]]:
        for question in self.examples:
            asked = {"question_lang": self.source.question_lang, "context": question.context}
            yield {"id": question.id, **asked, "question": question.question, "answers": _answers(question)}

    @property
    def unanswerable(self) -> int:
        return sum(question.answers == () for question in self.examples)

    @property
    def repeated_ids(self) -> int:
        return len(self.examples) - len({question.id for question in self.examples})

    def notes(self) -> list[str]:
        notes = [] if self.source.labelled else ["no answers in the file: it can be predicted, not scored"]
        notes += super().notes()
        if self.source.question_lang != self.lang:
            notes.append(f"questions in {self.source.question_lang}")
        if self.unanswerable:
            notes.append(f"{self.unanswerable} questions that their context does not answer")
        if self.repeated_ids:
            notes.append(f"{self.repeated_ids} questions repeat an id: their order identifies them")
        if self.source.others:
            others = ", ".join(f"{count} {name}" for name, count in sorted(self.source.others.items()))
            notes.append(f"questions of other languages left out: {others}")
        return notes

    def as_json(self) -> dict[str, Any]:
        return {
            **super().as_json(),
            "question_lang": self.source.question_lang,
            "labelled": self.source.labelled,
            "unanswerable": self.unanswerable,
            "repeated_ids": self.repeated_ids,
            "other_languages": dict(self.source.others),
        }


def _answers(question: Question) -> Optional[list[dict[str, Any]]]:
    if question.answers is None:
        return None
    return [{"text": answer.text, "answer_start": answer.start} for answer in question.answers]


def _ask_in(file: QaFile, lang: str, wanted: Optional[str]) -> QaFile:
    """Settle the language of the questions: as told, as the file's name states, else that of the contexts."""
    if wanted and file.question_lang and wanted != file.question_lang:
        raise UsageError(
            "The file states another language of the questions.",
            where="--question-lang",
            value=wanted,
            allowed=f"{file.question_lang} ({file.path})",
        )
    file.question_lang = wanted or file.question_lang or lang
    return file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    common.add_arguments(parser, FORMATS)
    parser.add_argument(
        "--question-lang",
        nargs="+",
        action="extend",
        default=[],
        metavar="[LANG:]CODE",
        help="language of the questions [from the file's name (MLQA), else that of the contexts]",
    )


def prepare(args: argparse.Namespace) -> int:
    """Run the command: read all files, draw the splits that are missing, count leaks, write.

    Raises:
        InterferenceError: a file that cannot be read, a train file without answers, nothing to draw from.
    """
    inputs = parse_inputs(args.input)
    langs = by_language(inputs)
    formats = per_language(args.format, "--format", langs)
    asked = per_language(args.question_lang, "--question-lang", langs)
    splits: list[QaSplit] = []
    for lang, paths in langs.items():
        options: dict[str, Any] = {"lang": lang, "repair": not args.no_repair}
        wanted = check_code(asked[lang], "--question-lang") if lang in asked else None
        read_files = {split: read(path, formats.get(lang, "auto"), **options) for split, path in paths.items()}
        files = {split: _ask_in(file, lang, wanted) for split, file in read_files.items()}
        splits += of_language(QaSplit, lang, files, parse_fractions(args.split), args.seed)
    questions = {f"{split.lang}:{split.name}": split.source.question_lang for split in splits}
    return prepare_splits(args, inputs, splits, (), {"formats": formats, "question_langs": questions})


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command; see :func:`data_prep.benchmarks.common.command`."""
    return common.command(PROG, __doc__, add_arguments, prepare, argv)


if __name__ == "__main__":
    sys.exit(main())
