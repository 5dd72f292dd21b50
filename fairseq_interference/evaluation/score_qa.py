"""Score answers to questions against a file in SQuAD JSON, without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from fairseq_interference.data.readers.lines import PathLike
from fairseq_interference.errors import DataError, ScoringError
from fairseq_interference.evaluation.metrics_qa import EXTENDED_LANGUAGES, check_rules, qa_scores
from fairseq_interference.evaluation.score_reading import json_objects, load_json, text_of

METRICS = ("em", "f1")
ANSWER_KEYS = ("prediction_text", "prediction", "answer", "text")


class Question(NamedTuple):
    """Id, gold answers, and where it stands in the JSON."""

    id: str
    answers: list[str]
    place: str


class Answer(NamedTuple):
    """A predicted answer and its line; 0 in a file of one JSON object."""

    id: str
    text: str
    line: int


def read_questions(path: PathLike) -> list[Question]:
    """Questions of a file in SQuAD JSON (XQuAD, MLQA, TyDiQA GoldP), in its order; ids may occur several times.

    Raises:
        DataError: another structure; names the place in the JSON.
    """
    found = []
    first = _first_record(path)
    if first is not None and "data" not in first:
        raise DataError(
            "Answers are scored against SQuAD JSON.",
            where=path,
            value=f"JSON lines with {', '.join(first)}",
            next_step="a prepared split has it beside it, SPLIT.gold; other files: python -m data_prep.benchmarks.qa",
        )
    for place, qa in _walk(load_json(path), str(path)):
        answers = qa.get("answers")
        if not isinstance(answers, list) or not all(isinstance(answer, Mapping) for answer in answers):
            raise DataError("This question has no list of answers.", where=place, value=qa.get("id"), allowed="answers")
        texts = [text_of(answer, ("text",), f"{place}.answers[{n}]") for n, answer in enumerate(answers)]
        found.append(Question(text_of(qa, ("id",), place, numbers=True), texts, place))
    if not found:
        raise DataError("The file has no questions.", where=path)
    return found


def _first_record(path: PathLike) -> Optional[dict[str, Any]]:
    """The object in the first line; None if it holds none, or a part of one."""
    try:
        return next((record for _, record in json_objects(path)), None)
    except DataError:
        return None


def _walk(document: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for article_place, article in _children(document, "data", f"{path}: "):
        for paragraph_place, paragraph in _children(article, "paragraphs", f"{article_place}."):
            yield from _children(paragraph, "qas", f"{paragraph_place}.")


def _children(parent: Any, name: str, before: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    children = parent.get(name) if isinstance(parent, Mapping) else None
    if not isinstance(children, list):
        raise DataError("This is not SQuAD JSON.", where=f"{before}{name}", allowed="data[].paragraphs[].qas[]")
    for number, child in enumerate(children):
        place = f"{before}{name}[{number}]"
        if not isinstance(child, Mapping):
            raise DataError("This is not a JSON object.", where=place, value=child)
        yield place, child


def read_answers(path: PathLike) -> tuple[list[Answer], str]:
    """Predicted answers and the layout: ``json`` (one object, id -> text) or ``jsonl`` (id and text on each line).

    Raises:
        DataError: neither, an id that an object holds twice, or an answer that is no text; names file:line.
    """
    first = _first_record(path)
    if first is not None and "n_best" in first:
        next_step = "predict again without --n-best"
        raise DataError("These are several answers to each question.", where=path, next_step=next_step)
    if first is not None and "id" in first and any(key in first for key in ANSWER_KEYS):
        return [
            Answer(
                text_of(record, ("id",), f"{path}:{number}", numbers=True),
                text_of(record, ANSWER_KEYS, f"{path}:{number}"),
                number,
            )
            for number, record in json_objects(path)
        ], "jsonl"
    document = load_json(path)
    if not isinstance(document, dict):
        allowed = 'one object {"id": "answer", …}, or JSON Lines with id and ' + " or ".join(ANSWER_KEYS)
        raise DataError("This is no file of answers.", where=path, value=type(document).__name__, allowed=allowed)
    return [Answer(key, text_of(document, (key,), str(path)), 0) for key in document], "json"


def match_answers(
    questions: Sequence[Question], answers: Sequence[Answer], files: tuple[str, str], layout: str
) -> tuple[list[Optional[str]], int]:
    """The answer to each question, None where there is none, and how many answers have no question.

    Where the gold file has every id once, ids decide. Where an id occurs several times (TyDiQA GoldP train), line N of
    a file of JSON Lines answers question N, and its id must be that question's.

    Raises:
        ScoringError: ids that cannot be told apart, in another order, or that none of the questions has.
    """
    counts = Counter(question.id for question in questions)
    repeated = next((question for question in questions if counts[question.id] > 1), None)
    if repeated is not None:
        _check_order(questions, answers, files, layout, repeated)
        return [answer.text for answer in answers], 0
    found: dict[str, Answer] = {}
    for answer in answers:
        if answer.id in found:
            where, first = f"{files[1]}:{answer.line}", found[answer.id].line
            raise ScoringError(f"This id was answered before, in line {first}.", where=where, value=answer.id)
        found[answer.id] = answer
    given = [found[question.id].text if question.id in found else None for question in questions]
    if all(text is None for text in given):
        raise ScoringError(
            "No prediction has the id of a question of the gold file.",
            where=files[1],
            value=answers[0].id if answers else "no predictions",
            allowed=f"ids of {files[0]}, such as {questions[0].id}",
        )
    return given, len(found) - sum(text is not None for text in given)


def _check_order(
    questions: Sequence[Question], answers: Sequence[Answer], files: tuple[str, str], layout: str, repeated: Question
) -> None:
    if layout == "json":
        raise ScoringError(
            "Several questions of the gold file have one id, and an object holds one answer for it.",
            where=repeated.place,
            value=repeated.id,
            next_step=f"write {files[1]} as JSON Lines, one object with id and {ANSWER_KEYS[0]} per question, in order",
        )
    for question, answer in zip(questions, answers):
        if question.id != answer.id:
            raise ScoringError(
                "The ids differ; since some occur several times, predictions stand in the order of the gold file.",
                where=f"{files[1]}:{answer.line}, gold {question.place}",
                value=answer.id,
                allowed=question.id,
            )
    if len(questions) != len(answers):
        what = "Some ids occur several times in the gold file, so that every question needs its own line."
        value = f"{len(questions)} questions, {len(answers)} predictions"
        raise ScoringError(what, where=files[1], value=value, allowed="one line per question, in its order")


class QaFiles(NamedTuple):
    """Questions, the answer to each (None: none), how many answers have no question, and the layout of the answers."""

    questions: list[Question]
    given: list[Optional[str]]
    extra: int
    layout: str


def read_qa_files(gold: PathLike, predictions: PathLike) -> QaFiles:
    """Both files; arguments and errors as in :func:`score_qa_files`."""
    questions = read_questions(gold)
    answers, layout = read_answers(predictions)
    given, extra = match_answers(questions, answers, (str(gold), str(predictions)), layout)
    return QaFiles(questions, given, extra, layout)


def score_qa_files(
    gold: PathLike,
    predictions: PathLike,
    *,
    rules: str = "squad",
    lang: Optional[str] = None,
    normal_form: str = "NFC",
) -> dict[str, Any]:
    """Score answers to questions.

    Args:
        gold: SQuAD JSON.
        predictions: JSON object id -> text, or JSON Lines with ``id`` and one of ``ANSWER_KEYS``.
        rules: ``squad`` or ``mlqa``, see evaluation/metrics_qa.py.
        lang: language of the answers (in MLQA that of the contexts); ``mlqa`` needs it.
        normal_form: ``NFC`` on both sides, or ``none``.

    Returns:
        ``task lang n rules metrics counts``, see :func:`~fairseq_interference.evaluation.metrics_qa.qa_scores`.
        ``counts`` also has ``extra``, predictions for ids that the gold file lacks.

    Raises:
        DataError: a file that cannot be read.
        UsageError: rules that are unknown, or undefined for ``lang``.
        ScoringError: predictions that cannot be matched to questions, or gold without answers.
    """
    check_rules(rules, lang)
    questions, given, extra, layout = read_qa_files(gold, predictions)
    scores = qa_scores([question.answers for question in questions], given, rules, lang, normal_form)
    return {
        "task": "qa",
        "lang": lang,
        "n": scores["n"],
        "rules": {
            "rules": rules,
            "rules_lang": lang if rules == "mlqa" else None,
            "extension": rules == "mlqa" and lang in EXTENDED_LANGUAGES,
            "normal_form": normal_form,
            "average": "over questions; the best gold answer",
            "missing": "0",
            "both_empty": "1",
            "layout": layout,
        },
        "metrics": {name: scores[name] for name in METRICS},
        "counts": {**scores["counts"], "extra": extra},
    }
