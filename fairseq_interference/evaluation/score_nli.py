"""Score labels of sentence pairs (XNLI, PAWS-X, any label set) against the official file, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from fairseq_interference.data.readers.lines import PathLike, bare, is_blank, read_lines, shown
from fairseq_interference.errors import DataError, ScoringError, UsageError
from fairseq_interference.evaluation.metrics import nli_scores
from fairseq_interference.evaluation.score_reading import Item, check_items, is_json, json_objects, text_of

METRICS = ("accuracy", "macro_f1", "per_label")
#: label sets that are known by their labels, in their order
LABEL_SETS = (("entailment", "neutral", "contradiction"), ("0", "1"))
SPELLINGS = {"contradictory": "contradiction"}
NO_MAJORITY = "-"  # the annotators did not agree; by the rule of SNLI and XNLI such pairs are left out
_LABEL_KEYS = ("label", "gold_label", "prediction")
_PAIRS = (("premise", "hypothesis"), ("sentence1", "sentence2"))


class NliFile(NamedTuple):
    """One item per pair: label, line, and the two texts where the file has them."""

    items: list[Item]
    layout: str
    respelled: int


def read_labels(path: PathLike) -> NliFile:
    """Labels of a file, with the two texts of each pair where it has them.

    Layouts, told by content: JSON Lines (``label``, with ``premise`` and ``hypothesis`` or ``sentence1`` and
    ``sentence2``), TSV with a header line that has ``label``, TSV premise, hypothesis, label (XNLI, PAWS-X), or one
    label a line. Rows are lines: a TSV field may begin with a quotation mark, and quotes around it (PAWS-X) are taken
    off only to compare the texts.

    Raises:
        DataError: a row of another layout, or without a label; names file:line.
    """
    layout, rows = ("jsonl", _from_json(path)) if is_json(path) else _from_columns(path)
    items = [item._replace(value=SPELLINGS.get(item.value, item.value)) for item in rows]
    if not items:
        raise DataError("The file has no pairs.", where=path)
    return NliFile(items, layout, sum(item.value != row.value for item, row in zip(items, rows)))


def _from_json(path: PathLike) -> list[Item]:
    items = []
    for number, record in json_objects(path):
        keys = next((pair for pair in _PAIRS if all(isinstance(record.get(name), str) for name in pair)), None)
        texts = None if keys is None else (record[keys[0]], record[keys[1]])
        items.append(Item(text_of(record, _LABEL_KEYS, f"{path}:{number}", numbers=True), number, texts))
    return items


def _from_columns(path: PathLike) -> tuple[str, list[Item]]:
    rows = [(number, bare(line, number)) for number, line in enumerate(read_lines(path), 1)]
    cells = [(number, text.split("\t")) for number, text in rows if not is_blank(text)]
    header = [name.strip().lower() for name in cells[0][1]] if cells else []
    label_at = next((place for place, name in enumerate(header) if len(header) > 1 and name in _LABEL_KEYS), None)
    if label_at is not None:
        texts_at = [place for place, name in enumerate(header) if name.startswith(_PAIRS[0] + _PAIRS[1])]
        layout, width, cells = "tsv with header", len(header), cells[1:]
    else:
        width = len(header)
        layout, label_at, texts_at = ("labels" if width == 1 else "tsv"), width - 1, [0, 1][: width - 1]
        if width not in (1, 3):
            raise DataError(
                "The file has no labels." if width == 2 else "This is no row of sentence pairs.",
                where=f"{path}:{cells[0][0] if cells else 1}",
                value=f"{width} columns",
                allowed="premise TAB hypothesis TAB label; a header that names label; or one label a line",
            )
    for number, row in cells:
        if len(row) != width or not row[label_at].strip():
            what = "This row has no label." if len(row) == width else f"This row has {len(row)} columns."
            raise DataError(what, where=f"{path}:{number}", value=shown(" | ".join(row)), allowed=f"{width} columns")
    pairs = [tuple(_unquoted(row[place]) for place in texts_at) if len(texts_at) == 2 else None for _, row in cells]
    return layout, [Item(row[label_at].strip(), number, key) for (number, row), key in zip(cells, pairs)]


def _unquoted(field: str) -> str:
    inner = field[1:-1].replace('""', "")
    if len(field) > 1 and field[0] == field[-1] == '"' and '"' not in inner:
        return field[1:-1].replace('""', '"')
    return field


def labels_of(gold: NliFile, path: PathLike, labels: Optional[Sequence[str]] = None) -> tuple[str, ...]:
    """The label set: ``labels``, or the known set that holds all labels of the gold file.

    Raises:
        UsageError: ``labels`` holds a label twice, or no known set fits.
    """
    if labels is not None:
        if len(set(labels)) != len(labels) or not all(labels):
            raise UsageError("Labels are named once each.", where="--labels", value=",".join(labels))
        return tuple(labels)
    there = {item.value for item in gold.items} - {NO_MAJORITY}
    fitting = next((known for known in LABEL_SETS if there.issubset(known)), None)
    if fitting is None:
        known = [set(labels) for labels in LABEL_SETS]
        strange = next(item for item in gold.items if item.value in there - max(known, key=lambda k: len(k & there)))
        raise UsageError(
            "These labels are no known set.",
            where=f"{path}:{strange.line}",
            value=", ".join(sorted(there)[:12]),
            allowed="; ".join(", ".join(labels) for labels in LABEL_SETS),
            next_step="name them in their order with --labels a,b,c",
        )
    return fitting


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
        lang: language, for the result alone.
        labels: the label set in its order; None takes a known set, see ``LABEL_SETS``.

    Returns:
        ``task lang n rules metrics counts``, see :func:`~fairseq_interference.evaluation.metrics.nli_scores`.

    Raises:
        DataError: a file that cannot be read.
        UsageError: a label set that is not known.
        ScoringError: an unknown label, different pairs, nothing to score; names the lines.
    """
    wanted, given = read_labels(gold), read_labels(predictions)
    check_items(wanted.items, given.items, (str(gold), str(predictions)), "pair")
    known = labels_of(wanted, gold, labels)
    scored = [number for number, item in enumerate(wanted.items) if item.value != NO_MAJORITY]
    if not scored:
        raise ScoringError("No pair has a gold label.", where=gold, value=NO_MAJORITY, allowed=", ".join(known))
    for file, path in ((wanted, gold), (given, predictions)):
        for number in scored:
            item = file.items[number]
            if item.value not in known:
                where = f"{path}:{item.line}"
                raise ScoringError("Unknown label.", where=where, value=item.value, allowed=", ".join(known))
    sides = [[file.items[number].value for number in scored] for file in (wanted, given)]
    scores = nli_scores(sides[0], sides[1], known)
    return {
        "task": "nli",
        "lang": lang,
        "n": scores["n"],
        "rules": {
            "labels": list(known),
            "average": "over pairs; macro_f1 over the labels of the gold file",
            "no_majority": "left out",
            "layouts": {"gold": wanted.layout, "predictions": given.layout},
            "respelled": {"gold": wanted.respelled, "predictions": given.respelled},
        },
        "metrics": {name: scores[name] for name in METRICS},
        "counts": {**scores["counts"], "no_majority": len(wanted.items) - len(scored)},
    }
