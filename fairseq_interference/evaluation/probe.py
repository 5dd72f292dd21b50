"""A fixed probe batch: the same sentences for every model that is compared, and what a model makes of them."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
import torch
from torch import Tensor

from fairseq_interference.data.dictionary import digest, symbols_of_file
from fairseq_interference.data.folders import open_folders
from fairseq_interference.data.token_file import TokenFile, exists
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import DataError, DictionaryError, UsageError
from fairseq_interference.evaluation.hidden import hidden_states, layers_of, longest_row, route, tokenizer_of
from fairseq_interference.evaluation.mlm import split_file, symbols_of
from fairseq_interference.languages import check_code

if TYPE_CHECKING:
    from fairseq_interference.loading import Loaded

MEAN, TOKENS, FIRST = POOLS = ("mean", "tokens", "first")
Sentence = Union[str, list[int]]  # raw text, or the ids of binarised text without </s>
Pieces = Union[list[str], list[int]]


@dataclass(frozen=True)
class Source:
    """Where the sentences of a language come from.

    Attributes:
        path: a text file, or the prefix of a token file.
        dictionary: the one that binarised it; None for text.
    """

    path: Path
    dictionary: Optional[Path] = None

    def shuffled(self, rng: np.random.Generator) -> Iterator[Sentence]:
        """All sentences once, in random order."""
        if self.dictionary is None:
            lines = _lines(self.path)
            yield from (lines[int(number)] for number in rng.permutation(len(lines)))
            return
        file = TokenFile(self.path)
        ends = np.cumsum(file.sizes, dtype=np.int64)
        for number in rng.permutation(len(file)):
            yield file.tokens[ends[number] - file.sizes[number] : ends[number] - 1].astype(np.int64).tolist()


def _lines(path: Path) -> list[str]:
    try:
        return [line.rstrip("\r") for line in path.read_bytes().decode("utf-8").split("\n")]
    except UnicodeDecodeError as error:
        raise DataError("This text is not UTF-8.", where=path, value=str(error)) from None


def from_texts(given: Sequence[str]) -> dict[str, Source]:
    """``lang:FILE`` of each language.

    Raises:
        UsageError: not of this form, or a language twice. DataError: no such file.
    """
    found: dict[str, Source] = {}
    for text in given:
        lang, _, path = text.partition(":")
        if not path or check_code(lang, "--text") in found:
            raise UsageError("Each language has one file.", where="--text", value=text, allowed="lang:FILE …")
        if not Path(path).is_file():
            raise DataError("There is no such file.", where="--text", value=path)
        found[lang] = Source(Path(path))
    return found


def from_data(folder: str, split: str) -> dict[str, Source]:
    """Languages of a data folder that have the split.

    Raises:
        DataError: none has it.
    """
    folders = open_folders(folder, "", check_languages=False)
    prefixes = {lang: split_file(folders.paths[0], lang, split).with_suffix("") for lang in folders.languages}
    found = {lang: Source(path, folders.dictionary) for lang, path in prefixes.items() if exists(path)}
    if not found:
        what = "No language of this data folder has such a split."
        raise DataError(what, where=folder, value=split, allowed="train, valid or test, as prepared")
    return found


class Reader:
    """How a model reads sentences.

    Args:
        loaded: the model; put into float32.
        pool: ``mean`` of a sentence's pieces, ``first`` (``<s>``), or ``tokens``: each piece is a sample.
    """

    def __init__(self, loaded: Loaded, pool: str) -> None:
        self.loaded, self.pool = loaded, pool
        self.layers = layers_of(loaded)
        self.longest = longest_row(loaded) - 2
        self._tokenizer: Optional[Tokenizer] = None
        loaded.model.float()

    def check_dictionary(self, source: Source) -> None:
        """Binarised text is read with its own dictionary only.

        Raises:
            DictionaryError: the model has another one.
        """
        if source.dictionary is None:
            return
        theirs = [symbol for symbol in symbols_of_file(source.dictionary) if symbol != "<mask>"]
        if digest(symbols_of(self.loaded.dictionary)) != digest(theirs):
            raise DictionaryError(
                "This data was binarised with another dictionary than the checkpoint's.",
                where=self.loaded.path,
                value=str(source.dictionary),
                next_step="give the text itself: --text lang:FILE",
            )

    def pieces(self, sentence: Sentence, lang: str) -> Pieces:
        """Pieces of a text by the model's tokenizer; binarised text as it is."""
        if not isinstance(sentence, str):
            return sentence
        self._tokenizer = self._tokenizer or tokenizer_of(self.loaded)
        return self._tokenizer.encode_line(sentence, lang)

    def features(self, sentences: Sequence[Pieces], lang: str) -> Tensor:
        """(K + 1, n, C): n samples in the embeddings and in each of K layers."""
        index = self.loaded.dictionary.index
        ids = [[piece if isinstance(piece, int) else index(piece) for piece in pieces] for pieces in sentences]
        lang_id = route(self.loaded, lang, where="--langs").lang_id
        states = hidden_states(
            self.loaded, ids, lang_id, range(self.layers + 1), mean=self.pool == MEAN, first=self.pool == FIRST
        )
        return torch.cat(states, dim=1) if self.pool == TOKENS else torch.stack(states, dim=1)


def draw(source: Source, lang: str, reader: Reader, most: int, seed: int) -> list[Sentence]:
    """Up to ``most`` sentences with text that ``reader`` takes in one row; the same for the same seed.

    Raises:
        DataError: none.
    """
    reader.check_dictionary(source)
    rng, found = np.random.default_rng([seed, zlib.crc32(lang.encode())]), list[Sentence]()
    for sentence in source.shuffled(rng):
        if sentence and 0 < len(reader.pieces(sentence, lang)) <= reader.longest:
            found.append(sentence)
        if len(found) == most:
            break
    if not found:
        what = "There is no sentence that the model could read in one row."
        raise DataError(what, where=source.path, value=lang, allowed=f"1 to {reader.longest} pieces")
    return found


def fingerprint(sentences: Any) -> str:
    """Digest of drawn sentences."""
    text = json.dumps(sentences, ensure_ascii=False, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
