"""Examples of several languages for the host's iterators: batches by length, nothing is left out.

An example is one sentence, pair or question: one row of a batch, or several (windows) that belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional, Protocol

import numpy as np
import torch
from fairseq.data import FairseqDataset
from torch import Tensor


class Symbols(Protocol):
    """What is asked of a dictionary: the host's Dictionary has it."""

    def index(self, sym: str) -> int: ...
    def bos(self) -> int: ...
    def pad(self) -> int: ...
    def eos(self) -> int: ...
    def unk(self) -> int: ...


class HasTokens(Protocol):
    """A row: (T,) token ids with <s> and </s>."""

    @property
    def tokens(self) -> Tensor: ...


class IsExample(Protocol):
    """Rows that belong together; id that routes them, number of the language in logs, tokens of the longest row."""

    @property
    def rows(self) -> Sequence[Any]: ...
    @property
    def lang_id(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def length(self) -> int: ...


def collate_rows(examples: Sequence[IsExample], pad: int, ids: Optional[Sequence[int]] = None) -> dict[str, Any]:
    """What the samples of all tasks share: ``id``, ``nsentences``, ``ntokens`` and ``net_input`` with B rows."""
    rows: list[HasTokens] = [row for example in examples for row in example.rows]
    lengths = torch.tensor([len(row.tokens) for row in rows])
    tokens = torch.full((len(rows), int(lengths.max())), pad)
    for number, row in enumerate(rows):
        tokens[number, : len(row.tokens)] = row.tokens
    return {
        "id": torch.tensor(list(range(len(examples)) if ids is None else ids)),
        "nsentences": len(examples),
        "ntokens": int(lengths.sum()),
        "net_input": {
            "src_tokens": tokens,
            "src_lengths": lengths,
            "lang_id": torch.tensor([example.lang_id for example in examples for _ in example.rows]),
        },
    }


def batches_of(
    order: Iterable[int],
    examples: Sequence[IsExample],
    max_tokens: Optional[int] = None,
    max_sentences: Optional[int] = None,
) -> list[list[int]]:
    """Cut ``order`` into batches of at most ``max_tokens`` tokens (padding counted) and ``max_sentences`` rows.

    An example that is larger gets a batch of its own: nothing is dropped.
    """
    batches: list[list[int]] = []
    rows = width = 0
    for index in order:
        example = examples[index]
        rows, width = rows + len(example.rows), max(width, example.length)
        full = max_tokens is not None and rows * width > max_tokens
        if not batches or full or (max_sentences is not None and rows > max_sentences):
            batches.append([])
            rows, width = len(example.rows), example.length
        batches[-1].append(index)
    return batches


class ExampleDataset(FairseqDataset):  # type: ignore[misc]
    """Examples of several languages for the host's iterators.

    Args:
        examples: of all languages.
        collate: examples and their numbers to a sample, such as :func:`collate_rows`.
        shuffle: draw a new order for every epoch; batches still hold examples of similar length.
    """

    def __init__(
        self,
        examples: Sequence[Any],
        collate: Callable[[Sequence[Any], Sequence[int]], dict[str, Any]],
        shuffle: bool,
    ) -> None:
        super().__init__()
        self.examples = examples
        self.collate = collate
        self.shuffle = shuffle
        self.sizes = np.array([example.length for example in examples], dtype=np.int64)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return int(index), self.examples[index]

    def __len__(self) -> int:
        return len(self.examples)

    def collater(self, samples: Sequence[tuple[int, Any]]) -> dict[str, Any]:
        if not samples:
            return {}
        return self.collate([example for _, example in samples], [index for index, _ in samples])

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    def num_tokens(self, index: int) -> int:
        example = self.examples[index]
        return int(example.length * len(example.rows))

    def ordered_indices(self) -> Any:
        """Similar lengths together; ties in random order if shuffling (numpy's generator, seeded by the task)."""
        order = np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))
        return order[np.argsort(self.sizes[order], kind="stable")]

    def filter_indices_by_size(self, indices: Any, max_sizes: object) -> tuple[Any, list[int]]:
        """Rows fit already: nothing is ever left out."""
        return indices, []

    def batch_by_size(
        self,
        indices: Any,
        max_tokens: Optional[int] = None,
        max_sentences: Optional[int] = None,
        required_batch_size_multiple: int = 1,
    ) -> list[list[int]]:
        """See :func:`batches_of`; batches are never trimmed to a multiple."""
        return batches_of((int(i) for i in indices), self.examples, max_tokens, max_sentences)

    @property
    def supports_prefetch(self) -> bool:
        return False

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        return not self.shuffle
