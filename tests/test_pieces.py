"""Encodings of many texts: the same on all cores, from the file and one by one; a damaged file is made anew."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qa_world import ODD_TEXTS, TRAINING, make_tokenizer

pytest.importorskip("fairseq")
from fairseq_interference.data import pieces
from fairseq_interference.data.alignment import align
from fairseq_interference.data.pieces import Pieces
from fairseq_interference.data.tokenizer import Tokenizer

TEXTS = [*(text for text in ODD_TEXTS.values() if text.strip()), *TRAINING, *TRAINING]


class Letters:
    """A dictionary: a number for every piece."""

    def index(self, sym: str) -> int:
        return sum(map(ord, sym)) % 5000

    def bos(self) -> int:
        return 0

    pad = eos = unk = bos


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"), "nfkc")


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few texts count as many, on two cores."""
    monkeypatch.setattr(pieces, "FEW", 4)
    monkeypatch.setattr(pieces, "_CHUNK", 5)
    monkeypatch.setattr(pieces, "cores", lambda: 2)


def check(found: Pieces, tokenizer: Tokenizer, aligned: bool) -> None:
    for text in TEXTS:
        wanted = align(tokenizer, text, "en")
        ids, spans = found.encode(text, "en", aligned)
        assert ids.tolist() == [Letters().index(piece) for piece in wanted.pieces]
        assert spans.tolist() == ([list(span) for span in wanted.spans] if aligned else [])


@pytest.mark.parametrize("aligned", [False, True])
def test_all_ways_give_the_same(
    tokenizer: Tokenizer, tmp_path: Path, many: None, aligned: bool, monkeypatch: Any
) -> None:
    check(Pieces(tokenizer, Letters()), tokenizer, aligned)
    for _ in range(2):
        found = Pieces(tokenizer, Letters(), "d", tmp_path)
        found.learn(TEXTS, "en", aligned)
        check(found, tokenizer, aligned)
        assert len(list(tmp_path.iterdir())) == 1
        monkeypatch.setattr(pieces, "_encode_all", lambda *_: pytest.fail("the file was not read"))
        monkeypatch.setattr(pieces, "_encode", lambda *_: pytest.fail("not remembered"))


def test_a_file_is_of_its_texts_tokenizer_and_dictionary(tokenizer: Tokenizer, tmp_path: Path, many: None) -> None:
    other = make_tokenizer(tmp_path / "other", "identity")
    kept = tmp_path / "kept"
    for number, (one, digest, texts, lang, aligned) in enumerate(
        [
            (tokenizer, "a", TEXTS, "en", False),
            (tokenizer, "b", TEXTS, "en", False),
            (other, "a", TEXTS, "en", False),
            (tokenizer, "a", TEXTS[1:7], "en", False),
            (tokenizer, "a", TEXTS, "th", False),
            (tokenizer, "a", TEXTS, "en", True),
        ],
        1,
    ):
        Pieces(one, Letters(), digest, kept).learn(texts, lang, aligned)
        assert len(list(kept.iterdir())) == number


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_file_is_made_anew(
    tokenizer: Tokenizer, tmp_path: Path, many: None, damage: str, caplog: Any
) -> None:
    Pieces(tokenizer, Letters(), "d", tmp_path).learn(TEXTS, "en")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    if damage == "other":
        np.savez(path, ends=np.array([1]), ids=np.array([1, 2]), spans=np.zeros((0, 2)))
    else:
        path.write_bytes(whole[:100] if damage == "cut" else b"")
    with caplog.at_level(logging.WARNING):
        found = Pieces(tokenizer, Letters(), "d", tmp_path)
        found.learn(TEXTS, "en")
    check(found, tokenizer, False)
    assert path.read_bytes()[:2] == b"PK" and len(path.read_bytes()) >= len(whole) - 100


def test_a_folder_that_cannot_be_written_does_no_harm(
    tokenizer: Tokenizer, tmp_path: Path, many: None, caplog: Any
) -> None:
    (tmp_path / "file").write_text("in the way")
    found = Pieces(tokenizer, Letters(), "d", tmp_path / "file")
    found.learn(TEXTS, "en")
    check(found, tokenizer, False)
    assert "not kept" in caplog.text
