"""Prepared benchmarks: ``<benchmark>/labels.txt`` and ``<benchmark>/<lang>/<split>.jsonl`` with words and labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from fairseq_interference.errors import DataError, ResumeError
from fairseq_interference.languages import CODE

LABELS_FILE = "labels.txt"
NO_LABEL = "_"  # a word that has no label, among words that have; never trained on, never scored
PathLike = Union[str, Path]


@dataclass(frozen=True)
class LabelledSentence:
    """One prepared sentence.

    Args:
        words: the words of the official file, in order.
        labels: one label per word (``NO_LABEL`` where a word has none), or None where the split has none.
        where: ``file:line`` it was read from.
    """

    words: list[str]
    labels: Optional[list[str]]
    where: str


def read_labels(path: PathLike) -> list[str]:
    """Labels of a fixed label file, one a line; the line number is the id.

    Raises:
        DataError: missing, empty or repeated lines.
    """
    if not Path(path).is_file():
        raise DataError(
            "There is no label file.",
            where=path,
            allowed="one label a line, as data_prep/benchmarks writes it",
            next_step="python -m data_prep.benchmarks.ner --help",
        )
    try:
        labels = Path(path).read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError("The label file is not UTF-8.", where=path, value=str(error)) from None
    if labels[-1] == "":
        labels.pop()
    for number, label in enumerate(labels, 1):
        if label == "" or label != label.strip() or label in labels[: number - 1]:
            raise DataError("A label is empty, padded or listed twice.", where=f"{path}:{number}", value=label)
    if not labels:
        raise DataError("The label file is empty.", where=path)
    return labels


def has_entities(labels: Sequence[str]) -> bool:
    """Whether the labels mark entities (``B-…``, ``I-…``, ``O``), so that F1 over spans means something."""
    return all(label == "O" or label[:2] in ("B-", "I-") for label in labels) and len(labels) > 1


def check_labels(labels: Sequence[str], save_dir: PathLike) -> None:
    """Raise :class:`ResumeError` if the run in ``save_dir`` has other labels."""
    path = Path(save_dir) / LABELS_FILE
    if (Path(save_dir) / "checkpoint_last.pt").is_file() and path.is_file() and read_labels(path) != list(labels):
        raise ResumeError(
            "The labels are not those of the run in this folder.",
            where=path,
            value=" ".join(labels),
            allowed=" ".join(read_labels(path)),
            next_step="give another --save-dir",
        )


def find_split(root: PathLike, lang: str, split: str) -> Path:
    """``ROOT/<lang>/<split>.jsonl``, which may be missing."""
    return Path(root) / lang / f"{split}.jsonl"


def languages_in(root: PathLike) -> list[str]:
    """Languages that have a folder with prepared splits."""
    folder = Path(root)
    return sorted(p.name for p in folder.iterdir() if CODE.fullmatch(p.name) and any(p.glob("*.jsonl")))


def read_sentences(path: PathLike, labels: Optional[Sequence[str]] = None) -> list[LabelledSentence]:
    """Read a prepared split.

    Args:
        path: a ``.jsonl`` file whose objects have ``words`` and, unless unlabelled, ``labels``.
        labels: the known labels; None does not check.

    Raises:
        DataError: broken JSON, missing keys, different numbers of words and labels, unknown label; names the line.
    """
    try:
        lines = Path(path).read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError("This prepared split is not UTF-8.", where=path, value=str(error)) from None
    known = None if labels is None else {*labels, *(() if has_entities(labels) else (NO_LABEL,))}
    sentences = [_sentence(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line]
    for sentence in sentences:
        unknown = None if known is None else next((x for x in sentence.labels or () if x not in known), None)
        if unknown is not None:
            raise DataError(
                "A label is not in the label file.", where=sentence.where, value=unknown, allowed=" ".join(labels or ())
            )
    return sentences


def _sentence(line: str, where: str) -> LabelledSentence:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError("This line is not JSON.", where=where, value=str(error)) from None
    if not isinstance(record, dict) or not _is_texts(record.get("words")):
        raise DataError("A prepared sentence needs a list `words`.", where=where, value=line[:80])
    labels = record.get("labels")
    if labels is not None and not _is_texts(labels):
        raise DataError("`labels` must be a list of texts.", where=where, value=line[:80])
    if labels is not None and len(labels) != len(record["words"]):
        count = f"{len(record['words'])} words, {len(labels)} labels"
        raise DataError("Words and labels differ in number.", where=where, value=count)
    return LabelledSentence(record["words"], labels, where)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
