"""Splitting words from punctuation before sub-word units: Moses rules where they suit the script.

The rules are sacremoses' own. Three things are told to it: combining marks and letters that its tables lack are
letters, joiners (ZWJ, ZWNJ) stay inside words, and nothing is escaped. Scripts without blanks between words do
not go through it.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any, Callable

from fairseq_interference.errors import TokenizerError, UsageError

PRETOKENIZERS = ("moses", "none")

#: first part of the codes of languages that are written without blanks between words
UNSPACED_LANGUAGES = frozenset(
    ("th", "tha", "lo", "lao", "my", "mya", "bur", "km", "khm", "zh", "zho", "chi", "cmn", "yue", "wuu", "nan")
) | frozenset(("hak", "lzh", "ja", "jpn", "bo", "bod", "tib", "dz", "dzo"))
# Thai, Lao, Tibetan, Myanmar, Khmer, kana, Han, and their extensions
_UNSPACED_RANGES = (
    (0x0E00, 0x0EFF),
    (0x0F00, 0x109F),
    (0x1780, 0x17FF),
    (0x19E0, 0x19FF),
    (0x3005, 0x3007),
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


def _char_class(codes: Iterable[int]) -> str:
    """Members of a regular expression's character class, as ranges."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in ranges)


_UNSPACED = re.compile("[" + "".join(f"{chr(a)}-{chr(b)}" for a, b in _UNSPACED_RANGES) + "]")
_MARK_CLASS = _char_class(
    code for code in (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0)) if unicodedata.category(chr(code))[0] == "M"
)
_LONE_MARK = re.compile(f" ([{_MARK_CLASS}]+)(?= |$)")


def check_pretokenizer(name: str, where: object = "--tokenizer") -> str:
    """Return ``name`` if it is a known pre-tokeniser, else raise UsageError."""
    if name not in PRETOKENIZERS:
        raise UsageError("Unknown pre-tokeniser.", where=where, value=name, allowed=", ".join(PRETOKENIZERS))
    return name


@functools.cache
def _word_class() -> str:
    """Letters, digits and marks of every script, and the two joiners."""
    return _char_class(
        code
        for code in range(0x80, min(0x20000, sys.maxunicode))
        if code in (0x200C, 0x200D) or chr(code).isalnum() or unicodedata.category(chr(code))[0] == "M"
    )


@functools.lru_cache(maxsize=64)
def moses(lang: str) -> Any:
    """The ``sacremoses.MosesTokenizer`` of a language, told about marks, joiners and all letters."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=lang.split("-")[0].split("_")[0])
    pattern = re.compile("([^" + "0-9A-Za-z" + _word_class() + r"\s\.'\`\,\-])")
    tokenizer.PAD_NOT_ISALNUM = pattern, r" \1 "
    return tokenizer


def is_unspaced_language(lang: str) -> bool:
    """Whether the language is written without blanks between words (``zh``, ``zh-tw``, ``th`` …)."""
    return re.split("[-_]", lang)[0] in UNSPACED_LANGUAGES


def _moses_line(text: str, lang: str) -> str:
    """Moses rules over a line; words that hold marks without a letter (``(\u0301``) are left whole."""
    tokens = _moses_words(text, lang)
    if not lone_marks(text, tokens):
        return tokens
    words = []
    for word in text.split(" "):
        split = _moses_words(word, lang)
        words.append(word if lone_marks(word, split) else split)
    return " ".join(words)


def _moses_words(text: str, lang: str) -> str:
    tokenizer = moses(lang)
    if not _UNSPACED.search(text):
        return str(tokenizer.tokenize(text, return_str=True, escape=False))
    parts: list[str] = []
    run: list[str] = []
    for word in text.split(" "):
        if _UNSPACED.search(word):
            if run:
                parts.append(tokenizer.tokenize(" ".join(run), return_str=True, escape=False))
                run = []
            parts.append(word)
        else:
            run.append(word)
    if run:
        parts.append(tokenizer.tokenize(" ".join(run), return_str=True, escape=False))
    return " ".join(part for part in parts if part)


def lone_marks(before: str, after: str) -> list[str]:
    """Tokens of ``after`` that are nothing but combining marks and that were not tokens of ``before``."""
    found = _LONE_MARK.findall(" " + after)
    if not found:
        return []
    there = before.split(" ")
    return [mark for mark in dict.fromkeys(found) if found.count(mark) > there.count(mark)]


def pretokenize(text: str, lang: str, kind: str) -> str:
    """Tokens of a clean line, separated by one blank. Only blanks are added.

    Raises:
        TokenizerError: a combining mark was torn from its letter (self-check).
    """
    if kind == "none" or not text or is_unspaced_language(lang):
        return text
    tokens = _moses_line(text, lang)
    torn = lone_marks(text, tokens)
    if torn:
        marks = ", ".join(f"U+{ord(character):04X}" for mark in torn for character in mark)
        raise TokenizerError(
            f"The pre-tokeniser tore combining marks from their letters ({marks}).",
            where=f"language {lang}",
            value=text[:200],
            next_step="give --tokenizer none, and report this text",
        )
    return tokens


def pretokenizer(lang: str, kind: str) -> Callable[[str], str]:
    """:func:`pretokenize` for one language."""
    return functools.partial(pretokenize, lang=lang, kind=kind)
