"""Score labels of sentence pairs (XNLI, PAWS-X, any label set) against the official file, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from fairseq_interference.data.readers import nli, tables
from fairseq_interference.data.readers.lines import PathLike, bare, is_blank, read_lines
from fairseq_interference.data.readers.pairs import NO_MAJORITY, SPELLINGS, Pair, PairFile, set_labels
from fairseq_interference.errors import ScoringError, UsageError
from fairseq_interference.evaluation.metrics import nli_scores
from fairseq_interference.evaluation.score_reading import Item, check_items, json_objects, text_of

METRICS = ("accuracy", "macro_f1", "per_label")
_LABEL_KEYS = ("label", "gold_label", "prediction")


def read_pairs(path: PathLike, labels: Sequence[str] = (), lang: Optional[str] = None) -> PairFile:
    """Pairs of any layout of readers/nli.py; or labels alone, one a line or one JSON object a line.

    Raises:
        DataError: another layout, a label outside the set, a row without one; names file:line.
    """
    lines = [(number, bare(line, number)) for number, line in enumerate(read_lines(path), 1)]
    there = [(number, text.strip()) for number, text in lines if not is_blank(text)]
    json = bool(there) and there[0][1].startswith("{")
    if not there or "\t" in there[0][1] or (json and any(f'"{name}"' in there[0][1] for name in tables.PREMISE)):
        return nli.read(path, lang=lang, labels=labels)
    if json:
        found = json_objects(path)
        there = [(n, text_of(record, _LABEL_KEYS, f"{path}:{n}", numbers=True)) for n, record in found]
    layout = "jsonl" if json else "labels"
    file = PairFile([Pair("", "", None, number, None, text) for number, text in there], str(path), layout)
    set_labels(file, labels)
    return file


def _items(file: PairFile) -> list[Item]:
    keys = [None if pair.source is None else (pair.premise, pair.hypothesis) for pair in file]
    return [Item(pair.label or NO_MAJORITY, pair.line, key) for pair, key in zip(file, keys)]


class NliFiles(NamedTuple):
    """Both files, and (gold label, predicted label) of every pair that is scored."""

    wanted: PairFile
    given: PairFile
    scored: list[tuple[str, str]]


def read_nli_files(
    gold: PathLike, predictions: PathLike, *, lang: Optional[str] = None, labels: Optional[Sequence[str]] = None
) -> NliFiles:
    """Both files, with the same pairs; arguments and errors as in :func:`score_nli_files`."""
    if labels is not None and (len(set(labels)) != len(labels) or not all(labels)):
        raise UsageError("Labels are named once each.", where="--labels", value=",".join(labels))
    wanted = read_pairs(gold, labels or (), lang)
    if not wanted.labelled:
        raise ScoringError("No pair has a gold label.", where=gold)
    given = read_pairs(predictions, wanted.label_set, lang)
    check_items(_items(wanted), _items(given), (str(gold), str(predictions)), "pair")
    both: list[tuple[str, str]] = []
    for golden, pair in zip(wanted, given):
        if golden.label is not None and pair.label is None:
            where, allowed = f"{predictions}:{pair.line}", ", ".join(wanted.label_set)
            raise ScoringError("This pair has no predicted label.", where=where, allowed=allowed)
        if golden.label is not None and pair.label is not None:
            both.append((golden.label, pair.label))
    return NliFiles(wanted, given, both)


def score_nli_files(
    gold: PathLike,
    predictions: PathLike,
    *,
    lang: Optional[str] = None,
    labels: Optional[Sequence[str]] = None,
) -> dict[str, Any]:
    """Score labels of sentence pairs.

    Args:
        gold: official file. Pairs with the label ``-`` are not scored and counted.
        predictions: one label for each pair of the gold file, those with ``-`` too; texts are compared if both have
            them.
        lang: language; which one to take from a file of several.
        labels: the label set in its order; None takes a known set, see ``readers.pairs.LABEL_SETS``.

    Returns:
        ``task lang n rules metrics counts``, see :func:`~fairseq_interference.evaluation.metrics.nli_scores`.

    Raises:
        DataError: a file that cannot be read, or a label outside the set.
        UsageError: ``labels`` holds a label twice.
        ScoringError: different pairs, nothing to score, a pair without a predicted label; names the lines.
    """
    wanted, given, both = read_nli_files(gold, predictions, lang=lang, labels=labels)
    known = wanted.label_set
    scores = nli_scores([golden for golden, _ in both], [label for _, label in both], known)
    return {
        "task": "nli",
        "lang": lang,
        "n": scores["n"],
        "rules": {
            "labels": list(known),
            "average": "over pairs; macro_f1 over the labels of the gold file",
            "no_majority": "left out",
            "layouts": {"gold": wanted.format, "predictions": given.format},
            "respelled": {"gold": _respelled(wanted), "predictions": _respelled(given)},
        },
        "metrics": {name: scores[name] for name in METRICS},
        "counts": {**scores["counts"], "no_majority": len(wanted) - len(both)},
    }


def _respelled(file: PairFile) -> int:
    return sum(file.repairs.get(name, 0) for name in SPELLINGS)
