"""What the preparations of all benchmarks share: flags, inputs, drawn splits, leaks, records, tables.

A benchmark's own file reads its official formats and says what a record holds; the rest is here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from fairseq_interference.errors import UsageError, exit_code
from fairseq_interference.languages import check_code
from fairseq_interference.stages import write_text

SPLITS = ("train", "dev", "test")
WHOLE = "all"  # a corpus without official splits


def add_arguments(parser: argparse.ArgumentParser, formats: Collection[str]) -> None:
    """Flags that the preparations of all benchmarks have."""
    parser.add_argument("--out", required=True, type=Path, help="folder of the prepared benchmark, prepared/NAME")
    parser.add_argument("--benchmark", help="its name [last part of --out]")
    parser.add_argument(
        "--input", required=True, nargs="+", action="extend", metavar="LANG:SPLIT:PATH", help="train, dev, test or all"
    )
    parser.add_argument(
        "--format",
        nargs="+",
        action="extend",
        default=[],
        metavar="[LANG:]NAME",
        help=f"layout of the files [auto]: {', '.join(formats)}",
    )
    parser.add_argument("--split", metavar="dev=0.1,…", help="draw splits that a language lacks from its train or all")
    parser.add_argument("--seed", type=int, default=1, help="of the drawn splits [%(default)s]")
    parser.add_argument("--no-repair", action="store_true", help="refuse what is odd instead of repairing and counting")
    parser.add_argument("--force", action="store_true", help="redo a finished stage whose inputs or settings changed")
    parser.add_argument("--dry-run", action="store_true", help="read everything, print the table, write nothing")


def add_map_argument(parser: argparse.ArgumentParser, flag: str, help: str) -> None:
    """A flag for a map of labels, for all languages or one."""
    parser.add_argument(flag, nargs="+", action="extend", default=[], metavar="[LANG:]MAP", help=help)


def command(
    prog: str,
    description: Optional[str],
    add: Callable[[argparse.ArgumentParser], None],
    prepare: Callable[[argparse.Namespace], int],
    argv: Optional[Sequence[str]],
) -> int:
    """Parse, prepare, print. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add(parser)
    args = parser.parse_args(argv)
    return exit_code(prog, lambda: prepare(args))


@dataclass(frozen=True)
class Input:
    """One official file."""

    lang: str
    split: str
    path: Path

    @property
    def name(self) -> str:
        return f"{self.lang}:{self.split}"


def parse_inputs(texts: Iterable[str]) -> list[Input]:
    """``LANG:SPLIT:PATH`` each; SPLIT is train, dev, test or all.

    Raises:
        UsageError: malformed, no such file, or two files for one split.
    """
    found: dict[str, Input] = {}
    for text in texts:
        lang, _, rest = text.partition(":")
        split, _, path = rest.partition(":")
        if split not in (*SPLITS, WHOLE) or not path:
            raise UsageError("This is no input.", where="--input", value=text, allowed="LANG:train|dev|test|all:PATH")
        if not Path(path).is_file():
            raise UsageError("There is no such file.", where="--input", value=path)
        new = Input(check_code(lang, "--input"), split, Path(path))
        if new.name in found:
            raise UsageError("Two files for one split.", where="--input", value=new.name, allowed="one file each")
        found[new.name] = new
    for name, item in found.items():
        if item.split == WHOLE and any(other.lang == item.lang for other in found.values() if other is not item):
            raise UsageError("`all` is the whole corpus of a language.", where="--input", value=name)
    return list(found.values())


def by_language(inputs: Iterable[Input]) -> dict[str, dict[str, Path]]:
    """Language -> split -> path, in the order given."""
    found: dict[str, dict[str, Path]] = {}
    for item in inputs:
        found.setdefault(item.lang, {})[item.split] = item.path
    return found


def parse_fractions(text: Optional[str]) -> dict[str, float]:
    """``dev=0.1,test=0.1`` to fractions that leave something for train."""
    found: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        split, _, number = part.partition("=")
        try:
            found[split] = float(number)
        except ValueError:
            found[split] = 0.0
        if split not in ("dev", "test") or not 0 < found[split] < 1:
            raise UsageError("This is no fraction of a split.", where="--split", value=part, allowed="dev=0.1,test=0.1")
    if sum(found.values()) >= 1:
        raise UsageError("Nothing is left for train.", where="--split", value=text)
    return found


def per_language(texts: Sequence[str], flag: str, langs: Iterable[str]) -> dict[str, str]:
    """``VALUE`` for all languages or ``LANG:VALUE`` for one, to language -> value."""
    known = list(dict.fromkeys(langs))
    found: dict[str, str] = {}
    for text in texts:
        lang, colon, value = text.partition(":")
        if colon and lang in known:
            found[lang] = value
        elif colon and not Path(text).exists():
            raise UsageError("This language has no input.", where=flag, value=text, allowed=", ".join(known))
        else:
            found.update({code: text for code in known if code not in found})
    return found


def draw(keys: Sequence[Hashable], fractions: Mapping[str, float], seed: int) -> list[str]:
    """Seeded split of examples; equal examples stay together, whatever their order in the file.

    Args:
        keys: what makes two examples equal, one per example.
        fractions: split -> share of the *distinct* examples, rounded, at least one; the rest is train.

    Returns:
        the split of each example.
    """
    distinct = sorted(set(keys), key=lambda key: _hash(seed, key))
    assigned: dict[Hashable, str] = {}
    first = 0
    for split, fraction in sorted(fractions.items()):
        count = max(1, round(fraction * len(distinct)))
        assigned.update(dict.fromkeys(distinct[first : first + count], split))
        first += count
    return [assigned.get(key, "train") for key in keys]


def _hash(seed: int, key: Hashable) -> bytes:
    return hashlib.blake2b(json.dumps([seed, key]).encode(), digest_size=16).digest()


def leaks(train: Iterable[Hashable], other: Iterable[Hashable]) -> tuple[int, int]:
    """Distinct examples of ``other`` that also occur in train, and distinct examples of ``other``."""
    held = set(other)
    return len(held.intersection(train)), len(held)


def sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line, keys in the order given."""
    write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def table(rows: Sequence[Sequence[object]]) -> str:
    """Rows (the first is the heading) as aligned text; numbers to the right."""
    columns = list(zip(*rows))
    right = [all(isinstance(cell, int) for cell in column[1:]) for column in columns]
    widths = [max(len(str(cell)) for cell in column) for column in columns]
    return "\n".join(
        "  ".join(
            str(cell).rjust(width) if number else str(cell).ljust(width)
            for cell, width, number in zip(row, widths, right)
        ).rstrip()
        for row in rows
    )
