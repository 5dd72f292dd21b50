"""Finds languages, dictionary and splits in data folders, and says what is missing, foreign or ignored."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from fairseq_interference.data import dictionary, token_file
from fairseq_interference.errors import DataError, DictionaryError, LanguageError
from fairseq_interference.languages import FILE_NAME, RESERVED, LanguageList, parse_codes
from fairseq_interference.stages import file_hash, input_of

TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class DataFolders:
    """Shards of a data folder (``DATA1:DATA2``); epoch e reads shard ``(e - 1) mod n``.

    Attributes:
        paths: the shards.
        languages: codes in the order of their ids.
        notes: what a user should know, in words.
    """

    paths: tuple[Path, ...]
    languages: LanguageList
    notes: tuple[str, ...] = field(default=())

    @property
    def dictionary(self) -> Path:
        return self.paths[0] / dictionary.FILE_NAME

    @property
    def tokenizer(self) -> Optional[Path]:
        folder = self.paths[0] / TOKENIZER
        return folder if folder.is_dir() else None

    def shard(self, epoch: int) -> Path:
        return self.paths[(epoch - 1) % len(self.paths)]

    def splits(self, split: str, epoch: int) -> dict[str, Path]:
        """Language -> prefix of its token file, for the languages that have this split in this epoch's shard."""
        folder = self.shard(epoch)
        return {code: folder / code / split for code in self.languages if token_file.exists(folder / code / split)}


def candidates(path: Path) -> list[str]:
    """Names of sub-folders that hold token files."""
    return sorted(child.name for child in path.iterdir() if child.is_dir() and any(child.glob("*.idx")))


def find_languages(paths: Sequence[Path], langs: str) -> LanguageList:
    """Languages of a run: ``--langs``, else ``languages.txt`` of the first shard.

    Raises:
        LanguageError: neither is there.
    """
    if langs:
        return LanguageList(parse_codes(langs))
    if (paths[0] / FILE_NAME).is_file():
        return LanguageList.read(paths[0] / FILE_NAME)
    raise LanguageError(
        "Which languages? The data folder has no languages.txt.",
        where="--langs",
        allowed=",".join(candidates(paths[0])),
        next_step="give --langs; its order decides the ids",
    )


def open_folders(data: str, langs: str, check_languages: bool = True) -> DataFolders:
    """Open ``DATA[:DATA2…]``.

    Args:
        check_languages: raise for a language that has no folder (training); inference needs the dictionary only.

    Raises:
        DataError: a folder is missing. LanguageError: a language has no folder. DictionaryError: copies differ.
    """
    paths = tuple(Path(part) for part in data.split(os.pathsep) if part)
    for path in paths:
        if not path.is_dir():
            raise DataError("There is no such data folder.", where="DATA", value=str(path))
    languages = find_languages(paths, langs)
    notes: list[str] = []
    if check_languages:
        _check_folders(paths, languages)
        for path in paths:
            _check_dictionaries(path, paths[0] / dictionary.FILE_NAME, languages)
            notes += _ignored(path, languages)
    return DataFolders(paths, languages, tuple(notes))


def _check_folders(paths: Sequence[Path], languages: LanguageList) -> None:
    for code in languages:
        if not any((path / code).is_dir() for path in paths):
            raise LanguageError(
                "The data folder has no such language.",
                where=f"--langs, {paths[0]}",
                value=code,
                allowed=",".join(sorted({name for path in paths for name in candidates(path)})),
            )


def _check_dictionaries(path: Path, reference: Path, languages: LanguageList) -> None:
    for copy in [path / dictionary.FILE_NAME, *(path / code / dictionary.FILE_NAME for code in languages)]:
        if copy.is_file() and copy != reference:
            dictionary.check_same(copy, reference)
    own = path / dictionary.FILE_NAME if (path / dictionary.FILE_NAME).is_file() else reference
    digest = file_hash(own) if own.is_file() else None  # a missing one is named when it is read
    for code in languages:  # prepare.sh keeps one copy, and notes for each language which one encoded it
        encoded = input_of(path / code, "dictionary")
        if digest is not None and encoded not in (None, digest):
            raise DictionaryError(
                "A language was binarised with another dictionary.",
                where=path / code,
                value=encoded,
                allowed=f"{digest} ({own})",
                next_step="prepare all languages together, or add this one with prepare.sh --append",
            )


def _ignored(path: Path, languages: LanguageList) -> list[str]:
    with_data = set(candidates(path))
    notes = []
    for child in sorted(child for child in path.iterdir() if child.is_dir()):
        if child.name in languages or child.name in RESERVED:
            continue
        why = "it is not in --langs" if child.name in with_data else "it holds no token files"
        notes.append(f"folder {child} is ignored: {why}")
    return notes
