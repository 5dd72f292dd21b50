"""Sentence pairs to tensors: ``<s> premise </s> </s> hypothesis </s>``, one row a pair.

A pair that is too long loses pieces from the end of its longer sentence, one by one; of two as long the hypothesis
loses first (the order of ``longest_first`` of the transformers library).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_interference.data.examples import collate_rows
from fairseq_interference.data.pieces import Pieces
from fairseq_interference.data.tagging import IGNORE
from fairseq_interference.errors import UsageError

SPECIALS = 4  # <s>, two </s> between, </s>


class PairRow(NamedTuple):
    """(T,) token ids."""

    tokens: Tensor


@dataclass(frozen=True)
class PairExample:
    """A pair.

    Args:
        rows: its one row.
        label: id, or IGNORE.
        lang_id: id that routes it through the model.
        group: number of the language in logs.
    """

    rows: list[PairRow]
    label: int
    lang_id: int
    group: int

    @property
    def length(self) -> int:
        return len(self.rows[0].tokens)


def truncated(first: int, second: int, room: int) -> tuple[int, int]:
    """How many pieces of two sentences are kept, so that both have ``room``."""
    excess = max(first + second - room, 0)
    level = min(abs(first - second), excess)  # from the longer one alone, until both are as long
    if first > second:
        first -= level
    else:
        second -= level
    rest = excess - level
    return first - rest // 2, second - (rest + 1) // 2


class PairEncoder:
    """Two sentences to a row of piece ids.

    Args:
        pieces: encodes with the checkpoint's tokenizer and dictionary.
        limit: tokens that fit into a row, special symbols included.
    """

    def __init__(self, pieces: Pieces, limit: int) -> None:
        if limit < SPECIALS + 2:
            raise UsageError("A row must hold a piece of both sentences.", value=limit, allowed=f">= {SPECIALS + 2}")
        self.pieces = pieces
        self.limit = limit
        self._bos, self._eos = [pieces.dictionary.bos()], [pieces.dictionary.eos()]

    def row(self, premise: str, hypothesis: str, lang: str) -> PairRow:
        """The row of a pair; an empty sentence has no pieces."""
        first, second = (self.pieces.encode(text, lang).ids for text in (premise, hypothesis))
        kept = truncated(len(first), len(second), self.limit - SPECIALS)
        parts = (self._bos, first[: kept[0]], self._eos, self._eos, second[: kept[1]], self._eos)
        return PairRow(torch.from_numpy(np.concatenate(parts).astype(np.int64)))


def collate_pairs(examples: Sequence[PairExample], ids: Optional[Sequence[int]] = None, *, pad: int) -> dict[str, Any]:
    """A batch of B pairs: the sample format of all tasks, ``target`` and ``group`` (B,)."""
    target = torch.tensor([example.label for example in examples])
    return {
        **collate_rows(examples, pad, ids),
        "sample_size": int((target != IGNORE).sum()),
        "target": target,
        "group": torch.tensor([example.group for example in examples]),
    }
