"""Make artificial languages: ``python -m data_prep.synthetic --out world --langs xa,xb --similarity 0.3``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Optional, TypeVar

from data_prep.synthetic.config import CHOICES, LABELLED, WorldConfig, make_config
from data_prep.synthetic.truth import FORMAT
from data_prep.synthetic.world import write_world
from fairseq_interference.errors import UsageError, exit_code
from fairseq_interference.languages import parse_codes
from fairseq_interference.stages import stage

Value = TypeVar("Value")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data_prep.synthetic", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, help="folder to write; skipped if it is already done")
    parser.add_argument("--langs", default="xa,xb,xc,xd", help="codes, or how many (4 means xa,xb,xc,xd)")
    parser.add_argument("--similarity", type=float, default=0.3, help="share of cognates of every pair, 0 to 1")
    parser.add_argument("--similarity-of", nargs="+", default=[], metavar="XA:XB=S", help="similarity of one pair")
    parser.add_argument("--sentences", type=int, default=20000, help="raw sentences per language")
    parser.add_argument("--sentences-of", nargs="+", default=[], metavar="XX=N", help="raw sentences of one language")
    parser.add_argument("--labelled", metavar="TRAIN,DEV,TEST", help="labelled examples of every task and language")
    parser.add_argument(
        "--labelled-of", nargs="+", default=[], metavar="TASK=TRAIN,DEV,TEST", help=f"of one task; default {LABELLED}"
    )
    for name, allowed in CHOICES.items():
        what = f"{name} of a language: {', '.join(allowed)}"
        parser.add_argument(f"--{name}-of", nargs="+", default=[], metavar="XX=VALUE", help=what)
    parser.add_argument("--concepts", type=int, default=1000, help="content-word meanings besides names")
    parser.add_argument("--seed", type=int, default=1, help="everything follows from it")
    parser.add_argument("--force", action="store_true", help="redo a folder made with other settings")
    return parser


def table(values: list[str], flag: str, convert: Callable[[str], Value]) -> dict[str, Value]:
    """Read ``KEY=VALUE`` arguments."""
    read: dict[str, Value] = {}
    for value in values:
        key, equals, text = value.partition("=")
        try:
            if not equals or not key or key in read:
                raise ValueError
            read[key] = convert(text)
        except ValueError:
            raise UsageError("Not a setting.", where=flag, value=value, allowed="KEY=VALUE, each key once") from None
    return read


def _codes(text: str) -> list[str]:
    if not text.isdigit():
        return parse_codes(text)
    if not 1 <= int(text) <= 26:
        raise UsageError("So many languages have no codes.", where="--langs", value=text, allowed="1 to 26, or codes")
    return [f"x{chr(ord('a') + number)}" for number in range(int(text))]


def _labelled(text: str) -> tuple[int, int, int]:
    try:
        train, dev, test = (int(part) for part in text.split(","))
    except ValueError:
        raise UsageError("Not three numbers.", where="--labelled", value=text, allowed="TRAIN,DEV,TEST") from None
    return train, dev, test


def read_config(args: argparse.Namespace) -> WorldConfig:
    """Settings of the command line, checked."""
    labelled = dict.fromkeys(LABELLED, _labelled(args.labelled)) if args.labelled else {}
    labelled.update(table(args.labelled_of, "--labelled-of", _labelled))
    pairs = {}
    for key, value in table(args.similarity_of, "--similarity-of", float).items():
        one, colon, other = key.partition(":")
        if not colon:
            raise UsageError("Not a pair.", where="--similarity-of", value=key, allowed="XA:XB=S")
        pairs[one, other] = value
    return make_config(
        _codes(args.langs),
        similarity=args.similarity,
        similarity_of=pairs,
        sentences=args.sentences,
        sentences_of=table(args.sentences_of, "--sentences-of", int),
        settings_of={name: table(getattr(args, f"{name}_of"), f"--{name}-of", str) for name in CHOICES},
        labelled=labelled,
        concepts=args.concepts,
        seed=args.seed,
    )


def settings(config: WorldConfig) -> dict[str, object]:
    """The configuration as JSON-able values."""
    return {
        "format": FORMAT,
        "languages": [spec._asdict() for spec in config.languages],
        "similarity": {f"{one}:{other}": value for (one, other), value in config.similarity.items()},
        "labelled": dict(config.labelled),
        "concepts": config.concepts,
        "seed": config.seed,
    }


def main(argv: Optional[list[str]] = None) -> int:
    args = make_parser().parse_args(argv)
    return exit_code("synthetic", lambda: make(args))


def make(args: argparse.Namespace) -> int:
    """Write the world unless it is done, and say what it holds."""
    begin = time.monotonic()
    config = read_config(args)
    with stage(args.out, inputs={}, settings=settings(config), force=args.force) as folder:
        if folder is not None:
            write_world(config, folder)
    if folder is None:
        print(f"{args.out}: already done")
        return 0
    with open(args.out / "truth.json", encoding="utf-8") as stream:
        pairs = json.load(stream)["pairs"]
    for spec in config.languages:
        print(f"{spec.code}: {spec.sentences} sentences, {spec.script}, {spec.order}, {spec.morphology}")
    for pair, values in pairs.items():
        similarity = values["similarity"]
        print(f"{pair}: similarity asked {similarity['requested']}, reached {similarity['achieved']}")
    print(f"{args.out}: done in {time.monotonic() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
