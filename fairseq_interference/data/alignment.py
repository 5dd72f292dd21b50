"""From tokenizer pieces back to the characters of the original text, whatever cleaning and normalisation did to it.

Each step (cleaning, NFC, pre-tokeniser, the normalisation of the sub-word library) is followed character by character;
none is assumed to keep lengths. Offsets count code points. A step that cannot be followed is an error, never a guess.
Neither torch nor the host is imported.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fairseq_interference.data.text import (
    BLANK_RUNS,
    REPLACEMENTS,
    SPECIAL,
    SUSPECT,
)
from fairseq_interference.data.tokenizer import SEPARATOR, HuggingFace, SentencePiece, SubwordNmt, Tokenizer
from fairseq_interference.errors import TokenizerError

Span = tuple[int, int]
BLANK = "\u2581"  # sentencepiece's sign for a blank
_BYTE = re.compile("<0x([0-9A-F]{2})>")


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


class Alignment(NamedTuple):
    """Pieces of a text and where they stand in it.

    Args:
        pieces: what the dictionary knows, as ``Tokenizer.encode_line`` gives them.
        spans: (first character, behind the last) of each in the original text, without outer blanks. Starts and ends
            never decrease. Two pieces share a character if the tokenizer made both of it; a piece that stands for
            nothing but a blank has an empty span before what follows, unless it is part of what a character became.
    """

    pieces: list[str]
    spans: list[Span]


def align(tokenizer: Tokenizer, text: str, lang: str) -> Alignment:
    """Encode a text and locate every piece in it.

    Args:
        text: the original text: line breaks, byte order marks, anything.
        lang: language code, for the pre-tokeniser.

    Raises:
        TokenizerError: a step changed the text in a way that cannot be followed.
    """
    line = aligned_clean(text, tokenizer.normalization)
    _check("cleaning", line.text, tokenizer.clean(text))
    line = _with_blanks(line, tokenizer.pretokenize(line.text, lang), "the pre-tokeniser")
    backend = tokenizer.backend
    pieces = backend.pieces(line.text)
    if isinstance(backend, SentencePiece):
        normal = _sentencepiece_text(backend, line)
        spans = _consume(pieces, normal)
    elif isinstance(backend, SubwordNmt):
        bare = [piece[: -len(SEPARATOR)] if piece.endswith(SEPARATOR) else piece for piece in pieces]
        spans = _consume(bare, _with_blanks(line, " ".join(bare), "subword-nmt"), blanks_between=True)
    elif isinstance(backend, HuggingFace):
        spans = _trimmed(pieces, backend.offsets(line.text), line)
    else:
        raise TokenizerError("Pieces of this kind of tokenizer cannot be located.", value=tokenizer.kind)
    return Alignment(pieces, _fill_empty(spans, len(text)))


# --- cleaning ----------------------------------------------------------------------------------------------------


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


# --- sub-word libraries ------------------------------------------------------------------------------------------


def _with_blanks(line: Aligned, new: str, step: str) -> Aligned:
    """``new`` is the line with blanks put in or taken out, and nothing else changed."""
    if new == line.text:
        return line
    _check(step, line.text.replace(" ", ""), new.replace(" ", ""))
    places = [place for place, character in enumerate(line.text) if character != " "]
    starts: list[int] = []
    ends: list[int] = []
    number = 0
    for character in new:
        if character == " ":
            between = ends[-1] if ends else 0
            starts.append(between)
            ends.append(between)
        else:
            starts.append(line.starts[places[number]])
            ends.append(line.ends[places[number]])
            number += 1
    return Aligned(new, starts, ends)


def _sentencepiece_text(backend: SentencePiece, line: Aligned) -> Aligned:
    """The text that the model cuts, with origins in the original text."""
    normalized, offsets = backend.normalized_offsets(line.text)
    starts: list[int] = []
    ends: list[int] = []
    first = 0
    while first < len(normalized):
        behind = first + 1
        while behind < len(normalized) and offsets[behind] == offsets[first]:
            behind += 1
        made, begin, end = normalized[first:behind], offsets[first], offsets[behind]
        blanks = len(made) - len(made.lstrip(BLANK)) if line.text[begin : begin + 1] != " " else 0
        same = line.text[begin : begin + len(made) - blanks] == made[blanks:]
        for number in range(len(made)):
            if number < blanks or begin >= end:  # put in before the text
                place = line.starts[begin] if begin < len(line.text) else (line.ends[-1] if line.ends else 0)
                starts.append(place)
                ends.append(place)
            elif same:
                starts.append(line.starts[begin + number - blanks])
                ends.append(line.ends[begin + number - blanks])
            else:
                starts.append(line.starts[begin])
                ends.append(line.ends[end - 1])
        first = behind
    return Aligned(normalized, starts, ends)


def _consume(pieces: Sequence[str], line: Aligned, blanks_between: bool = False) -> list[Span]:
    """Spans of pieces that, one after another, are the text."""
    spans: list[Span] = []
    here = number = 0
    while number < len(pieces):
        if blanks_between and line.text[here : here + 1] == " ":
            here += 1
        piece = pieces[number]
        if line.text.startswith(piece, here):
            spans.append(_span(line, here, here + len(piece)))
            here += len(piece)
            number += 1
            continue
        count, length = _byte_run(pieces, number, line.text, here)
        if not count:
            value = f"{piece!r} at character {here} of {shown(line.text, here)!r}"
            raise TokenizerError("A piece is not in the text that it was cut from.", value=value)
        spans += [_span(line, here, here + length)] * count
        here += length
        number += count
    _check("the tokenizer", line.text[here:].strip(BLANK + " "), "")
    return spans


def _byte_run(pieces: Sequence[str], number: int, text: str, here: int) -> Span:
    """Byte pieces (``<0xE0>``) that make up the next character: (pieces, characters), or (0, 0)."""
    if here >= len(text):
        return 0, 0
    wanted = text[here].replace(BLANK, " ").encode()
    if text[here] == BLANK and _bytes(pieces[number : number + 3]) == BLANK.encode():
        return 3, 1
    return (len(wanted), 1) if _bytes(pieces[number : number + len(wanted)]) == wanted else (0, 0)


def _bytes(pieces: Sequence[str]) -> bytes:
    found = [_BYTE.fullmatch(piece) for piece in pieces]
    return bytes(int(match.group(1), 16) for match in found if match)


def _span(line: Aligned, begin: int, end: int) -> Span:
    """Origin of a part of the text without its outer blanks; (-1, -1) if nothing is left."""
    while begin < end and line.text[begin] in (BLANK, " "):
        begin += 1
    while end > begin and line.text[end - 1] in (BLANK, " "):
        end -= 1
    return (line.starts[begin], line.ends[end - 1]) if begin < end else (-1, -1)


def _trimmed(pieces: Sequence[str], offsets: Sequence[Span], line: Aligned) -> list[Span]:
    """The library's own offsets into the line as spans of the original text.

    The library loses the mark where a letter and its mark become one character (``NFKC``), or where marks are taken
    off: such a character goes to the piece before it, at the beginning of the text to the piece behind it.
    """
    found: list[Span] = []
    for piece, (begin, end) in zip(pieces, offsets):
        only_blank = not piece.strip(BLANK) and BLANK not in line.text[begin:end]
        while begin < end and line.text[begin] == " ":
            begin += 1
        found.append((end, end) if only_blank else (begin, end))
    visible = [number for number, (begin, end) in enumerate(found) if begin < end]
    for place, number in enumerate(visible):
        begin, end = found[number]
        following = found[visible[place + 1]][0] if place + 1 < len(visible) else len(line.text)
        if place == 0 and " " not in line.text[:begin]:
            begin = 0
        while end < following and line.text[end] != " ":
            end += 1
        found[number] = (begin, end)
    return [_span(line, begin, end) for begin, end in found]


def _fill_empty(spans: Sequence[Span], length: int) -> list[Span]:
    """Pieces that are nothing but a blank stand, empty, before what follows them.

    A blank in the middle of what one character became (U+FDFA becomes four words) has the span of that character.
    """
    filled = list(spans)
    following = length
    for number in reversed(range(len(filled))):
        if filled[number][0] < 0:
            filled[number] = (following, following)
        following = filled[number][0]
    behind = 0
    for number, (begin, end) in enumerate(filled):
        filled[number] = (begin, max(end, behind))
        behind = filled[number][1]
    return filled


def shown(text: str, place: int, width: int = 20) -> str:
    """A text around one of its characters, as an error shows it."""
    return text[max(0, place - width) : place + width]


def _check(step: str, ours: str, theirs: str) -> None:
    if ours != theirs:
        place = next((n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        raise TokenizerError(
            f"What {step} did to a text cannot be followed.",
            where=f"character {place}",
            value=f"{shown(theirs, place)!r}, expected {shown(ours, place)!r}",
            next_step="report this text",
        )
