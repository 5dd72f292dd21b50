"""``status``: which stages of a working folder are done, running, interrupted or missing.

A stage is a folder with ``.done``, ``NAME.tmp`` or ``.NAME.lock``; a training is a folder with checkpoints. What
should be there is read from ``plan.json`` if the folder has one, else it is the way of the data: prepared text,
pre-training, prepared benchmark, records, report.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairseq_interference.errors import DONE, DataError
from fairseq_interference.stages import DONE_FILE, read_done

HELP = "show which stages of a folder are done, running, interrupted or missing"
PLAN_FILE = "plan.json"
DEPTH = 4
CHAIN = {
    "prepared text": ("**/dict.txt",),
    "pre-training": ("**/checkpoint_best.pt", "**/checkpoint_last.pt"),
    "prepared benchmark": ("**/labels.txt",),
    "records": ("**/results/*.json", "results/*.json"),
    "report": ("**/report.md",),
}


@dataclass(frozen=True)
class StageState:
    """One line of the listing: ``state`` is done, running, interrupted or missing."""

    name: str
    state: str
    note: str = ""


def _locked(path: Path) -> bool:
    """Whether a process holds the lock of a stage, or of a command that run/jobs.sh started for it."""
    locks = [path.parent / f".{path.name}.lock", path.parent / f".{path.name}.run.lock"]
    locks = [lock for lock in locks if lock.is_file()]
    try:  # looked up, not tried: a stage that starts while its lock is being tried would think it taken
        inodes = {str(lock.stat().st_ino) for lock in locks}
        with open("/proc/locks", encoding="ascii") as stream:
            held = {line.split()[5].split(":")[-1] for line in stream if " FLOCK " in line}
        return bool(inodes & held)
    except (OSError, IndexError):
        return any(_try_lock(lock) for lock in locks)


def _try_lock(lock: Path) -> bool:
    with open(lock, "rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _age(path: Path) -> str:
    seconds = max(0, int(time.time() - path.stat().st_mtime))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def _newest_checkpoint(path: Path) -> str:
    found = sorted(path.glob("checkpoint*.pt"), key=lambda p: p.stat().st_mtime) if path.is_dir() else []
    return f"{found[-1].name}, {_age(found[-1])}" if found else ""


def state_of(path: Path, name: str) -> StageState:
    """State of the stage that produces ``path`` (a folder, or a file such as ``report.md``)."""
    temporary = path.with_name(path.name + ".tmp")
    if _locked(path):
        return StageState(name, "running", _age(temporary) if temporary.exists() else "")
    done = read_done(path) if path.is_dir() else None
    if done is not None:
        again = ", an unfinished rerun beside it" if temporary.exists() else ""
        seconds = done.get("seconds")
        return StageState(name, "done", (f"{seconds:g} s" if isinstance(seconds, (int, float)) else "") + again)
    if path.is_file():
        return StageState(name, "done", _age(path))
    if temporary.exists():
        return StageState(name, "interrupted", f"{temporary.name}, {_age(temporary)}")
    checkpoint = _newest_checkpoint(path)
    if checkpoint:
        return StageState(name, "interrupted", f"training, newest {checkpoint}")
    return StageState(name, "interrupted", "folder without .done") if path.is_dir() else StageState(name, "missing")


def read_plan(folder: Path) -> list[tuple[str, Path]]:
    """(name, path) of the planned stages, in order; empty if the folder has no plan.

    Raises:
        DataError: the plan holds no list ``stages`` of {name, path}.
    """
    path = folder / PLAN_FILE
    if not path.is_file():
        return []
    try:
        stages = json.loads(path.read_text(encoding="utf-8"))["stages"]
        return [(str(item["name"]), folder / item["path"]) for item in stages]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError("This plan cannot be read.", where=path, value=str(error)) from error


def _is_stage(folder: Path) -> bool:
    if (folder / DONE_FILE).is_file() or folder.name.endswith(".tmp"):
        return True
    return any(folder.glob("checkpoint*.pt")) or _locked(folder)


def find_stages(folder: Path) -> Iterator[Path]:
    """Folders below ``folder`` that a stage wrote or is writing, outermost only, by name."""
    for root, names, _ in os.walk(folder):
        if len(Path(root).relative_to(folder).parts) >= DEPTH:
            names.clear()
        for name in sorted(names):
            path = Path(root, name)
            if _is_stage(path):
                names.remove(name)
                final = path.with_name(name[:-4]) if name.endswith(".tmp") else path
                if final == path or not final.exists():
                    yield final
        names.sort()


def collect(folder: Path) -> list[StageState]:
    """States of the planned stages, of stages that no plan names, and of links of the chain that are missing."""
    plan = read_plan(folder)
    states = [state_of(path, name) for name, path in plan]
    planned = {path.resolve() for _, path in plan}
    found = [folder] if _is_stage(folder) else list(find_stages(folder))
    for path in found:
        resolved = path.resolve()
        if not any(resolved == known or known in resolved.parents for known in planned):
            states.append(state_of(path, path.relative_to(folder).as_posix() if path != folder else str(folder)))
    if not plan:
        for name, patterns in CHAIN.items():
            present = any(next(folder.glob(pattern), None) for pattern in patterns)
            states.append(StageState(f"[{name}]", "done" if present else "missing"))
    return states


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="working folder (default: here)")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead")


def run(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    if not folder.is_dir():
        raise DataError("There is no such folder.", where=folder)
    states = collect(folder)
    if args.json:
        print(json.dumps([vars(state) for state in states], ensure_ascii=False))
        return DONE
    width = max(len(state.name) for state in states)
    for state in states:
        print(f"{state.state:<12} {state.name:<{width}}  {state.note}".rstrip())
    counts = {kind: sum(s.state == kind for s in states) for kind in ("done", "running", "interrupted", "missing")}
    print(", ".join(f"{number} {kind}" for kind, number in counts.items() if number))
    return DONE
