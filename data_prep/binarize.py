"""Binarise with the host's own ``fairseq-preprocess``, all languages in one process.

    python -m data_prep.binarize --dict WORK/dictionary/dict.txt --out OUT --pieces en=WORK/pieces/en hi=…

Loading the host costs seconds: it is imported once, and not at all when every language is done. The printed
command is what is run, and can be run by hand.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from data_prep.common import SPLITS, add_force, run_main, say
from data_prep.dictionary import read_dictionary
from data_prep.parallel import die_with_parent
from fairseq_interference.stages import stage


def command(pieces: Path, dictionary: Path, destination: Path, workers: int) -> list[str]:
    """The ``fairseq-preprocess`` command of one language. Empty splits are left out: the host cannot map them."""
    prefixes = []
    for name in SPLITS:
        path = pieces / f"{name}.txt"
        if not path.is_file() or path.stat().st_size:
            prefixes += [f"--{name}pref", str(path)]
    options = ["--only-source", "--srcdict", str(dictionary), *prefixes, "--destdir", str(destination)]
    return ["fairseq-preprocess", *options, "--workers", str(workers)]


def _run_host(argv: Sequence[str]) -> None:
    """``fairseq-preprocess`` in this process."""
    from fairseq import options
    from fairseq_cli import preprocess

    logging.getLogger("fairseq_cli.preprocess").setLevel(logging.WARNING)
    arguments = options.get_preprocessing_parser().parse_args(list(argv[1:]))
    preprocess.main(arguments)
    for handler in list(preprocess.logger.handlers):  # one more per call, and it keeps its file open
        preprocess.logger.removeHandler(handler)
        handler.close()


def binarize(pieces: Mapping[str, Path], dictionary: Path, out: Path, workers: int, force: bool = False) -> None:
    """Write ``out/<lang>/{train,valid,test}.{bin,idx}``, one stage a language."""
    read_dictionary(dictionary)
    for lang, folder in pieces.items():
        inputs = {**{name: folder / f"{name}.txt" for name in SPLITS}, "dictionary": dictionary}
        with stage(out / lang, inputs=inputs, settings={"lang": lang}, force=force) as destination:
            if destination is None:
                say(f"binarise {lang}: done before")
                continue
            argv = command(folder, dictionary, destination, workers)
            say("+ " + shlex.join(argv))
            _run_host(argv)
            # the dictionary stands once, at the top; the log holds times and paths
            (destination / "dict.txt").unlink()
            (destination / "preprocess.log").unlink(missing_ok=True)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="data_prep.binarize", description=__doc__.split("\n")[0])
    parser.add_argument("--pieces", nargs="+", required=True, metavar="LANG=FOLDER")
    parser.add_argument("--dict", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--workers", type=int, default=1)
    add_force(parser)
    args = parser.parse_args(argv)
    pieces = {lang: Path(folder) for lang, _, folder in (pair.partition("=") for pair in args.pieces)}
    binarize(pieces, args.dict, args.out, args.workers, args.force)
    return 0


if __name__ == "__main__":
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)  # the host's workers inherit the lock of the stage
    sys.exit(run_main(main))
