"""Files of part-of-speech tags: every layout, every oddity, and back byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_interference.data.readers import pos
from fairseq_interference.errors import DataError, InterferenceError, ScoringError, UsageError


def row(number: str, form: str, tag: str) -> str:
    return f"{number}\t{form}\t_\t{tag}\tXX\tA=b\t0\troot\t_\tSpaceAfter=No"


CONLLU = "\n".join(
    [
        "# global.columns = ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC",
        "# newdoc",
        "# sent_id s-1",
        row("0.1", "_", "VERB"),
        row("1-2", "du", "_"),
        "# a comment between words",
        row("1", "de", "ADP"),
        row("2", "le", "DET"),
        row("3", "6 20\u00a030", "NUM"),
        row("3.1", "_", "VERB"),
        row("4", "#", "SYM"),
        row("5", "a\u2028b", "X"),
        "",
        "",
        "# text = _",
        row("1", "_", "PUNCT"),
        row("2", "\u0939\u0948\u200c", "_"),
        "",
        "",
    ]
)


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8"))
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n"])
def test_conllu_and_back(tmp_path: Path, end: str, mark: str, last: str) -> None:
    # T8, T9, QUIRKS 19-22, 24
    text = mark + (CONLLU.rstrip("\n") + last).replace("\n", end)
    path = written(tmp_path / "a.conllu", text)
    file = pos.read(path)
    assert (file.format, file.labelled, file.repairs) == ("conllu", True, {"not-a-word": 3})
    assert file.words == [["de", "le", "6 20\u00a030", "#", "a\u2028b"], ["_", "\u0939\u0948\u200c"]]
    assert file.labels == [["ADP", "DET", "NUM", "SYM", "X"], ["PUNCT", "_"]]
    assert [sentence.lines[0] for sentence in file] == [7, 16]
    for labels in (None, file.labels):
        pos.write(tmp_path / "back", file, labels)
        assert (tmp_path / "back").read_bytes() == path.read_bytes()


def test_predictions_replace_upos_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conllu", CONLLU)
    file = pos.read(path)
    pos.write(tmp_path / "predicted", file, [["NOUN"] * len(words) for words in file.words])
    before, after = CONLLU.split("\n"), (tmp_path / "predicted").read_text(encoding="utf-8").split("\n")
    assert len(before) == len(after)
    for old, new in zip(before, after):
        cells = old.split("\t")
        if len(cells) == 10 and cells[0].isdigit():
            cells[3] = "NOUN"
        assert new == "\t".join(cells)
    with pytest.raises(ScoringError, match="sentence 1"):
        pos.write(tmp_path / "short", file, [["NOUN"], ["X", "X"]])
    second = pos.format_sentences(file[1:])
    assert second == "\n".join(CONLLU.split("\n")[14:17]) + "\n\n"


def test_tags_of_other_sets_are_refused_or_mapped(tmp_path: Path) -> None:
    # QUIRKS 23
    text = "\n".join(["# hi", row("1", "aur", "CONJ"), row("2", "lal", "adj"), row("3", "?", "QM"), "", ""])
    path = written(tmp_path / "a.conllu", text)
    with pytest.raises(DataError) as caught:
        pos.read(path)
    assert caught.value.where == f"{path}:2" and caught.value.value == "CONJ"
    assert "--tag-map CONJ=CCONJ" in str(caught.value)
    file = pos.read(path, tag_map=pos.parse_tag_map("CONJ=CCONJ, adj=ADJ,QM=_"))
    assert (file.labels, file.dropped) == ([["CCONJ", "ADJ", "_"]], {"QM": 1})
    assert pos.format_sentences(file) == text
    assert pos.format_sentences(file, file.labels) == text.replace("CONJ", "CCONJ").replace("adj", "ADJ").replace(
        "QM", "_"
    )


@pytest.mark.parametrize("text", ["CONJ", "=ADJ", "CONJ=", "CONJ=CONJ", "a=adj"])
def test_a_map_leads_to_the_17(text: str) -> None:
    with pytest.raises(UsageError, match="--tag-map"):
        pos.parse_tag_map(text)


def test_seventeen_tags() -> None:
    assert len(pos.TAGS) == len(set(pos.TAGS)) == 17
    assert list(pos.TAGS) == sorted(pos.TAGS)


@pytest.mark.parametrize(
    ("text", "format", "labelled", "words"),
    [
        ("a\tNOUN\nO\tX\n\nb c\tVERB\n\n", "conll-tab", True, [["a", "O"], ["b c"]]),
        ("a NOUN\n# SYM\n\n\nb VERB\n", "conll-blank", True, [["a", "#"], ["b"]]),
        ("a\n?\n\nO\n", "words", False, [["a", "?"], ["O"]]),
        ('{"words": ["a", "b"], "labels": ["NOUN", "_"]}\n', "prepared", True, [["a", "b"]]),
        (row("1", "a", "_") + "\n\n" + row("1", "b", "_") + "\n\n", "conllu", False, [["a"], ["b"]]),
    ],
)
def test_other_layouts(tmp_path: Path, text: str, format: str, labelled: bool, words: list[list[str]]) -> None:
    path = written(tmp_path / "file", text)
    for asked in ("auto", format):
        file = pos.read(path, asked)
        assert (file.format, file.labelled, file.words) == (format, labelled, words)
        assert pos.format_sentences(file) == text
    assert all(len(labels) == (len(words) if labelled else 0) for labels, words in zip(file.labels, file.words))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a\tNOUN\nO\n", ":2"),  # no lone-O among tags
        ("a\tNOUN\nb\tB-PER\n", ":2"),
        ("sw:a\tNOUN\nsw:b\tNOUN\n", ""),
        (row("1", "a", "NOUN") + "\n" + "2\tb\tNOUN\n", ":2"),
        (row("1", "a", "NOUN") + "\n" + row("x", "b", "NOUN") + "\n", ":2"),
        (row("1", "a", "NOUN").replace("\t", "    ") + "\n", ""),
        (row("1", "a", "") + "\n", ":1"),
        (row("1", "_", "NOUN") + "\n" + row("2", "_", "VERB") + "\n", ""),
        ("# only a comment\n", ""),
        ("version https://git-lfs.github.com/spec/v1\n", ":1"),
        ('{"words": ["a"], "labels": ["O"]}\n', ":1"),
        ('{"text": "a", "spans": []}\n', ""),
    ],
)
def test_refused(tmp_path: Path, text: str, where: str) -> None:
    path = written(tmp_path / "file", text)
    with pytest.raises(InterferenceError) as caught:
        pos.read(path)
    assert str(caught.value.where).startswith(f"{path}{where}")


def test_repairs_can_be_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "file", row("1", "a", "X") + "\n" + row("3", "b", "X") + "\n")
    assert pos.read(path).repairs == {"index-jump": 1}
    with pytest.raises(DataError, match="index-jump"):
        pos.read(path, repair=False)
    with pytest.raises(UsageError, match="panx"):
        pos.read(path, "panx")
