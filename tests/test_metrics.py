"""Scores of entities against seqeval, in both of its modes."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_interference.data.readers import ner
from fairseq_interference.errors import ScoringError, UsageError
from fairseq_interference.evaluation.metrics import (
    SCHEMES,
    conlleval_entities,
    iob2_entities,
    ner_scores,
    token_accuracy,
)

FOLDER = Path(os.environ.get("INTERFERENCE_REAL_DATA", "missing")) / "ner"
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*")) or ["no real data"]
LABELS = ["O", "B-A", "I-A", "B-B-C", "I-B-C", "B-B", "I-B"]
Labels = list[list[str]]


def seqeval_scores(gold: Labels, predicted: Labels, scheme: str) -> dict[str, Any]:
    """What seqeval says, its warnings about empty denominators left out."""
    from seqeval.metrics import accuracy_score, classification_report
    from seqeval.scheme import IOB2

    mode: dict[str, Any] = {"mode": "strict", "scheme": IOB2} if scheme == "iob2" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entities = any(SCHEMES[scheme](labels) for labels in [*gold, *predicted])
        report = classification_report(gold, predicted, output_dict=True, **mode) if entities else {}
        micro = report.get("micro avg", {"f1-score": 0.0, "precision": 0.0, "recall": 0.0})
        return {
            "f1": micro["f1-score"],
            "precision": micro["precision"],
            "recall": micro["recall"],
            "accuracy": accuracy_score(gold, predicted),
            "per_type": {
                kind: {"precision": row["precision"], "recall": row["recall"], "f1": row["f1-score"]}
                for kind, row in report.items()
                if not kind.endswith(" avg")
            },
        }


def assert_as_seqeval(gold: Labels, predicted: Labels) -> None:
    for scheme in SCHEMES:
        ours, theirs = ner_scores(gold, predicted, scheme), seqeval_scores(gold, predicted, scheme)
        for name in ("f1", "precision", "recall", "accuracy"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-12), (scheme, name)
        assert list(ours["per_type"]) == list(theirs["per_type"])
        for kind, row in theirs["per_type"].items():
            assert ours["per_type"][kind] == pytest.approx(row, abs=1e-12), (scheme, kind)


def test_oracle_agrees_with_its_own_short_forms() -> None:
    from seqeval.metrics import f1_score, precision_score, recall_score
    from seqeval.scheme import IOB2

    gold = [["B-A", "I-A", "O", "I-B"], ["B-B", "O"]]
    predicted = [["B-A", "I-A", "I-B", "I-B"], ["I-B", "B-A"]]
    for scheme, mode in (("iob2", {"mode": "strict", "scheme": IOB2}), ("conlleval", {})):
        ours = ner_scores(gold, predicted, scheme)
        assert ours["f1"] == pytest.approx(f1_score(gold, predicted, **mode))
        assert ours["precision"] == pytest.approx(precision_score(gold, predicted, **mode))
        assert ours["recall"] == pytest.approx(recall_score(gold, predicted, **mode))


def perturbed(gold: Labels, share: float, labels: Sequence[str], seed: int) -> Labels:
    draw = random.Random(seed)
    return [[draw.choice(labels) if draw.random() < share else label for label in sentence] for sentence in gold]


words = st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS))
pairs = st.lists(st.lists(words, min_size=1, max_size=9), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(pairs)
def test_equal_to_seqeval_on_random_labels(sentences: list[list[tuple[str, str]]]) -> None:
    assert_as_seqeval([[g for g, _ in s] for s in sentences], [[p for _, p in s] for s in sentences])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*LABELS, "E-A", "S-A", "E-B", "S-B"]), max_size=12))
def test_entities_equal_to_seqeval(labels: list[str]) -> None:
    from seqeval.metrics.sequence_labeling import get_entities
    from seqeval.scheme import IOB2, Tokens

    assert conlleval_entities(labels) == [tuple(entity) for entity in get_entities(labels)]
    if not any(label[0] in "ES" for label in labels):
        strict = [(e.tag, e.start, e.end - 1) for e in Tokens(labels, IOB2).entities]
        assert iob2_entities(labels) == strict


@pytest.mark.real_data
@pytest.mark.parametrize("name", FILES)
def test_equal_to_seqeval_on_real_files(real_data: Path, name: str) -> None:
    gold = ner.read(FOLDER / name).labels
    known = sorted({label for sentence in gold for label in sentence})
    for share, seed in ((1.0, 1), (0.03, 2)):
        assert_as_seqeval(gold, perturbed(gold, share, known, seed))


def test_i_without_b_depends_on_the_scheme() -> None:
    # T5
    gold, predicted = [["B-A", "I-A"]], [["I-A", "I-A"]]
    strict, lenient = ner_scores(gold, predicted, "iob2"), ner_scores(gold, predicted, "conlleval")
    assert (strict["f1"], strict["scheme"]) == (0.0, "iob2")
    assert (lenient["f1"], lenient["scheme"]) == (1.0, "conlleval")
    assert strict["accuracy"] == lenient["accuracy"] == 0.5


def test_lengths_that_differ_name_the_sentence() -> None:
    # T7
    with pytest.raises(ScoringError, match="sentence 2") as error:
        ner_scores([["O"], ["B-A", "O"]], [["O"], ["B-A"]])
    assert "2 gold labels (B-A O), 1 predicted (B-A)" in str(error.value)
    with pytest.raises(ScoringError, match="sentence 2"):
        ner_scores([["O"], ["O"]], [["O"]])
    with pytest.raises(ScoringError):
        token_accuracy([["O"]], [["O"], ["O"]])


@pytest.mark.parametrize(
    ("gold", "predicted", "counts"),
    [
        ([["O", "O"]], [["O", "O"]], (0, 0, 0)),
        ([["O", "O"]], [["B-A", "O"]], (0, 1, 0)),
        ([["B-A", "O"]], [["O", "O"]], (1, 0, 0)),
        ([[]], [[]], (0, 0, 0)),
        ([], [], (0, 0, 0)),
    ],
)
def test_no_entities(gold: Labels, predicted: Labels, counts: tuple[int, int, int]) -> None:
    for scheme in SCHEMES:
        scores = ner_scores(gold, predicted, scheme)
        assert (scores["f1"], scores["precision"], scores["recall"]) == (0.0, 0.0, 0.0)
        assert tuple(scores["counts"][name] for name in ("gold", "predicted", "correct")) == counts
        assert scores["n"] == len(gold)


def test_unknown_scheme_and_label() -> None:
    with pytest.raises(UsageError, match="conlleval"):
        ner_scores([["O"]], [["O"]], "iobes")
    with pytest.raises(ScoringError, match="sentence 2"):
        ner_scores([["O"], ["O"]], [["O"], ["S-A"]], "iob2")
    with pytest.raises(ScoringError, match="IOB2"):
        ner_scores([["O"]], [["NOUN"]], "iob2")


def test_time_is_linear() -> None:
    """One long sentence costs about what as many words in short ones cost."""
    import time

    draw = random.Random(1)
    words = [draw.choice(LABELS) for _ in range(120_000)]
    short = [words[i : i + 20] for i in range(0, len(words), 20)]
    seconds = []
    for gold in ([words], short):
        begin = time.perf_counter()
        ner_scores(gold, gold[::-1] if len(gold) > 1 else gold)
        seconds.append(time.perf_counter() - begin)
    assert max(seconds) < 5 + 10 * min(seconds)
