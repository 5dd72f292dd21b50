"""Records: one JSON file per measured number, schema 1. Tables and figures are derived from them, never typed.

A record says what was run (arch, languages, resolved configuration, seed), with which code, on what, at what
cost, and what was measured. The host is not imported here.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import math
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Union

from fairseq_interference import __version__
from fairseq_interference.errors import DataError
from fairseq_interference.languages import CODE
from fairseq_interference.stages import write_json

SCHEMA = 1
SETTINGS = ("within-language", "zero-shot", "pretrain")
STATUSES = ("done", "running", "failed", "interrupted")
#: metrics that are fractions; the others are numbers of any size
FRACTIONS = ("f1", "precision", "recall", "accuracy", "em")
PACKAGE = Path(__file__).resolve().parents[1]

Record = dict[str, Any]
Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_metrics(value: Any) -> bool:
    """Numbers, null for what was not measured, scheme names, and mappings of these (``per_type``)."""
    return isinstance(value, Mapping) and all(map(_is_metric, value, value.values()))


def _is_metric(name: Any, value: Any) -> bool:
    if value is None or not isinstance(name, str):
        return isinstance(name, str)
    if name in FRACTIONS or name.startswith("perplexity"):
        return _is_number(value) and 0 <= value <= (1 if name in FRACTIONS else math.inf)
    return isinstance(value, str) or _is_number(value) or _is_metrics(value)


def _is_codes(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(c, str) and CODE.fullmatch(c) for c in value)


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


TEXT: tuple[str, Check] = ("a text that is not empty", _is_text)
TEXT_OR_NULL: tuple[str, Check] = ("a text or null", _or_null(_is_text))
COUNT_OR_NULL: tuple[str, Check] = ("a whole number >= 0 or null", _or_null(_is_count))
SECONDS: tuple[str, Check] = ("a number >= 0 or null", _or_null(lambda v: _is_number(v) and v >= 0))
CODES: tuple[str, Check] = ("a list of language codes", _is_codes)

# dotted key -> what is allowed, and the test. A leaf of the JSON object each.
FIELDS: dict[str, tuple[str, Check]] = {
    "schema": (str(SCHEMA), lambda v: v == SCHEMA and not isinstance(v, bool)),
    "run.id": TEXT,
    "run.arch": TEXT,
    "run.languages": CODES,
    "run.config": ("an object", lambda v: isinstance(v, Mapping)),
    "run.seed": ("a whole number", lambda v: isinstance(v, int) and not isinstance(v, bool)),
    "run.setting": (" | ".join(SETTINGS), lambda v: v in SETTINGS),
    "run.train_langs": CODES,
    "code.version": TEXT,
    "code.commit": TEXT_OR_NULL,
    "code.dirty": ("true, false or null", lambda v: v is None or isinstance(v, bool)),
    "environment.python": TEXT,
    "environment.torch": TEXT_OR_NULL,
    "environment.host": TEXT_OR_NULL,
    "environment.device": TEXT,
    "cost.parameters.shared": COUNT_OR_NULL,
    "cost.parameters.per_language": COUNT_OR_NULL,
    "cost.parameters.total": COUNT_OR_NULL,
    "cost.updates": COUNT_OR_NULL,
    "cost.tokens": COUNT_OR_NULL,
    "cost.seconds": SECONDS,
    "cost.peak_memory_bytes": COUNT_OR_NULL,
    "evaluation.benchmark": TEXT,
    "evaluation.split": TEXT,
    "evaluation.language": ("a language code", lambda v: isinstance(v, str) and CODE.fullmatch(v) is not None),
    "evaluation.n": ("a whole number >= 0", _is_count),
    "evaluation.metrics": ("an object of finite numbers (" + ", ".join(FRACTIONS) + ": 0 to 1) or null", _is_metrics),
    "evaluation.rules": ("a text or an object", lambda v: isinstance(v, (str, Mapping))),
    "status": (" | ".join(STATUSES), lambda v: v in STATUSES),
}
_GROUPS = {key.rpartition(".")[0] for key in FIELDS} | {"cost"}


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        key = f"{prefix}{name}"
        if key in _GROUPS and isinstance(item, Mapping):
            yield from _leaves(item, key + ".")
        else:
            yield key, item


def setting_of(language: str, train_langs: Sequence[str]) -> str:
    """``within-language`` if ``language`` was fine-tuned on, else ``zero-shot``."""
    return "within-language" if language in train_langs else "zero-shot"


def problems(record: Any) -> list[str]:
    """What is wrong with ``record``, one line per wrong key; empty if it is a record of schema 1."""
    if not isinstance(record, Mapping):
        return ["a record is a JSON object"]
    found = dict(_leaves(record))
    wrong = [f"{key}: missing, must be {allowed}" for key, (allowed, _) in FIELDS.items() if key not in found]
    for key, value in found.items():
        if key not in FIELDS:
            wrong.append(f"{key}: not a key of schema {SCHEMA}" if key not in _GROUPS else f"{key}: must be an object")
        elif not FIELDS[key][1](value):
            wrong.append(f"{key}: {json.dumps(value, default=str)[:80]}, must be {FIELDS[key][0]}")
    if not wrong and record["run"]["setting"] != "pretrain":
        run = record["run"]
        wanted = setting_of(record["evaluation"]["language"], run["train_langs"])
        if run["setting"] != wanted:
            wrong.append(
                f"run.setting: {run['setting']}, must be {wanted} for language {record['evaluation']['language']} "
                f"after training on {','.join(run['train_langs'])}"
            )
    return wrong


def validate(record: Any, where: Optional[object] = None) -> None:
    """Check ``record`` against schema 1.

    Raises:
        DataError: names every wrong key, what it holds and what is allowed.
    """
    wrong = problems(record)
    if wrong:
        raise DataError(
            f"This is not a record of schema {SCHEMA}: {len(wrong)} wrong keys.", where=where, value="; ".join(wrong)
        )


def make_record(
    *,
    run: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    cost: Optional[Mapping[str, Any]] = None,
    status: str = "done",
    device: Optional[str] = None,
) -> Record:
    """A validated record; code and environment are filled in, unknown costs become null.

    Args:
        run: id, arch, languages, config, seed, setting, train_langs.
        evaluation: benchmark, split, language, n, metrics, rules.
        cost: any of parameters{shared, per_language, total}, updates, tokens, seconds, peak_memory_bytes.
        status: one of ``STATUSES``.
        device: what it ran on, if not this process's own device.

    Raises:
        DataError: names every wrong key.
    """
    given = dict(cost or {})
    parameters = {"shared": None, "per_language": None, "total": None, **(given.pop("parameters", None) or {})}
    empty = {"updates": None, "tokens": None, "seconds": None, "peak_memory_bytes": None}
    record: Record = {
        "schema": SCHEMA,
        "run": dict(run),
        "code": code_version(),
        "environment": environment(device),
        "cost": {"parameters": parameters, **empty, **given},
        "evaluation": dict(evaluation),
        "status": status,
    }
    validate(record)
    return record


def file_name(record: Record) -> str:
    """Name of the file that holds ``record``: same run, benchmark, split and language, same name."""
    evaluation = record["evaluation"]
    parts = (record["run"]["id"], evaluation["benchmark"], evaluation["split"], evaluation["language"])
    return ".".join(re.sub(r"[^A-Za-z0-9_=+-]+", "-", part).strip("-") or "_" for part in parts) + ".json"


def write_record(folder: Union[str, os.PathLike[str]], record: Record) -> Path:
    """Write ``record`` into ``folder`` through a temporary name; the same measurement replaces its older record.

    Raises:
        DataError: the record is not of schema 1, or another run would be overwritten.
    """
    path = Path(folder) / file_name(record) if not problems(record) else Path(folder)
    validate(record, where=path)
    if path.is_file() and (old := _read(path)["run"]["id"]) != record["run"]["id"]:
        raise DataError("Two runs would share one record file.", where=path, value=f"{old} and {record['run']['id']}")
    write_json(path, record)
    return path


def _read(path: Path) -> Record:
    try:
        record: Record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError("This record cannot be read.", where=path, value=str(error)) from error
    validate(record, where=path)
    return record


def read_records(folder: Union[str, os.PathLike[str]]) -> list[Record]:
    """Every record in ``folder`` (``*.json``, not below it), in the order of the file names.

    Raises:
        DataError: no such folder, or one or more files that are no records; all of them are named.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError("There is no folder of results here.", where=folder, next_step="give --results DIR")
    records, wrong = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            records.append(_read(path))
        except DataError as error:
            wrong.append(f"{path.name}: {error.value}")
    if wrong:
        raise DataError(
            f"{len(wrong)} files are no records of schema {SCHEMA}.",
            where=folder,
            value="\n           ".join(wrong),
            next_step="move them elsewhere, or write them again",
        )
    return records


def _installed(*names: str) -> Optional[str]:
    for name in names:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


@functools.lru_cache(maxsize=1)
def _processor() -> str:
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            name = next((line.split(":", 1)[1].strip() for line in stream if line.startswith("model name")), name)
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"cpu: {name or 'unknown'}, {cores} cores"


def _device() -> str:
    torch = sys.modules.get("torch")  # not imported for this: a process that computed something has it
    if torch is not None and torch.cuda.is_initialized():
        return f"cuda: {torch.cuda.get_device_name()}"
    return _processor()


def environment(device: Optional[str] = None) -> dict[str, Optional[str]]:
    """Versions of Python, torch and the host, and the device; nothing is imported to find them."""
    torch = _installed("torch")
    return {
        "python": platform.python_version(),
        "torch": torch.split()[1] if torch else None,
        "host": _installed("ve-fairseq", "fairseq-fixed", "fairseq"),
        "device": device or _device(),
    }


def _git(*command: str) -> Optional[str]:
    try:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE.parent), *command], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _installed_commit() -> Optional[str]:
    """Commit that pip installed from (PEP 610), if it installed from a repository."""
    try:
        text = importlib.metadata.distribution("fairseq-interference").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    commit = json.loads(text).get("vcs_info", {}).get("commit_id") if text else None
    return commit if isinstance(commit, str) else None


@functools.lru_cache(maxsize=1)
def _code_version() -> tuple[str, Optional[str], Optional[bool]]:
    tracked = _git("ls-files", "--error-unmatch", f"{PACKAGE.name}/__init__.py")  # not somebody else's repository
    if tracked is None:
        return __version__, _installed_commit(), None
    changed = _git("status", "--porcelain", "--", PACKAGE.name, "data_prep", "run")
    return __version__, _git("rev-parse", "HEAD"), None if changed is None else bool(changed)


def code_version() -> dict[str, Any]:
    """``version``, ``commit`` and ``dirty``: from git in a checkout, else from what pip noted, else null."""
    version, commit, dirty = _code_version()
    return {"version": version, "commit": commit, "dirty": dirty}


def peak_memory_bytes() -> int:
    """Largest resident memory of this process so far, in bytes."""
    try:  # the kernel hands ru_maxrss on from the parent through exec; VmHWM is this program's own
        with open("/proc/self/status", encoding="utf-8") as stream:
            return next(int(line.split()[1]) * 1024 for line in stream if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
