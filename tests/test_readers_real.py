"""Every real file of named entities: read, compare with a reading by hand, write back."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from fairseq_interference.data.readers import ner
from fairseq_interference.errors import DataError
from fairseq_interference.evaluation.metrics import conlleval_entities, iob2_entities

FOLDER = Path(os.environ.get("INTERFERENCE_REAL_DATA", "missing")) / "ner"
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*")) or ["no real data"]
pytestmark = pytest.mark.real_data


def columns_by_hand(path: Path) -> list[list[str]]:
    """Words of a file, read as its corpus documents it and without the readers."""
    name = path.name
    uner, indexed, maha = name.endswith(".iob2"), name.endswith(".conllu"), name.startswith("mahaner")
    sentences: list[list[str]] = [[]]
    last = ""
    for number, raw in enumerate(path.read_bytes().decode("utf-8").split("\n")):
        line = raw.rstrip("\r")
        if line.strip(" \t") == "":
            sentences.append([])
            continue
        if (uner and line.startswith("# ")) or (maha and number == 0):
            continue
        cells = line.split("\t" if "\t" in line else " ")
        if maha and cells[2] != last:
            last = cells[2]
            sentences.append([])
        word = cells[1] if uner or indexed else cells[0]
        sentences[-1].append(word.lstrip("\ufeff").removeprefix("\u200e") if name.startswith("News") else word)
    return [words for words in sentences if words]


@pytest.mark.parametrize("name", FILES)
def test_read_and_write_back(real_data: Path, tmp_path: Path, name: str) -> None:
    path = FOLDER / name
    file = ner.read(path)
    if file.format == "masakhanerx":
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        assert ["".join(words) for words in file.words] == ["".join(record["text"].split()) for record in records]
        assert sum(len(record["spans"]) for record in records) == sum(len(conlleval_entities(s)) for s in file.labels)
        assert not file.repairs
    else:
        assert file.words == columns_by_hand(path)
    ner.write(tmp_path / "raw", file)
    assert (tmp_path / "raw").read_bytes() == path.read_bytes()
    ner.write(tmp_path / "labels", file, file.labels)
    again = ner.read(tmp_path / "labels")
    assert (again.words, again.labels) == (file.words, file.labels)
    if not set(file.repairs) - {"left-to-right-mark"}:
        assert (tmp_path / "labels").read_bytes() == path.read_bytes()
    nothing = [["O"] * len(words) for words in file.words]
    ner.write(tmp_path / "nothing", file, nothing)
    empty = ner.read(tmp_path / "nothing", file.format)
    assert (empty.words, empty.labels) == (file.words, nothing)


@pytest.mark.parametrize("name", FILES)
def test_labels_are_iob2_style_and_repairs_are_all_there_is(real_data: Path, name: str) -> None:
    file = ner.read(FOLDER / name)
    changed = Counter[bool]()
    for sentence in file:
        assert len(sentence.words) == len(sentence.labels) == len(sentence.lines)
        assert all(label == "O" or label[:2] in ("B-", "I-") for label in sentence.labels)
        assert len(iob2_entities(sentence.labels)) <= len(conlleval_entities(sentence.labels))
        joined = file.format == "mahaner"
        changed.update(
            raw != (label.replace("-", "", 1) if joined else label) for raw, label in zip(sentence.raw, sentence.labels)
        )
    counted = ("bare-type", "no-label", "invisible")
    assert changed[True] == sum(count for repair, count in file.repairs.items() if repair in counted)


def test_counts_that_the_corpora_are_known_for(real_data: Path) -> None:
    telugu = ner.read(FOLDER / "te/Telugu-train.txt")
    assert Counter(raw for sentence in telugu for raw in sentence.raw)["-NEL"] == 579
    assert sum("\u200c" in word for words in telugu.words for word in words) > 0
    swahili = ner.read(FOLDER / "sw/masakhaner1.swa.train.txt")
    signs = [line for s in swahili for word, line in zip(s.words, s.lines) if word == "#"]
    assert signs == [33027, 33030, 50892]
    assert any("\u200b" in word for words in swahili.words for word in words)
    arabic = ner.read(FOLDER / "ar/NewsFANE_Gold_2014_170K.s1-700.txt")
    assert (len(arabic), arabic.repairs["left-to-right-mark"]) == (700, 26949)
    assert ner.read(FOLDER / "hi/Hindi-train.s8201-8330.txt").repairs["lone-O"] == 1
    assert len(ner.read(FOLDER / "mr/mahaner.valid_iob.txt")) == 1500


@pytest.mark.parametrize(
    "name", ["pos/sw/masakhapos.swa.dev.txt", "pos/te/te_mtg-ud-dev.conllu", "nli/en/xnli.dev-en.l1-1200.tsv"]
)
def test_files_of_other_tasks_are_refused(real_data: Path, name: str) -> None:
    with pytest.raises(DataError, match=Path(name).name + ":"):
        ner.read(real_data / name)
