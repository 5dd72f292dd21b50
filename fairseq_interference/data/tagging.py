"""Labelled words to tensors: alignment of words and sub-words, windows, batches.

Rules. The first piece of a word carries its label; every other position is :data:`IGNORE`. A word of which the
tokenizer leaves nothing (U+200B) is encoded as <unk>, so that it is labelled by the model as any other word. A
piece that the dictionary does not know is <unk>. A word longer than a window is cut to fit. A sentence longer than
a window is read in overlapping windows; each word is answered for by exactly one of them (:mod:`.windows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Protocol

import torch
from torch import Tensor

from fairseq_interference.data.examples import Symbols, collate_rows
from fairseq_interference.data.tokenizer import CACHE_WORDS
from fairseq_interference.data.windows import owners, windows
from fairseq_interference.errors import UsageError

IGNORE = -100


class WordTokenizer(Protocol):
    """What is asked of a tokenizer: :class:`fairseq_interference.data.tokenizer.Tokenizer` has it."""

    def encode_words(self, words: Sequence[str], lang: str) -> list[list[str]]: ...


@dataclass(frozen=True)
class Row:
    """One window: a row of a batch.

    Args:
        tokens: (T,) piece ids with <s> and </s>.
        words: (W,) places in the sentence of the words that this window answers for.
        columns: (W,) position in ``tokens`` of the first piece of each.
    """

    tokens: Tensor
    words: Tensor
    columns: Tensor


@dataclass(frozen=True)
class Example:
    """Rows that belong together, with the labels of their words.

    Args:
        rows: windows of one sentence (or one window of it).
        labels: (W,) label ids of the words that ``rows`` answer for, in the order of the rows; IGNORE if unlabelled.
        lang_id: id that routes the rows through the model.
        group: number of the language in logs; differs from ``lang_id`` for a language that the model does not know.
    """

    rows: list[Row]
    labels: Tensor
    lang_id: int
    group: int

    @property
    def length(self) -> int:
        """Tokens of the longest row."""
        return max(len(row.tokens) for row in self.rows)


class WordEncoder:
    """Words of a sentence to rows of piece ids.

    Args:
        dictionary: the checkpoint's dictionary.
        tokenizer: the checkpoint's tokenizer.
        limit: tokens that fit into a row, <s> and </s> included.
    """

    def __init__(self, dictionary: Symbols, tokenizer: WordTokenizer, limit: int) -> None:
        if limit < 3:
            raise UsageError("A window must hold <s>, one piece and </s>.", value=limit, allowed=">= 3")
        self.dictionary = dictionary
        self.tokenizer = tokenizer
        self.limit = limit
        self._words: dict[str, list[int]] = {}

    def pieces(self, words: Sequence[str], lang: str) -> list[list[int]]:
        """Piece ids of each word, at least one and at most ``limit - 2`` per word."""
        unk = [self.dictionary.unk()]
        new = [word for word in dict.fromkeys(words) if word not in self._words]
        if len(self._words) > CACHE_WORDS:
            self._words.clear()
            new = list(dict.fromkeys(words))
        for word, pieces in zip(new, self.tokenizer.encode_words(new, lang)):
            self._words[word] = [self.dictionary.index(piece) for piece in pieces[: self.limit - 2]] or unk
        return [self._words[word] for word in words]

    def rows(self, words: Sequence[str], lang: str) -> list[Row]:
        """Windows of a sentence; together they answer for every word once. No words, no rows."""
        pieces = self.pieces(words, lang)
        lengths = [len(word) for word in pieces]
        spans = windows(lengths, self.limit - 2)
        owned: list[list[int]] = [[] for _ in spans]
        for word, number in enumerate(owners(lengths, spans)):
            owned[number].append(word)
        return [self._row(pieces, span, mine) for span, mine in zip(spans, owned) if mine]

    def _row(self, pieces: Sequence[Sequence[int]], span: tuple[int, int], owned: list[int]) -> Row:
        tokens = [self.dictionary.bos()]
        columns = {}
        for word in range(*span):
            columns[word] = len(tokens)
            tokens.extend(pieces[word])
        tokens.append(self.dictionary.eos())
        return Row(torch.tensor(tokens), torch.tensor(owned), torch.tensor([columns[word] for word in owned]))


def make_examples(
    rows: list[Row], labels: Optional[Sequence[int]], lang_id: int, group: int, *, separate: bool
) -> list[Example]:
    """Examples of one sentence: one per window if ``separate`` (training), else one with all of them."""
    every = None if labels is None else torch.tensor(labels)

    def example(chosen: list[Row]) -> Example:
        words = torch.cat([row.words for row in chosen])
        return Example(chosen, torch.full_like(words, IGNORE) if every is None else every[words], lang_id, group)

    if separate:
        return [example([row]) for row in rows]
    return [example(rows)] if rows else []


def collate(examples: Sequence[Example], ids: Optional[Sequence[int]] = None, *, pad: int) -> dict[str, Any]:
    """A batch of B rows, W words and S examples.

    Returns:
        the sample format of all tasks (``target``: (B, T), IGNORE where no label), ``sample_size``: words with a label,
        and ``words``: ``row`` and ``column`` (W,) of each word's first piece, ``label`` (W,), ``group`` (W,), example
        by example in the order of the sentence; ``count`` (S,) words per example.
    """
    found = collate_rows(examples, pad, ids)
    words = _locate(examples)
    target = torch.full_like(found["net_input"]["src_tokens"], IGNORE)
    target[words["row"], words["column"]] = words["label"]
    return {**found, "sample_size": int((words["label"] != IGNORE).sum()), "target": target, "words": words}


def _locate(examples: Sequence[Example]) -> dict[str, Tensor]:
    """Where the words of a batch stand, in the order of their sentences; see :func:`collate`."""
    found: dict[str, list[Tensor]] = {"row": [], "column": [], "label": [], "group": []}
    first = 0
    for example in examples:
        places = torch.cat([row.words for row in example.rows])
        order = places.argsort()
        numbers = torch.cat([torch.full_like(row.words, first + n) for n, row in enumerate(example.rows)])
        found["row"].append(numbers[order])
        found["column"].append(torch.cat([row.columns for row in example.rows])[order])
        found["label"].append(example.labels[order])
        found["group"].append(torch.full_like(order, example.group))
        first += len(example.rows)
    located = {name: torch.cat(parts) for name, parts in found.items()}
    located["count"] = torch.tensor([len(part) for part in found["row"]])
    return located
