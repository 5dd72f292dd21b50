"""Checkpoint files as files: which classes they hold, whether they can be read, which one is the newest.

Nothing here executes what a pickle says: opcodes are listed with ``pickletools``, never run.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import pickletools
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Optional, Union

import torch

from fairseq_interference.errors import CheckpointError, UnsafeCheckpointError

logger = logging.getLogger(__name__)

PathLike = Union[str, Path]
ALLOW_VARIABLE = "INTERFERENCE_ALLOW_CLASSES"

# The one class that a fairseq checkpoint holds beyond tensors and plain containers.
ALLOWED_CLASS = "argparse.Namespace"
# What torch itself writes for tensors and plain containers (its own allow-list since 2.4, needed here before that).
_PLAIN = re.compile(
    r"collections\.OrderedDict|collections\.Counter|_codecs\.encode|(?:__builtin__|builtins)\.(?:set|frozenset|bytearray)"
    r"|torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2|torch\.(?:\w+)?Storage"
    r"|torch\.storage\.\w+Storage|torch\.(?:Size|Tensor|device|dtype|nn\.parameter\.Parameter)"
    r"|torch\.(?:u?int\d+|b?float\d*\w*|half|double|long|short|int|bool|complex\d+)"
)
# The legacy format (before torch 1.6) is a row of pickles: magic, protocol, system, object, storage keys.
_LEGACY_PICKLES = 5

# Whatever torch.load raises on a broken or refused file.
READ_ERRORS = (EOFError, pickle.UnpicklingError, RuntimeError, zipfile.BadZipFile, zlib.error, KeyError, OSError)


def checks_by_default() -> bool:
    """Whether ``torch.load`` of the installed torch refuses foreign classes unless told otherwise (since 2.6)."""
    numbers = re.findall(r"\d+", torch.__version__)[:2]
    return tuple(map(int, numbers)) >= (2, 6)


def allowed_by_user() -> list[str]:
    """Class names that the user vouches for in ``INTERFERENCE_ALLOW_CLASSES`` (comma-separated)."""
    return [name.strip() for name in os.environ.get(ALLOW_VARIABLE, "").split(",") if name.strip()]


def allow_classes(names: list[str]) -> None:
    """Put classes on torch's allow-list by their dotted names; torch without such a list needs nothing.

    Raises:
        CheckpointError: a name that cannot be imported.
    """
    add = getattr(torch.serialization, "add_safe_globals", None)
    if add is None:
        return
    for name in names:
        module, _, attribute = name.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise CheckpointError("This class cannot be imported.", where=ALLOW_VARIABLE, value=name) from error
        try:
            add([(found, name)])
        except (TypeError, AttributeError, ValueError):  # torch < 2.7 takes the class only
            add([found])


def _pickles(stream: BinaryIO) -> Iterator[Any]:
    for _ in range(_LEGACY_PICKLES):
        yield from pickletools.genops(stream)


def _names(operations: Iterator[Any]) -> Iterator[tuple[str, bool]]:
    """Dotted names that a pickle looks up, and whether the name was computed on its stack."""
    strings: list[str] = []
    try:
        for opcode, argument, _ in operations:
            if opcode.name in ("GLOBAL", "INST"):
                yield str(argument).replace(" ", ".", 1), False
            elif opcode.name == "STACK_GLOBAL":
                yield ".".join(strings[-2:]) or "a computed name", True
            elif opcode.name.startswith("EXT"):
                yield f"extension {argument}", True
            elif isinstance(argument, str):
                strings.append(argument)
    except (ValueError, EOFError, IndexError, UnicodeDecodeError):
        return  # the raw storages of the legacy format, or the end of a cut file


def foreign_classes(path: PathLike) -> list[str]:
    """Names that a checkpoint's pickle looks up beyond tensors, plain containers and the allow-list, in order.

    A name that is computed on the pickle's stack counts as foreign whatever it is: ``torch.save`` writes none.
    """
    allowed = {ALLOWED_CLASS, *allowed_by_user()}
    found: list[str] = []

    def collect(operations: Iterator[Any]) -> None:
        for name, computed in _names(operations):
            if name not in allowed and (computed or not _PLAIN.fullmatch(name)) and name not in found:
                found.append(name)

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(".pkl"):
                    with archive.open(member) as packed:
                        collect(pickletools.genops(packed))
    else:
        with open(path, "rb") as stream:
            collect(_pickles(stream))
    return found


def refuse_foreign_classes(path: PathLike) -> None:
    """Raise if the checkpoint holds a class outside the allow-list.

    Raises:
        UnsafeCheckpointError: names the classes and how to opt in.
    """
    names = foreign_classes(path)
    if names:
        raise UnsafeCheckpointError(
            "The checkpoint holds a class outside the allow-list; nothing of it was run.",
            where=path,
            value=", ".join(names),
            allowed=f"tensors, plain containers, {ALLOWED_CLASS}",
            next_step=f"only if you trust whoever wrote the file: export {ALLOW_VARIABLE}={','.join(names)}",
        )


def is_readable(path: PathLike) -> bool:
    """Whether the file is whole: the archive's table of contents and every checksum. Classes are not judged."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() is None  # torch itself reads over a wrong checksum
        with open(path, "rb") as stream:
            if stream.read(1) != pickle.PROTO:  # text, such as a Git-LFS pointer: torch would speak of its check
                return False
        torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        return "Unsupported" in str(error) or "not an allowed global" in str(error) or bool(foreign_classes(path))
    except READ_ERRORS:
        return False
    return True


def explain(path: PathLike, error: BaseException) -> Optional[CheckpointError]:
    """The named error behind what ``torch.load`` raised, or None if the file itself is in order."""
    if not os.path.isfile(path):
        return None
    try:
        refuse_foreign_classes(path)
    except UnsafeCheckpointError as unsafe:
        return unsafe
    except READ_ERRORS:
        pass
    if is_readable(path):
        return None
    return CheckpointError(
        "The checkpoint cannot be read: it is cut short or damaged.",
        where=path,
        value=f"{os.path.getsize(path)} bytes, {type(error).__name__}",
        next_step="give an older checkpoint, or copy the file again",
    )


def updates_of(path: PathLike) -> Optional[int]:
    """Number of updates that a checkpoint has seen, or None if it cannot be read. Tensors stay on disk."""
    allow_classes([ALLOWED_CLASS])
    try:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (TypeError, RuntimeError):  # torch < 2.1, or the legacy format: read it whole
            state = torch.load(path, map_location="cpu", weights_only=True)
        return int(state["optimizer_history"][-1]["num_updates"])
    except (*READ_ERRORS, IndexError, TypeError, ValueError):
        return None


def newest_readable(folder: PathLike, exclude: PathLike) -> Optional[tuple[Path, int]]:
    """The checkpoint of ``folder`` with the most updates that is whole, and its number of updates."""
    found = []
    for path in Path(folder).glob("checkpoint*.pt"):
        if path == Path(exclude) or not path.is_file() or not is_readable(path):
            continue
        updates = updates_of(path)
        if updates is not None:
            found.append((updates, path.stat().st_mtime_ns, path))
    return (max(found)[2], max(found)[0]) if found else None


def replace_unreadable(last: PathLike) -> bool:
    """Set an unreadable ``checkpoint_last.pt`` aside and put the newest readable checkpoint in its place.

    Returns:
        Whether anything was done.

    Raises:
        CheckpointError: nothing else in the folder can be read. The bad file stays where it is, so that the
            next start does not begin anew without a word.
    """
    last = Path(last)
    if not last.is_file() or is_readable(last):
        return False
    found = newest_readable(last.parent, exclude=last)
    if found is None:
        raise CheckpointError(
            "The last checkpoint is cut short or damaged, and there is no other readable one beside it.",
            where=last,
            value=f"{last.stat().st_size} bytes",
            next_step=f"copy it again, or delete it to start from the beginning: rm {last}",
        )
    good, updates = found
    aside = last.with_name(last.name + ".unreadable")
    number = 1
    while aside.exists():
        number += 1
        aside = last.with_name(f"{last.name}.unreadable{number}")
    temporary = last.with_name(f"{last.name}.{os.getpid()}.tmp")
    shutil.copyfile(good, temporary)  # not a link: the host overwrites checkpoint_last.pt in place
    last.replace(aside)
    temporary.replace(last)
    logger.warning(f"{last} cannot be read: kept as {aside.name}; going on from {good.name} ({updates} updates)")
    return True
