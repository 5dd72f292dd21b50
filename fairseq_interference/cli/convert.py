"""``convert``: public XLM-R, Hugging Face XLM-R and X-MOD, and one language's parts, in and out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Optional

from fairseq_interference.errors import DONE
from fairseq_interference.languages import LanguageList, check_code, parse_codes

if TYPE_CHECKING:
    from fairseq_interference.convert.checkpoint import Converted

HELP = "bring checkpoints of other software in, and take ours out"
HEADS = ("mlm", "tagging", "nli", "qa")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to convert, and the flags of each."""
    kinds = parser.add_subparsers(dest="kind", metavar="WHAT", required=True)
    xlmr = _kind(kinds, "from-fairseq-xlmr", "a public XLM-R folder of fairseq into an arch of ours")
    _input_flags(xlmr, "folder with model.pt, dict.txt, sentencepiece.bpe.model")
    hf = _kind(kinds, "from-hf", "transformers' XLM-R or X-MOD into an arch of ours")
    _input_flags(hf, "folder with config.json, weights and a tokenizer")
    hf.add_argument("--tokenizer", metavar="DIR", help="folder of the tokenizer, if --input has none")
    for child in (xlmr, hf):
        child.add_argument("flags", nargs="*", metavar="FLAG", help="flags of the arch, behind --: -- --adapter-dim 64")
    out = _kind(kinds, "to-hf", "a checkpoint of ours into transformers' XLM-R or X-MOD")
    out.add_argument("--checkpoint", required=True, metavar="FILE", help="checkpoint of ours")
    out.add_argument("--head", choices=HEADS, help="head to write (default: the one that it was fine-tuned with)")
    for child in (xlmr, hf, out):
        child.add_argument("--output", required=True, metavar="DIR", help="folder to write")
        child.add_argument("--force", action="store_true", help="write again if input or settings have changed")
    export = _kind(kinds, "export-lang", "one language's components into a file")
    export.add_argument("--checkpoint", required=True, metavar="FILE", help="checkpoint with parts per language")
    export.add_argument("--lang", required=True, metavar="CODE", help="language to export")
    export.add_argument("--output", required=True, metavar="FILE", help="file to write")
    take = _kind(kinds, "import-lang", "a file of export-lang into a checkpoint: appended, or its parts replaced")
    take.add_argument("--checkpoint", required=True, metavar="FILE", help="checkpoint with the same body")
    take.add_argument("--input", required=True, metavar="FILE", help="file of export-lang")
    take.add_argument("--output", required=True, metavar="DIR", help="folder to write")
    take.add_argument("--force", action="store_true", help="take parts that were trained with another body")


def _kind(kinds: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    return kinds.add_parser(name, help=text, description=text)


def _input_flags(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--input", required=True, metavar="DIR", help=what)
    parser.add_argument("--arch", required=True, metavar="ARCH", help="see `fairseq-interference list archs`")
    parser.add_argument("--langs", metavar="CODES", help="languages in the order of their ids (X-MOD: default all)")


def run(args: argparse.Namespace) -> int:
    """Convert, say where and what to know; returns the exit code."""
    import fairseq_interference

    fairseq_interference.register()
    work = {
        "from-fairseq-xlmr": _from_fairseq,
        "from-hf": _from_hf,
        "to-hf": _to_hf,
        "export-lang": _export,
        "import-lang": _import,
    }
    work[args.kind](args)
    return DONE


def _languages(text: Optional[str]) -> Optional[LanguageList]:
    return LanguageList(parse_codes(text)) if text else None


def _say(where: object, notes: tuple[str, ...], done_before: bool = False) -> None:
    print(f"{where}" + (": done before" if done_before else ""))
    for note in notes:
        print(f"  note: {note}")


def _tell(found: Converted) -> None:
    _say(found.path, found.notes, found.done_before)


def _from_fairseq(args: argparse.Namespace) -> None:
    from fairseq_interference.convert import fairseq_xlmr

    languages = LanguageList(parse_codes(args.langs or ""))
    _tell(fairseq_xlmr.convert(args.input, args.output, args.arch, languages, args.flags, args.force))


def _from_hf(args: argparse.Namespace) -> None:
    from fairseq_interference.convert import from_hf

    languages = _languages(args.langs)
    found = from_hf.convert(args.input, args.output, args.arch, languages, args.tokenizer, args.flags, args.force)
    _tell(found)


def _to_hf(args: argparse.Namespace) -> None:
    from fairseq_interference.convert import to_hf

    found = to_hf.convert(args.checkpoint, args.output, args.head, args.force)
    what = f" ({found.architecture})" if found.architecture else ""
    _say(f"{found.folder}{what}", found.notes, found.architecture is None)


def _export(args: argparse.Namespace) -> None:
    from fairseq_interference.convert import language_parts

    check_code(args.lang, "--lang")
    found = language_parts.export_language(args.checkpoint, args.lang, args.output)
    values = sum(value.numel() for value in found.parts.values())
    _say(args.output, (f"{found.lang}: {len(found.parts)} tensors, {values:,} values, body {found.body}",))


def _import(args: argparse.Namespace) -> None:
    from fairseq_interference.convert import language_parts

    _tell(language_parts.import_language(args.checkpoint, args.input, args.output, args.force))
