"""A vocabulary that exists already (``--tokenizer-from``): nothing is learnt, the dictionary is taken as it is.

python -m data_prep.imported --from CHECKPOINT_OR_FOLDER --out WORK/tokenizer
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from data_prep.common import add_force, run_main
from data_prep.dictionary import BLANK, DICTIONARY, read_dictionary
from fairseq_interference.data.pretokenize import PRETOKENIZERS
from fairseq_interference.data.text import NORMALIZATIONS, SPECIAL_SYMBOLS
from fairseq_interference.data.tokenizer import FILE_NAME, KINDS, Tokenizer
from fairseq_interference.errors import DictionaryError, TokenizerError, UsageError
from fairseq_interference.stages import stage, write_text

PathLike = Union[str, Path]
ALLOWED = (
    "a folder or checkpoint beside: tokenizer/ of ours and dict.txt; *.model of sentencepiece and dict.txt; "
    "subword-nmt codes and dict.txt; tokenizer.json of Hugging Face"
)


@dataclass(frozen=True)
class Imported:
    """Files of an existing vocabulary.

    Args:
        kind: of :class:`fairseq_interference.data.tokenizer.Tokenizer`.
        file: sentencepiece model, BPE codes or tokenizer.json.
        dictionary: ``dict.txt``; None if it must be derived from a Hugging Face ``tokenizer.json``.
        normalization: what its text went through; None if the files do not say.
        pretokenizer: likewise.
    """

    kind: str
    file: Path
    dictionary: Optional[Path]
    normalization: Optional[str] = None
    pretokenizer: Optional[str] = None


def _only(paths: Sequence[Path], what: str, folder: Path) -> Optional[Path]:
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise UsageError(f"There are several files that could be the {what}.", where=str(folder), value=names)
    return paths[0] if paths else None


def _ours(folder: Path) -> Optional[Imported]:
    for path in (folder / "tokenizer" / FILE_NAME, folder / FILE_NAME):
        try:
            options: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(options, dict) and options.get("kind") in KINDS and "files" in options:
            places = (folder / DICTIONARY, path.parent.parent / DICTIONARY)
            dictionary = next((place for place in places if place.is_file()), folder / DICTIONARY)
            file = path.parent / options["files"][KINDS[options["kind"]][0]]
            return Imported(options["kind"], file, dictionary, options["normalization"], options["pretokenizer"])
    return None


def find(where: PathLike) -> Imported:
    """Recognise the vocabulary in a folder, or beside a checkpoint.

    Raises:
        TokenizerError: nothing known is there. DictionaryError: no usable dict.txt. UsageError: ambiguous.
    """
    path = Path(where)
    if not path.exists():
        raise UsageError(
            "There is no such file or folder.", where="--tokenizer-from", value=str(where), allowed=ALLOWED
        )
    folder = path if path.is_dir() else path.parent
    found = _ours(folder)
    if found is None:
        model = _only(sorted(folder.glob("*.model")), "sentencepiece model", folder)
        codes = _only([p for p in sorted(folder.iterdir()) if p.is_file() and _is_codes(p)], "BPE codes", folder)
        if model is not None:
            found = Imported("sentencepiece", model, folder / DICTIONARY, None, "none")
        elif codes is not None:
            found = Imported("subword-nmt", codes, folder / DICTIONARY)
        elif (folder / "tokenizer.json").is_file():
            dictionary = folder / DICTIONARY
            file = folder / "tokenizer.json"
            found = Imported("huggingface", file, dictionary if dictionary.is_file() else None, None, "none")
        else:
            raise TokenizerError("No tokenizer is recognised here.", where=folder, allowed=ALLOWED)
    if found.dictionary is not None:
        read_dictionary(found.dictionary)
    KINDS[found.kind][1](found.file)  # readable?
    return found


def _is_codes(path: Path) -> bool:
    if path.suffix in (".pt", ".bin", ".idx", ".model"):
        return False
    with open(path, "rb") as stream:
        return stream.read(10) == b"#version: " or path.name in ("codes", "bpecodes", "bpe.codes")


def huggingface_dictionary(path: PathLike) -> str:
    """Text of a ``dict.txt`` with the pieces of a Hugging Face tokenizer in the order of their ids."""
    from tokenizers import Tokenizer as Reader

    reader: Any = Reader  # typed in some releases of the library
    ids: dict[str, int] = reader.from_file(str(path)).get_vocab()
    pieces = [piece for piece in sorted(ids, key=ids.__getitem__) if piece not in SPECIAL_SYMBOLS]
    odd = [piece for piece in pieces if not piece or BLANK.search(piece)]
    if odd:
        raise DictionaryError("A piece of the tokenizer holds a blank.", where=path, value=odd[0])
    return "".join(f"{piece} 1\n" for piece in pieces)


def take(found: Imported, out: Path, normalization: str, pretokenizer: str, force: bool = False) -> bool:
    """Run the stage that copies the tokenizer; False if it was done before."""
    settings = {"kind": found.kind, "normalization": normalization, "pretokenizer": pretokenizer}
    inputs = {"tokenizer": found.file, **({} if found.dictionary is None else {DICTIONARY: found.dictionary})}
    with stage(out, inputs=inputs, settings=settings, force=force) as folder:
        if folder is None:
            return False
        Tokenizer.create(folder, found.kind, found.file, normalization=normalization, pretokenizer=pretokenizer)
        # beside the tokenizer until the dictionary's own stage takes it
        if found.dictionary is None:
            write_text(folder / "given.dict.txt", huggingface_dictionary(found.file))
        else:
            (folder / "given.dict.txt").write_bytes(found.dictionary.read_bytes())
    return True


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="data_prep.imported", description=__doc__.split("\n")[0])
    parser.add_argument("--from", dest="source", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--normalization", choices=NORMALIZATIONS, default="nfc")
    parser.add_argument("--tokenizer", choices=PRETOKENIZERS, default="none")
    add_force(parser)
    args = parser.parse_args(argv)
    take(find(args.source), args.out, args.normalization, args.tokenizer, args.force)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
