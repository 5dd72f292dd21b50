"""Cleaning of one line of text: the same rules in preparation and when a trained model meets new text.

Pure Python: neither torch nor the host is imported. A line is what ends at LF and nothing else;
``str.splitlines`` is never used, since it also cuts at U+2028, U+0085 and U+001C to U+001E.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Optional

from fairseq_interference.errors import UsageError

SPECIAL_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
NORMALIZATIONS = ("nfc", "none")

#: rules that change characters, in the order of the table that users see
CHARACTER_RULES = (
    "cr",
    "bom",
    "separators",
    "controls",
    "blank_family",
    "zero_width_space",
    "invisible",
    "repeated_blanks",
    "normalized",
    "special_symbols",
)


def _characters(*ranges: tuple[int, int]) -> list[str]:
    return [chr(code) for first, last in ranges for code in range(first, last + 1)]


# rule -> (characters, what they become)
_REPLACED: dict[str, tuple[list[str], str]] = {
    "cr": (["\r"], " "),
    "bom": (["\ufeff"], ""),
    # U+2028 U+2029 U+0085, vertical tab, form feed, U+001C to U+001F
    "separators": (["\u2028", "\u2029", "\x85", "\n", *_characters((0x0B, 0x0C), (0x1C, 0x1F))], " "),
    "controls": (_characters((0x00, 0x08), (0x0E, 0x1B), (0x7F, 0x84), (0x86, 0x9F)), ""),
    # tab, NBSP, Ogham blank, en quad to hair space, NNBSP, mathematical and ideographic blank
    "blank_family": (["\t", "\xa0", "\u1680", *_characters((0x2000, 0x200A)), "\u202f", "\u205f", "\u3000"], " "),
    "zero_width_space": (["\u200b"], " "),
    # soft hyphen, direction marks and embeddings, word joiner, invisible operators; never ZWJ and ZWNJ
    "invisible": (
        ["\xad", "\u061c", "\u180e", *_characters((0x200E, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F))],
        "",
    ),
}
_RULE_OF = {character: rule for rule, (members, _) in _REPLACED.items() for character in members}
REPLACEMENTS = {ord(character): _REPLACED[rule][1] for character, rule in _RULE_OF.items()}
SUSPECT = re.compile("[" + "".join(re.escape(character) for character in _RULE_OF) + "]")
BLANK_RUNS = re.compile(" {2,}")
SPECIAL = re.compile("<(/?s|pad|unk|mask)>")


def check_normalization(name: str, where: object = "--normalization") -> str:
    """Return ``name`` if it is a known normalisation, else raise UsageError."""
    if name not in NORMALIZATIONS:
        raise UsageError("Unknown normalisation.", where=where, value=name, allowed=", ".join(NORMALIZATIONS))
    return name


class Cleaner:
    """Clean lines and count what each rule touched.

    Args:
        normalization: ``nfc`` or ``none``.

    Attributes:
        lines: rule -> number of lines that it touched.
        characters: rule -> number of characters that it replaced or removed. For ``normalized`` the characters
            of the words that changed, for ``special_symbols`` the symbols.
    """

    def __init__(self, normalization: str = "nfc") -> None:
        self.nfc = check_normalization(normalization) == "nfc"
        self.lines: dict[str, int] = dict.fromkeys(CHARACTER_RULES, 0)
        self.characters: dict[str, int] = dict.fromkeys(CHARACTER_RULES, 0)

    def _count(self, rule: str, characters: int) -> None:
        self.lines[rule] += 1
        self.characters[rule] += characters

    def __call__(self, line: str) -> str:
        """Return the clean line, possibly empty. Cleaning twice changes nothing more."""
        if SUSPECT.search(line):
            found: dict[str, int] = {}
            for character in SUSPECT.findall(line):
                rule = _RULE_OF[character]
                found[rule] = found.get(rule, 0) + 1
            for rule, number in found.items():
                self._count(rule, number)
            line = line.translate(REPLACEMENTS)
        if self.nfc and not line.isascii() and not unicodedata.is_normalized("NFC", line):
            composed = unicodedata.normalize("NFC", line)
            old, new = line.split(" "), composed.split(" ")
            changed = sum(len(a) for a, b in zip(old, new) if a != b) if len(old) == len(new) else len(line)
            self._count("normalized", changed)
            line = composed.translate(REPLACEMENTS)
        if "  " in line or line[:1] == " " or line[-1:] == " ":
            length = len(line)
            line = BLANK_RUNS.sub(" ", line).strip(" ")
            self._count("repeated_blanks", length - len(line))
        if "<" in line and SPECIAL.search(line):
            line, number = SPECIAL.subn(r"< \1 >", line)
            self._count("special_symbols", number)
        return line


def clean_line(line: str, normalization: str = "nfc") -> str:
    """Clean one line without counting; see :class:`Cleaner`."""
    return Cleaner(normalization)(line)


# after a full stop, question mark, danda and their like, with what may close a quotation behind them
_SENTENCE_END = re.compile(
    "[.!?\u2026\u061f\u06d4\u0964\u0965\u104b][\"'\u201d\u2019\u00bb)\\]]* "
    "|[\u3002\uff01\uff1f\u17d4][\u300d\u300f\u201d]*"
)


def _keeps_together(character: str) -> bool:
    return character in "\u200c\u200d" or unicodedata.category(character)[0] == "M"


def _cut_at(window: str, limit: int) -> int:
    """Where to cut the text that begins with the ``limit + 1`` characters ``window``: 1..limit."""
    ends = [found.end() for found in _SENTENCE_END.finditer(window) if len(window[: found.end()].rstrip(" ")) <= limit]
    if ends and ends[-1] > limit // 4:
        return ends[-1]
    blank = window.rfind(" ")
    if blank > 0:
        return blank + 1
    cut = limit
    while cut > 1 and (_keeps_together(window[cut]) or window[cut - 1] in "\u200c\u200d"):
        cut -= 1
    return cut if cut > 1 else limit


def cut_line(text: str, limit: int) -> list[str]:
    """Cut a clean line into parts of at most ``limit`` characters; nothing but blanks at the cuts is lost.

    Cuts are made after the last sentence end, else at the last blank, else between two characters
    (never before a combining mark or at a joiner, if that can be avoided).
    """
    parts = []
    begin = 0
    while len(text) - begin > limit:
        end = begin + _cut_at(text[begin : begin + limit + 1], limit)
        parts.append(text[begin:end].rstrip(" "))
        begin = end + (text[end : end + 1] == " ")  # a clean line has no two blanks together
    parts.append(text[begin:])
    return [part for part in parts if part]


def split_special(text: str) -> Iterator[tuple[str, bool]]:
    """Split text at literal special symbols; yields (part, is it a special symbol), empty parts left out."""
    begin = 0
    for found in SPECIAL.finditer(text):
        if found.start() > begin:
            yield text[begin : found.start()], False
        yield found.group(), True
        begin = found.end()
    if begin < len(text):
        yield text[begin:], False


def merge_counts(counts: Iterable[dict[str, int]], names: Optional[Iterable[str]] = None) -> dict[str, int]:
    """Sum dictionaries of counts; the keys ``names`` are there even if nothing was counted."""
    total = dict.fromkeys(names or (), 0)
    for each in counts:
        for name, number in each.items():
            total[name] = total.get(name, 0) + number
    return total
