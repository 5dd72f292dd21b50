"""Clean the raw text of one language: one sentence or paragraph a line, and a count of what each rule touched.

    python -m data_prep.clean --lang en --raw RAW --out WORK/clean/en

writes ``text.txt`` (clean lines, in the order of the sources), ``keys.bin`` (two 64-bit hashes a line, for the
split) and ``counts.json``. Nothing is shuffled; duplicates are taken out by the split.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import regex

from data_prep.common import add_force, run_main
from data_prep.html_text import html_lines
from data_prep.parallel import Chunk, chunks_of, ordered_map, progress, raw_lines
from data_prep.sources import Source, find_sources, open_raw
from fairseq_interference.data.text import CHARACTER_RULES, Cleaner, check_normalization, cut_line, merge_counts
from fairseq_interference.errors import DataError, UsageError
from fairseq_interference.languages import check_code
from fairseq_interference.stages import stage, write_json

LINE_RULES = ("blank", "too_short", "too_long", "other_script", "cut")
TEXT, KEYS, COUNTS = "text.txt", "keys.bin", "counts.json"


@dataclass(frozen=True)
class Options:
    """Rules of cleaning that can be chosen."""

    normalization: str = "nfc"
    cut_chars: int = 2000
    min_chars: int = 0
    max_chars: int = 0
    script: Optional[str] = None
    script_share: float = 0.5

    def validate(self) -> Options:
        """Return self, or raise UsageError."""
        check_normalization(self.normalization)
        if self.cut_chars < 20:
            raise UsageError(
                "Lines cannot be cut so short.", where="--cut-chars", value=self.cut_chars, allowed=">= 20"
            )
        for flag, value in (("--min-chars", self.min_chars), ("--max-chars", self.max_chars)):
            if value < 0:
                raise UsageError("Out of range.", where=flag, value=value, allowed=">= 0 (0: no limit)")
        if 0 < self.max_chars < self.min_chars:
            given = f"{self.min_chars} and {self.max_chars}"
            raise UsageError("No line would be left.", where="--min-chars, --max-chars", value=given)
        if not 0 < self.script_share <= 1:
            raise UsageError("Out of range.", where="--script-share", value=self.script_share, allowed="0 < share <= 1")
        self.script_pattern()
        return self

    def script_pattern(self) -> Any:
        """Pattern of a letter of the wanted scripts (``Latn+Cyrl`` or long names), or None."""
        if not self.script:
            return None
        try:
            return regex.compile("[" + "".join(rf"\p{{Script={name}}}" for name in self.script.split("+")) + "]")
        except regex.error:
            raise UsageError(
                "Unknown script.", where="--script", value=self.script, allowed="Latn, Deva, Cyrl+Latn …"
            ) from None


@dataclass(frozen=True)
class Task:
    """A part of one source and how to clean it."""

    source: Source
    chunk: Optional[Chunk]
    options: Options


def _line_number(path: str, position: int) -> int:
    number = 1
    with open_raw(path) as stream:
        while position > 0:
            block = stream.read(min(position, 1 << 20))
            if not block:
                break
            number += block.count(b"\n")
            position -= len(block)
    return number


def _bad_byte(source: Source, position: int, error: UnicodeDecodeError) -> DataError:
    byte = error.object[error.start]
    return DataError(
        f"Byte 0x{byte:02X} is not UTF-8.",
        where=f"{source.path}:{_line_number(source.path, position)}",
        value=f"byte {error.start + 1} of the line",
        next_step="convert the file to UTF-8: iconv -f LATIN1 -t UTF-8 (or whatever it is written in)",
    )


def _column(line: str, source: Source, position: int) -> str:
    assert source.column is not None
    columns = line.split("\t")
    if len(columns) < source.column:
        raise DataError(
            f"The line has no column {source.column}.",
            where=f"{source.path}:{_line_number(source.path, position)}",
            value=f"{len(columns)} columns",
        )
    return columns[source.column - 1]


def _lines(task: Task) -> Iterator[str]:
    """Decoded lines of a task."""
    source = task.source
    if source.format == "html":
        with open_raw(source.path) as stream:
            page = stream.read()
        try:
            yield from html_lines(page.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise _bad_byte(source, error.start, error) from None
        return
    assert task.chunk is not None
    for position, raw in raw_lines(task.chunk):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _bad_byte(source, position, error) from None
        yield line if source.column is None else _column(line, source, position)


def _wanted(line: str, options: Options, script: Any, counts: dict[str, int]) -> bool:
    if not line:
        rule = "blank"
    elif len(line) < options.min_chars:
        rule = "too_short"
    elif options.max_chars and len(line) > options.max_chars:
        rule = "too_long"
    elif script is not None and len(script.findall(line)) < options.script_share * sum(map(str.isalpha, line)):
        rule = "other_script"
    else:
        return True
    counts[rule] += 1
    counts[rule + "_chars"] += len(line)
    return False


def sentence_key(line: str) -> bytes:
    """16 bytes: a hash of the line without blanks (decides the split), then one of the line itself."""
    encoded = line.encode("utf-8")
    bare = hashlib.blake2b(encoded.replace(b" ", b""), digest_size=8).digest()
    return bare + hashlib.blake2b(encoded, digest_size=8).digest()


def clean_task(task: Task) -> tuple[bytes, bytes, dict[str, Any]]:
    """Clean a part: its lines, their keys, and counts."""
    options = task.options
    cleaner = Cleaner(options.normalization)
    script = options.script_pattern()
    counts: dict[str, int] = dict.fromkeys(("read", "read_chars", "written", "written_chars"), 0)
    counts.update(dict.fromkeys([f"{rule}{end}" for rule in LINE_RULES for end in ("", "_chars")], 0))
    kept: list[str] = []
    for raw in _lines(task):
        counts["read"] += 1
        counts["read_chars"] += len(raw)
        line = cleaner(raw)
        if not _wanted(line, options, script, counts):
            continue
        if len(line) > options.cut_chars:
            counts["cut"] += 1
            counts["cut_chars"] += len(line)
            kept.extend(cut_line(line, options.cut_chars))
        else:
            kept.append(line)
    counts["written"] = len(kept)
    counts["written_chars"] = sum(map(len, kept))
    text = "".join([line + "\n" for line in kept]).encode("utf-8")
    keys = b"".join(map(sentence_key, kept))
    return text, keys, {"counts": counts, "lines": cleaner.lines, "characters": cleaner.characters}


def tasks_of(sources: Sequence[Source], options: Options, folder: Path) -> list[Task]:
    """Parts of all sources, in order. Packed text is unpacked into ``folder`` first; an HTML page is one part."""
    tasks: list[Task] = []
    for number, source in enumerate(sources):
        if source.format == "html":
            tasks.append(Task(source, None, options))
            continue
        path = Path(source.path)
        if source.path.endswith(".gz"):
            path = folder / f"unpacked.{number}"
            _unpack(source, path)
        tasks.extend(Task(source, part, options) for part in chunks_of(path))
    return tasks


def _unpack(source: Source, path: Path) -> None:
    try:
        with open_raw(source.path) as packed, open(path, "wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError("A packed file is broken.", where=source.path, value=str(error)) from None


def summary(parts: Sequence[dict[str, Any]], sources: Sequence[Source]) -> dict[str, Any]:
    """The table of one language: rule -> lines and characters touched."""
    counts = merge_counts(part["counts"] for part in parts)
    lines = merge_counts(part["lines"] for part in parts)
    characters = merge_counts(part["characters"] for part in parts)
    rules = {rule: {"lines": lines.get(rule, 0), "chars": characters.get(rule, 0)} for rule in CHARACTER_RULES}
    rules.update({rule: {"lines": counts.get(rule, 0), "chars": counts.get(rule + "_chars", 0)} for rule in LINE_RULES})
    return {
        "sources": [{"file": source.name, "format": source.format} for source in sources],
        "read": {"lines": counts.get("read", 0), "chars": counts.get("read_chars", 0)},
        "clean": {"lines": counts.get("written", 0), "chars": counts.get("written_chars", 0)},
        "rules": rules,
    }


def clean(lang: str, sources: Sequence[Source], out: Path, options: Options, workers: int, force: bool = False) -> bool:
    """Run the stage for one language; False if it was done before."""
    inputs = {
        source.name if source.column is None else f"{source.name}#{source.column}": source.path for source in sources
    }
    described = [[source.name, source.format, source.column] for source in sources]
    settings = {"lang": lang, "sources": described, **vars(options)}
    with stage(out, inputs=inputs, settings=settings, force=force) as folder:
        if folder is None:
            return False
        tasks = tasks_of(sources, options, folder)
        sizes = [Path(task.source.path).stat().st_size if task.chunk is None else task.chunk.size for task in tasks]
        parts = []
        with open(folder / TEXT, "wb") as text, open(folder / KEYS, "wb") as keys:
            for lines, hashes, counts in progress(ordered_map(clean_task, tasks, workers), sizes, f"clean {lang}"):
                text.write(lines)
                keys.write(hashes)
                parts.append(counts)
        for unpacked in folder.glob("unpacked.*"):
            unpacked.unlink()
        table = summary(parts, sources)
        if not table["clean"]["lines"]:
            names = ", ".join(source.path for source in sources)
            touched = [f"{rule} {count['lines']}" for rule, count in table["rules"].items() if count["lines"]]
            value = f"{table['read']['lines']} lines read; touched: {', '.join(touched) or 'none'}"
            raise DataError(f"Nothing is left of the text of language {lang}.", where=names, value=value)
        write_json(folder / COUNTS, table)
    return True


def add_options(parser: argparse.ArgumentParser) -> None:
    """Flags of :class:`Options`."""
    parser.add_argument("--normalization", default="nfc", help="Unicode normalisation: nfc or none")
    parser.add_argument("--cut-chars", type=int, default=2000, help="cut longer lines at sentence ends or blanks")
    parser.add_argument("--min-chars", type=int, default=0, help="leave out shorter lines")
    parser.add_argument("--max-chars", type=int, default=0, help="leave out longer lines instead of cutting (0: none)")
    parser.add_argument("--script-share", type=float, default=0.5, help="script filter: least share of its letters")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="data_prep.clean", description=__doc__.split("\n")[0])
    parser.add_argument("--lang", required=True)
    parser.add_argument("--raw", required=True, help="folder, or a sources.yaml")
    parser.add_argument("--sources", help="a sources.yaml elsewhere")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--script", help="keep lines whose letters are of this script, e.g. Deva or Cyrl+Latn")
    parser.add_argument("--workers", type=int, default=1)
    add_options(parser)
    add_force(parser)
    args = parser.parse_args(argv)
    options = Options(
        args.normalization, args.cut_chars, args.min_chars, args.max_chars, args.script, args.script_share
    ).validate()
    sources = find_sources(args.raw, [check_code(args.lang, "--lang")], args.sources).sources[args.lang]
    clean(args.lang, sources, args.out, options, args.workers, args.force)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
