"""What studies of checkpoints share: which checkpoints, in which order, and the text that they are probed with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from fairseq_interference.checkpoint_files import updates_of
from fairseq_interference.data import dictionary as dictionaries
from fairseq_interference.data.blocks import Blocks
from fairseq_interference.data.folders import open_folders
from fairseq_interference.data.token_file import TokenFile
from fairseq_interference.errors import CheckpointError, DataError, DictionaryError, UsageError
from fairseq_interference.evaluation.mlm import symbols_of
from fairseq_interference.languages import parse_codes
from fairseq_interference.tasks.xlm_masked_lm import XlmMaskedLmTask

PathLike = Union[str, Path]


class Place(NamedTuple):
    """A checkpoint.

    Attributes:
        label: folder and file, with as many folders as tell the checkpoints apart.
        update: updates that it has seen; None if it does not say.
    """

    path: Path
    label: str
    update: Optional[int]


def in_order(checkpoints: Sequence[PathLike]) -> tuple[list[Place], list[str]]:
    """Checkpoints by folder and update, and notes; of those of a folder with the same update the first.

    Raises:
        CheckpointError: no such file. UsageError: one is given twice.
    """
    paths = [Path(path) for path in checkpoints]
    for path in paths:
        if not path.is_file():
            raise CheckpointError("There is no such checkpoint.", where=path)
    labels = labels_of(paths)
    folders = list(dict.fromkeys(path.resolve().parent for path in paths))
    found = [Place(path, labels[path], updates_of(path)) for path in paths]
    found.sort(key=lambda place: (folders.index(place.path.resolve().parent), place.update or 0))
    kept: dict[Any, Place] = {}
    notes = []
    for place in found:
        first = kept.setdefault((place.path.resolve().parent, place.update), place)
        if first is not place:
            notes.append(f"{place.label} is left out: {first.label} is of the same update, {place.update}")
    return list(kept.values()), notes


def labels_of(paths: Sequence[Path]) -> dict[Path, str]:
    """A name for every checkpoint, see :class:`Place`."""
    parts = {path: path.resolve().parts for path in paths}
    for depth in range(2, max(map(len, parts.values())) + 1):
        found = {path: "/".join(some[-depth:]) for path, some in parts.items()}
        if len(set(found.values())) == len(paths):
            return found
    raise UsageError("A checkpoint is given twice.", where="--checkpoint", value=", ".join(map(str, paths)))


def check_model(loaded: Any) -> None:
    """Raise :class:`CheckpointError` unless a checkpoint is a masked language model of ours."""
    if not isinstance(loaded.task, XlmMaskedLmTask):
        raise CheckpointError(
            "Gradients are those of masked language modelling; this checkpoint was trained for something else.",
            where=loaded.path,
            value=type(loaded.task).__name__,
            allowed="checkpoints of the task xlm_masked_lm",
            next_step="give the pre-trained checkpoint; bring others in with fairseq-interference convert",
        )


def read_blocks(loaded: Any, data: str, split: str, langs: str = "") -> tuple[dict[str, Blocks], list[str]]:
    """Blocks of every language, cut as the checkpoint's training cut them, in the order of its ids; and notes.

    Args:
        loaded: what :func:`fairseq_interference.load` returns.
        data: prepared folder; of shards the first.
        langs: codes; all that the checkpoint knows and the folder has, if empty.

    Raises:
        LanguageError: a language that the checkpoint or the folder does not know. DataError: no such split.
        DictionaryError: another dictionary. UsageError: fewer than two languages.
    """
    known = loaded.languages
    wanted = parse_codes(langs) if langs else known.codes
    for code in wanted:
        known.id(code, "--langs")
    notes = []
    if not langs:
        first = open_folders(data, ",".join(known), check_languages=False).paths[0]
        wanted = [code for code in known if (first / code).is_dir()]
        if missing := [code for code in known if code not in wanted]:
            notes.append(f"no data for: {','.join(missing)}")
    wanted = sorted(wanted, key=known.id)
    if len(wanted) < 2:
        what = "Conflict is between languages: at least two are needed."
        raise UsageError(what, where="--langs, --data", value=",".join(wanted), allowed=",".join(known))
    folders = open_folders(data, ",".join(wanted))
    theirs = [symbol for symbol in dictionaries.symbols_of_file(folders.dictionary) if symbol != "<mask>"]
    if dictionaries.digest(symbols_of(loaded.dictionary)) != dictionaries.digest(theirs):
        what = "This data was binarised with another dictionary than the checkpoint's."
        raise DictionaryError(
            what, where=folders.dictionary, next_step="prepare it with --tokenizer-from that checkpoint"
        )
    prefixes = folders.splits(split, 1)
    if absent := [code for code in wanted if code not in prefixes]:
        raise DataError(f"There is no {split} data for these languages.", where=data, value=",".join(absent))
    task = loaded.cfg.task
    length = min(int(task.tokens_per_sample), int(loaded.model.max_positions())) - 1
    mode, eos = str(task.sample_break_mode), loaded.dictionary.eos()
    return {code: Blocks(TokenFile(prefixes[code]), mode, length, eos) for code in wanted}, notes


def sizes(blocks: Mapping[str, Blocks], sentences: int) -> tuple[dict[str, int], list[str]]:
    """Blocks of a batch of each language: what was asked for, or half of what there is; and notes.

    Raises:
        DataError: a language with fewer than two blocks.
    """
    found, notes = {}, []
    for code, part in blocks.items():
        found[code] = min(sentences, len(part) // 2)
        if len(part) < 2:
            raise DataError("Two batches need two blocks.", where=f"{part.file.prefix}.bin", value=len(part))
        if found[code] < sentences:
            notes.append(
                f"{code} has {len(part)} blocks: batches of {found[code]}, not {sentences}; every draw sees all of them"
            )
    return found, notes
