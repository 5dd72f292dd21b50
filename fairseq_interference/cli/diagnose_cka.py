"""``diagnose cka``: how far the checkpoints of a fine-tuning run have moved from the pre-trained model."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from fairseq_interference.analysis.cka import LEAST, cka
from fairseq_interference.analysis.study import Ledger, Row, Study
from fairseq_interference.checkpoint_files import is_readable, updates_of
from fairseq_interference.errors import CheckpointError, DataError, LanguageError, TokenizerError, UsageError
from fairseq_interference.languages import parse_codes
from fairseq_interference.stages import file_hash

if TYPE_CHECKING:
    from fairseq_interference.evaluation.probe import Pieces, Reader, Sentence, Source

HELP = "similarity (linear CKA) of fine-tuned checkpoints to the pre-trained model, layer by layer"
NAME = "cka"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the study."""
    about = "checkpoints of one run; a folder stands for all that it holds, by number of updates"
    parser.add_argument("--checkpoint", nargs="+", type=Path, required=True, metavar="FILE|DIR", help=about)
    parser.add_argument("--against", type=Path, required=True, metavar="FILE", help="the pre-trained checkpoint")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--data", metavar="DIR", help="data folder whose sentences are read")
    where.add_argument("--text", nargs="+", metavar="LANG:FILE", help="text instead, one sentence a line")
    parser.add_argument("--langs", metavar="CODES", help="only these languages (default: all there)")
    parser.add_argument("--split", help="which part of --data [valid]")
    parser.add_argument("--sentences", type=int, default=256, metavar="N", help="sentences a language [%(default)s]")
    pools = "sample: mean over a sentence's pieces, every piece (tokens), or <s> (first) [%(default)s]"
    parser.add_argument("--pool", choices=("mean", "tokens", "first"), default="mean", help=pools)
    parser.add_argument("--biased", action="store_true", help="the biased estimator, as in the paper")
    parser.add_argument("--seed", type=int, default=1, help="draws the sentences [%(default)s]")
    parser.add_argument("--cpu", action="store_true", help="stay on the CPU")


# -- what is compared ---------------------------------------------------------------------------------------------


def series(given: Sequence[Path]) -> list[tuple[Path, Optional[int]]]:
    """Checkpoints and their numbers of updates, in this order; of a folder's, one for each number.

    Raises:
        CheckpointError: missing, or without a number where there are several. UsageError: a number twice.
    """
    found: dict[Optional[int], Path] = {}
    for path in given:
        for file, updates in _of_folder(path) if path.is_dir() else [_of_file(path)]:
            if found.setdefault(updates, file).resolve() != file.resolve():
                raise UsageError(
                    "Two checkpoints have the same number of updates.",
                    where="--checkpoint",
                    value=f"{found[updates]}, {file}: {updates}",
                    allowed="the checkpoints of one run",
                )
    if None in found and len(found) > 1:
        what = "This checkpoint does not say after how many updates it was saved."
        raise CheckpointError(what, where=found[None], next_step="compare it alone")
    return sorted(((file, updates) for updates, file in found.items()), key=lambda pair: pair[1] or 0)


def _of_file(path: Path) -> tuple[Path, Optional[int]]:
    if not path.is_file():
        raise CheckpointError("There is no such checkpoint.", where="--checkpoint", value=str(path))
    return path, updates_of(path)


def _of_folder(folder: Path) -> list[tuple[Path, int]]:
    """One readable checkpoint for each number of updates; those with the number in their name are preferred."""
    found: dict[int, Path] = {}
    for path in sorted(folder.glob("checkpoint*.pt"), key=lambda path: (not re.search(r"\d", path.name), path.name)):
        updates = updates_of(path) if is_readable(path) else None
        if updates is None:
            print(f"note: {path} cannot be read and is left out", file=sys.stderr)
        else:
            found.setdefault(updates, path)
    if not found:
        raise CheckpointError(
            "There is no readable checkpoint in this folder.", where="--checkpoint", value=str(folder)
        )
    return [(path, updates) for updates, path in found.items()]


def sources_of(args: argparse.Namespace, known: Sequence[str]) -> dict[str, Source]:
    """Sources of the languages to compare: in the checkpoint's order, others behind.

    Raises:
        UsageError, DataError, LanguageError: what is missing or has no effect.
    """
    from fairseq_interference.evaluation import probe

    if args.text and args.split:
        raise UsageError("A text has no splits.", where="--split", value=args.split, allowed="with --data")
    found = probe.from_texts(args.text) if args.text else probe.from_data(args.data, args.split or "valid")
    wanted = parse_codes(args.langs) if args.langs else list(found)
    missing = [lang for lang in wanted if lang not in found]
    if missing:
        what = "There is no text in this language."
        raise LanguageError(what, where="--langs", value=",".join(missing), allowed=",".join(found))
    return {lang: found[lang] for lang in [*(c for c in known if c in wanted), *(c for c in wanted if c not in known)]}


class Reference:
    """The pre-trained model: its features of a language are computed once and kept in memory."""

    def __init__(self, reader: Reader, sentences: Mapping[str, Sequence[Sentence]]) -> None:
        self.reader, self.sentences = reader, sentences
        self.pieces = {lang: [reader.pieces(one, lang) for one in own] for lang, own in sentences.items()}
        self._features: dict[str, object] = {}

    def features(self, lang: str) -> object:
        """(K + 1, n, C) float32, on the CPU."""
        if lang not in self._features:
            print(f"cka: {self.reader.loaded.path}, {lang}", file=sys.stderr)
            self._features[lang] = self.reader.features(self.pieces[lang], lang).numpy()
        return self._features[lang]

    def pieces_for(self, other: Reader, lang: str) -> list[Pieces]:
        """The same sentences in the pieces of another model.

        Raises:
            TokenizerError: other pieces, where each piece is a sample.
        """
        pieces = [other.pieces(one, lang) for one in self.sentences[lang]]
        if other.pool == "tokens" and pieces != self.pieces[lang]:
            raise TokenizerError(
                "The checkpoints cut text into different pieces: their tokens cannot be compared.",
                where=other.loaded.path,
                value=f"another tokenizer than that of {self.reader.loaded.path}",
                next_step="compare sentences: --pool mean",
            )
        return pieces


# -- the study ----------------------------------------------------------------------------------------------------


def read_model(path: Path, pool: str, cpu: bool) -> Reader:
    """A checkpoint, on the GPU if there is one."""
    import torch

    from fairseq_interference import load
    from fairseq_interference.evaluation.probe import Reader

    loaded = load(str(path))
    if torch.cuda.is_available() and not cpu:
        loaded.model.cuda()
    return Reader(loaded, pool)


def compare(reference: Reference, other: Reader, sources: Mapping[str, Source], biased: bool, name: str) -> list[Row]:
    """CKA of each language and layer; layers are compared by their numbers.

    Raises:
        CheckpointError: another depth. DictionaryError, TokenizerError, LanguageError: it cannot read this text.
    """
    if other.layers != reference.reader.layers:
        what = "The models differ in depth: their layers have no counterparts."
        value = f"{other.layers} layers, and {reference.reader.layers} in {reference.reader.loaded.path}"
        raise CheckpointError(what, where=other.loaded.path, value=value)
    rows: list[Row] = []
    for lang, source in sources.items():
        other.check_dictionary(source)
        pieces = reference.pieces_for(other, lang)
        print(f"cka: {name}, {lang}", file=sys.stderr)
        theirs, ours = reference.features(lang), other.features(pieces, lang).numpy()
        for layer, (x, y) in enumerate(zip(theirs, ours)):  # type: ignore[call-overload]
            rows.append({"lang": lang, "layer": layer, "samples": len(x), "cka": cka(x, y, biased)})
    return rows


def run(args: argparse.Namespace) -> Study:
    """Compare every checkpoint; those that were compared before are not read again."""
    from fairseq_interference.evaluation import probe

    if args.sentences < LEAST:
        raise UsageError("Too few sentences for CKA.", where="--sentences", value=args.sentences, allowed=f">= {LEAST}")
    checkpoints = series(args.checkpoint)
    reader = read_model(args.against, args.pool, args.cpu)
    sources = sources_of(args, reader.loaded.languages.codes)
    sentences = {lang: probe.draw(s, lang, reader, args.sentences, args.seed) for lang, s in sources.items()}
    short = [lang for lang, own in sentences.items() if len(own) < LEAST]
    if short:
        what = "There are too few sentences for CKA."
        raise DataError(what, where=sources[short[0]].path, value=len(sentences[short[0]]), allowed=f">= {LEAST}")
    settings = {
        "against": str(args.against),
        "against_hash": file_hash(args.against)[:12],
        "data": args.data or list(args.text),
        "split": None if args.text else args.split or "valid",
        "langs": list(sources),
        "sentences": args.sentences,
        "pool": args.pool,
        "estimator": "biased" if args.biased else "unbiased",
        "seed": args.seed,
        "probe": probe.fingerprint(sentences),
    }
    ledger = Ledger(args.out / NAME / "rows.jsonl", settings, args.force)
    reference, rows = Reference(reader, sentences), list[Row]()
    for number, (path, updates) in enumerate(checkpoints, 1):
        key = f"{path} {file_hash(path)[:12]}"
        found = ledger.get(key)
        if found is None:
            other = read_model(path, args.pool, args.cpu)
            name = f"checkpoint {number} of {len(checkpoints)} ({path.name}, update {updates})"
            found = ledger.add(key, compare(reference, other, sources, args.biased, name))
        rows += [{"checkpoint": str(path), "update": updates, **row} for row in found]
    return Study(NAME, {"checkpoints": [str(path) for path, _ in checkpoints], **settings}, {NAME: rows})
