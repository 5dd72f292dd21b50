"""From tokenizer pieces back to the characters of the original text, whatever cleaning and normalisation did to it.

Each step (cleaning, NFC, pre-tokeniser, the normalisation of the sub-word library) is followed character by character;
none is assumed to keep lengths. Offsets count code points. A step that cannot be followed is an error, never a guess.
Neither torch nor the host is imported.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from fairseq_interference.data.aligned_text import Aligned, Span, aligned_clean
from fairseq_interference.data.tokenizer import SEPARATOR, HuggingFace, SentencePiece, SubwordNmt, Tokenizer
from fairseq_interference.errors import TokenizerError

BLANK = "\u2581"  # sentencepiece's sign for a blank
_BYTE = re.compile("<0x([0-9A-F]{2})>")


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

    The library loses what stands behind a letter that it is composed with (``NFKC``: marks, Hangul vowels), and marks
    that it takes off: such a character goes to the piece before it, unless it is invisible.
    """
    found: list[Span] = []
    for piece, (begin, end) in zip(pieces, offsets):
        only_blank = not piece.strip(BLANK) and BLANK not in line.text[begin:end]
        while begin < end and (
            line.text[begin] == " " or (piece.startswith(BLANK) and _is_invisible(line.text[begin]))
        ):
            begin += 1  # a joiner that became a blank is one
        found.append((end, end) if only_blank else (begin, end))
    visible = [number for number, (begin, end) in enumerate(found) if begin < end]
    for place, number in enumerate(visible):
        begin, end = found[number]
        following = found[visible[place + 1]][0] if place + 1 < len(visible) else len(line.text)
        while end < following and line.text[end] != " " and not _is_invisible(line.text[end]):
            end += 1
        found[number] = (begin, end)
    return [_span(line, begin, end) for begin, end in found]


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in ("Cf", "Cc")


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
