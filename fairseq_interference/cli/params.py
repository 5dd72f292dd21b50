"""``fairseq-interference params ARCH --langs en,hi``: parameters shared and per language, without data."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace
from typing import Any

from fairseq_interference.errors import UsageError
from fairseq_interference.languages import LanguageList, parse_codes

HELP = "number of parameters of an arch: shared, per language, total"
SPECIAL_SYMBOLS = 4  # <s> <pad> </s> <unk>; <mask> counts as a piece


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the verb; every flag of the arch is accepted too and read once the arch is known."""
    parser.add_argument("arch", metavar="ARCH", help="see `fairseq-interference list archs`")
    parser.add_argument("--langs", default="en,hi", help="comma-separated language codes (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=32000, help="dictionary size (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="flags of the arch, such as --encoder-layers 4")


def count(model: Any) -> dict[str, Any]:
    """Numbers of parameters by owner: ``shared``, ``per_language`` {code: n}, ``total``."""
    per_language = dict.fromkeys(model.languages, 0)
    shared = 0
    for parameter in model.parameters():
        code = parameter.optim_overrides["interference"]["lang"]
        if code is None:
            shared += parameter.numel()
        else:
            per_language[code] += parameter.numel()
    return {"shared": shared, "per_language": per_language, "total": shared + sum(per_language.values())}


def _arch_options(arch: str, flags: list[str]) -> argparse.Namespace:
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    from fairseq_interference.models.xlm import XLMModel

    ours = sorted(name for name, model in ARCH_MODEL_REGISTRY.items() if issubclass(model, XLMModel))
    if arch not in ours:
        raise UsageError("Unknown arch.", where="params ARCH", value=arch, allowed=", ".join(ours))
    parser = argparse.ArgumentParser(
        prog=f"fairseq-interference params {arch}", argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    args = parser.parse_args(flags, argparse.Namespace(arch=arch))
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def _build(arch: str, flags: list[str], languages: LanguageList, vocab_size: int) -> Any:
    from fairseq.data import Dictionary
    from fairseq.models import ARCH_MODEL_REGISTRY

    options = _arch_options(arch, flags)
    if vocab_size <= SPECIAL_SYMBOLS:
        raise UsageError("Too small a dictionary.", where="--vocab-size", value=vocab_size, allowed="5 or more")
    dictionary = Dictionary()
    for number in range(vocab_size - SPECIAL_SYMBOLS):
        dictionary.add_symbol(f"piece{number}")
    task = SimpleNamespace(source_dictionary=dictionary, languages=languages, max_positions=lambda: 512)
    return ARCH_MODEL_REGISTRY[arch].build_model(options, task)


def run(args: argparse.Namespace) -> int:
    """Build the arch for a made-up dictionary and count."""
    import fairseq_interference

    fairseq_interference.register()
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--langs", default=args.langs)
    own.add_argument("--vocab-size", type=int, default=args.vocab_size)
    own.add_argument("--json", action="store_true", default=args.json)
    mine, flags = own.parse_known_args(args.flags)
    languages = LanguageList(parse_codes(mine.langs))
    counts = count(_build(args.arch, flags, languages, mine.vocab_size))
    if mine.json:
        print(json.dumps({"arch": args.arch, **counts}, sort_keys=True))
        return 0
    rows = [("shared", counts["shared"]), *counts["per_language"].items(), ("total", counts["total"])]
    for name, number in rows:
        print(f"{name:<16} {number:>14,}")
    return 0
