"""Split words from punctuation in one language, with Moses rules where they suit the script.

    python -m data_prep.tokenize --lang en --split WORK/split/en --out WORK/tokens/en

The rules: ``fairseq_interference.data.pretokenize``. Lines stay lines; a combining mark that is torn from its
letter fails the stage.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from data_prep.common import SPLITS, add_force, map_file, run_main
from data_prep.parallel import Chunk, text_lines
from fairseq_interference.data.pretokenize import PRETOKENIZERS, pretokenize
from fairseq_interference.stages import stage


def tokenize_chunk(chunk: Chunk, lang: str, kind: str) -> tuple[bytes, int, None]:
    """Tokens of a part of a file, and its lines."""
    lines = text_lines(chunk)
    tokens = [pretokenize(line, lang, kind) for line in lines]
    return "".join([line + "\n" for line in tokens]).encode("utf-8"), len(lines), None


def tokenize(lang: str, split: Path, out: Path, kind: str, workers: int, force: bool = False) -> bool:
    """Run the stage for one language; False if it was done before."""
    inputs = {name: split / f"{name}.txt" for name in SPLITS}
    with stage(out, inputs=inputs, settings={"lang": lang, "tokenizer": kind}, force=force) as folder:
        if folder is None:
            return False
        function = functools.partial(tokenize_chunk, lang=lang, kind=kind)
        for name in SPLITS:
            file = f"{name}.txt"
            for _ in map_file(function, split / file, folder / file, workers, f"tokenise {lang} {name}"):
                pass
    return True


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="data_prep.tokenize", description=__doc__.split("\n")[0])
    parser.add_argument("--lang", required=True)
    parser.add_argument("--split", required=True, type=Path, help="folder that data_prep.split wrote")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--tokenizer", choices=PRETOKENIZERS, default="moses")
    parser.add_argument("--workers", type=int, default=1)
    add_force(parser)
    args = parser.parse_args(argv)
    tokenize(args.lang, args.split, args.out, args.tokenizer, args.workers, args.force)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
