"""What the commands of this folder have in common."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, Optional, TypeVar

from data_prep.parallel import Chunk, chunks_of, ordered_map, progress
from fairseq_interference.errors import DataError, UsageError, exit_code

Extra = TypeVar("Extra")
LEAST_MEMORY = 1 << 20
SPLITS = ("train", "valid", "test")


def add_force(parser: argparse.ArgumentParser) -> None:
    """The flag that all stages take."""
    parser.add_argument("--force", action="store_true", help="redo a finished stage whose inputs or settings changed")


def parse_memory(text: str, where: str = "--memory") -> int:
    """Bytes of ``512M``, ``2G`` or a plain number."""
    found = re.fullmatch(r"(\d+)([KMG]?)i?B?", text, re.IGNORECASE)
    if found is None:
        raise UsageError("Not an amount of memory.", where=where, value=text, allowed="512M, 2G, …")
    size = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()]
    if size < LEAST_MEMORY:
        raise UsageError("Too little memory to work in.", where=where, value=text, allowed=">= 1M")
    return size


def say(message: str) -> None:
    """One line for the user, on stderr."""
    print(message, file=sys.stderr, flush=True)


def run_main(main: Callable[[Optional[Sequence[str]]], int], argv: Optional[Sequence[str]] = None) -> int:
    """Run a command; a user's mistake is a message and an exit code, not a traceback."""
    return exit_code(Path(sys.argv[0]).stem, lambda: main(argv))


def map_file(
    function: Callable[[Chunk], tuple[bytes, int, Extra]], source: Path, target: Path, workers: int, label: str
) -> Iterator[Extra]:
    """Write what ``function`` makes of each part of ``source`` (text, lines read, anything more), in order.

    Yields:
        What more the function found in each part.

    Raises:
        DataError: a part has another number of lines afterwards.
    """
    parts = chunks_of(source)
    with open(target, "wb") as out:
        for text, read, extra in progress(ordered_map(function, parts, workers), [p.size for p in parts], label):
            if text.count(b"\n") != read:
                after = text.count(b"\n")
                raise DataError(
                    "A step changed the number of lines.", where=source, value=f"{read} before, {after} after"
                )
            out.write(text)
            yield extra
