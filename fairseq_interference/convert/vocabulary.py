"""From a tokenizer's vocabulary to a ``dict.txt`` in which every piece keeps its id.

The host gives ids 0 to 3 to its special symbols, reads dict.txt, and the tasks append ``<mask>``. A Hugging Face
tokenizer of XLM-R numbers alike; its sentencepiece model counts one less, since it knows no ``<pad>``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional, Union

from fairseq_interference.data.text import SPECIAL_SYMBOLS
from fairseq_interference.errors import DictionaryError, TokenizerError

PathLike = Union[str, Path]
FIRST = SPECIAL_SYMBOLS[:4]  # <s> <pad> </s> <unk>
MASK = "<mask>"
OVERWRITE = "#fairseq:overwrite"  # the host's mark; without it `check` refuses a special symbol in dict.txt


def pieces_of_json(path: PathLike) -> list[Optional[str]]:
    """Pieces of a Hugging Face ``tokenizer.json`` by id; None for an id that has no piece. No library is needed.

    Raises:
        TokenizerError: not such a file, or two pieces with one id.
    """
    try:
        content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        if isinstance(vocabulary, list):  # Unigram: [piece, score], the id is the place
            ids = {number: str(entry[0]) for number, entry in enumerate(vocabulary)}
        else:
            ids = {int(number): str(piece) for piece, number in vocabulary.items()}
        added = {int(token["id"]): str(token["content"]) for token in content.get("added_tokens") or []}
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise TokenizerError("This is not a tokenizer.json.", where=path, value=str(error)) from None
    for number, piece in added.items():
        if ids.setdefault(number, piece) != piece:
            raise TokenizerError("Two pieces have one id.", where=path, value=f"{number}: {ids[number]!r}, {piece!r}")
    return [ids.get(number) for number in range(max(ids, default=-1) + 1)]


def pieces_of_sentencepiece(path: PathLike) -> list[Optional[str]]:
    """Pieces of an XLM-R style sentencepiece model by the ids that XLM-R gives them: one more, ``<mask>`` last.

    Raises:
        TokenizerError: unreadable, or its first three pieces are not ``<unk> <s> </s>``.
    """
    import sentencepiece

    try:
        processor: Any = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise TokenizerError("This is not a sentencepiece model.", where=path, value=str(error)[:200]) from None
    pieces = [str(processor.id_to_piece(number)) for number in range(processor.get_piece_size())]
    if set(pieces[:3]) != {"<unk>", "<s>", "</s>"}:
        raise TokenizerError(
            "The sentencepiece model does not begin as those of XLM-R do.",
            where=path,
            value=" ".join(pieces[:3]),
            allowed="<unk> <s> </s>",
        )
    return [*FIRST, *(None if piece == MASK else piece for piece in pieces[3:]), MASK]


def dictionary_text(pieces: Sequence[Optional[str]], rows: int, where: object) -> str:
    """Text of the ``dict.txt`` with which the host numbers as the tokenizer does.

    Args:
        pieces: by id.
        rows: of the model's embeddings; ids without a piece become ``madeupword…``.
        where: what an error names.

    Raises:
        DictionaryError: other special symbols in front, no ``<mask>``, more pieces than rows, a piece that a
            dict.txt cannot hold.
    """
    if list(pieces[:4]) != list(FIRST):
        found = " ".join(map(str, pieces[:4]))
        raise DictionaryError("The ids 0 to 3 are not the host's.", where=where, value=found, allowed=" ".join(FIRST))
    if len(pieces) > rows:
        raise DictionaryError(
            "The tokenizer has more pieces than the model has embeddings.", where=where, value=len(pieces), allowed=rows
        )
    if MASK not in pieces:
        raise DictionaryError("The tokenizer has no <mask>: the host would append one without weights.", where=where)
    names = [*pieces, *([None] * (rows - len(pieces)))]
    filled = [f"madeupword{number:04d}" if piece is None else piece for number, piece in enumerate(names)]
    if filled[-1] == MASK:  # where the tasks will append it
        filled.pop()
    lines = []
    for piece in filled[4:]:
        if " " in piece or "\n" in piece or "\r" in piece or not piece:
            raise DictionaryError("A dict.txt cannot hold this piece.", where=where, value=piece)
        lines.append(f"{piece} 1 {OVERWRITE}\n" if piece == MASK else f"{piece} 1\n")
    return "".join(lines)


def read_dictionary(path: PathLike) -> Any:
    """The host's Dictionary as our tasks have it: dict.txt, then ``<mask>``.

    Raises:
        DictionaryError: named, with the line.
    """
    from fairseq.data import Dictionary

    from fairseq_interference.data.dictionary import symbols_of_file

    symbols_of_file(path)
    found = Dictionary.load(str(path))
    found.add_symbol(MASK)
    return found


def check_rows(dictionary: Any, rows: int, where: object) -> None:
    """Raise DictionaryError unless the embeddings have a row for each symbol."""
    if len(dictionary) != rows:
        raise DictionaryError(
            "The dictionary is not that of these weights.",
            where=where,
            value=f"{len(dictionary)} symbols with the special ones and <mask>",
            allowed=f"{rows} rows of the embeddings",
            next_step="give the dict.txt that was published with the model",
        )


def check_pieces(dictionary: Any, pieces: Sequence[Optional[str]], where: object) -> None:
    """Raise TokenizerError unless every piece of a tokenizer has the id in the dictionary that it should have."""
    for number, piece in enumerate(pieces):
        if piece is not None and dictionary.index(piece) != number:
            raise TokenizerError(
                "The tokenizer is not the one of this dictionary.",
                where=where,
                value=f"{piece!r} is {number}",
                allowed=f"{dictionary[number]!r}" if number < len(dictionary) else f"ids below {len(dictionary)}",
            )
