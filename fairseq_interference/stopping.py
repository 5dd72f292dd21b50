"""SIGTERM and SIGUSR1: finish the update, save, leave the loop, exit with 75 so that a scheduler runs it again."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Optional

from fairseq_interference.errors import REQUEUE

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stopping:
    """What this process knows about a request to stop.

    Attributes:
        requested: name of the signal that came, or None.
        training: whether there is an update to finish. Before that a request ends the process at once, after it
            was passed on to the ranks that this process has spawned.
    """

    def __init__(self) -> None:
        self.requested: Optional[str] = None
        self.training = False

    def watch(self) -> None:
        """Take over the two signals where nobody else has (Slurm plug-ins bring their own handlers)."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._receive)

    def release(self) -> None:
        """Give the signals back and forget a request."""
        for number in SIGNALS:
            if signal.getsignal(number) == self._receive:
                signal.signal(number, signal.SIG_DFL)
        self.requested, self.training = None, False

    def _receive(self, number: int, _frame: Optional[FrameType]) -> None:
        self.requested = signal.Signals(number).name
        if self.training:
            # A signal to the whole group also ends the data workers; their end must not break the update.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return
        ranks = multiprocessing.active_children()
        for rank in ranks:
            if rank.pid is not None:
                os.kill(rank.pid, number)
        if not ranks:
            raise SystemExit(REQUEUE)


STOPPING = Stopping()


def any_rank(trainer: Any, flag: bool) -> bool:
    """Whether ``flag`` is set on any data-parallel rank. A collective: every rank calls it at the same place."""
    if trainer.data_parallel_world_size == 1:
        return flag
    import torch
    from fairseq.distributed import utils as distributed_utils

    value = torch.tensor([float(flag)], device=trainer.device)
    distributed_utils.all_reduce(value, group=trainer.data_parallel_process_group)
    return bool(value.item() > 0)


def save_and_leave(cfg: Any, trainer: Any, task: Any, epoch_itr: Any) -> None:
    """Save ``checkpoint_last.pt`` without validating, then end the process with exit code 75."""
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    updates = trainer.get_num_updates()
    why = STOPPING.requested or "another rank was told to stop"
    logger.warning(f"{why}: saving after update {updates} and leaving")
    cfg.checkpoint.no_last_checkpoints = False
    path = checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
    if path is not None and hasattr(task, "post_save"):
        task.post_save(path, updates)
    if cfg.checkpoint.no_save:
        logger.warning("nothing was saved: --no-save")
    if cfg.checkpoint.write_checkpoints_asynchronously:
        PathManager.async_close()
    any_rank(trainer, True)  # a launcher may end the other ranks as soon as one has left: wait for the writer
    raise SystemExit(REQUEUE)


def end_readers(patience: float = 10.0) -> None:
    """Let the host's threads that read batches ahead end; meant for ``atexit``.

    Python stops such a thread in the middle of whatever it does when the process ends. Inside torch that aborts the
    process: a run that has saved everything would leave with SIGABRT instead of its exit code.

    Args:
        patience: seconds after which the threads are left alone.
    """
    iterators = sys.modules.get("fairseq.data.iterators")
    if iterators is None:
        return
    kind = iterators.BackgroundConsumer
    readers: list[Any] = [thread for thread in threading.enumerate() if isinstance(thread, kind)]
    for reader in readers:
        reader._max_len = 0  # stop after the batch in hand
    deadline = time.monotonic() + patience
    while any(reader.is_alive() for reader in readers) and time.monotonic() < deadline:
        for reader in readers:
            with contextlib.suppress(queue.Empty):  # it may wait for room
                reader._queue.get(timeout=0.01)
