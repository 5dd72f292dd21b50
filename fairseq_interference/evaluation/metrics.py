"""Scores from labels. No host, no tensors, no vectors: one pass over the labels.

Two schemes of reading entities from labels, since files of the field hold `I-` without `B-`:

* ``iob2``: strict. An entity is `B-X` and the `I-X` that follow it; an `I-X` that follows neither is no entity.
  Equal to seqeval with ``mode="strict", scheme=IOB2``.
* ``conlleval``: as the script of the CoNLL shared tasks. An `I-X` after another type, or after `O`, starts an entity.
  Equal to seqeval's default mode.

Parts of speech and labels of sentence pairs are scored one by one; answers to questions are in metrics_qa.py.
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
#: the universal part-of-speech tags of UD v2
UPOS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM"),
    *("PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"),
)
UNTAGGED = "_"


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


def pos_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Accuracy over words, precision, recall and F1 of each tag, and XTREME's number under its own name.

    A word whose gold tag is ``_`` is not scored and counted as ``untagged``. ``pos_f1_xtreme`` is what XTREME reports
    for udpos: F1 of seqeval's default mode, which takes the first letter of a tag for its prefix (methods.md 6.3; here
    that of seqeval 1.x). It is no accuracy and, unlike all else, depends on the order of the sentences.

    Args:
        gold: tags of each sentence, of ``UPOS`` or ``_``.
        predicted: as many tags of ``UPOS`` for as many sentences.

    Returns:
        ``accuracy``, ``macro_f1`` (mean over the tags of the gold side) and ``pos_f1_xtreme`` between 0 and 1,
        ``per_tag`` (tag -> precision, recall, f1), ``counts`` (tokens, correct, untagged; gold, predicted and correct
        per tag) and ``n``, the number of sentences.

    Raises:
        ScoringError: lengths differ, a tag that is none of the 17, or no tag to score; names sentence and word.
    """
    check_lengths(gold, predicted)
    kept: list[list[tuple[str, str]]] = []
    for number, (wanted, given) in enumerate(zip(gold, predicted), 1):
        _check_tags(wanted, given, number)
        pairs = [pair for pair in zip(wanted, given) if pair[0] != UNTAGGED]
        if pairs:  # a sentence without any tag is none, as in XTREME
            kept.append(pairs)
    if not kept:
        raise ScoringError("The gold side has no tags.", value=f"{len(gold)} sentences, every word {UNTAGGED}")
    single = _single_label_scores([pair for pairs in kept for pair in pairs], UPOS)
    return {
        "accuracy": single["accuracy"],
        "macro_f1": single["macro_f1"],
        "pos_f1_xtreme": _pos_f1_xtreme(kept),
        "per_tag": single["per_label"],
        "counts": {
            "tokens": single["total"],
            "correct": single["correct"],
            "untagged": sum(map(len, gold)) - single["total"],
            "per_tag": single["counts"],
        },
        "n": len(gold),
    }


def _check_tags(gold: Sequence[str], predicted: Sequence[str], sentence: int) -> None:
    for role, tags, allowed in (("gold", gold, (*UPOS, UNTAGGED)), ("predicted", predicted, UPOS)):
        for word, tag in enumerate(tags, 1):
            if tag not in allowed and not (role == "predicted" and tag == gold[word - 1] == UNTAGGED):
                raise ScoringError(
                    f"This {role} tag is no universal part of speech.",
                    where=f"sentence {sentence}, word {word}",
                    value=tag,
                    allowed=" ".join(allowed),
                    next_step=f"map it, for example --tag-map {tag}=X",
                )


def _pos_f1_xtreme(sentences: Sequence[Sequence[tuple[str, str]]]) -> float:
    wanted = set(xtreme_spans([[tag for tag, _ in sentence] for sentence in sentences]))
    given = set(xtreme_spans([[tag for _, tag in sentence] for sentence in sentences]))
    return _scores(len(wanted), len(given), len(wanted & given))["f1"]


def xtreme_spans(sentences: Sequence[Sequence[str]]) -> list[Entity]:
    """Spans that seqeval 1.x, default mode, sees in plain tags.

    A tag is read as prefix (first letter) and type (the rest, ``_`` if there is none), all sentences in one row with an
    ``O`` after each. Runs of one type are one span; the prefix ``S`` opens a span, and the word after it ends one. So
    CCONJ and SCONJ are one type, and so are ``X`` and the ends of sentences: a span may then begin where an earlier one
    did. Its rules for the prefixes ``B E I`` change nothing for these tags: INTJ alone has one, and its type.

    Args:
        sentences: tags of ``UPOS``.

    Returns:
        (type, first, last) in order; places count words and ends of sentences from 0.
    """
    row = [tag for sentence in sentences for tag in (*sentence, "O")]
    found: list[Entity] = []
    before, before_type, first = "O", "", 0
    for place, tag in enumerate([*row, "O"]):
        prefix, kind = tag[0], tag[1:] or "_"
        if before == "S" or (before != "O" and kind != before_type):
            found.append((before_type, first, place - 1))
        if prefix == "S" or (prefix != "O" and kind != before_type):
            first = place
        before, before_type = prefix, kind
    return found


def nli_scores(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """Accuracy of single labels; precision, recall and F1 of each; the confusion matrix.

    Args:
        gold: (N,) labels.
        predicted: (N,) labels.
        labels: all labels, in the order of the result.

    Returns:
        ``accuracy``, ``macro_f1`` (mean over the labels of the gold side) between 0 and 1, ``per_label`` (label ->
        precision, recall, f1), ``counts`` (pairs, correct, ``confusion``: gold label -> predicted label -> pairs; gold,
        predicted, correct per label) and ``n``, the number of pairs.

    Raises:
        ScoringError: lengths differ, nothing to score, or a label outside ``labels``; names the pair, from 1.
    """
    if len(gold) != len(predicted) or not gold:
        what = "Gold and predictions differ in the number of pairs." if gold or predicted else "There are no pairs."
        raise ScoringError(what, value=f"{len(gold)} gold, {len(predicted)} predicted")
    known = set(labels)
    for role, given in (("gold", gold), ("predicted", predicted)):
        for number, label in enumerate(given, 1):
            if label not in known:
                what = f"This {role} label is none of the labels."
                raise ScoringError(what, where=f"pair {number}", value=label, allowed=", ".join(labels))
    pairs = Counter(zip(gold, predicted))
    single = _single_label_scores(list(zip(gold, predicted)), labels, all_labels=True)
    return {
        "accuracy": single["accuracy"],
        "macro_f1": single["macro_f1"],
        "per_label": single["per_label"],
        "counts": {
            "pairs": single["total"],
            "correct": single["correct"],
            "confusion": {row: {column: pairs[row, column] for column in labels} for row in labels},
            "per_label": single["counts"],
        },
        "n": len(gold),
    }


def _single_label_scores(
    pairs: Sequence[tuple[str, str]], labels: Sequence[str], all_labels: bool = False
) -> dict[str, Any]:
    """Scores where every item has one label: of ``labels`` that occur, or of all."""
    wanted = Counter(gold for gold, _ in pairs)
    given = Counter(predicted for _, predicted in pairs)
    correct = Counter(gold for gold, predicted in pairs if gold == predicted)
    shown = [label for label in labels if all_labels or wanted[label] or given[label]]
    per_label = {label: _scores(wanted[label], given[label], correct[label]) for label in shown}
    right = sum(correct.values())
    return {
        "accuracy": right / len(pairs),
        "macro_f1": sum(per_label[label]["f1"] for label in wanted) / len(wanted),
        "per_label": per_label,
        "correct": right,
        "total": len(pairs),
        "counts": {
            label: {"gold": wanted[label], "predicted": given[label], "correct": correct[label]} for label in shown
        },
    }
