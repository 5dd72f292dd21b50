"""Take out duplicates and split one language into train, valid and test.

    python -m data_prep.split --lang en --clean WORK/clean/en --out WORK/split/en --valid-lines 1000 --seed 1

Which split a sentence is in depends on a hash of (seed, sentence) and on nothing else: not on the order of the
lines, the number of workers, or the size of ``--max-lines``. Lines that differ only in blanks count as one
sentence, so that they stay in one split after tokenisation too. Memory: one byte a line and blocks of
``--memory``, since the hashes are read from disk in ranges.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

import numpy as np
import numpy.typing as npt

from data_prep.clean import COUNTS, KEYS, TEXT
from data_prep.common import add_force, parse_memory, run_main, say
from fairseq_interference.errors import DataError, UsageError
from fairseq_interference.stages import stage, write_json

DUPLICATE, TRAIN, VALID, TEST, OVER = range(5)
BLOCK = 1 << 20
#: what sorting one line takes, in bytes: two hashes, its number, the order, and temporary copies
BYTES_A_LINE = 80
UInts = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Options:
    """Sizes of the splits. A whole number is lines, a number below 1 a fraction; None is chosen by size."""

    valid: Union[int, float, None] = None
    test: Union[int, float, None] = None
    max_lines: Optional[int] = None
    seed: int = 1

    def validate(self) -> Options:
        """Return self, or raise UsageError."""
        sizes = [size for size in (self.valid, self.test) if size != 0]
        if any(isinstance(size, float) for size in sizes) and not all(isinstance(size, float) for size in sizes):
            given = ", ".join("auto" if size is None else str(size) for size in (self.valid, self.test))
            where = "--valid-lines, --test-lines"
            raise UsageError("Give both splits as fractions or both as lines.", where=where, value=given)
        if sum(size for size in sizes if isinstance(size, float)) > 0.5:
            given = f"{self.valid} + {self.test}"
            raise UsageError("Half of a language stays for training.", where="--valid-lines, --test-lines", value=given)
        if self.max_lines is not None and self.max_lines < 1:
            raise UsageError("No line would be left.", where="--max-lines", value=self.max_lines, allowed=">= 1")
        return self


def parse_size(text: str, where: str) -> Union[int, float, None]:
    """``1000``, ``0.01`` or ``auto``."""
    if text == "auto":
        return None
    if re.fullmatch(r"\d+", text):
        return int(text)
    if re.fullmatch(r"0?\.\d+", text) and float(text) < 0.5:
        return float(text) or 0
    raise UsageError("Not a size of a split.", where=where, value=text, allowed="lines (1000), fraction (0.01), auto")


def mix(values: UInts, seed: int) -> UInts:
    """Order of the sentences under a seed: splitmix64's finisher over hash + seed; one to one, wraps around."""
    salt = np.uint64(int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "little"))
    mixed = values + salt
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _distinct(keys: UInts, seed: int, memory: int) -> Iterator[tuple[UInts, Ints]]:
    """Distinct lines in the order of the hash, range by range: (mixed hash, number of the first such line)."""
    total = len(keys)
    bits = 0
    while bits < 16 and (total >> bits) * BYTES_A_LINE > memory:
        bits += 1
    for wanted in range(1 << bits):
        mixed_parts, exact_parts, number_parts = [], [], []
        for begin in range(0, total, BLOCK):
            block = np.asarray(keys[begin : begin + BLOCK])
            mixed = mix(block[:, 0], seed)
            here = (
                np.flatnonzero((mixed >> np.uint64(64 - bits)) == np.uint64(wanted)) if bits else np.arange(len(block))
            )
            mixed_parts.append(mixed[here])
            exact_parts.append(block[here, 1])
            number_parts.append(here + begin)
        mixed, exact, numbers = (np.concatenate(parts) for parts in (mixed_parts, exact_parts, number_parts))
        order = np.lexsort((exact, mixed))  # stable: the first of equal lines stays first
        mixed, exact = mixed[order], exact[order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = (mixed[1:] != mixed[:-1]) | (exact[1:] != exact[:-1])
        yield mixed[first], numbers[order][first].astype(np.int64)


def _sizes(options: Options, distinct: int) -> tuple[int, int]:
    """Whole numbers of test and valid lines; at least half of a language stays for training."""
    automatic = min(1000, max(1, distinct // 20)) if distinct >= 3 else 0
    test, valid = (automatic if size is None else int(size) for size in (options.test, options.valid))
    room = distinct // 2
    if test + valid > room:
        test, valid = (size * room // (test + valid) for size in (test, valid))
    return test, valid


def _pick(candidates: list[tuple[UInts, Ints]], test: int, valid: int, codes: Codes) -> None:
    """Give the first ``test`` and ``valid`` lines of the order their codes; a sentence's variants stay together."""
    mixed = np.concatenate([part for part, _ in candidates]) if candidates else np.zeros(0, np.uint64)
    numbers = np.concatenate([part for _, part in candidates]) if candidates else np.zeros(0, np.int64)
    starts: Ints = np.flatnonzero(np.concatenate(([True], mixed[1:] != mixed[:-1])))[: len(mixed)]
    left = {TEST: test, VALID: valid}
    for start, end in zip(starts, [*starts[1:], len(mixed)]):
        code = next((code for code in (TEST, VALID) if left[code] >= end - start), None)
        if code is not None:
            codes[numbers[start:end]] = code
            left[code] -= int(end - start)
        elif not any(left.values()):
            return


def assign(keys: UInts, options: Options, memory: int) -> Codes:
    """Code of every line: DUPLICATE, TRAIN, VALID, TEST or OVER (beyond ``max_lines``).

    Args:
        keys: (lines, 2) hashes of :func:`data_prep.clean.sentence_key`; may be mapped from disk.
        options: sizes and seed.
        memory: bytes that sorting may take.
    """
    codes: Codes = np.zeros(len(keys), dtype=np.uint8)
    by_fraction = isinstance(options.valid, float) or isinstance(options.test, float)
    exact = [1000 if size is None else int(size) for size in (options.test, options.valid)]
    window = 0 if by_fraction else sum(exact) + 64
    limit = len(keys) if options.max_lines is None else options.max_lines
    candidates: list[tuple[UInts, Ints]] = []
    edge: list[Ints] = []
    rank = trained = 0
    for mixed, numbers in _distinct(keys, options.seed, memory):
        codes[numbers] = TRAIN
        if by_fraction:
            trained += _by_fraction(mixed, numbers, options, codes, limit - trained)
        else:
            if rank < window:
                candidates.append((mixed[: window - rank], numbers[: window - rank]))
            edge.append(numbers[max(0, limit - rank) : max(0, limit + window - rank)])
            codes[numbers[max(0, limit + window - rank) :]] = OVER
        rank += len(numbers)
    if not by_fraction:
        test, valid = _sizes(options, rank)
        _pick(candidates, test, valid, codes)
        _trim(np.concatenate(edge), limit, codes)
    return codes


def _by_fraction(mixed: UInts, numbers: Ints, options: Options, codes: Codes, room: int) -> int:
    """Thresholds on the hash: a sentence keeps its split when the corpus grows. Returns the lines for training."""
    shares = [float(size) if isinstance(size, float) else 0.0 for size in (options.test, options.valid)]
    test_end, valid_end = (np.uint64(int(share * 2**64)) for share in (shares[0], sum(shares)))
    codes[numbers[mixed < valid_end]] = VALID
    codes[numbers[mixed < test_end]] = TEST
    train = numbers[mixed >= valid_end]
    codes[train[max(0, room) :]] = OVER
    return min(len(train), max(0, room))


def _trim(edge: Ints, limit: int, codes: Codes) -> None:
    """Of the lines at ranks limit, limit + 1, … leave for training just so many that there are ``limit``."""
    excess = int((codes == TRAIN).sum()) - limit
    train = edge[codes[edge] == TRAIN]
    if excess > 0:
        codes[train[len(train) - excess :]] = OVER


def _write(folder: Path, text: Path, codes: Codes) -> dict[str, dict[str, int]]:
    """Write the splits in the order of the clean text; returns lines and characters of each outcome."""
    names = {TRAIN: "train", VALID: "valid", TEST: "test", DUPLICATE: "duplicate", OVER: "over_max_lines"}
    counts = {name: {"lines": 0, "chars": 0} for name in names.values()}
    outs = {code: open(folder / f"{names[code]}.txt", "wb") for code in (TRAIN, VALID, TEST)}  # noqa: SIM115
    try:
        with open(text, "rb") as stream:
            lines = [0] * 5
            chars = [0] * 5
            for line, code in zip(stream, codes.tobytes()):
                lines[code] += 1
                if code in outs:
                    outs[code].write(line)
                chars[code] += len(line) - 1 if line.isascii() else len(line.decode("utf-8")) - 1
    finally:
        for out in outs.values():
            out.close()
    for code, name in names.items():
        counts[name] = {"lines": lines[code], "chars": chars[code]}
    return counts


def split(lang: str, clean: Path, out: Path, options: Options, memory: int, force: bool = False) -> bool:
    """Run the stage for one language; False if it was done before."""
    inputs = {name: clean / name for name in (TEXT, KEYS, COUNTS)}
    with stage(out, inputs=inputs, settings={"lang": lang, **vars(options)}, force=force) as folder:
        if folder is None:
            return False
        keys = np.fromfile(clean / KEYS, dtype="<u8", count=0).reshape(0, 2)
        if (clean / KEYS).stat().st_size:
            keys = np.memmap(clean / KEYS, dtype="<u8", mode="r").reshape(-1, 2)
        codes = assign(keys, options, memory)
        counts = _write(folder, clean / TEXT, codes)
        if not counts["train"]["lines"]:
            raise DataError(f"Language {lang} has no line left for training.", where=clean / TEXT, value=str(counts))
        _tell_sizes(lang, options, counts)
        write_json(folder / COUNTS, counts)
    return True


def _tell_sizes(lang: str, options: Options, counts: dict[str, dict[str, int]]) -> None:
    for name, size in (("valid", options.valid), ("test", options.test)):
        found = counts[name]["lines"]
        if isinstance(size, int) and found != size:
            say(f"warning: {lang}: {found} lines for {name} instead of {size}: the language is too small")
    if options.max_lines is not None and counts["train"]["lines"] < options.max_lines:
        say(f"warning: {lang}: only {counts['train']['lines']} lines for training, --max-lines {options.max_lines}")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="data_prep.split", description=__doc__.split("\n")[0])
    parser.add_argument("--lang", required=True)
    parser.add_argument("--clean", required=True, type=Path, help="folder that data_prep.clean wrote")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--valid-lines", default="auto", help="lines, or a fraction; auto: 1000 or a twentieth")
    parser.add_argument("--test-lines", default="auto")
    parser.add_argument("--max-lines", type=int, help="lines for training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", default="512M")
    add_force(parser)
    args = parser.parse_args(argv)
    sizes = [parse_size(args.valid_lines, "--valid-lines"), parse_size(args.test_lines, "--test-lines")]
    options = Options(sizes[0], sizes[1], args.max_lines, args.seed).validate()
    split(args.lang, args.clean, args.out, options, parse_memory(args.memory), args.force)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
