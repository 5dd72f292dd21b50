"""Files of sentence pairs: every layout, every oddity, and back byte for byte."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_interference.data.readers import nli
from fairseq_interference.errors import DataError, InterferenceError, ScoringError, UsageError

XNLI = 'a b\tc\tneutral\r\na b\td\u001ce\u2028f\tcontradiction\r\n"q" x\ty\tentailment\r\n'
QUOTED = 'a\tb\t1\n"say ""x"""\t"tab\there"\t0\n"two\nlines"\t"""all"""\t1\n'


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8"))
    return path


def check_back(path: Path, file: nli.PairFile, labels: Optional[list[Optional[str]]] = None) -> None:
    back = path.with_suffix(".back")
    nli.write(back, file)
    assert back.read_bytes() == path.read_bytes()
    nli.write(back, file, file.labels if labels is None else labels)
    assert back.read_bytes() == path.read_bytes()


def test_one_line_is_one_row(tmp_path: Path) -> None:
    # N4, QUIRKS 1, 2
    path = written(tmp_path / "dev.tsv", "\ufeff" + XNLI)
    file = nli.read(path)
    assert (file.format, file.label_set, file.labelled) == ("tsv", nli.LABEL_SETS["nli"], True)
    assert [(p.premise, p.hypothesis, p.label, p.line) for p in file] == [
        ("a b", "c", "neutral", 1),
        ("a b", "d\u001ce\u2028f", "contradiction", 2),
        ('"q" x', "y", "entailment", 3),
    ]
    check_back(path, file)
    nli.write(tmp_path / "predicted", file, ["entailment"] * 3)
    assert (tmp_path / "predicted").read_bytes().decode().count("\tentailment\r\n") == 3
    with pytest.raises(ScoringError):
        nli.write(tmp_path / "short", file, ["entailment"])
    with pytest.raises(UsageError):
        nli.format_pairs([nli.Pair("a", "b", None)])


def test_quoted_fields(tmp_path: Path) -> None:
    # N4, QUIRKS 5
    path = written(tmp_path / "paws.tsv", QUOTED)
    file = nli.read(path)
    assert (file.format, file.label_set) == ("tsv-quoted", ("0", "1"))
    assert [(p.premise, p.hypothesis, p.line) for p in file] == [
        ("a", "b", 1),
        ('say "x"', "tab\there", 2),
        ("two\nlines", '"all"', 3),
    ]
    check_back(path, file)
    assert nli.format_pairs(file, ["0"] * 3) == QUOTED.replace("\t1\n", "\t0\n")
    everything = written(tmp_path / "all.tsv", '"a"\t"b"\t"1"\n')
    file = nli.read(everything)
    assert (file.format, file[0].premise) == ("tsv-quoted", "a")
    assert nli.format_pairs(file, ["0"]) == '"a"\t"b"\t"0"\n'


@pytest.mark.parametrize(
    "text",
    [
        '"Yes."\tb\t1\n',
        '"Yes." he said\tb\t1\n',
        'a "\tb\t1\n',
        '"a\tb""\t1\nx\ty\t0\n',
        '"a" ""b""\tc\t0\n',
        'a\tb\t0\n"he said\tb\t0\nc\td\t1\nhe left"\te\t1\n',  # read with quoting it would be two pairs
    ],
)
def test_quotes_of_an_unquoted_table_are_text(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "file.tsv", text)
    file = nli.read(path)
    assert file.format == "tsv"
    assert [p.premise for p in file] == [line.split("\t")[0] for line in text.split("\n")[:-1]]
    check_back(path, file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(st.tuples(*[st.text('ab"\t\n\u2028', min_size=1)] * 2, st.sampled_from("01")), min_size=1))
def test_csv_module_and_back(tmp_path: Path, pairs: list[tuple[str, str, str]]) -> None:
    held = io.StringIO()
    csv.writer(held, delimiter="\t", lineterminator="\n").writerows(pairs)
    path = written(tmp_path / "file.tsv", held.getvalue())
    file = nli.read(path, "tsv-quoted")
    assert [(p.premise, p.hypothesis, p.label) for p in file] == pairs
    check_back(path, file)


def test_headers_name_the_columns(tmp_path: Path) -> None:
    # XNLI 1.0, myXNLI, MultiNLI, the translated MultiNLI of XNLI
    text = "language\tgold_label\tsentence1_parse\tsentence1\tsentence2\tpairID\n"
    text += "sw\tneutral\tx\ta\tb\t7\nen\tentailment\tx\tc\td\t7\n"
    path = written(tmp_path / "xnli.tsv", text)
    file = nli.read(path, lang="en")
    assert [(p.premise, p.hypothesis, p.label, p.id, p.line) for p in file] == [("c", "d", "entailment", "7", 3)]
    assert nli.format_pairs(file, ["neutral"]) == "\n".join([text.split("\n")[0], "en\tneutral\tx\tc\td\t7", ""])
    for lang in ("fr", None):
        with pytest.raises(DataError, match="en, sw"):
            nli.read(path, lang=lang)
    path = written(tmp_path / "my.tsv", "genre\tlabel\tsentence1_sw\tsentence2_sw\ntel\tneutral\ta\tb\n\n")
    file = nli.read(path)
    assert [(p.premise, p.hypothesis, p.label) for p in file] == [("a", "b", "neutral")]
    check_back(path, file)
    path = written(tmp_path / "mt.tsv", "premise\thypo\tlabel\na\tb\tcontradictory\n")
    file = nli.read(path)
    assert (file.labels, file.repairs) == (["contradiction"], {"contradictory": 1})  # N1
    assert nli.format_pairs(file) == path.read_text(encoding="utf-8")
    assert nli.format_pairs(file, file.labels).endswith("\tcontradiction\n")


@pytest.mark.parametrize("style", [{}, {"separators": (",", ":")}, {"ensure_ascii": True}])
def test_json_lines(tmp_path: Path, style: dict[str, Any]) -> None:
    # QUIRKS 7
    style = {"ensure_ascii": False, **style}
    records: list[dict[str, Any]] = [
        {"sentence1": "\u8eab\u4e0a", "sentence2": "b", "label": "-", "label0": "neutral", "id": 0},
        {"sentence1": "c", "sentence2": "d", "label": "neutral", "id": 0},
    ]
    text = "\r\n".join(json.dumps(record, **style) for record in records)
    path = written(tmp_path / "ocnli.json", text)
    file = nli.read(path)
    assert (file.format, file.labels, [p.id for p in file]) == ("jsonl", [None, "neutral"], ["0", "0"])
    check_back(path, file)
    records[0]["label"] = "entailment"
    assert nli.format_pairs(file, ["entailment", "neutral"]) == "\r\n".join(json.dumps(r, **style) for r in records)


def test_numbers_as_labels_need_a_map(tmp_path: Path) -> None:
    lines = ['{"premise": "a", "hypothesis": "b", "label": 0}', '{"premise": "a", "hypothesis": "c", "label": 2}']
    path = written(tmp_path / "hf.jsonl", "\n".join(lines) + "\n")
    with pytest.raises(DataError, match="'2'") as caught:
        nli.read(path)
    assert caught.value.where == f"{path}:2"
    file = nli.read(path, label_map={"0": "entailment", "2": "-"})
    assert (file.labels, file.dropped) == (["entailment", None], {"2": 1})
    assert (
        nli.format_pairs(nli.read(path, labels=("2", "0")), ["2", "2"]) == "\n".join(lines).replace("0}", "2}") + "\n"
    )


@pytest.mark.parametrize("text", ["a\tb\r\nc\td\r\n", "a\tb\t-\nc\td\t-\n", "premise\thypothesis\na\tb\n"])
def test_files_without_labels(tmp_path: Path, text: str) -> None:
    # QUIRKS 6
    path = written(tmp_path / "test.tsv", text)
    file = nli.read(path)
    assert (file.labelled, set(file.labels), file.label_set) == (False, {None}, ())
    check_back(path, file)
    predicted = nli.format_pairs(file, ["neutral"] * len(file))
    assert predicted.count("\tneutral") == len(file) and predicted.count("\r") == text.count("\r")
    objects = written(tmp_path / "test.jsonl", '{"premise": "a", "hypothesis": "b"}\n')
    file = nli.read(objects)
    assert not file.labelled
    assert nli.format_pairs(file, ["x"]) == '{"premise": "a", "hypothesis": "b", "label": "x"}\n'


def test_empty_sentences_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "file.tsv", "a\t\tneutral\n")
    assert nli.read(path).repairs == {"empty-sentence": 1}
    with pytest.raises(DataError):
        nli.read(path, repair=False)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a\tb\tneutral\nc\td\n", ":2"),
        ("a\tb\tneutral\n\nc\td\tneutral\n", ":2"),
        ("a\tb\tneutral\nc\td\tNeutral\n", ":2"),
        ("a\tb\tneutral\nc\td\t1\n", ":2"),
        ("a\tb\tyes\n", ":1"),
        ("a\tb\tc\tneutral\n", ":1"),
        ("a b neutral\n", ":1"),
        ('{"premise": "a", "choice1": "b", "choice2": "c", "label": 1}\n', ":1"),
        ('{"premise": "a", "hypothesis": 3, "label": "neutral"}\n', ":1"),
        ('{"premise": "a", "hypothesis": "b", "label": true}\n', ":1"),
        ('{"premise": "a", "hypothesis": "b", "label": "neutral"}\n{"premise": "a", "hypothesis": "b"}\n', ":2"),
        ('{"premise": "a"\n', ":1"),
        ("<!doctype html>\n", ":1"),
        ("\ufeff\n", ""),
        ("premise\thypothesis\tlabel\n", ""),
    ],
)
def test_refused(tmp_path: Path, text: str, where: str) -> None:
    path = written(tmp_path / "file", text)
    with pytest.raises(InterferenceError) as caught:
        nli.read(path)
    assert str(caught.value.where) == f"{path}{where}"


def test_formats_by_name(tmp_path: Path) -> None:
    path = written(tmp_path / "file", XNLI)
    with pytest.raises(UsageError, match="--format"):
        nli.read(path, "csv")
    with pytest.raises(DataError, match=":3"):
        nli.read(path, "tsv-quoted")
    assert nli.read(path, "tsv").labels == nli.read(path).labels
    with pytest.raises(DataError, match="does not end"):
        nli.read(written(path, 'a\t"b\t1\nc\td\t1\n'), "tsv-quoted")
