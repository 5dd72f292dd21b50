"""Map over parts of files in several processes, in an order that does not depend on their number."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, TypeVar, Union

CHUNK_BYTES = 4 << 20
PathLike = Union[str, Path]
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Chunk:
    """Lines of a file that begin at bytes ``begin`` to ``end`` (excluded)."""

    path: str
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def chunks_of(path: PathLike) -> list[Chunk]:
    """Parts of a file, of one size whatever the number of workers."""
    total, size = os.path.getsize(path), CHUNK_BYTES
    return [Chunk(str(path), begin, min(begin + size, total)) for begin in range(0, total, size)]


def raw_lines(chunk: Chunk) -> Iterator[tuple[int, bytes]]:
    """(first byte, line without its LF) of every line that begins inside the chunk. Only LF ends a line."""
    with open(chunk.path, "rb") as stream:
        position = chunk.begin
        if position:
            stream.seek(position - 1)
            position += len(stream.readline()) - 1
        while position < chunk.end:
            line = stream.readline()
            if not line:
                return
            yield position, line[:-1] if line.endswith(b"\n") else line
            position += len(line)


def text_lines(chunk: Chunk) -> list[str]:
    """Lines of a chunk of a file that a step of ours wrote (UTF-8, LF at every end)."""
    with open(chunk.path, "rb") as stream:
        begin, size = chunk.begin, chunk.size
        if begin:
            stream.seek(begin - 1)
            skipped = len(stream.readline()) - 1
            size -= skipped
        if size <= 0:
            return []
        block = stream.read(size)
        if not block.endswith(b"\n"):
            block += stream.readline()
    lines = block.decode("utf-8").split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends (Linux; elsewhere nothing happens)."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _start_worker() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def ordered_map(function: Callable[[Task], Result], tasks: Sequence[Task], workers: int) -> Iterator[Result]:
    """Results in the order of the tasks; at most twice ``workers`` of them are held at a time."""
    if workers <= 1 or len(tasks) <= 1:
        yield from map(function, tasks)
        return
    with multiprocessing.get_context("fork").Pool(min(workers, len(tasks)), _start_worker) as pool:
        waiting = deque(pool.apply_async(function, (task,)) for task in tasks[: 2 * workers])
        following = iter(tasks[2 * workers :])
        while waiting:
            result = waiting.popleft().get()
            for task in following:
                waiting.append(pool.apply_async(function, (task,)))
                break
            yield result


def progress(results: Iterable[Result], sizes: Sequence[int], label: str) -> Iterator[Result]:
    """Show on stderr how many bytes are done while ``results`` are used."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # its thread would live in forked workers
    interval = 0.5 if sys.stderr.isatty() else 15.0
    bar = tqdm(total=sum(sizes), unit="B", unit_scale=True, desc=label, mininterval=interval, delay=1.0, leave=False)
    with bar:
        for size, result in zip(sizes, results):
            yield result
            bar.update(size)
