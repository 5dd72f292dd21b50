"""Idempotent stages: write to ``NAME.tmp``, rename to ``NAME``, mark ``NAME/.done``.

A finished stage is skipped; a finished stage whose inputs or settings differ is an error that names them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional, Union

from fairseq_interference import __version__
from fairseq_interference.errors import StageError

DONE_FILE = ".done"
PathLike = Union[str, Path]


def file_hash(path: PathLike) -> str:
    """Hexadecimal blake2b (128 bit) of a file, or of a folder's relative names and contents."""
    path = Path(path)
    digest = hashlib.blake2b(digest_size=16)
    if path.is_dir():
        for child in sorted(p for p in path.rglob("*") if p.is_file() and p.name != DONE_FILE):
            digest.update(f"{child.relative_to(path).as_posix()}\0{file_hash(child)}\0".encode())
        return digest.hexdigest()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def write_text(path: PathLike, text: str) -> None:
    """Write a text file through a temporary name, so that a reader never sees half of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def write_json(path: PathLike, value: Any) -> None:
    """Write JSON, keys sorted, through a temporary name."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n")


def copy_over(source: Path, target: Path) -> None:
    """Copy a file or folder to its place under a temporary name, unless the same is there."""
    if target.exists() and (source.resolve() == target.resolve() or file_hash(source) == file_hash(target)):
        return
    temporary = target.with_name(target.name + ".tmp")
    if source.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(source, temporary)
        _take_place(temporary, target)
    else:
        shutil.copyfile(source, temporary)
        temporary.replace(target)


def _take_place(temporary: Path, out: Path) -> None:
    """Rename a finished folder to its place; a reader never sees half of the old one or of the new one."""
    old = out.with_name(f"{out.name}.old.tmp")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    temporary.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def read_done(out: PathLike) -> Optional[dict[str, Any]]:
    """Content of a stage's ``.done``, or None if the stage has not finished."""
    path = Path(out) / DONE_FILE
    if not path.is_file():
        return None
    try:
        done: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StageError("This note of a finished stage is broken.", where=path, value=str(error)) from None
    return done


def input_of(out: PathLike, name: str) -> Optional[str]:
    """Hash of an input that a finished stage was made from; None if it is not noted."""
    found: Optional[str] = ((read_done(out) or {}).get("inputs") or {}).get(name)
    return found


def is_foreign(out: PathLike) -> bool:
    """Whether a place holds something that no stage has written: a file, or files in a folder without ``.done``."""
    out = Path(out)
    return out.is_file() or (out.is_dir() and not (out / DONE_FILE).is_file() and any(out.iterdir()))


def check_place(out: PathLike) -> None:
    """Raise StageError if a stage would take the place of what no stage has written."""
    if is_foreign(out):
        raise StageError(
            "Something else is in the place of this stage; it is not touched.",
            where=out,
            next_step="give another output folder, or move it away",
        )


def _check_inputs(out: Path, inputs: Mapping[str, PathLike]) -> None:
    inside = [str(path) for path in inputs.values() if out.resolve() in Path(path).resolve().parents]
    if inside:
        raise StageError(
            "An input of this stage lies in the folder that would be replaced.",
            where=out,
            value=", ".join(inside),
            next_step="move the input, or give another output folder",
        )


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], kind: str) -> list[str]:
    names = sorted(set(old) | set(new))
    return [f"{kind} {name}" for name in names if old.get(name) != new.get(name)]


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Be the only process that writes to a place, forks of this one included.

    Raises:
        StageError: another process is at it.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out.parent / f".{out.name}.lock", "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StageError(
                "Another process is writing this stage.", where=out, next_step="wait for it, or write elsewhere"
            ) from None
        yield


@contextmanager
def stage(
    out: PathLike, *, inputs: Mapping[str, PathLike], settings: Mapping[str, Any], force: bool = False
) -> Iterator[Optional[Path]]:
    """Run one stage.

    Args:
        out: folder that the stage produces.
        inputs: name -> file or folder that the result depends on.
        settings: JSON-able values that the result depends on (not: number of workers).
        force: redo the stage if inputs or settings changed, instead of raising.

    Yields:
        The temporary folder to write into, or None if the stage is already done.

    Raises:
        StageError: finished with other inputs or settings, another process is at it, or the folder holds what no
            stage has written.
    """
    out = Path(out)
    with locked(out):
        hashes = {name: file_hash(path) for name, path in inputs.items()}
        wanted = json.loads(json.dumps(dict(settings)))
        done = read_done(out)
        if done is not None:
            changed = _changes(done["inputs"], hashes, "input") + _changes(done["settings"], wanted, "setting")
            if not changed:
                yield None
                return
            if not force:
                raise StageError(
                    "This stage was finished with other inputs or settings.",
                    where=out,
                    value=", ".join(changed),
                    next_step="give --force to redo it, or another output folder",
                )
            _check_inputs(out, inputs)
        check_place(out)
        temporary = out.with_name(out.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        begin = time.monotonic()
        yield temporary
        write_json(
            temporary / DONE_FILE,
            {
                "inputs": hashes,
                "settings": wanted,
                "version": __version__,
                "seconds": round(time.monotonic() - begin, 3),
            },
        )
        _take_place(temporary, out)
