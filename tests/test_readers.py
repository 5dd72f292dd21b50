"""Readers of label files: one made-up file for each oddity that real files have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_interference.data.readers import ner
from fairseq_interference.data.readers.labels import LabelMap, to_iob2
from fairseq_interference.errors import DataError, UsageError


def put(folder: Path, text: str, name: str = "file.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode("utf-8"))
    return path


def pairs(file: ner.NerFile) -> list[list[tuple[str, str]]]:
    return [list(zip(sentence.words, sentence.labels)) for sentence in file]


SIMPLE = [[("Ada", "B-PER"), ("Lovelace", "I-PER"), ("wrote", "O")], [("London", "B-LOC")]]
SAME_SENTENCES = {
    "conll-tab": "Ada\tB-PER\nLovelace\tI-PER\nwrote\tO\n\nLondon\tB-LOC\n\n",
    "conll-blank": "Ada B-PER\nLovelace I-PER\nwrote O\n\nLondon B-LOC\n",
    "panx": "en:Ada\tB-PER\nen:Lovelace\tI-PER\nen:wrote\tO\n\nen:London\tB-LOC\n\n",
    "indexed": "0\tAda\tB-PER\n1\tLovelace\tI-PER\n2\twrote\tO\n\n0\tLondon\tB-LOC\n\n",
    "uner": (
        "# newdoc id = d\n# sent_id = 1\n# text = Ada Lovelace wrote\n1\tAda\tB-PER\t-\t-\n2\tLovelace\tI-PER\t-\t-\n"
        "3\twrote\tO\t-\t-\n\n# sent_id = 2\n# text = London\n1\tLondon\tB-LOC\t-\t-\n\n"
    ),
    "mahaner": (
        "words\tlabels\tsentence_id\nAda\tBPER\t1.0\nLovelace\tIPER\t1.0\nwrote\tO\t1.0\nLondon\tBLOC\t2.0\n"
    ),
    "newsfane": (
        "\ufeff\u200eAda\tB-PER\r\n\u200eLovelace\tI-PER\r\n\u200ewrote\tO\r\n\t\r\n\u200eLondon\tB-LOC\r\n\t\r\n"
    ),
    "masakhanerx": "".join(
        json.dumps(record) + "\n"
        for record in (
            {
                "example_id": "a",
                "text": "Ada Lovelace wrote",
                "spans": [{"start_byte": 0, "limit_byte": 12, "label": "PER"}],
                "target": "PER: Ada Lovelace",
            },
            {
                "example_id": "b",
                "text": "London",
                "spans": [{"start_byte": 0, "limit_byte": 6, "label": "LOC"}],
                "target": "LOC: London",
            },
        )
    ),
    "prepared": (
        '{"id": "1", "lang": "en", "words": ["Ada", "Lovelace", "wrote"], "labels": ["B-PER", "I-PER", "O"]}\n'
        '{"id": "2", "lang": "en", "words": ["London"], "labels": ["B-LOC"]}\n'
    ),
}


@pytest.mark.parametrize("name", SAME_SENTENCES)
def test_every_layout_is_told_by_content_and_written_back_byte_for_byte(tmp_path: Path, name: str) -> None:
    path = put(tmp_path, SAME_SENTENCES[name])
    file = ner.read(path)
    assert file.format == name
    assert pairs(file) == SIMPLE
    assert file.labelled
    assert file == ner.read(path, name)
    for labels in (None, file.labels):
        ner.write(tmp_path / "again", file, labels)
        assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", SAME_SENTENCES)
def test_predictions_change_the_labels_and_nothing_else(tmp_path: Path, name: str) -> None:
    file = ner.read(put(tmp_path, SAME_SENTENCES[name]))
    predicted = [["O", "B-ORG", "I-ORG"], ["O"]]
    ner.write(tmp_path / "predicted", file, predicted)
    again = ner.read(tmp_path / "predicted", name)
    assert (again.words, again.labels) == (file.words, predicted)


def test_json_layouts_need_the_record_that_the_words_came_from(tmp_path: Path) -> None:
    file = ner.read(put(tmp_path, SAME_SENTENCES["panx"]))
    with pytest.raises(UsageError, match="from words alone"):
        ner.write(tmp_path / "x", file, file.labels, "masakhanerx")
    ner.write(tmp_path / "x", file, file.labels, "il-ner")
    assert (tmp_path / "x").read_text(encoding="utf-8") == SAME_SENTENCES["conll-tab"]


@pytest.mark.parametrize("name", [name for name in SAME_SENTENCES if name not in ("masakhanerx", "prepared")])
def test_layouts_written_from_words_alone_read_the_same(tmp_path: Path, name: str) -> None:
    sentences = [ner.Sentence([word for word, _ in s], [label for _, label in s]) for s in SIMPLE]
    ner.write(tmp_path / "x", sentences, None, name, lang="en")
    file = ner.read(tmp_path / "x")
    assert (file.format, pairs(file)) == (name, SIMPLE)


def test_panx_gives_the_language_and_keeps_colons(tmp_path: Path) -> None:
    file = ner.read(put(tmp_path, "sw:10:30\tO\nsw::\tO\nsw:Mto\tB-LOC\n"))
    assert (file[0].words, file[0].lang) == (["10:30", ":", "Mto"], "sw")
    # Not every word has the prefix: then it is no prefix.
    assert ner.read(put(tmp_path, "sw:Mto\tB-LOC\nni\tO\n"))[0].words == ["sw:Mto", "ni"]
    with pytest.raises(DataError, match=r"file\.txt:2"):
        ner.read(put(tmp_path, "sw:Mto\tB-LOC\nni\tO\n"), "panx")


def test_only_lf_ends_a_line(tmp_path: Path) -> None:
    # QUIRKS 2, T9: U+2028, U+0085, U+001C, NBSP stay inside their word
    words = ["a\u2028b", "c\u0085d", "e\x1cf", "g\u00a0h", "\u00a0"]
    for separator in "\t ":
        file = ner.read(put(tmp_path, "".join(f"{word}{separator}O\n" for word in words)))
        assert file.words == [words]


def test_crlf_and_missing_last_newline(tmp_path: Path) -> None:
    # QUIRKS 1, 4
    path = put(tmp_path, "a\tB-X\r\nb\tI-X\r\n\r\nc\tO")
    file = ner.read(path)
    assert pairs(file) == [[("a", "B-X"), ("b", "I-X")], [("c", "O")]]
    ner.write(tmp_path / "again", file, file.labels)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_newsfane_marks_bom_and_tab_lines(tmp_path: Path) -> None:
    # QUIRKS 11, 30: the mark before a token belongs to the layout, one inside does not
    text = (
        "\ufeff\u200eفر\tB-Population-Center\r\n(\tO\r\n\u200eد\u200eد\tI-Population-Center\r\n\u200e\tO\r\n"
        "\t\r\n\u200eب\tO\r\n\t\r\n"
    )
    file = ner.read(put(tmp_path, text))
    assert file.format == "newsfane"
    assert file.words == [["فر", "(", "د\u200eد", "\u200e"], ["ب"]]
    assert file[0].labels[0] == "B-Population-Center"
    assert file.repairs == {"left-to-right-mark": 3}


def test_joiners_and_zero_width_words_stay(tmp_path: Path) -> None:
    # QUIRKS 12, 13, T1
    file = ner.read(put(tmp_path, "hello O\n\u200b O\nక్\u200cష B-LOC\nक्\u200dष O\n"))
    assert file[0].words == ["hello", "\u200b", "క్\u200cష", "क्\u200dष"]


def test_words_are_not_normalised(tmp_path: Path) -> None:
    # QUIRKS 16
    words = ["\u0958", "e\u0301", "\ufb01"]
    assert ner.read(put(tmp_path, "".join(f"{word}\tO\n" for word in words))).words == [words]


def test_number_sign_is_a_token_in_two_columns(tmp_path: Path) -> None:
    # QUIRKS 26
    file = ner.read(put(tmp_path, "Ada B-PER\n# O\n#x O\n\n# O\n"))
    assert file.words == [["Ada", "#", "#x"], ["#"]]


def test_uner_comments_ranges_and_empty_nodes(tmp_path: Path) -> None:
    # QUIRKS 19, 20, 24, 27, T8: comments and ranges are no words, a form # is one; all come back in their place
    text = (
        "# sent_id = 1\n#\n1-2\tdon't\t_\t-\t-\n1\tdo\tO\t-\t-\n# a note inside\n2\tn't\tO\t-\t-\n2.1\tx\t_\t-\t-\n"
        "3\t#\tB-ORG\t-\t-\n\n\n# the end\n"
    )
    path = put(tmp_path, text)
    file = ner.read(path)
    assert (file.words, file.repairs) == ([["do", "n't", "#"]], {"not-a-word": 2})
    ner.write(tmp_path / "again", file, file.labels)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_words_with_blanks_in_tab_layouts(tmp_path: Path) -> None:
    # QUIRKS 21
    assert ner.read(put(tmp_path, "6 20 30\tO\nHà Nội\tB-LOC\n")).words == [["6 20 30", "Hà Nội"]]


def test_index_from_any_number_and_jumps_are_counted(tmp_path: Path) -> None:
    assert ner.read(put(tmp_path, "1\ta\tO\n2\tb\tO\n\n1\tc\tO\n")).repairs == {}
    assert ner.read(put(tmp_path, "0\ta\tO\n2\tb\tO\n")).repairs == {"index-jump": 1}


def test_mahaner_sentences_by_number(tmp_path: Path) -> None:
    # QUIRKS 28
    text = "words\tlabels\tsentence_id\nरिया\tBNEP\t1.0\nखरंच\tO\t1.0\nमहाराष्ट्र\tBED\t2.0\nमुंबई\tIED\t2.0\nक\tO\t10.0\n"
    file = ner.read(put(tmp_path, text))
    assert file.labels == [["B-NEP", "O"], ["B-ED", "I-ED"], ["O"]]
    assert [sentence.line for sentence in file] == [2, 4, 6]
    with pytest.raises(DataError, match="header"):
        ner.read(put(tmp_path, text.split("\n", 1)[1]), "mahaner")


def test_il_ner_labels(tmp_path: Path) -> None:
    # QUIRKS 29
    text = (
        "భారత\t-NEL\nమ\tO\nరామ\t-NEP\nగుహ\t-NEP\n131\tB-NEN\nఢిల్లీ\t-NEL\nx\t-\ny\t-''\nz\t-doubt\n"
        "सं\tB-\u200c\u200cNEMI\n-\tO\nO\nको\tI-NEL"
    )
    file = ner.read(put(tmp_path, text))
    assert file[0].words[-3:] == ["-", "O", "को"]
    assert file[0].labels == [
        *("B-NEL", "O", "B-NEP", "I-NEP", "B-NEN", "B-NEL", "O", "O", "O", "B-NEMI", "O", "O", "I-NEL"),
    ]
    assert file.repairs == {"bare-type": 4, "no-label": 3, "invisible": 1, "lone-O": 1}
    ner.write(tmp_path / "raw", file)
    assert (tmp_path / "raw").read_text(encoding="utf-8") == text
    ner.write(tmp_path / "predicted", file, [["O"] * 11 + ["B-X", "O"]])
    assert (tmp_path / "predicted").read_text(encoding="utf-8").endswith("-\tO\nO\tB-X\nको\tO")
    with pytest.raises(DataError, match=r"file\.txt:1") as error:
        ner.read(put(tmp_path, text.replace("\nO\n", "\n")), repair=False)
    assert error.value.value == "-NEL"


def test_a_word_alone_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"file\.txt:2"):
        ner.read(put(tmp_path, "Ada\tB-PER\nLovelace\n"))


def test_extra_blank_lines_make_no_sentences(tmp_path: Path) -> None:
    # QUIRKS 32
    assert len(ner.read(put(tmp_path, "\n\na\tO\n\n \n\t\n\nb\tO\n\n\n"))) == 2


def test_conll_2003_columns_and_docstart(tmp_path: Path) -> None:
    path = put(tmp_path, "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects  VBZ B-VP O \n\n")
    file = ner.read(path)
    assert pairs(file) == [[("EU", "B-ORG"), ("rejects", "O")]]
    ner.write(tmp_path / "again", file, file.labels)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_masakhanerx_offsets_are_bytes(tmp_path: Path) -> None:
    # QUIRKS 33
    text = "Ngũgĩ wa Thiong'o (1938) alizaliwa Kĩambu."
    encoded = text.encode()
    spans = []
    for part, label in (("Ngũgĩ wa Thiong'o", "PER"), ("1938", "DATE"), ("Kĩambu", "LOC")):
        start = encoded.index(part.encode())
        spans.append({"start_byte": start, "limit_byte": start + len(part.encode()), "label": label})
    file = ner.read(put(tmp_path, json.dumps({"text": text, "spans": spans}) + "\n"))
    assert pairs(file)[0] == [
        ("Ngũgĩ", "B-PER"),
        ("wa", "I-PER"),
        ("Thiong'o", "I-PER"),
        ("(", "O"),
        ("1938", "B-DATE"),
        (")", "O"),
        ("alizaliwa", "O"),
        ("Kĩambu", "B-LOC"),
        (".", "O"),
    ]
    ner.write(tmp_path / "again", file, file.labels)
    assert json.loads((tmp_path / "again").read_text(encoding="utf-8"))["spans"] == spans


@pytest.mark.parametrize(
    ("span", "repair"), [((0, 5), "span-widened"), ((3, 4), None), ((0, 99), None), ((4, 4), None), (("0", 5), None)]
)
def test_masakhanerx_spans_are_checked(tmp_path: Path, span: tuple[Any, int], repair: Optional[str]) -> None:
    record = {"text": "Ngũgĩwa", "spans": [{"start_byte": span[0], "limit_byte": span[1], "label": "PER"}]}
    path = put(tmp_path, json.dumps(record))
    if repair is None:
        with pytest.raises(DataError, match=r"file\.txt:1"):
            ner.read(path)
        return
    file = ner.read(path)
    assert (file.labels, file.repairs) == ([["B-PER"]], {repair: 1})
    with pytest.raises(DataError, match="repairs are off"):
        ner.read(path, repair=False)


@pytest.mark.parametrize(
    ("content", "what", "where"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer", ":1"),
        (b"\n<!DOCTYPE html>\n<html><body>sign in</body></html>", "HTML page", ":1"),
        (b"ok\tO\nb\xff\tO\n", "not UTF-8", ":2"),
        (b"", "empty", ""),
        (b"\n \n\t\n", "empty", ""),
        ("a\tO\n".encode("utf-16"), "NUL|UTF-8", ":1"),
        (b"Katika ADP\nbaadhi SCONJ\n", "not a label", ":1"),
        (b"1\tx\tx\tPRON\t_\t_\t2\tn\t_\t_\n", "CoNLL-U", ":1"),
        (b"a\tb\tO\nc\td\tO\n", "3 columns", ":1"),
        (b"The first line of a text .\nAnother one .\n", "columns|label", ":"),
        (b"a O\nb c O\n", "columns", ":2"),
        (b'{"premise": "x"}\n', "no known kind", ":1"),
        (b'{"words": ["x"], "labels": []}\n', "differ in number", ":1"),
        (b'{"words": ["x"], "labels": ["O"]}\n{"words": [\n', "not JSON", ":2"),
        (b"a\tE-PER\n", "not a label", ":1"),
        (b"a\tB-\n", "not a label", ":1"),
        (b"a\tBNEP\n", "not a label", ":1"),
        (b"a\tO\nb\tO\nAda\tB-PER\tx\n", "columns", ":3"),
    ],
)
def test_what_is_no_label_file_is_refused_by_name_and_line(
    tmp_path: Path, content: bytes, what: str, where: str
) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=what) as error:
        ner.read(path)
    assert f"file.txt{where}" in str(error.value)


def test_unknown_format_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="conll-tab"):
        ner.read(put(tmp_path, "a\tO\n"), "conll2003")
    with pytest.raises(DataError, match="no such file"):
        ner.read(tmp_path / "missing")


def test_unlabelled_words(tmp_path: Path) -> None:
    path = put(tmp_path, "Ada\nwrote\n\nLondon\n")
    file = ner.read(path)
    assert (file.format, file.labelled, file.words) == ("words", False, [["Ada", "wrote"], ["London"]])
    ner.write(tmp_path / "same", file)
    assert (tmp_path / "same").read_bytes() == path.read_bytes()
    ner.write(tmp_path / "predicted", file, [["B-PER", "O"], ["B-LOC"]])
    again = ner.read(tmp_path / "predicted")
    assert (again.words, again.labels) == (file.words, [["B-PER", "O"], ["B-LOC"]])


def test_label_maps(tmp_path: Path) -> None:
    path = put(tmp_path, "a\tB-NEP\nb\tI-NEP\nc\tB-NEN\nd\tI-NEN\ne\t-NEL\nf\t-doubt\n")
    file = ner.read(path, label_map=LabelMap.parse("NEP=PER, NEN=O,NEL=LOC,-doubt=B-LOC"))
    assert file[0].labels == ["B-PER", "I-PER", "O", "O", "B-LOC", "B-LOC"]
    assert (file.dropped, file.repairs) == ({"NEN": 1}, {"bare-type": 1})
    maps = put(tmp_path, "types: {NEP: PER}\nlabels: {-NEL: O}\n", "map.yaml")
    with pytest.raises(DataError, match=r"file\.txt:3") as error:
        ner.read(path, label_map=LabelMap.parse(str(maps)))
    assert error.value.value == "NEN"
    put(tmp_path, "types: {NEP: PER}\nunmapped: O\n", "map.yaml")
    dropped = ner.read(path, label_map=LabelMap.read(maps))
    assert (dropped[0].labels, dropped.dropped) == (["B-PER", "I-PER", "O", "O", "O", "O"], {"NEN": 1, "NEL": 1})


@pytest.mark.parametrize("text", ["NEP", "NEP=", "=PER", "NEP=B-PER", "-doubt=PER", "missing.yaml"])
def test_broken_label_maps(text: str) -> None:
    with pytest.raises(UsageError):
        LabelMap.parse(text)


@pytest.mark.parametrize(
    "text",
    ["types: [a]\n  b: c\n", "kinds: {A: B}\n", "unmapped: maybe\n", "types: [A, B]\n", "types: {A: [B]}\n"],
)
def test_broken_label_map_files(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        LabelMap.parse(str(put(tmp_path, text, "map.yaml")))


def test_yaml_reads_no_type_as_something_else(tmp_path: Path) -> None:
    found = LabelMap.parse(str(put(tmp_path, "types: {NO: PER, 1: LOC}\n", "map.yaml")))
    assert found.types == {"NO": "PER", "1": "LOC"}
    (tmp_path / "latin.yaml").write_bytes(b"types: {\xe9: PER}\n")
    with pytest.raises(UsageError, match="not YAML"):
        LabelMap.parse(str(tmp_path / "latin.yaml"))


@pytest.mark.parametrize(
    "line",
    ['{"words": ["\\ud800"], "labels": ["O"]}', "[" * 100_000, '{"words": ["a"], "n": 1%s}' % ("0" * 5000)],
)
def test_json_that_cannot_be_written_again_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(DataError, match=r"f\.jsonl:2"):
        ner.read(put(tmp_path, '{"words": ["a"], "labels": ["O"]}\n' + line + "\n", "f.jsonl"))


def test_labels_of_some_sentences_alone_are_refused(tmp_path: Path) -> None:
    text = '{"words": ["a"], "labels": ["B-PER"]}\n{"words": ["b"], "labels": null}\n'
    with pytest.raises(DataError, match=r"f\.jsonl:2"):
        ner.read(put(tmp_path, text, "f.jsonl"))


def test_to_iob2() -> None:
    # QUIRKS 31
    given = ["I-A", "I-A", "B-A", "I-B", "O", "I-B", "I-B"]
    assert to_iob2(given) == (["B-A", "I-A", "B-A", "B-B", "O", "B-B", "I-B"], 3)
    assert to_iob2(to_iob2(given)[0])[1] == 0


PARTS = ["a", "O", "B-X", "I-X", "-X", "\t", "\t", " ", "\r", "#", "1", "1-2", "\u200e", "\ufeff", "xx:", "\u2028"]
FULL_LINES = ["a\tO", "# B-X", "xx:a\tI-X", "\u200ea\t-X", "1\ta\tO\t-\t-", "0\ta\tB-X", "O", "", "\t", "# c"]
any_line = st.one_of(st.sampled_from(FULL_LINES), st.lists(st.sampled_from(PARTS), max_size=6).map("".join))
lines_of_any_kind = st.lists(any_line, max_size=6)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines_of_any_kind, st.sampled_from(["auto", "conll", "panx", "uner", "newsfane", "conll-blank"]))
def test_any_text_is_refused_by_line_or_comes_back_byte_for_byte(tmp_path: Path, lines: list[str], name: str) -> None:
    path = put(tmp_path, "\n".join(lines))
    try:
        file = ner.read(path, name)
    except DataError as error:
        assert "file.txt" in str(error.where)
        return
    assert ner.format_sentences(file).encode() == path.read_bytes()
    if file.labelled:
        nothing = [["O"] * len(words) for words in file.words]
        ner.write(tmp_path / "again", file, nothing)
        again = ner.read(tmp_path / "again", file.format)
        assert (again.words, again.labels) == (file.words, nothing)
