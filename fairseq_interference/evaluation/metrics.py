"""Scores from labels. No host, no tensors, no vectors: one pass over the labels.

Two schemes of reading entities from labels, since files of the field hold `I-` without `B-`:

* ``iob2``: strict. An entity is `B-X` and the `I-X` that follow it; an `I-X` that follows neither is no entity.
  Equal to seqeval with ``mode="strict", scheme=IOB2``.
* ``conlleval``: as the script of the CoNLL shared tasks. An `I-X` after another type, or after `O`, starts an entity.
  Equal to seqeval's default mode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fairseq_interference.data.readers.entities import Entity, conlleval_entities, iob2_entities
from fairseq_interference.errors import ScoringError, UsageError

SCHEMES: dict[str, Callable[[Sequence[str]], list[Entity]]] = {
    "iob2": iob2_entities,
    "conlleval": conlleval_entities,
}


def check_scheme(scheme: str) -> str:
    """``scheme``, if it is one.

    Raises:
        UsageError: unknown scheme.
    """
    if scheme not in SCHEMES:
        raise UsageError("Unknown scheme.", where="--scheme", value=scheme, allowed=", ".join(SCHEMES))
    return scheme


def check_lengths(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    """Raise unless there is one prediction per gold label.

    Raises:
        ScoringError: names the sentence, from 1.
    """
    for number, (wanted, given) in enumerate(zip(gold, predicted), 1):
        if len(wanted) != len(given):
            raise ScoringError(
                "Gold and predictions differ in length.",
                where=f"sentence {number}",
                value=f"{len(wanted)} gold labels ({_start(wanted)}), {len(given)} predicted ({_start(given)})",
            )
    if len(gold) != len(predicted):
        raise ScoringError(
            "Gold and predictions differ in the number of sentences.",
            where=f"sentence {min(len(gold), len(predicted)) + 1}",
            value=f"{len(gold)} gold, {len(predicted)} predicted",
        )


def _start(labels: Sequence[str]) -> str:
    return " ".join(labels[:8]) + (" …" if len(labels) > 8 else "")


def token_accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Share of labels that are equal; 0.0 if there are none.

    Raises:
        ScoringError: lengths differ.
    """
    check_lengths(gold, predicted)
    total = sum(map(len, gold))
    return sum(a == b for g, p in zip(gold, predicted) for a, b in zip(g, p)) / total if total else 0.0


def ner_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str = "iob2"
) -> dict[str, Any]:
    """Micro-averaged precision, recall and F1 of entities, and of each type; token accuracy.

    A score whose denominator is 0 is 0.0, as in seqeval; ``counts`` tells a true 0 from an empty one.

    Args:
        gold: labels of each sentence.
        predicted: as many labels for as many sentences.
        scheme: ``iob2`` or ``conlleval``.

    Returns:
        ``precision recall f1 accuracy`` between 0 and 1, ``per_type`` (type -> precision, recall, f1), ``counts``
        (gold, predicted, correct entities; tokens; the same per type), ``scheme`` and ``n``, the number of sentences.

    Raises:
        UsageError: unknown scheme.
        ScoringError: lengths differ (names the sentence), or a label that the scheme does not know.
    """
    extract = SCHEMES[check_scheme(scheme)]
    accuracy = token_accuracy(gold, predicted)
    wanted: Counter[str] = Counter()
    given: Counter[str] = Counter()
    correct: Counter[str] = Counter()
    for number, (gold_labels, predicted_labels) in enumerate(zip(gold, predicted), 1):
        try:
            golden = extract(gold_labels)
            found = golden if predicted_labels == gold_labels else extract(predicted_labels)
        except ScoringError as error:
            error.where = f"sentence {number}"
            raise
        wanted.update(kind for kind, _, _ in golden)
        given.update(kind for kind, _, _ in found)
        if golden and found:
            correct.update(kind for kind, _, _ in set(golden).intersection(found))
    kinds = sorted(wanted | given)
    counts = {"gold": sum(wanted.values()), "predicted": sum(given.values()), "correct": sum(correct.values())}
    return {
        **_scores(**counts),
        "accuracy": accuracy,
        "per_type": {kind: _scores(wanted[kind], given[kind], correct[kind]) for kind in kinds},
        "counts": {
            **counts,
            "tokens": sum(map(len, gold)),
            "per_type": {
                kind: {"gold": wanted[kind], "predicted": given[kind], "correct": correct[kind]} for kind in kinds
            },
        },
        "scheme": scheme,
        "n": len(gold),
    }


def _scores(gold: int, predicted: int, correct: int) -> dict[str, float]:
    precision = correct / predicted if predicted else 0.0
    recall = correct / gold if gold else 0.0
    total = precision + recall
    return {"precision": precision, "recall": recall, "f1": 2 * precision * recall / total if total else 0.0}
