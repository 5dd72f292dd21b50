"""Encode one language's text with the learnt (or given) sub-word vocabulary.

    python -m data_prep.apply_bpe --lang en --text WORK/tokens/en --tokenizer WORK/tokenizer --out WORK/pieces/en

Writes the pieces, ``<split>.counts`` (piece TAB count) and ``counts.json``. Special symbols are never split.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from data_prep.common import SPLITS, add_force, map_file, run_main
from data_prep.parallel import Chunk, text_lines
from fairseq_interference.data.tokenizer import SentencePiece, SubwordNmt, Tokenizer
from fairseq_interference.stages import stage, write_json, write_text

COUNTS = "counts.json"
#: pieces of a part, lines and characters that a sentencepiece model's own normalisation changed
Found = tuple[dict[str, int], int, int]


@functools.lru_cache(maxsize=2)
def _tokenizer(folder: str, digest: str) -> Tokenizer:
    del digest  # part of the key: another tokenizer may lie in the same folder later
    return Tokenizer.load(folder)


def _changed(before: str, after: str) -> int:
    """Characters that are only in one of the two."""
    old, new = Counter(before), Counter(after)
    return max(sum((old - new).values()), sum((new - old).values()))


def encode_chunk(chunk: Chunk, folder: str, digest: str) -> tuple[bytes, int, Found]:
    """Pieces of a part of a file of tokenised clean text."""
    backend = _tokenizer(folder, digest).backend
    lines = text_lines(chunk)
    changed_lines = changed_chars = 0
    if isinstance(backend, SubwordNmt):
        encoded = list(map(backend.line, lines))
    else:
        encoded = [" ".join(backend.pieces(line)) for line in lines]
        if isinstance(backend, SentencePiece):
            for line in lines:
                after = backend.normalized(line)
                if after != line:
                    changed_lines += 1
                    changed_chars += _changed(line, after)
    counts: Counter[str] = Counter()
    for line in encoded:
        counts.update(line.split(" "))
    del counts[""]
    text = "".join([line + "\n" for line in encoded]).encode("utf-8")
    return text, len(lines), (dict(counts), changed_lines, changed_chars)


def write_counts(path: Path, counts: Counter[str]) -> None:
    """Piece TAB count, most frequent first, ties by code point."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    write_text(path, "".join(f"{piece}\t{count}\n" for piece, count in ordered))


def read_counts(path: Path) -> Counter[str]:
    """What :func:`write_counts` wrote."""
    counts: Counter[str] = Counter()
    with open(path, encoding="utf-8", newline="\n") as stream:
        for line in stream:
            piece, _, count = line.rstrip("\n").rpartition("\t")
            counts[piece] = int(count)
    return counts


def apply(lang: str, text: Path, tokenizer: Path, out: Path, workers: int, force: bool = False) -> bool:
    """Run the stage for one language; False if it was done before."""
    inputs = {**{name: text / f"{name}.txt" for name in SPLITS}, "tokenizer": tokenizer / "tokenizer.json"}
    loaded = Tokenizer.load(tokenizer)
    with stage(out, inputs=inputs, settings={"lang": lang, "digest": loaded.digest}, force=force) as folder:
        if folder is None:
            return False
        function = functools.partial(encode_chunk, folder=str(tokenizer), digest=loaded.digest)
        report: dict[str, dict[str, int]] = {}
        for name in SPLITS:
            counts: Counter[str] = Counter()
            lines = chars = 0
            source, target = text / f"{name}.txt", folder / f"{name}.txt"
            for found, changed_lines, changed_chars in map_file(
                function, source, target, workers, f"encode {lang} {name}"
            ):
                counts.update(found)
                lines += changed_lines
                chars += changed_chars
            write_counts(folder / f"{name}.counts", counts)
            report[name] = {"pieces": sum(counts.values()), "changed_lines": lines, "changed_chars": chars}
        write_json(folder / COUNTS, report)
    return True


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="data_prep.apply_bpe", description=__doc__.split("\n")[0])
    parser.add_argument("--lang", required=True)
    parser.add_argument("--text", required=True, type=Path, help="folder with train.txt, valid.txt, test.txt")
    parser.add_argument("--tokenizer", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--workers", type=int, default=1)
    add_force(parser)
    args = parser.parse_args(argv)
    apply(args.lang, args.text, args.tokenizer, args.out, args.workers, args.force)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
