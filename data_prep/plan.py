"""What prepare.sh will do: its flags, their validation, and the list of steps."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

from data_prep import apply_bpe, binarize, clean, dictionary, imported, learn_bpe, split, tokenize
from data_prep.common import parse_memory, say
from data_prep.report import REPORT
from data_prep.sources import Found, find_sources
from fairseq_interference.data.pretokenize import PRETOKENIZERS
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import DictionaryError, HostError, StageError, TokenizerError, UsageError
from fairseq_interference.languages import FILE_NAME as LANGUAGES
from fairseq_interference.languages import LanguageList, parse_codes
from fairseq_interference.stages import check_place, file_hash, is_foreign

#: flags that only matter when a vocabulary is learnt, and their defaults
LEARNING = {"bpe": "subword-nmt", "vocab_size": 32000, "temperature": 1.43, "bpe_sample": 1_000_000}
Main = Callable[[Optional[Sequence[str]]], int]


@dataclass
class Plan:
    """What will be done.

    Args:
        langs: languages of this run. languages: all of data-bin afterwards.
        tokenizer, dictionary: where those that encode lie.
        steps: (function, name of its module, arguments) in order.
    """

    args: argparse.Namespace
    langs: list[str]
    languages: LanguageList
    found: Found
    out: Path
    work: Path
    tokenizer: Path
    dictionary: Path
    steps: list[tuple[Main, str, list[str]]] = field(default_factory=list)


def parser() -> argparse.ArgumentParser:
    """Flags of prepare.sh."""
    flags = argparse.ArgumentParser(prog="prepare.sh", description=__doc__.split("\n")[0])
    flags.add_argument("--langs", required=True)
    flags.add_argument("--raw", required=True)
    flags.add_argument("--out", required=True, type=Path)
    flags.add_argument("--sources")
    learn_bpe.add_options(flags)
    flags.add_argument("--tokenizer", choices=PRETOKENIZERS)
    flags.add_argument("--tokenizer-from", metavar="PATH")
    flags.add_argument("--append", action="store_true")
    flags.add_argument("--valid-lines", default="auto")
    flags.add_argument("--test-lines", default="auto")
    flags.add_argument("--max-lines", nargs="+", action="extend", default=[], metavar="LANG=N")
    flags.add_argument("--script", nargs="+", action="extend", default=[], metavar="LANG=SCRIPT")
    clean.add_options(flags)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    flags.add_argument("--memory", default="512M")
    flags.add_argument("--work", type=Path)
    flags.add_argument("--force", action="store_true")
    flags.add_argument("--dry-run", action="store_true")
    return flags


def per_language(pairs: Sequence[str], langs: Sequence[str], flag: str) -> dict[str, str]:
    """``LANG=VALUE`` pairs; the language must be one of the run."""
    values = {}
    for pair in pairs:
        lang, equals, value = pair.partition("=")
        if not equals or not value or lang not in langs:
            raise UsageError("Not a language of this run and its value.", where=flag, value=pair, allowed="LANG=VALUE")
        values[lang] = value
    return values


def plan(args: argparse.Namespace) -> Plan:
    """Validate everything that can be known beforehand, and list the steps."""
    langs = parse_codes(args.langs)
    if not langs:
        raise UsageError("No language is given.", where="--langs")
    if args.workers < 1:
        raise UsageError("At least one process is needed.", where="--workers", value=args.workers)
    _check_libraries(args)
    out, work = args.out, args.work or args.out.with_name(args.out.name + ".work")
    languages = _languages(out, langs, args)
    found = find_sources(args.raw, langs, args.sources)
    tokenizer = out / "tokenizer" if args.append else work / "tokenizer"
    words = out / dictionary.DICTIONARY if args.append else work / "dictionary" / dictionary.DICTIONARY
    made = Plan(args, langs, languages, found, out, work, tokenizer, words)
    _validate_options(made)
    _add_steps(made)
    return made


def _check_libraries(args: argparse.Namespace) -> None:
    needed = ["fairseq", "sacremoses", "subword_nmt", "sentencepiece", "numpy"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        install = "bash run/setup.sh, and use its Python (PYTHON=.venv/bin/python)"
        raise HostError("Libraries are missing.", where=sys.executable, value=", ".join(missing), next_step=install)
    idle = [name for name, default in LEARNING.items() if getattr(args, name) != default]
    if idle and (args.append or args.tokenizer_from):
        names = ", ".join("--" + name.replace("_", "-") for name in idle)
        say(f"warning: no vocabulary is learnt: {names} without effect")
    if args.append and args.tokenizer_from:
        what = "--append uses the vocabulary that is there: --tokenizer-from cannot change it."
        raise UsageError(what, where="--tokenizer-from", value=args.tokenizer_from)


def _languages(out: Path, langs: list[str], args: argparse.Namespace) -> LanguageList:
    """All languages of data-bin afterwards. Ids never change."""
    path = out / LANGUAGES
    if not path.is_file():
        if args.append:
            raise UsageError(
                "There is nothing to append to.", where=f"--append --out {out}", allowed=f"a {LANGUAGES} there"
            )
        return LanguageList(langs, "--langs")
    there = LanguageList.read(path)
    if args.append:
        Tokenizer.load(out / "tokenizer")
        dictionary.read_dictionary(out / dictionary.DICTIONARY)
        for lang in there:
            own = out / lang / dictionary.DICTIONARY
            if own.is_file() and file_hash(own) != file_hash(out / dictionary.DICTIONARY):
                raise DictionaryError("A language was binarised with another dictionary.", where=own)
        return there.extended(langs)
    if there.codes[: len(langs)] == langs:
        return there
    if args.force:
        return LanguageList(langs, "--langs")
    raise StageError(
        "The data were made for other languages.",
        where=path,
        value=",".join(langs),
        allowed=",".join(there),
        next_step="add languages with --append, or make all anew with --force or another --out",
    )


def _settle_vocabulary(made: Plan) -> tuple[str, str, Optional[imported.Imported]]:
    """Normalisation and pre-tokeniser: what a given vocabulary says, else the flags."""
    args = made.args
    given = None
    if made.args.append:
        there = Tokenizer.load(made.tokenizer)
        normalization, pretokenizer = there.normalization, there.pretokenizer
    elif args.tokenizer_from:
        given = imported.find(args.tokenizer_from)
        default = "moses" if given.kind == "subword-nmt" else "none"
        normalization = given.normalization or args.normalization
        pretokenizer = given.pretokenizer or args.tokenizer or default
    else:
        normalization = args.normalization
        pretokenizer = args.tokenizer or ("none" if args.bpe == "sentencepiece" else "moses")
    for flag, asked, used in (("--tokenizer", args.tokenizer, pretokenizer),):
        if asked and asked != used:
            raise UsageError("The given vocabulary was made otherwise.", where=flag, value=asked, allowed=used)
    if args.normalization != normalization:
        say(f"note: normalisation is {normalization}, as for the vocabulary that is there")
    return normalization, pretokenizer, given


def _flag(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


def _add_steps(made: Plan) -> None:
    args, work, langs = made.args, made.work, made.langs
    normalization, pretokenizer, given = _settle_vocabulary(made)
    scripts = per_language(args.script, langs, "--script")
    limits = per_language(args.max_lines, langs, "--max-lines")
    force = ["--force"] if args.force else []
    workers = ["--workers", str(args.workers)]

    def add(module: object, name: str, argv: list[str]) -> None:
        made.steps.append((module.main, f"data_prep.{name}", [*argv, *force]))  # type: ignore[attr-defined]

    rules = ["--normalization", normalization, "--cut-chars", str(args.cut_chars)]
    rules += ["--min-chars", str(args.min_chars), "--max-chars", str(args.max_chars)]
    rules += ["--script-share", str(args.script_share)]
    text = work / ("split" if pretokenizer == "none" else "tokens")
    for lang in langs:
        source = ["--lang", lang, "--raw", str(args.raw), *_flag("--sources", args.sources)]
        add(
            clean,
            "clean",
            [*source, "--out", str(work / "clean" / lang), *rules, *_flag("--script", scripts.get(lang)), *workers],
        )
        sizes = [
            "--valid-lines",
            args.valid_lines,
            "--test-lines",
            args.test_lines,
            *_flag("--max-lines", limits.get(lang)),
        ]
        places = ["--lang", lang, "--clean", str(work / "clean" / lang), "--out", str(work / "split" / lang)]
        add(split, "split", [*places, *sizes, "--seed", str(args.seed), "--memory", args.memory])
        if pretokenizer != "none":
            places = ["--lang", lang, "--split", str(work / "split" / lang), "--out", str(text / lang)]
            add(tokenize, "tokenize", [*places, "--tokenizer", pretokenizer, *workers])
    through = ["--normalization", normalization, "--tokenizer", pretokenizer]
    if given is not None:
        add(imported, "imported", ["--from", args.tokenizer_from, "--out", str(made.tokenizer), *through])
    elif not args.append:
        options = ["--bpe", args.bpe, "--vocab-size", str(args.vocab_size), "--temperature", str(args.temperature)]
        options += ["--bpe-sample", str(args.bpe_sample), "--seed", str(args.seed), *through, "--memory", args.memory]
        texts = [f"{lang}={text / lang / 'train.txt'}" for lang in langs]
        add(learn_bpe, "learn_bpe", [*options, "--out", str(made.tokenizer), "--text", *texts])
    for lang in langs:
        places = ["--lang", lang, "--text", str(text / lang), "--tokenizer", str(made.tokenizer)]
        add(apply_bpe, "apply_bpe", [*places, "--out", str(work / "pieces" / lang), *workers])
    if given is not None:
        add(
            dictionary,
            "dictionary",
            ["--copy", str(made.tokenizer / "given.dict.txt"), "--out", str(work / "dictionary")],
        )
    elif not args.append:
        pieces = [str(work / "pieces" / lang) for lang in langs]
        size = ["--vocab-size", str(args.vocab_size), "--out", str(work / "dictionary")]
        add(dictionary, "dictionary", [*size, "--pieces", *pieces])
    pairs = [f"{lang}={work / 'pieces' / lang}" for lang in langs]
    add(binarize, "binarize", ["--dict", str(made.dictionary), "--out", str(made.out), *workers, "--pieces", *pairs])


def _validate_options(made: Plan) -> None:
    """Ranges of all options, before the first step and in a dry run."""
    args = made.args
    scripts = per_language(args.script, made.langs, "--script")
    for lang in made.langs:
        clean.Options(
            args.normalization, args.cut_chars, args.min_chars, args.max_chars, scripts.get(lang), args.script_share
        ).validate()
    limits = per_language(args.max_lines, made.langs, "--max-lines")
    for pair, number in limits.items():
        if not number.isdigit():
            raise UsageError("Not a number of lines.", where="--max-lines", value=f"{pair}={number}")
    valid = split.parse_size(args.valid_lines, "--valid-lines")
    test = split.parse_size(args.test_lines, "--test-lines")
    for limit in [None, *map(int, limits.values())]:
        split.Options(valid, test, limit, args.seed).validate()
    parse_memory(args.memory)
    learn_bpe.Options(args.bpe, args.vocab_size, args.temperature, args.bpe_sample).validate()
    for flag, out in (("--out", made.out), ("--work", made.work)):
        place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        if not place.is_dir() or not os.access(place, os.W_OK):
            raise UsageError("This place cannot be written to.", where=flag, value=str(out))
    if made.out.resolve() == Path(args.raw).resolve():
        raise UsageError("Raw text and its data folder need places of their own.", where="--out", value=str(made.out))
    for folder in (made.out / lang for lang in made.langs):
        check_place(folder)
    if not args.append:
        _check_published(made.out)


def _check_published(out: Path) -> None:
    """Refuse to replace a tokenizer or a report that was not made here."""
    what, advice = "This was not made here; it is not touched.", "give another --out"
    if (out / REPORT).exists() and not (out / LANGUAGES).is_file():
        raise StageError(what, where=out / REPORT, next_step=advice)
    if is_foreign(out / "tokenizer"):
        try:
            Tokenizer.load(out / "tokenizer")
        except (TokenizerError, OSError):
            raise StageError(what, where=out / "tokenizer", next_step=advice) from None
