"""What a masked language model puts in the place of ``<mask>``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from fairseq_interference.errors import DictionaryError, UsageError
from fairseq_interference.evaluation.hidden import in_batches, longest_row, padded, route, tokenizer_of

if TYPE_CHECKING:
    from fairseq_interference.loading import Loaded

MASK = "<mask>"


class Fill(NamedTuple):
    """A guess.

    Attributes:
        piece: sub-word piece.
        probability: its share among all pieces and symbols of the dictionary.
        text: the text with it.
        mask: number of the ``<mask>`` from 0.
    """

    piece: str
    probability: float
    text: str
    mask: int


def _pieces(loaded: Loaded, texts: Sequence[str], lang: str) -> list[list[str]]:
    """Pieces of each text, ``<mask>`` whole.

    Raises:
        UsageError: a text without ``<mask>``, or longer than the model.
    """
    tokenizer, most = tokenizer_of(loaded), longest_row(loaded) - 2
    found = []
    for text in texts:
        pieces = tokenizer.encode_line(text, lang, special=True)
        if MASK not in pieces:
            what = f"There is no {MASK} in this text."
            raise UsageError(
                what, where="text", value=text[:80], next_step=f"put {MASK} where a piece shall be guessed"
            )
        if len(pieces) > most:
            what = "This text is longer than the model."
            raise UsageError(what, where="text", value=f"{len(pieces)} pieces: {text[:80]}", allowed=f"{most} pieces")
        found.append(pieces)
    return found


@torch.no_grad()
def fill_masks(loaded: Loaded, texts: Sequence[str], lang: str, top_k: int) -> list[list[Fill]]:
    """The ``top_k`` best pieces for every ``<mask>`` of each text: mask after mask, best first.

    Special symbols are no guesses, but keep their probability. Masks of one text are filled one by one, with the others
    still hidden.

    Raises:
        UsageError: see :func:`_pieces`; or ``top_k`` < 1. DictionaryError: no ``<mask>`` in the dictionary.
        LanguageError: a language that the model cannot route. TokenizerError: no tokenizer.
    """
    if type(top_k) is not int or top_k < 1:
        raise UsageError("At least 1.", where="top_k", value=repr(top_k))
    dictionary, where = loaded.dictionary, route(loaded, lang)
    mask = dictionary.index(MASK)
    if mask == dictionary.unk():
        raise DictionaryError(f"The dictionary has no {MASK}: this is no masked language model.", where=loaded.path)
    pieces, tokenizer, model = _pieces(loaded, texts, lang), tokenizer_of(loaded), loaded.model.eval()
    rows = [[dictionary.bos(), *map(dictionary.index, row), dictionary.eos()] for row in pieces]
    device, never = next(model.parameters()).device, [*range(dictionary.nspecial), mask]
    found: list[list[Fill]] = [[] for _ in texts]
    for batch in in_batches([len(row) for row in rows]):
        tokens = padded([rows[number] for number in batch], dictionary.pad()).to(device)
        extra = {} if where.lang_id is None else {"lang_id": torch.full((len(batch),), where.lang_id, device=device)}
        scores = model(src_tokens=tokens, masked_tokens=tokens == mask, **extra)[0]  # masks x V
        shares = torch.softmax(scores.float(), dim=-1)
        shares[:, never] = -1.0
        values_of, ids_of = shares.topk(min(top_k, shares.size(1) - len(never)))
        places = (tokens == mask).nonzero().tolist()
        for (place, column), values, ids in zip(places, values_of.cpu(), ids_of.cpu()):
            own, number = pieces[batch[place]], len({fill.mask for fill in found[batch[place]]})
            for value, piece in zip(values.tolist(), map(dictionary.__getitem__, ids.tolist())):
                text = tokenizer.decode([*own[: column - 1], piece, *own[column:]])
                found[batch[place]].append(Fill(piece, value, text, number))
    return found
