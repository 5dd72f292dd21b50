"""Cleaning, pre-tokenising and encoding of single lines."""

from __future__ import annotations

import io
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_interference.data.pretokenize import lone_marks, pretokenize
from fairseq_interference.data.text import SPECIAL_SYMBOLS, Cleaner, clean_line, cut_line
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import TokenizerError, UsageError

# what makes text hard: marks, joiners, blanks of all kinds, controls, other scripts, signs of our own formats
HARD = (
    "ab Zé\u0301\u0315 .,'\"-<>/@&|[]’“”…!?sunkpadmask_▁\t\r\x00\x08\x0b\x1c\x1f\x85\xa0\xad\u200b\u200c\u200d"
    "\u200e\u2028\u202f\u2060\u3000\ufeff\ufffdहिन्दी\u0958।తెలుగు్عربيةَّ\u0640ไทยที่မြန်မာ်中文한국어Ω\u037e😀🇩🇪0123456789"
)
lines = st.text(alphabet=st.sampled_from(HARD), max_size=60) | st.text(
    alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\n"), max_size=40
)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\ufeffone", "one"),
        ("one\r", "one"),
        ("a\rb", "a b"),
        ("a\u2028b\u2029c\x85d\x1ce\x1df\x1eg\x1fh\x0bi\x0cj", "a b c d e f g h i j"),
        ("a\x00b\x08c\x02d\x81e", "abcde"),
        ("a\xa0b\u202f!\u3000c\u2009d\te", "a b ! c d e"),
        ("a\u200bb", "a b"),
        ("\u200ea\u202bb\u202c\u2060c\xadd", "abcd"),
        ("  a   b ", "a b"),
        ("e\u0301", "é"),
        ("\u0958", "\u0915\u093c"),
        ("क\u200dष म\u200cि", "क\u200dष म\u200cि"),
        ("\ufffd", "\ufffd"),
        ("x</s>y <mask>", "x< /s >y < mask >"),
        ("<p\u200ead>", "< pad >"),
        ("\u200b \ufeff\r", ""),
    ],
)
def test_cleaning_rules(raw: str, clean: str) -> None:
    assert clean_line(raw) == clean


def test_without_normalisation_the_form_stays() -> None:
    assert clean_line("e\u0301", "none") == "e\u0301"
    with pytest.raises(UsageError, match="normalisation"):
        clean_line("a", "nfkc")


def test_counts_name_what_each_rule_touched() -> None:
    cleaner = Cleaner()
    for line in ("\ufeffa\r", "b\xa0\xa0c", "plain", "<s> <s> </s>", "e\u0301 x"):
        cleaner(line)
    assert {rule: (cleaner.lines[rule], cleaner.characters[rule]) for rule in cleaner.lines if cleaner.lines[rule]} == {
        "bom": (1, 1),
        "cr": (1, 1),
        "blank_family": (1, 2),
        "repeated_blanks": (2, 2),
        "special_symbols": (1, 3),
        "normalized": (1, 2),
    }


@settings(max_examples=300, deadline=None)
@given(lines)
def test_cleaning_is_final_and_harmless(line: str) -> None:
    clean = clean_line(line)
    assert clean_line(clean) == clean
    assert unicodedata.is_normalized("NFC", clean)
    assert clean == clean.strip() and "  " not in clean
    assert len(clean.split()) == len(clean.split(" ")) or not clean  # a blank is the only space left
    assert clean.splitlines() == ([clean] if clean else [])
    assert not any(symbol in clean for symbol in SPECIAL_SYMBOLS)
    for joiner in "\u200c\u200d":
        assert clean.count(joiner) == line.count(joiner)


@settings(max_examples=300, deadline=None)
@given(lines.map(clean_line), st.integers(4, 30))
def test_cutting_loses_nothing_but_blanks(line: str, limit: int) -> None:
    parts = cut_line(line, limit)
    assert all(0 < len(part) <= limit for part in parts)
    assert "".join(parts).replace(" ", "") == line.replace(" ", "")


def test_a_very_long_line_is_cut_in_time_that_grows_with_it() -> None:
    """Twenty million characters: with a copy of the rest at each cut it would take minutes."""
    text = "word word. " * 2_000_000
    parts = cut_line(text.rstrip(" "), 200)
    assert " ".join(parts) == text.rstrip(" ")


def test_cuts_are_made_at_sentences_then_blanks() -> None:
    assert cut_line("One two. Three four five six", 18) == ["One two.", "Three four five", "six"]
    assert cut_line("हम गए। वे आए। ठीक", 14) == ["हम गए। वे आए।", "ठीक"]
    assert cut_line("一二三。四五六七。八九十", 7) == ["一二三。", "四五六七。", "八九十"]
    assert cut_line("कि" * 10, 7) == ["कि" * 3] * 3 + ["कि"]


@pytest.mark.parametrize(
    ("lang", "word"),
    [
        ("fa", "می\u200cخواهم"),
        ("te", "క్\u200cష"),
        ("hi", "क्\u200dष"),
        ("th", "ที่นี่"),
        ("en", "ที่นี่"),  # Thai inside another language
        ("my", "မြန်မာ်"),
        ("lo", "ນີ້"),
        ("km", "ខ្មែរ"),
        ("zh", "中文，字"),
        ("ja", "日本語です"),
        ("ko", "한국어"),
        ("en", "한국어"),
        ("ar", "كَتَبَ"),
        ("xa", "a\u0489b"),
    ],
)
def test_words_stay_whole(lang: str, word: str) -> None:
    assert pretokenize(word, lang, "moses").split(" ") == [word]


def test_moses_escapes_nothing() -> None:
    assert pretokenize("[it’s|'x' & <y>]", "xx", "moses") == "[ it ’ s | ' x ' & < y > ]"
    assert pretokenize("Mr. Smith can't pay 5,300.", "en", "moses") == "Mr. Smith can 't pay 5,300 ."
    assert pretokenize("a,b", "en", "none") == "a,b"


def test_scripts_without_blanks_pass_by_moses_within_a_line() -> None:
    assert pretokenize("ที่นี่, hello, world", "en", "moses") == "ที่นี่, hello , world"


def test_self_check_sees_torn_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lone_marks("ที", "ท ี") == ["ี"]
    assert lone_marks("ం abc", "ం abc") == []
    assert lone_marks("ం aం", "ం a ం") == ["ం"]
    monkeypatch.setattr("fairseq_interference.data.pretokenize._moses_line", lambda text, lang: " ".join(text))
    with pytest.raises(TokenizerError, match=r"U\+0940"):
        pretokenize("की", "hi", "moses")


@settings(max_examples=300, deadline=None)
@given(lines.map(clean_line), st.sampled_from(["en", "fr", "hi", "te", "ar", "xa", "zh"]))
def test_moses_adds_blanks_only_and_tears_no_mark(line: str, lang: str) -> None:
    tokens = pretokenize(line, lang, "moses")  # the self-check raises
    assert tokens.replace(" ", "") == line.replace(" ", "")
    assert "  " not in tokens


@pytest.fixture(scope="module")
def subword(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    from subword_nmt.learn_bpe import learn_bpe

    folder = tmp_path_factory.mktemp("subword")
    words = "low lower lowest हिन्दी हिन्दु తెలుగు @ - ' " * 5
    with open(folder / "codes", "w", encoding="utf-8") as codes:
        learn_bpe(io.StringIO(words), codes, 12)
    Tokenizer.create(folder / "t", "subword-nmt", folder / "codes", normalization="nfc", pretokenizer="moses")
    return Tokenizer.load(folder / "t")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    from data_prep.learn_bpe import learn_sentencepiece

    folder = tmp_path_factory.mktemp("pieces")
    text = ["the low lower lowest हिन्दी हिन्दु తెలుగు से म\u200cि क्\u200dष", "a b c d e f g"] * 20
    learn_sentencepiece(Counter(" ".join(text).split(" ")).items(), 60, folder / "m.model")
    Tokenizer.create(folder / "t", "sentencepiece", folder / "m.model", normalization="nfc", pretokenizer="none")
    return Tokenizer.load(folder / "t")


@settings(max_examples=200, deadline=None)
@given(lines)
def test_subword_nmt_round_trip(subword: Tokenizer, line: str) -> None:
    found = subword.encode_line(line, "hi")
    tokens = subword.pretokenize(subword.clean(line), "hi")
    while "@@" in tokens:
        tokens = tokens.replace("@@", "@ @")
    assert subword.decode(found) == tokens
    assert all(piece and not piece.isspace() and len(piece.split()) == 1 for piece in found)
    assert not set(found) & set(SPECIAL_SYMBOLS)


@settings(max_examples=200, deadline=None)
@given(lines)
def test_sentencepiece_round_trip(pieces: Tokenizer, line: str) -> None:
    found = pieces.encode_line(line, "hi")
    assert pieces.decode(found) == pieces.clean(line).replace("▁", " ").lstrip(" ") or "▁" in line
    assert all(len(piece.split()) == 1 for piece in found)
    assert not set(found) & set(SPECIAL_SYMBOLS)


@settings(max_examples=100, deadline=None)
@given(st.lists(lines, max_size=5))
def test_encode_words_keeps_words_apart(subword: Tokenizer, words: list[str]) -> None:
    found = subword.encode_words(words, "hi")
    assert len(found) == len(words)
    for word, of_word in zip(words, found):
        assert (of_word == []) == (subword.clean(word) == "")
        assert subword.decode(of_word).replace(" ", "") == subword.clean(word).replace(" ", "")


def test_line_and_words_give_the_same_pieces(subword: Tokenizer, pieces: Tokenizer) -> None:
    words = ["low", "lowest", "हिन्दी", "\u200b", "తెలుగు"]
    for tokenizer in (subword, pieces):
        of_words = tokenizer.encode_words(words, "te")
        assert of_words[3] == []
        assert [piece for word in of_words for piece in word] == tokenizer.encode_line(" ".join(words), "te")


@pytest.mark.parametrize("symbol", SPECIAL_SYMBOLS)
def test_special_symbols_are_text_unless_asked_for(subword: Tokenizer, pieces: Tokenizer, symbol: str) -> None:
    for tokenizer in (subword, pieces):
        text = f"low {symbol} low{symbol}"
        assert symbol not in tokenizer.encode_line(text, "en")
        assert tokenizer.encode_line(text, "en", special=True).count(symbol) == 2
        assert tokenizer.backend.pieces(f"low {symbol} low").count(symbol) == 1  # never split


def test_joiners_survive_sentencepiece(pieces: Tokenizer) -> None:
    assert pieces.decode(pieces.encode_line("क्\u200dष म\u200cि", "hi")) == "क्\u200dष म\u200cि"


def test_digest_names_options_and_file(subword: Tokenizer, tmp_path: Path) -> None:
    again = Tokenizer.create(
        tmp_path / "t", "subword-nmt", subword.folder / "bpe.codes", normalization="nfc", pretokenizer="moses"
    )
    assert again.digest == subword.digest
    other = Tokenizer.create(
        tmp_path / "u", "subword-nmt", subword.folder / "bpe.codes", normalization="none", pretokenizer="moses"
    )
    assert other.digest != subword.digest


def test_broken_tokenizers_are_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no tokenizer here"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"format": 2, "kind": "subword-nmt"}')
    with pytest.raises(TokenizerError, match="another release"):
        Tokenizer.load(tmp_path)
    (tmp_path / "codes").write_text("#version: 0.2\na b c\n")
    with pytest.raises(TokenizerError, match="not BPE codes"):
        Tokenizer.create(tmp_path / "t", "subword-nmt", tmp_path / "codes", normalization="nfc", pretokenizer="none")
    with pytest.raises(TokenizerError, match="not a sentencepiece model"):
        Tokenizer.create(tmp_path / "t", "sentencepiece", tmp_path / "codes", normalization="nfc", pretokenizer="none")


def test_encoding_needs_neither_torch_nor_the_host() -> None:
    code = (
        "import sys, fairseq_interference.data.tokenizer, data_prep.prepare;"
        "sys.exit(any(name.split('.')[0] in ('torch', 'fairseq') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
