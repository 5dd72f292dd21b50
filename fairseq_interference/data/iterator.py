"""The epoch iterator: shuffles groups of batches, and knows at resume what the position in the epoch depends on."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import torch
from fairseq.data import iterators
from numpy.typing import NDArray

from fairseq_interference.errors import ResumeError
from fairseq_interference.languages import LanguageList

logger = logging.getLogger(__name__)
STATE_KEY = "interference"
Batch = NDArray[np.int64]
# A change of these makes the position in the epoch meaningless: the epoch begins again, with a warning.
_RESTARTS = ("temperature", "composition", "sample_break_mode", "tokens_per_sample", "seed", "workers", "batch_size")
_FLAGS = {
    "temperature": "--temperature",
    "composition": "--batch-composition",
    "sample_break_mode": "--sample-break-mode",
    "tokens_per_sample": "--tokens-per-sample",
    "seed": "--seed",
    "workers": "number of workers",
    "update_freq": "--update-freq",
    "batch_size": "--batch-size/--max-tokens/--required-batch-size-multiple",
    "blocks": "blocks of each language",
    "languages": "--langs",
    "few_shot": "--few-shot",
}


class _Batches:
    """Batch sampler of one worker: plain lists, so that nothing of numpy travels on."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class LanguageBatchIterator(iterators.EpochBatchIterator):  # type: ignore[misc]
    """Batches of one dataset, epoch after epoch.

    Args:
        dataset, collate_fn, seed, num_shards, shard_id, num_workers, epoch, buffer_size: as in the host.
        groups: groups of batches; a group stays together and in order (``--batch-composition single``: an update).
        settings: what the order depends on: ``languages`` (list), ``dictionary`` (hash), ``blocks`` (list), and the
            options of :data:`_FLAGS`. Plain values; saved with the position and compared at resume.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[..., Any],
        groups: Sequence[Sequence[Batch]],
        settings: dict[str, Any],
        *,
        seed: int = 1,
        num_shards: int = 1,
        shard_id: int = 0,
        num_workers: int = 0,
        epoch: int = 1,
        buffer_size: int = 0,
        skip_remainder_batch: bool = False,
    ) -> None:
        super().__init__(
            dataset=dataset,
            collate_fn=collate_fn,
            batch_sampler=list(itertools.chain.from_iterable(groups)),
            seed=seed,
            num_shards=num_shards,
            shard_id=shard_id,
            num_workers=num_workers,
            epoch=epoch,
            buffer_size=buffer_size,
        )
        self.groups = groups
        self.settings = settings
        self.skip_remainder = skip_remainder_batch

    def batches_of_worker(self, epoch: int, shuffle: bool) -> list[Any]:
        """This worker's batches in the order of the epoch; ``[]`` stands for a batch that is not there."""
        groups = list(self.groups)
        if shuffle:
            groups = [groups[number] for number in np.random.default_rng([self.seed, epoch]).permutation(len(groups))]
        batches = list(itertools.chain.from_iterable(groups))
        mine: list[Any] = batches[self.shard_id :: self.num_shards]
        missing = -(-len(batches) // self.num_shards) - len(mine)
        return mine + [[]] * missing

    def _get_iterator_for_epoch(
        self, epoch: int, shuffle: bool, fix_batches_to_gpus: bool = False, offset: int = 0
    ) -> Any:
        batches = self.batches_of_worker(epoch, shuffle)[offset:]
        if offset > 0 and not batches:
            return None
        if self.num_workers > 0:
            os.environ["PYTHONWARNINGS"] = "ignore:semaphore_tracker:UserWarning"
        loader: Any = torch.utils.data.DataLoader(
            self.dataset,
            collate_fn=self.collate_fn,
            batch_sampler=_Batches(batches),
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
        )
        if self.buffer_size > 0:
            loader = iterators.BufferedIterator(self.buffer_size, loader)
        found = iterators.CountingIterator(loader, start=offset)
        if self.skip_remainder:
            found.take(len(found) - 1)
        return found

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict()
        state[STATE_KEY] = dict(self.settings)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a saved position.

        Raises:
            ResumeError: another dictionary, or no record of the languages.
            LanguageError: languages that were renumbered or removed.
        """
        state_dict = dict(state_dict)
        saved = state_dict.pop(STATE_KEY, None)
        if saved is None:
            raise ResumeError(
                "The checkpoint's data position does not name its languages: it was not written by this task.",
                where="checkpoint",
                next_step="give --reset-dataloader to begin a new epoch with this task's data",
            )
        reasons = _changes(saved, self.settings)
        if reasons and _moves(saved, self.settings) and state_dict.get("iterations_in_epoch", 0) > 0:
            logger.warning(
                "epoch %d begins again from its first batch (it had got to batch %d), because these changed: %s",
                state_dict["epoch"],
                state_dict["iterations_in_epoch"],
                "; ".join(reasons),
            )
            state_dict["iterations_in_epoch"] = 0
        elif reasons:
            logger.warning("resuming with changed settings: %s", "; ".join(reasons))
        super().load_state_dict(state_dict)


def _changes(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs, in words; raises where going on would be wrong."""
    LanguageList(now["languages"]).check_extends(LanguageList(saved["languages"]), where="--langs")
    if saved["dictionary"] != now["dictionary"]:
        raise ResumeError(
            "The dictionary is not the one that the checkpoint was trained with.",
            where="dict.txt",
            value=now["dictionary"][:12],
            allowed=saved["dictionary"][:12],
            next_step="give the data folder of that run, or start a new run in another --save-dir",
        )
    return [
        f"{flag} {saved.get(name)} -> {now.get(name)}" for name, flag in _FLAGS.items() if _differ(saved, now, name)
    ]


def _differ(saved: dict[str, Any], now: dict[str, Any], name: str) -> bool:
    return bool(saved.get(name) != now.get(name))


def _moves(saved: dict[str, Any], now: dict[str, Any]) -> bool:
    names: tuple[str, ...] = (*_RESTARTS, "blocks", "languages")
    if now.get("composition") == "single":
        names = (*names, "update_freq")
    return any(_differ(saved, now, name) for name in names)
