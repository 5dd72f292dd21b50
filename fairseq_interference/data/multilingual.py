"""The dataset of all languages: blocks in the proportions of an epoch, masked batches that carry their languages."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from fairseq.data import FairseqDataset
from numpy.typing import NDArray

from fairseq_interference.data import sampling
from fairseq_interference.data.blocks import Blocks
from fairseq_interference.data.masking import Masking, keys
from fairseq_interference.languages import LanguageList

Sample = dict[str, Any]
_VALIDATION_SEED = 0x5EED  # validation masks are the same in every run, so that runs can be compared


class Item(NamedTuple):
    """One block before masking."""

    number: int
    language: int
    visit: tuple[int, int]  # block, pass
    tokens: NDArray[Any]


class MultilingualDataset(FairseqDataset):  # type: ignore[misc]
    """Blocks of several languages.

    Args:
        languages: all languages of the run; ids are positions.
        blocks: language -> its blocks; languages without this split are left out.
        masking: turns tokens into source and target.
        bos: id of ``<s>``, put in front of every block.
        seed: seed of order and masking.
        temperature: sampling temperature, or None for validation (each block once, always masked alike).
        epoch: epoch to begin with.

    An index stands for one visit of one block in this epoch. ``set_epoch`` draws them anew.
    """

    def __init__(
        self,
        languages: LanguageList,
        blocks: Mapping[str, Blocks],
        masking: Masking,
        bos: int,
        *,
        seed: int = 1,
        temperature: Optional[float] = None,
        epoch: int = 1,
    ) -> None:
        super().__init__()
        self.languages = languages
        self.blocks: list[Optional[Blocks]] = [blocks.get(code) for code in languages]
        self.block_counts = [0 if part is None else len(part) for part in self.blocks]
        self._codes = np.array([zlib.crc32(code.encode()) for code in languages], dtype=np.uint64)
        self.masking = masking
        self.bos = bos
        self.seed = seed
        self.temperature = temperature
        self.epoch = 0
        self.set_epoch(epoch)

    @property
    def training(self) -> bool:
        return self.temperature is not None

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """A new epoch has other visits, so its batches are made anew; validation never changes."""
        return not self.training

    def set_epoch(self, epoch: int, **unused: Any) -> None:
        """Draw the visits of an epoch: sets ``counts``, ``language``, ``block``, ``passes`` and ``sizes``."""
        if epoch == self.epoch or (self.epoch > 0 and not self.training):
            return
        self.epoch = epoch
        if self.temperature is None:
            self.counts = np.asarray(self.block_counts, dtype=np.int64)
        else:
            self.counts = sampling.epoch_counts(self.block_counts, self.temperature)
        self.language = self.block = self.passes = np.zeros(0, dtype=np.int64)
        self.sizes = np.zeros(0, dtype=np.int64)
        self._visited = [0] * len(self.languages)
        self._append([(number, int(count)) for number, count in enumerate(self.counts) if count])

    def _append(self, wanted: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        first = len(self.sizes)
        language, block, passes, sizes = [self.language], [self.block], [self.passes], [self.sizes]
        for number, count in wanted:
            part = self.blocks[number]
            assert part is not None
            begin = self._visited[number]
            if self.training:
                some, of_pass = sampling.visits(len(part), begin, begin + count, [self.seed, self.epoch, number])
            else:
                some, of_pass = np.arange(count), np.zeros(count, dtype=np.int64)
            self._visited[number] += count
            language.append(np.full(count, number, dtype=np.int64))
            block.append(some)
            passes.append(of_pass)
            sizes.append(part.sizes[some].astype(np.int64))
        self.language, self.block = np.concatenate(language), np.concatenate(block)
        self.passes, self.sizes = np.concatenate(passes), np.concatenate(sizes)
        return np.arange(first, len(self.sizes), dtype=np.int64)

    def extend(self, language: int, count: int) -> NDArray[np.int64]:
        """Indices of that language's next ``count`` visits, beyond those of the epoch."""
        return self._append([(language, count)])

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Item:
        language, block = int(self.language[index]), int(self.block[index])
        part = self.blocks[language]
        assert part is not None
        return Item(index, language, (block, int(self.passes[index])), part[block])

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    def num_tokens_vec(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.sizes[indices]

    def ordered_indices(self) -> NDArray[np.int64]:
        """All visits by length; equal lengths in an order drawn from seed and epoch; ``(N,)``."""
        return self.by_length(np.arange(len(self), dtype=np.int64))

    def by_length(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self.training:
            return indices[np.argsort(self.sizes[indices], kind="stable")]
        shuffled = np.random.default_rng([self.seed, self.epoch]).permutation(indices)
        return shuffled[np.argsort(self.sizes[shuffled], kind="stable")]

    @property
    def supports_prefetch(self) -> bool:
        return False

    def collater(self, samples: Sequence[Item]) -> Sample:
        """Masked batch in the format of the tasks: B rows, T = longest block; ``{}`` for no samples."""
        if len(samples) == 0:
            return {}
        pad = self.masking.pad
        lengths = [len(item.tokens) + 1 for item in samples]
        tokens = np.full((len(samples), max(lengths)), pad, dtype=np.int64)  # B x T
        tokens[:, 0] = self.bos
        for row, item, length in zip(tokens, samples, lengths):
            row[1:length] = item.tokens
        language = np.array([item.language for item in samples])
        visit = np.array([item.visit for item in samples], dtype=np.uint64)
        seed, epoch = (self.seed, self.epoch) if self.training else (_VALIDATION_SEED, 0)
        key = keys(seed, epoch, self._codes[language], visit[:, 0], visit[:, 1])
        source, target = self.masking(tokens, key)
        return {
            "id": torch.tensor([item.number for item in samples]),
            "nsentences": len(samples),
            "ntokens": sum(lengths),
            "target": torch.from_numpy(target),
            "net_input": {
                "src_tokens": torch.from_numpy(source),
                "src_lengths": torch.tensor(lengths),
                "lang_id": torch.from_numpy(language),
            },
        }
