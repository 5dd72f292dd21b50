"""What lies beside a checkpoint so that it can be used later: languages, dictionary, tokenizer."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

from fairseq_interference.data.dictionary import digest_of_file
from fairseq_interference.errors import CheckpointError, ResumeError
from fairseq_interference.languages import FILE_NAME as LANGUAGES
from fairseq_interference.languages import LanguageList
from fairseq_interference.stages import copy_over, file_hash, write_json

PathLike = Union[str, Path]
DICTIONARY, TOKENIZER, HASHES = "dict.txt", "tokenizer", "companions.json"
LAST = "checkpoint_last.pt"


@dataclass(frozen=True)
class Companions:
    """Files beside a checkpoint; ``tokenizer_dir`` is None if the data folder had none."""

    languages: LanguageList
    dict_path: Path
    tokenizer_dir: Optional[Path]


def check_companions(save_dir: PathLike, languages: LanguageList, dictionary_path: PathLike) -> None:
    """Before a run goes on in ``save_dir``: its languages may only be appended to, its dictionary may not change.

    Raises:
        ResumeError: the folder holds a checkpoint of another dictionary.
        LanguageError: languages were renumbered or removed.
    """
    save_dir = Path(save_dir)
    if not (save_dir / LAST).is_file() or not (save_dir / HASHES).is_file():
        return
    languages.check_extends(LanguageList.read(save_dir / LANGUAGES), where="--langs")
    if digest_of_file(save_dir / DICTIONARY) != digest_of_file(dictionary_path):
        raise ResumeError(
            "The dictionary is not the one that the checkpoint in this folder was trained with.",
            where=dictionary_path,
            value=f"--save-dir {save_dir}",
            next_step="give the data folder of that run, or another --save-dir",
        )


def write_companions(
    save_dir: PathLike, languages: LanguageList, dictionary_path: PathLike, tokenizer_dir: Optional[PathLike]
) -> list[str]:
    """Copy languages, dictionary and tokenizer into ``save_dir``; files that are there already stay if equal.

    Returns:
        What could not travel, in words.
    """
    save_dir = Path(save_dir)
    save_dir.mkdir(parents=True, exist_ok=True)
    languages.write(save_dir / LANGUAGES)
    copy_over(Path(dictionary_path), save_dir / DICTIONARY)
    hashes = {LANGUAGES: file_hash(save_dir / LANGUAGES), DICTIONARY: file_hash(save_dir / DICTIONARY)}
    missing = []
    if tokenizer_dir is not None and Path(tokenizer_dir).is_dir():
        copy_over(Path(tokenizer_dir), save_dir / TOKENIZER)
        hashes[TOKENIZER] = file_hash(save_dir / TOKENIZER)
    else:
        if (save_dir / TOKENIZER).is_dir():
            shutil.rmtree(save_dir / TOKENIZER)
        missing.append("no tokenizer/ in the data folder: new text must be encoded by hand, as the data was")
    write_json(save_dir / HASHES, {"format": 1, "hashes": hashes})
    return missing


def find_companions(checkpoint_path: PathLike) -> Companions:
    """Files beside a checkpoint.

    Raises:
        CheckpointError: missing or changed since training, with the remedy.
    """
    folder = Path(checkpoint_path).resolve().parent
    for name in (LANGUAGES, DICTIONARY):
        if not (folder / name).is_file():
            raise CheckpointError(
                "A file that belongs to the checkpoint is not beside it.",
                where=checkpoint_path,
                value=name,
                next_step=f"copy {name} from the training folder (or the data folder) to {folder}",
            )
    tokenizer = folder / TOKENIZER
    _check_hashes(folder)
    return Companions(
        LanguageList.read(folder / LANGUAGES), folder / DICTIONARY, tokenizer if tokenizer.is_dir() else None
    )


def _check_hashes(folder: Path) -> None:
    if not (folder / HASHES).is_file():
        return
    with open(folder / HASHES, encoding="utf-8") as stream:
        hashes: dict[str, str] = json.load(stream)["hashes"]
    for name, expected in hashes.items():
        if not (folder / name).exists():
            raise CheckpointError("A file that belongs to the checkpoint is gone.", where=folder / name)
        if file_hash(folder / name) != expected:
            raise CheckpointError(
                "A file beside the checkpoint is not the one it was trained with.",
                where=folder / name,
                next_step="copy it again from the training or data folder",
            )
