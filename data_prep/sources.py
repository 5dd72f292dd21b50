"""Which raw files belong to which language: by their names, or by a ``sources.yaml``."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

import yaml

from fairseq_interference.errors import DataError, UsageError
from fairseq_interference.languages import check_code

PathLike = Union[str, Path]
KEYS = ("path", "format", "pair", "column")
FORMATS = ("text", "html", "parallel")
SOURCES_FILE = "sources.yaml"
ENDINGS = (".txt", ".txt.gz")


@dataclass(frozen=True)
class Source:
    """One raw file of a language.

    Args:
        path: the file.
        name: what messages and the report call it: the path below RAW.
        format: ``text``, ``html``, or ``parallel`` (one side of a pair).
        pair: the other side of the pair, a file with as many lines.
        column: for a pair in one file of TAB-separated columns: which, from 1.
    """

    path: str
    name: str
    format: str = "text"
    pair: Optional[str] = None
    column: Optional[int] = None


@dataclass
class Found:
    """What lies in RAW: ``sources`` of the languages asked for, files that ``unused`` no rule takes, and languages
    (``others``) that are there but were not asked for."""

    sources: dict[str, list[Source]]
    unused: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def find_sources(raw: PathLike, langs: Sequence[str], sources_file: Optional[PathLike] = None) -> Found:
    """Sources of each language in ``langs``.

    Args:
        raw: folder, or a yaml file of the form of ``sources.yaml``.
        langs: language codes.
        sources_file: a ``sources.yaml`` elsewhere; its paths are relative to ``raw`` unless it has a ``root``.

    Raises:
        DataError: a file is missing, empty of sense (Git-LFS pointer, HTML given as text), or in two languages.
        UsageError: no such folder, malformed yaml.
    """
    raw = Path(raw)
    if not raw.exists():
        raise UsageError("There is no such file or folder.", where="--raw", value=str(raw))
    if raw.is_file():
        sources_file, raw = raw, raw.parent
    elif sources_file is None and (raw / SOURCES_FILE).is_file():
        sources_file = raw / SOURCES_FILE
    if sources_file is not None:
        return _from_yaml(raw, langs, Path(sources_file))
    return _from_names(raw, langs)


def _files_below(raw: Path) -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(raw):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found.extend(Path(folder, name) for name in names if not name.startswith("."))
    return sorted(found)


def _language_of(path: Path, raw: Path) -> Optional[str]:
    parts = path.relative_to(raw).parts
    ending = next((ending for ending in reversed(ENDINGS) if parts[-1].endswith(ending)), None)
    if ending is None or len(parts) > 2:
        return None
    code = parts[0] if len(parts) == 2 else parts[0][: -len(ending)]
    try:
        return check_code(code)
    except Exception:
        return None


def _from_names(raw: Path, langs: Sequence[str]) -> Found:
    found = Found({lang: [] for lang in langs})
    others: set[str] = set()
    for path in _files_below(raw):
        lang = _language_of(path, raw)
        name = path.relative_to(raw).as_posix()
        if lang is None:
            found.unused.append(name)
        elif lang in found.sources:
            found.sources[lang].append(Source(str(path), name))
        else:
            others.add(lang)
    found.others = sorted(others)
    for lang, sources in found.sources.items():
        if not sources:
            raise DataError(
                f"There is no text of language {lang}.",
                where=str(raw),
                allowed=f"{lang}.txt, {lang}.txt.gz, {lang}/*.txt, {lang}/*.txt.gz, or a {SOURCES_FILE}",
            )
    _check_all(found)
    return found


def _from_yaml(raw: Path, langs: Sequence[str], file: Path) -> Found:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # `no` stays a string
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError("The list of sources cannot be read.", where=file, value=str(error)) from None
    if not isinstance(content, dict):
        raise UsageError("The list of sources must map languages to lists of files.", where=file)
    root = content.pop("root", None)
    if root is not None:
        expanded = os.path.expandvars(str(root))
        if "$" in expanded:
            raise UsageError("A variable in `root` is not set.", where=file, value=str(root))
        raw = file.parent / expanded
    everything = {check_code(lang, file): _entries(lang, entries, raw, file) for lang, entries in content.items()}
    missing = [lang for lang in langs if not everything.get(lang)]
    if missing:
        raise UsageError(
            "Languages without sources.", where=file, value=",".join(missing), allowed=",".join(everything)
        )
    _check_one_language(everything, file)
    found = Found({lang: everything[lang] for lang in langs}, others=sorted(set(everything) - set(langs)))
    taken = {file.resolve()}
    for source in (source for sources in everything.values() for source in sources):
        taken.update(Path(path).resolve() for path in (source.path, source.pair) if path)
    found.unused = [path.relative_to(raw).as_posix() for path in _files_below(raw) if path.resolve() not in taken]
    _check_all(found)
    return found


def _entries(lang: str, entries: Any, raw: Path, file: Path) -> list[Source]:
    if not isinstance(entries, list):
        raise UsageError("A language must have a list of sources.", where=f"{file}: {lang}", value=str(entries))
    found: list[Source] = []
    for entry in entries:
        options = {"path": entry} if isinstance(entry, str) else entry
        if not isinstance(options, dict) or "path" not in options or set(options) - set(KEYS):
            raise UsageError(
                "A source is a path, or an object with path and options.",
                where=f"{file}: {lang}",
                value=str(entry),
                allowed=", ".join(KEYS),
            )
        found.extend(_expand(options, raw, f"{file}: {lang}"))
    return found


def _expand(options: dict[str, str], raw: Path, where: str) -> Iterable[Source]:
    kind = options.get("format", "parallel" if "pair" in options or "column" in options else "text")
    if kind not in FORMATS:
        raise UsageError("Unknown format of a source.", where=where, value=kind, allowed=", ".join(FORMATS))
    if kind == "parallel" and ("pair" in options) == ("column" in options):
        raise UsageError(
            "A parallel source needs `pair` (the other file) or `column`.", where=where, value=options["path"]
        )
    column = options.get("column")
    if column is not None and not (column.isdigit() and int(column) > 0):
        raise UsageError("`column` counts from 1.", where=where, value=column)
    paths = sorted(raw.glob(options["path"])) if not Path(options["path"]).is_absolute() else [Path(options["path"])]
    if not paths or not all(path.is_file() for path in paths):
        raise DataError("A source is missing.", where=where, value=str(raw / options["path"]))
    for path in paths:
        try:
            name = path.relative_to(raw).as_posix()
        except ValueError:
            name = path.name
        pair = None if "pair" not in options else str(raw / options["pair"])
        yield Source(str(path), name, kind, pair, None if column is None else int(column))


def _check_one_language(everything: dict[str, list[Source]], file: Path) -> None:
    owner: dict[tuple[Path, Optional[int]], str] = {}
    for lang, sources in everything.items():
        for source in sources:
            key = (Path(source.path).resolve(), source.column)
            if owner.setdefault(key, lang) != lang:
                raise DataError(
                    "A file is listed for two languages.", where=file, value=f"{source.name}: {owner[key]}, {lang}"
                )


def open_raw(path: PathLike) -> Any:
    """Open a raw file for reading bytes; ``.gz`` is unpacked on the way."""
    return gzip.open(path, "rb") if str(path).endswith(".gz") else open(path, "rb")


def _count_lines(path: PathLike) -> int:
    lines, last = 0, b"\n"
    with open_raw(path) as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            lines += block.count(b"\n")
            last = block[-1:]
    return lines + (last != b"\n")


def check_source(source: Source) -> None:
    """Raise DataError if the file cannot be what it is said to be."""
    try:
        with open_raw(source.path) as stream:
            head = stream.read(1024)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError("A raw file cannot be read.", where=source.path, value=str(error)) from None
    if head.startswith(b"version https://git-lfs"):
        raise DataError(
            "This is a Git-LFS pointer, not the text.",
            where=source.path,
            next_step="run `git lfs pull` where it came from",
        )
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if source.format != "html" and start.startswith((b"<!doctype html", b"<html")):
        raise DataError(
            "This is an HTML page, given as text.",
            where=source.path,
            next_step=f"say `format: html` in {SOURCES_FILE}, or fetch the text itself",
        )
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError("This text is UTF-16.", where=source.path, next_step="convert it: iconv -f UTF-16 -t UTF-8")
    if source.pair is not None:
        _check_pair(source)


def _check_pair(source: Source) -> None:
    assert source.pair is not None
    if not Path(source.pair).is_file():
        raise DataError("The other side of a parallel pair is missing.", where=source.path, value=source.pair)
    try:
        mine, other = _count_lines(source.path), _count_lines(source.pair)
    except (OSError, EOFError, zlib.error) as error:
        where = f"{source.path}, {source.pair}"
        raise DataError("A side of a parallel pair cannot be read.", where=where, value=str(error)) from None
    if mine != other:
        raise DataError(
            "The two sides of a parallel pair have different numbers of lines.",
            where=source.path,
            value=f"{mine} and {other} ({source.pair})",
        )


def _check_all(found: Found) -> None:
    for sources in found.sources.values():
        for source in sources:
            check_source(source)
