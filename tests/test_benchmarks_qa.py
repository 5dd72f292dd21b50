"""Official files of question answering: reading, oddities, and the prepared form."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from data_prep.benchmarks.qa import main
from fairseq_interference.data.readers import qa
from fairseq_interference.errors import DataError, UsageError

CONTEXT = "\U00020000 world\ufeff of \u0958\u0932\u092e, \u0e17\u0e33 world "
FOLDER = Path(os.environ.get("INTERFERENCE_REAL_DATA", "missing")) / "qa"
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*")) or ["no real data"]
UNLABELLED = ("tydiqa.goldp.ar.dev", "tydiqa.goldp.te.dev")


def entry(text: str, start: Any, id: str = "0", question: str = " where ? ") -> dict[str, Any]:
    return {"id": id, "question": question, "answers": [{"answer_start": start, "text": text}]}


def squad(*entries: dict[str, Any], context: str = CONTEXT) -> dict[str, Any]:
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(entries)}]}]}


def save(path: Path, value: Any, **options: Any) -> Path:
    path.write_text(json.dumps(value, **options), encoding="utf-8")
    return path


def tydi(language: str, *bounds: tuple[int, int], text: str = CONTEXT, **more: Any) -> str:
    annotations = [
        {"minimal_answer": {"plaintext_start_byte": a, "plaintext_end_byte": b}, "yes_no_answer": "NONE"}
        for a, b in bounds
    ]
    record = {"language": language, "example_id": 7, "document_plaintext": text, "question_text": "where?"}
    return json.dumps({**record, "annotations": annotations, **more}) + "\n"


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


# --- reading -----------------------------------------------------------------------------------------------------


def test_nothing_is_trimmed_and_ids_may_repeat(tmp_path: Path) -> None:
    entries = [entry("world", 2), entry(" of \u0958", 8), entry("\ufeff", 7), entry("world ", len(CONTEXT) - 6)]
    file = qa.read(save(tmp_path / "a.json", squad(*entries), indent=1), repair=False)
    assert [(a.text, a.start) for q in file for a in q.answers or ()] == [
        ("world", 2),
        (" of \u0958", 8),
        ("\ufeff", 7),
        ("world ", len(CONTEXT) - 6),
    ]
    assert {question.context for question in file} == {CONTEXT}
    assert file.questions[0].question == " where ? "
    assert (file.repeated_ids, file.labelled, file.question_lang) == (3, True, None)
    lines = (tmp_path / "a.json").read_text(encoding="utf-8").split("\n")
    assert ['"question"' in lines[question.line - 1] for question in file if question.line] == [True] * 4


@pytest.mark.parametrize(
    ("text", "start", "place", "repair"),
    [
        ("of", 10, 9, "utf16-offset"),
        ("\u0958\u0932\u092e", len(CONTEXT[:12].encode()), 12, "byte-offset"),
        ("\u0e17\u0e33", 3, 17, "moved"),
        ("\u0e17\u0e33", -4, 17, "moved"),
        ("\u0e17\u0e33", 900, 17, "moved"),
    ],
)
def test_wrong_offsets_are_repaired_or_refused(tmp_path: Path, text: str, start: int, place: int, repair: str) -> None:
    path = save(tmp_path / "a.json", squad(entry(text, start)))
    file = qa.read(path)
    assert [(a.text, a.start) for a in file.questions[0].answers or ()] == [(text, place)]
    assert CONTEXT[place:].startswith(text)
    assert dict(file.repairs) == {repair: 1}
    with pytest.raises(DataError, match=repair):
        qa.read(path, repair=False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (squad(entry("world", 4)), "several times"),
        (squad(entry("\u0915\u093c\u0932\u092e", 12)), "not in the context"),
        (squad(entry("world", None)), "number answer_start"),
        (squad(entry("world", True)), "number answer_start"),
        (squad(entry("world", 2), entry("", 0)), "Some questions have answers"),
        (squad({**entry("world", 2), "answers": "world"}), "list of objects"),
        (squad({"id": "1", "answers": []}), "`question` is missing"),
        (squad({**entry("world", 2), "id": None}), "`id` is missing"),
        (squad(entry("world", 2, question="\n")), "is empty"),
        (squad(entry("", 0), context=" \n"), "is empty"),
        ({"data": [{"paragraphs": {}}]}, "not SQuAD"),
        ({"data": {}}, "not SQuAD"),
        ({"answers": {}}, "no layout"),
        ([1], "no layout"),
        ({"context": "a", "question": "b", "id": "\ud800"}, "surrogate"),
    ],
)
def test_refused(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as error:
        qa.read(save(tmp_path / "a.json", content))
    assert "a.json" in str(error.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b'{"data": [\n{"par', "not JSON"),
        (b"\xff\xfe", "UTF-8"),
        (b"", "empty"),
        (b'{"minimal_answer": {}, "passage_answer_index": 1}\n', "predictions"),
    ],
)
def test_what_is_no_data(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=said):
        qa.read(tmp_path / "a.json")


def test_unlabelled_sets_are_recognised(tmp_path: Path) -> None:
    for answers in ([{"answer_start": 0, "text": ""}], [], None):
        given = {"id": "1", "question": "where?", "answers": answers}
        file = qa.read(save(tmp_path / "a.json", squad(given)))
        assert not file.labelled and file.questions[0].answers is None
    impossible = {"id": "1", "question": "where?", "answers": [], "is_impossible": True}
    file = qa.read(save(tmp_path / "a.json", squad(impossible, entry("of", 9))))
    assert file.labelled and file.unanswerable == 1
    (tmp_path / "t.jsonl").write_text(tydi("thai"), encoding="utf-8")
    assert not qa.read(tmp_path / "t.jsonl").labelled


def test_bytes_of_tydi_primary(tmp_path: Path) -> None:
    """Q1"""
    start = len(CONTEXT[:12].encode())
    bounds = [(start, start + 9), (-1, -1), (4, 10)]
    path = tmp_path / "t.jsonl"
    path.write_text(tydi("hindi", *bounds) + tydi("thai", (-1, -1)) + "\n", encoding="utf-8")
    file = qa.read(path)
    assert file.format == "tydi"
    assert [(a.text, a.start) for a in file.questions[0].answers or ()] == [
        ("\u0958\u0932\u092e", 12),
        (" world", 1),
    ]
    assert (file.questions[1].answers, file.questions[1].line, file.questions[0].id) == ((), 2, "7")
    file = qa.read(path, lang="th")
    assert (len(file), dict(file.others)) == (1, {"hindi": 1})
    with pytest.raises(DataError, match="no questions in this language"):
        qa.read(path, lang="ko")
    for wrong in ((start + 1, start + 9), (start, start), (-1, 4), (4, 9999)):
        path.write_text(tydi("thai", wrong), encoding="utf-8")
        with pytest.raises(DataError, match="minimal answer"):
            qa.read(path)
    for annotation in ({}, {"minimal_answer": "x"}, 3):
        path.write_text(tydi("thai", annotations=[annotation]), encoding="utf-8")
        with pytest.raises(DataError, match="minimal answer"):
            qa.read(path)


def test_one_language_of_the_combined_gold_passage_file(tmp_path: Path) -> None:
    entries = [entry("of", 9, "thai--12-0"), entry("of", 9, "korean-3-1"), entry("of", 9, "thai-3-2")]
    file = qa.read(save(tmp_path / "a.json", squad(*entries)), lang="th")
    assert [question.id for question in file] == ["thai--12-0", "thai-3-2"]
    assert dict(file.others) == {"korean": 1}


def test_languages_of_mlqa(tmp_path: Path) -> None:
    path = save(tmp_path / "dev-context-ar-question-zh.json", squad(entry("of", 9)))
    assert qa.read(path, lang="ar").question_lang == "zh"
    with pytest.raises(UsageError, match="another language"):
        qa.read(path, lang="zh")
    with pytest.raises(UsageError, match="Unknown format"):
        qa.read(path, "csv")


# --- the prepared form -------------------------------------------------------------------------------------------


def test_prepared_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = save(tmp_path / "train.json", squad(entry("of", 9), entry("of", 10), entry("world", 2, question="who?")))
    dev = save(tmp_path / "dev-context-ar-question-en.json", squad(entry("of", 9)))
    bare = save(tmp_path / "dev.json", squad({"id": "x", "question": "where?", "answers": [{"text": ""}]}))
    out = tmp_path / "prepared" / "mine"
    flags = ["--out", str(out), "--input", f"en:train:{train}", f"en:dev:{train}", f"ar:dev:{dev}", f"te:dev:{bare}"]
    assert main(flags) == 0
    assert jsonl(out / "ar" / "dev.jsonl") == [
        {
            "id": "0",
            "lang": "ar",
            "question_lang": "en",
            "context": CONTEXT,
            "question": " where ? ",
            "answers": [{"text": "of", "answer_start": 9}],
            "source_line": 1,
        }
    ]
    assert jsonl(out / "te" / "dev.jsonl")[0]["answers"] is None
    meta = json.loads((out / "en" / "train.meta.json").read_text(encoding="utf-8"))
    assert meta["repairs"] == {"utf16-offset": 1}
    assert (meta["questions"], meta["contexts"], meta["answers"], meta["repeated_ids"]) == (3, 1, 3, 2)
    said = capsys.readouterr().out
    assert "te dev: no answers in the file: it can be predicted, not scored" in said
    assert "repaired 1 x utf16-offset" in said and "2 of 2 distinct questions are also in train" in said
    for path in sorted(out.glob("*/*.jsonl")):  # the gold and the records say the same, read by the same reader
        one, other = qa.read(path, repair=False), qa.read(path.with_suffix(".gold"), repair=False)
        assert [(q.id, q.context, q.question, q.answers) for q in one] == [
            (q.id, q.context, q.question, q.answers) for q in other
        ]
    assert qa.read(out / "ar" / "dev.jsonl").question_lang == "en"
    assert main(flags) == 0
    assert main([*flags, "--no-repair"]) == 1
    assert "utf16-offset" in capsys.readouterr().err
    assert main([*flags, "--question-lang", "fr"]) == 2
    assert main([*flags, "--question-lang", "te:hi", "--force"]) == 0
    assert jsonl(out / "te" / "dev.jsonl")[0]["question_lang"] == "hi"


def test_drawn_splits_keep_contexts_together(tmp_path: Path) -> None:
    data = [squad(*[entry(f"c{n}", 0)] * 3, context=f"c{n} text")["data"][0] for n in range(40)]
    path = save(tmp_path / "all.json", {"data": data})
    flags = ["--input", f"sw:all:{path}", "--split", "dev=0.1,test=0.2"]
    assert main(["--out", str(tmp_path / "one"), *flags]) == 0
    contexts = {s: {r["context"] for r in jsonl(tmp_path / f"one/sw/{s}.jsonl")} for s in ("train", "dev", "test")}
    assert [len(found) for found in contexts.values()] == [28, 4, 8]
    assert len(set().union(*contexts.values())) == 40
    assert main(["--out", str(tmp_path / "two"), "--input", f"sw:all:{path}"]) == 2
    assert main(["--out", str(tmp_path / "two"), *flags, "--dry-run"]) == 0
    assert not (tmp_path / "two").exists()


def test_training_needs_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path / "a.json", squad({"id": "1", "question": "where?"}))
    assert main(["--out", str(tmp_path / "x"), "--input", f"en:train:{path}"]) == 1
    assert "split needs labels" in capsys.readouterr().err


# --- real files --------------------------------------------------------------------------------------------------


@pytest.mark.real_data
@pytest.mark.parametrize("name", FILES)
def test_real_files(real_data: Path, tmp_path: Path, name: str) -> None:
    """Read without a repair; questions, ids and answers compared with a reading by hand."""
    path = FOLDER / name
    if path.name == "sample_prediction.jsonl":
        with pytest.raises(DataError, match="predictions"):
            qa.read(path)
        return
    file = qa.read(path, repair=False)
    by_hand: list[tuple[Any, ...]] = []
    if path.suffix == ".json":
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                for one in paragraph["qas"]:
                    answers = [(a["text"], a["answer_start"]) for a in one["answers"]]
                    by_hand.append((one["id"], paragraph["context"], one["question"], answers))
    else:
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            record = json.loads(line)
            text = record["document_plaintext"].encode()
            answers = []
            for annotation in record["annotations"]:
                start = annotation["minimal_answer"]["plaintext_start_byte"]
                end = annotation["minimal_answer"]["plaintext_end_byte"]
                if start >= 0:
                    answers.append((text[start:end].decode(), len(text[:start].decode())))
            by_hand.append((str(record["example_id"]), text.decode(), record["question_text"], answers))
    labelled = not path.name.startswith(UNLABELLED)
    assert file.labelled == labelled
    found = [(q.id, q.context, q.question, [(a.text, a.start) for a in q.answers or ()]) for q in file]
    assert found == [(*rest, answers if labelled else []) for *rest, answers in by_hand]
    for question in file:
        for answer in question.answers or ():
            assert question.context[answer.start :].startswith(answer.text)


@pytest.mark.real_data
def test_real_benchmarks_are_prepared(real_data: Path, tmp_path: Path) -> None:
    inputs = [f"{name.split('/')[0]}:dev:{FOLDER / name}" for name in FILES if "xquad" in name]
    assert main(["--out", str(tmp_path / "xquad"), "--input", *inputs, "--no-repair"]) == 0
    inputs = [f"{name.split('/')[0]}:dev:{FOLDER / name}" for name in FILES if "context-" in name]
    assert main(["--out", str(tmp_path / "mlqa"), "--input", *inputs, "--no-repair"]) == 0
    assert jsonl(tmp_path / "mlqa/en/dev.jsonl")[0]["question_lang"] == "hi"
    inputs = [f"{c}:test:{FOLDER}/multi/small_gold_annotation.jsonl" for c in ("ko", "th", "ar")]
    inputs += [f"sw:all:{FOLDER}/sw/tydiqa.goldp.sw.train.a1-700.json"]
    assert main(["--out", str(tmp_path / "tydi"), "--input", *inputs, "--split", "dev=0.1"]) == 0
    assert sum(len(jsonl(path)) for path in (tmp_path / "tydi").glob("sw/*.jsonl")) == 700
