"""The one dictionary of all languages: built from the pieces of the training text, or checked and copied.

python -m data_prep.dictionary --pieces WORK/pieces/en WORK/pieces/hi --vocab-size 32000 --out WORK/dictionary
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Optional, Union

from data_prep.apply_bpe import read_counts
from data_prep.common import add_force, run_main, say
from fairseq_interference.data.text import SPECIAL_SYMBOLS
from fairseq_interference.errors import DictionaryError
from fairseq_interference.stages import stage, write_text

DICTIONARY = "dict.txt"
OVERWRITE = "#fairseq:overwrite"
# what parts pieces in text and ends lines; XLM-R has a piece U+0085, which Python takes for a blank too
BLANK = re.compile(r"[^\S\x85]")
PathLike = Union[str, Path]


def read_dictionary(path: PathLike) -> list[str]:
    """Tokens of a ``dict.txt`` in the order of their ids (id of the first: 4, after the host's own symbols).

    Raises:
        DictionaryError: missing, Git-LFS pointer, HTML, not ``token count`` on a line, duplicate, special symbol.
    """
    try:
        content = Path(path).read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise DictionaryError("There is no dictionary here.", where=path) from None
    except UnicodeDecodeError as error:
        raise DictionaryError("The dictionary is not UTF-8.", where=path, value=str(error)) from None
    if content.startswith("version https://git-lfs"):
        fetch = "run `git lfs pull` where it came from"
        raise DictionaryError("This dictionary is a Git-LFS pointer.", where=path, next_step=fetch)
    lines = content.split("\n")
    if lines[-1] == "":
        lines.pop()
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        token, flag = _entry(line, f"{path}:{number}")
        if token in SPECIAL_SYMBOLS:
            raise DictionaryError(
                "The host adds its special symbols itself; a dictionary may not list them.",
                where=f"{path}:{number}",
                value=token,
                next_step="take the line out; ids of the other pieces count from 4",
            )
        if token in seen and not flag:
            raise DictionaryError(
                f"The piece is there twice (line {seen[token]}).", where=f"{path}:{number}", value=token
            )
        seen[token] = number
    if not seen:
        raise DictionaryError("The dictionary is empty.", where=path)
    return list(seen)


def _entry(line: str, where: str) -> tuple[str, bool]:
    """Token of a line, and whether it carries the host's overwrite flag."""
    parts = line.rstrip().rsplit(" ", 2)
    flag = len(parts) == 3 and parts[-1] == OVERWRITE
    token, count = (parts[0], parts[1]) if flag else (" ".join(parts[:-1]), parts[-1])
    if not token or not count.lstrip("-").isdigit() or BLANK.search(token):
        raise DictionaryError("A line must be a piece, a blank and a count.", where=where, value=line[:80])
    return token, flag


def build(pieces: Sequence[Path], vocab_size: int) -> str:
    """Text of ``dict.txt``: pieces of the training text, most frequent first, ties by code point."""
    counts: Counter[str] = Counter()
    for folder in pieces:
        counts.update(read_counts(folder / "train.counts"))
    for symbol in SPECIAL_SYMBOLS:
        del counts[symbol]
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) > vocab_size:
        lost = sum(count for _, count in ordered[vocab_size:])
        say(f"note: {len(ordered) - vocab_size} rare pieces ({lost} tokens) do not fit the vocabulary and are unknown")
    return "".join(f"{piece} {count}\n" for piece, count in ordered[:vocab_size])


def make(pieces: Sequence[Path], vocab_size: int, out: Path, force: bool = False) -> bool:
    """Run the stage that builds the dictionary; False if it was done before."""
    inputs = {str(number): folder / "train.counts" for number, folder in enumerate(pieces)}
    with stage(out, inputs=inputs, settings={"vocab_size": vocab_size}, force=force) as folder:
        if folder is None:
            return False
        write_text(folder / DICTIONARY, build(pieces, vocab_size))
        read_dictionary(folder / DICTIONARY)
    return True


def copy(source: PathLike, out: Path, force: bool = False) -> bool:
    """Run the stage that takes over a dictionary, byte for byte; False if it was done before."""
    read_dictionary(source)
    with stage(out, inputs={DICTIONARY: source}, settings={}, force=force) as folder:
        if folder is None:
            return False
        shutil.copyfile(source, folder / DICTIONARY)
    return True


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="data_prep.dictionary", description=__doc__.split("\n")[0])
    parser.add_argument("--pieces", nargs="+", type=Path, default=[], help="folders that data_prep.apply_bpe wrote")
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--copy", type=Path, help="take over this dictionary instead")
    parser.add_argument("--out", required=True, type=Path)
    add_force(parser)
    args = parser.parse_args(argv)
    if args.copy is not None:
        copy(args.copy, args.out, args.force)
    else:
        make(args.pieces, args.vocab_size, args.out, args.force)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
