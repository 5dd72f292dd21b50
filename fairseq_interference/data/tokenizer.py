"""What turns text into the sub-word pieces that a dictionary knows: saved beside data and checkpoints.

A folder with ``tokenizer.json`` (kind, options, file names) and the files of the library that does the work:
subword-nmt codes, a sentencepiece model, or a Hugging Face ``tokenizer.json``. Neither torch nor the host is imported.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Protocol, Union

from fairseq_interference.data.pretokenize import check_pretokenizer, pretokenize
from fairseq_interference.data.text import SPECIAL_SYMBOLS, check_normalization, clean_line, split_special
from fairseq_interference.errors import TokenizerError
from fairseq_interference.stages import write_json

PathLike = Union[str, Path]
FILE_NAME = "tokenizer.json"
FORMAT = 1
SEPARATOR = "@@"
CACHE_WORDS = 200_000


class Backend(Protocol):
    """One sub-word library: a pre-tokenised clean line to its pieces and back."""

    def pieces(self, text: str) -> list[str]: ...

    def decode(self, pieces: Sequence[str]) -> str: ...


def without_separator(text: str) -> str:
    """``@@`` in the text would read as subword-nmt's continuation mark: its signs are set apart."""
    while SEPARATOR in text:
        text = text.replace(SEPARATOR, "@ @")
    return text


class SubwordNmt:
    """subword-nmt codes; words are remembered, special symbols are its glossaries."""

    def __init__(self, codes: PathLike) -> None:
        from subword_nmt.apply_bpe import BPE

        try:
            with open(codes, encoding="utf-8") as stream:
                self._bpe = BPE(stream, separator=SEPARATOR, glossaries=list(SPECIAL_SYMBOLS))
        except (SystemExit, ValueError, UnicodeDecodeError, NotImplementedError) as error:
            raise TokenizerError("These are not BPE codes of subword-nmt.", where=codes, value=str(error)) from None
        self._words: dict[str, str] = {}

    def _segment(self, word: str) -> str:
        if len(self._words) >= CACHE_WORDS:
            self._words.clear()
            self._bpe.cache.clear()
        joined = self._words[word] = " ".join(self._bpe.segment_tokens([word]))
        return joined

    def line(self, text: str) -> str:
        """Pieces of a line, separated by one blank."""
        if SEPARATOR in text:
            text = without_separator(text)
        words, segment = self._words, self._segment
        return " ".join([words[word] if word in words else segment(word) for word in text.split(" ") if word])

    def pieces(self, text: str) -> list[str]:
        return self.line(text).split(" ") if text else []

    def decode(self, pieces: Sequence[str]) -> str:
        return (" ".join(pieces) + " ").replace(SEPARATOR + " ", "").rstrip(" ")


class SentencePiece:
    """A sentencepiece model; special symbols in the text stay whole."""

    def __init__(self, model: PathLike) -> None:
        import sentencepiece

        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_file=str(model))
        except (RuntimeError, OSError) as error:
            raise TokenizerError("This is not a sentencepiece model.", where=model, value=str(error)[:200]) from None

    def pieces(self, text: str) -> list[str]:
        if "<" not in text:
            return list(self._processor.encode(text, out_type=str))
        found: list[str] = []
        for part, special in split_special(text):
            found.extend([part] if special else self._processor.encode(part, out_type=str))
        return found

    def normalized(self, text: str) -> str:
        """What the model's own normalisation makes of a line (identity for models learnt here)."""
        return str(self._processor.normalize(text)).replace("\u2581", " ").strip(" ")

    def normalized_offsets(self, text: str) -> tuple[str, list[int]]:
        """What the model cuts into pieces (N characters, ``\u2581`` for blanks), and where each came from.

        Returns:
            The normalised text and N + 1 offsets into ``text``: the first character of what each was made of, and the
            end. The offsets that the library gives with its pieces are not enough: a character that becomes two
            (U+0E33, a ligature) is left out of the first piece if they fall into two.
        """
        try:
            normalized, offsets = self._processor.normalize(text, with_offsets=True)
        except (AttributeError, TypeError):
            raise TokenizerError(
                "This sentencepiece cannot say where its normalised characters come from.",
                next_step="pip install 'sentencepiece>=0.2.0'",
            ) from None
        return str(normalized), [int(offset) for offset in offsets]

    def decode(self, pieces: Sequence[str]) -> str:
        return "".join(pieces).replace("\u2581", " ").lstrip(" ")


class HuggingFace:
    """A Hugging Face ``tokenizer.json``, read by the ``tokenizers`` library."""

    def __init__(self, path: PathLike) -> None:
        try:
            from tokenizers import Tokenizer as Reader
        except ImportError:
            raise TokenizerError(
                "A Hugging Face tokenizer.json needs the library `tokenizers`.",
                where=path,
                next_step="pip install 'fairseq-interference[hf]'",
            ) from None
        try:
            reader: Any = Reader  # typed in some releases of the library
            self._tokenizer: Any = reader.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError("This is not a tokenizer.json.", where=path, value=str(error)[:200]) from None

    def pieces(self, text: str) -> list[str]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).tokens)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Where each of :meth:`pieces` came from: (first character, behind the last) of ``text``."""
        return [(int(a), int(b)) for a, b in self._tokenizer.encode(text, add_special_tokens=False).offsets]

    def decode(self, pieces: Sequence[str]) -> str:
        ids = [self._tokenizer.token_to_id(piece) for piece in pieces]
        return str(self._tokenizer.decode([number for number in ids if number is not None]))


#: kind -> (key of its file in ``files``, class that reads it)
KINDS: dict[str, tuple[str, Callable[[PathLike], Backend]]] = {
    "subword-nmt": ("codes", SubwordNmt),
    "sentencepiece": ("model", SentencePiece),
    "huggingface": ("tokenizer", HuggingFace),
}


class Tokenizer:
    """Text to the pieces of the dictionary, exactly as the training text was encoded.

    Args:
        folder: where ``tokenizer.json`` and the library's file lie.
        options: content of ``tokenizer.json``.

    Attributes:
        kind: ``subword-nmt``, ``sentencepiece`` or ``huggingface``.
        normalization: ``nfc`` or ``none``.
        pretokenizer: ``moses`` or ``none``.
        digest: hexadecimal sha256 of everything that the result depends on.
    """

    def __init__(self, folder: PathLike, options: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.options = dict(options)
        where = self.folder / FILE_NAME
        if self.options.get("format") != FORMAT or self.options.get("kind") not in KINDS:
            raise TokenizerError(
                "This tokenizer was written by another release, or is not one of ours.",
                where=where,
                value=f"format {self.options.get('format')}, kind {self.options.get('kind')}",
                allowed=f"format {FORMAT}, kind {', '.join(KINDS)}",
            )
        missing = [key for key in ("normalization", "pretokenizer", "files") if key not in self.options]
        if missing or KINDS[self.options["kind"]][0] not in self.options["files"]:
            raise TokenizerError("Keys are missing.", where=where, value=", ".join(missing) or "files")
        self.kind: str = self.options["kind"]
        self.normalization = check_normalization(self.options["normalization"], where)
        self.pretokenizer = check_pretokenizer(self.options["pretokenizer"], where)
        key, reader = KINDS[self.kind]
        file = self.folder / self.options["files"][key]
        if not file.is_file():
            raise TokenizerError("A file of the tokenizer is missing.", where=file)
        self.backend = reader(file)
        self.digest = self._digest(file)

    def _digest(self, file: Path) -> str:
        options = {name: self.options[name] for name in ("format", "kind", "normalization", "pretokenizer")}
        digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
        digest.update(file.read_bytes())
        return digest.hexdigest()

    @classmethod
    def load(cls, folder: PathLike) -> Tokenizer:
        """Read the tokenizer in ``folder``.

        Raises:
            TokenizerError: not there, incomplete, or unreadable.
        """
        path = Path(folder) / FILE_NAME
        try:
            options = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TokenizerError(
                "There is no tokenizer here.", where=path, allowed="a folder that prepare.sh wrote"
            ) from None
        except ValueError as error:
            raise TokenizerError("tokenizer.json cannot be read.", where=path, value=str(error)) from None
        if not isinstance(options, dict):
            raise TokenizerError("tokenizer.json must hold one object.", where=path)
        return cls(folder, options)

    @classmethod
    def create(
        cls, folder: PathLike, kind: str, file: PathLike, *, normalization: str, pretokenizer: str, **notes: Any
    ) -> Tokenizer:
        """Write a tokenizer folder around a library's ``file``; ``notes`` are kept in ``tokenizer.json``."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        key, _ = KINDS[kind]
        name = {"codes": "bpe.codes", "model": "sentencepiece.model", "tokenizer": "huggingface.json"}[key]
        if Path(file).resolve() != (folder / name).resolve():
            shutil.copyfile(file, folder / name)
        options = {
            **notes,
            "format": FORMAT,
            "kind": kind,
            "normalization": normalization,
            "pretokenizer": pretokenizer,
            "special_symbols": list(SPECIAL_SYMBOLS),
            "escape": False,
            "files": {key: name},
        }
        write_json(folder / FILE_NAME, options)
        return cls(folder, options)

    def clean(self, text: str) -> str:
        """The line as preparation would have stored it: cleaned, normalised, special symbols defused."""
        return clean_line(text, self.normalization)

    def pretokenize(self, text: str, lang: str) -> str:
        """Tokens of a clean line, separated by blanks."""
        return pretokenize(text, lang, self.pretokenizer)

    def encode_line(self, text: str, lang: str, special: bool = False) -> list[str]:
        """Pieces of one line of raw text.

        Args:
            text: raw text; LF inside counts as a blank.
            lang: language code.
            special: keep literal ``<mask>`` and other special symbols whole, as the symbols of the dictionary.
                By default they are text and defused, as in preparation.
        """
        if not special:
            return self.backend.pieces(self.pretokenize(self.clean(text), lang))
        found: list[str] = []
        for part, is_special in split_special(text):
            found.extend([part] if is_special else self.encode_line(part, lang))
        return found

    def encode_words(self, words: Sequence[str], lang: str) -> list[list[str]]:
        """Pieces of each of the given words; ``[]`` for a word of which cleaning leaves nothing.

        The words are taken as they are: no pre-tokeniser splits them, whatever the language.
        """
        del lang  # words do not depend on it; kept so that callers need not know
        pieces = self.backend.pieces
        cleaned = (self.clean(word) for word in words)
        return [pieces(word) if word else [] for word in cleaned]

    def decode(self, pieces: Sequence[str]) -> str:
        """Text of the pieces: the clean line for sentencepiece, its tokens joined by blanks for subword-nmt."""
        return self.backend.decode(pieces)
