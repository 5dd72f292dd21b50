"""Text that remembers which characters of the original it was made of, and cleaning that keeps the memory.

Pure Python; the rules are those of :mod:`fairseq_interference.data.text`, and ``align`` compares the result with them.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fairseq_interference.data.text import BLANK_RUNS, REPLACEMENTS, SPECIAL, SUSPECT

Span = tuple[int, int]


class Aligned(NamedTuple):
    """A text made from another one.

    Args:
        text: N characters.
        starts: (N,) first character of the original that each was made of.
        ends: (N,) behind the last one; equal to ``starts`` for a character that was put in.
    """

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    @classmethod
    def identity(cls, text: str) -> Aligned:
        """A text that was not changed yet."""
        return cls(text, range(len(text)), range(1, len(text) + 1))

    def rewrite(self, changes: Iterable[tuple[int, int, str]]) -> Aligned:
        """Replace parts of the text.

        Args:
            changes: (begin, end, new text), in order, not overlapping. Characters that old and new have in common at
                both ends stay aligned one to one; each of the rest is made of all of the rest.
        """
        text: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        here = 0
        for begin, end, new in changes:
            left, right = _common(self.text[begin:end], new)
            begin, end, new = begin + left, end - right, new[left : len(new) - right]
            if begin == end and not new:
                continue
            text += [self.text[here:begin], new]
            starts += self.starts[here:begin]
            ends += self.ends[here:begin]
            first, behind = self._origin(begin, end)
            starts += [first] * len(new)
            ends += [behind] * len(new)
            here = end
        if not text:
            return self
        return Aligned("".join([*text, self.text[here:]]), [*starts, *self.starts[here:]], [*ends, *self.ends[here:]])

    def _origin(self, begin: int, end: int) -> Span:
        """What ``text[begin:end]`` was made of; the place between two characters if it is empty."""
        if begin < end:
            return self.starts[begin], self.ends[end - 1]
        place = self.ends[begin - 1] if begin else 0
        return place, place


def aligned_clean(text: str, normalization: str) -> Aligned:
    """What ``text.clean_line`` makes of a text, with the origin of every character."""
    line = _replace_suspects(Aligned.identity(text))
    if normalization == "nfc" and not unicodedata.is_normalized("NFC", line.text):
        line = _replace_suspects(line.rewrite(_nfc_changes(line.text)))
    line = line.rewrite((*found.span(), " ") for found in BLANK_RUNS.finditer(line.text))
    inner = line.text.strip(" ")
    begin = len(line.text) - len(line.text.lstrip(" "))
    line = Aligned(inner, line.starts[begin : begin + len(inner)], line.ends[begin : begin + len(inner)])
    symbols = [found.span() for found in SPECIAL.finditer(line.text)]
    return line.rewrite((place, place, " ") for begin, end in symbols for place in (begin + 1, end - 1))


def _replace_suspects(line: Aligned) -> Aligned:
    return line.rewrite((*found.span(), REPLACEMENTS[ord(found.group())]) for found in SUSPECT.finditer(line.text))


@functools.cache
def _composing_starters() -> frozenset[str]:
    """Characters of combining class 0 that canonical composition can join to what stands before them."""
    jamo = [chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))]
    found = set(jamo)
    for code in range(0xC0, 0x30000):
        parts = unicodedata.decomposition(chr(code)).split()
        if parts and not parts[0].startswith("<"):
            found.update(chr(int(part, 16)) for part in parts[1:])
            if unicodedata.combining(unicodedata.normalize("NFD", chr(code))[0]):
                found.add(chr(code))
    return frozenset(character for character in found if not unicodedata.combining(character))


def _nfc_changes(text: str) -> list[tuple[int, int, str]]:
    """The smallest parts that canonical composition treats alone, and what they become."""
    joining = _composing_starters()
    begins = [
        place
        for place, character in enumerate(text)
        if place == 0 or not (unicodedata.combining(character) or character in joining)
    ]
    changes = []
    for begin, end in zip(begins, [*begins[1:], len(text)]):
        if not unicodedata.is_normalized("NFC", text[begin:end]):
            changes += [(begin + a, begin + b, _nfc(text[begin + a : begin + b])) for a, b in _parts(text[begin:end])]
    return changes


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _parts(run: str) -> list[Span]:
    """Cut a letter and its marks wherever that changes nothing; runs that no language has are left whole."""
    whole = _nfc(run)
    cuts = [n for n in range(1, len(run)) if len(run) <= 64 and _nfc(run[:n]) + _nfc(run[n:]) == whole]
    return list(zip([0, *cuts], [*cuts, len(run)]))


def _common(old: str, new: str) -> Span:
    """Number of equal characters at the beginning and, of the rest, at the end."""
    limit = min(len(old), len(new))
    left = 0
    while left < limit and old[left] == new[left]:
        left += 1
    right = 0
    while right < limit - left and old[-1 - right] == new[-1 - right]:
        right += 1
    return left, right
