"""Scores of POS tags and NLI labels: seqeval for XTREME's number, loops over the definition for the rest."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_interference.errors import ScoringError
from fairseq_interference.evaluation.metrics import UPOS, nli_scores, pos_scores, xtreme_spans

FOLDER = Path(os.environ.get("INTERFERENCE_REAL_DATA", "missing")) / "pos"
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*.conllu")) or ["no real data"]
XNLI = ("entailment", "neutral", "contradiction")
# those whose first letter or rest makes seqeval see more than a tag
ODD = ["X", "SCONJ", "CCONJ", "INTJ", "SYM", "NOUN", "NUM", "ADP"]

pairs_of_tags = st.lists(
    st.lists(st.tuples(st.sampled_from(ODD), st.sampled_from(ODD)), min_size=1, max_size=8), min_size=1, max_size=6
)


def seqeval_f1(gold: list[list[str]], predicted: list[list[str]]) -> float:
    from seqeval.metrics import f1_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that no tag seems to be one of named entities
        return float(f1_score(gold, predicted))


def brute_force(gold: Sequence[str], predicted: Sequence[str], label: str) -> dict[str, float]:
    """Precision, recall and F1 of one label, from sets of places."""
    wanted = {place for place, tag in enumerate(gold) if tag == label}
    found = {place for place, tag in enumerate(predicted) if tag == label}
    both = wanted & found
    return {
        "precision": len(both) / len(found) if found else 0.0,
        "recall": len(both) / len(wanted) if wanted else 0.0,
        "f1": 2 * len(both) / (len(wanted) + len(found)),
    }


def split(pairs: list[list[tuple[str, str]]]) -> tuple[list[list[str]], list[list[str]]]:
    return [[a for a, _ in row] for row in pairs], [[b for _, b in row] for row in pairs]


# --- parts of speech ---------------------------------------------------------------------------------------------


def test_pos_by_hand() -> None:
    # T6: 3 of 4 words are right; XTREME's spans are 2 and 3, one of them shared
    gold, predicted = [["NOUN", "NOUN", "VERB", "VERB"]], [["NOUN", "NOUN", "VERB", "ADJ"]]
    scores = pos_scores(gold, predicted)
    assert scores["accuracy"] == 0.75
    assert scores["per_tag"] == {
        "ADJ": {"precision": 0.0, "recall": 0.0, "f1": 0.0},
        "NOUN": {"precision": 1.0, "recall": 1.0, "f1": 1.0},
        "VERB": {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3)},
    }
    assert scores["macro_f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert scores["pos_f1_xtreme"] == pytest.approx(2 * 1 / (2 + 3))
    assert scores["counts"]["per_tag"]["VERB"] == {"gold": 2, "predicted": 1, "correct": 1}
    assert "f1" not in scores


def test_words_without_gold_tag_are_counted_not_scored() -> None:
    # T8
    scores = pos_scores([["NOUN", "_"], ["_"]], [["NOUN", "VERB"], ["_"]])
    assert (scores["accuracy"], scores["n"]) == (1.0, 2)
    assert (scores["counts"]["untagged"], scores["counts"]["tokens"]) == (2, 1)
    assert list(scores["per_tag"]) == ["NOUN"]


@pytest.mark.parametrize(
    ("gold", "predicted", "said"),
    [
        ([["NOUN"], ["NOUN", "CONJ"]], [["NOUN"], ["NOUN", "NOUN"]], "sentence 2, word 2"),
        ([["NOUN"]], [["noun"]], "predicted tag"),
        ([["NOUN"]], [["_"]], "predicted tag"),
        ([["NOUN"], ["NOUN"]], [["NOUN"], []], "sentence 2"),
        ([["_"]], [["NOUN"]], "no tags"),
        ([], [], "no tags"),
    ],
)
def test_pos_refuses(gold: list[list[str]], predicted: list[list[str]], said: str) -> None:
    with pytest.raises(ScoringError, match=said):
        pos_scores(gold, predicted)


@given(pairs_of_tags)
def test_xtreme_number_is_seqevals(pairs: list[list[tuple[str, str]]]) -> None:
    gold, predicted = split(pairs)
    assert pos_scores(gold, predicted)["pos_f1_xtreme"] == pytest.approx(seqeval_f1(gold, predicted), abs=1e-12)


@given(st.lists(st.lists(st.sampled_from(UPOS), min_size=1, max_size=8), min_size=1, max_size=6))
def test_xtreme_spans_are_seqevals(sentences: list[list[str]]) -> None:
    from seqeval.metrics.sequence_labeling import get_entities

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert xtreme_spans(sentences) == [tuple(entity) for entity in get_entities(sentences)]


@given(pairs_of_tags)
def test_tags_by_brute_force(pairs: list[list[tuple[str, str]]]) -> None:
    gold, predicted = split(pairs)
    flat_gold, flat_predicted = [t for row in gold for t in row], [t for row in predicted for t in row]
    scores = pos_scores(gold, predicted)
    right = [a for a, b in zip(flat_gold, flat_predicted) if a == b]
    assert scores["accuracy"] == pytest.approx(len(right) / len(flat_gold))
    assert list(scores["per_tag"]) == sorted({*flat_gold, *flat_predicted}, key=UPOS.index)
    for tag, row in scores["per_tag"].items():
        assert row == pytest.approx(brute_force(flat_gold, flat_predicted, tag)), tag


@given(pairs_of_tags, st.randoms(use_true_random=False))
def test_order_of_sentences_does_not_matter(pairs: list[list[tuple[str, str]]], draw: random.Random) -> None:
    """But for XTREME's number, which reads all sentences as one row."""
    other = draw.sample(pairs, len(pairs))
    first, second = pos_scores(*split(pairs)), pos_scores(*split(other))
    for scores in (first, second):
        del scores["pos_f1_xtreme"]
    assert first["macro_f1"] == pytest.approx(second.pop("macro_f1"), abs=1e-12)
    assert {name: first[name] for name in second} == second


def test_xtreme_number_depends_on_the_order() -> None:
    gold, predicted = [["X", "X"], ["X", "NOUN"]], [["NOUN", "X"], ["X", "NOUN"]]
    here = pos_scores(gold, predicted)["pos_f1_xtreme"]
    there = pos_scores(gold[::-1], predicted[::-1])["pos_f1_xtreme"]
    assert here == pytest.approx(seqeval_f1(gold, predicted))
    assert there == pytest.approx(seqeval_f1(gold[::-1], predicted[::-1]))
    assert (here, there) == (pytest.approx(0.4), pytest.approx(0.8))


@pytest.mark.real_data
@pytest.mark.parametrize("name", FILES)
def test_xtreme_number_on_real_files(real_data: Path, name: str) -> None:
    import conllu

    sentences = conllu.parse((FOLDER / name).read_text(encoding="utf-8"))
    gold = [[word["upos"] for word in s if isinstance(word["id"], int) and word["upos"] in UPOS] for s in sentences]
    gold = [tags for tags in gold if tags]
    draw = random.Random(1)
    predicted = [[draw.choice(UPOS) if draw.random() < 0.1 else tag for tag in tags] for tags in gold]
    assert pos_scores(gold, gold)["accuracy"] == pos_scores(gold, gold)["pos_f1_xtreme"] == 1.0
    scores = pos_scores(gold, predicted)
    assert scores["pos_f1_xtreme"] == pytest.approx(seqeval_f1(gold, predicted), abs=1e-12)
    assert scores["pos_f1_xtreme"] < scores["accuracy"] < 1


# --- pairs -------------------------------------------------------------------------------------------------------


def test_nli_by_hand() -> None:
    gold = ["entailment", "entailment", "neutral", "contradiction"]
    predicted = ["entailment", "neutral", "neutral", "entailment"]
    scores = nli_scores(gold, predicted, XNLI)
    assert (scores["accuracy"], scores["n"]) == (0.5, 4)
    assert scores["per_label"]["entailment"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5}
    assert scores["per_label"]["neutral"] == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3)}
    assert scores["per_label"]["contradiction"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert scores["macro_f1"] == pytest.approx((0.5 + 2 / 3) / 3)
    assert scores["counts"]["confusion"] == {
        "entailment": {"entailment": 1, "neutral": 1, "contradiction": 0},
        "neutral": {"entailment": 0, "neutral": 1, "contradiction": 0},
        "contradiction": {"entailment": 1, "neutral": 0, "contradiction": 0},
    }


@given(
    st.lists(st.tuples(st.sampled_from(XNLI), st.sampled_from(XNLI)), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
)
def test_nli_by_brute_force_in_any_order(pairs: list[tuple[str, str]], draw: random.Random) -> None:
    gold, predicted = [a for a, _ in pairs], [b for _, b in pairs]
    scores = nli_scores(gold, predicted, XNLI)
    assert scores["accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    for label in {*gold, *predicted}:
        assert scores["per_label"][label] == pytest.approx(brute_force(gold, predicted, label))
    for a in XNLI:
        for b in XNLI:
            assert scores["counts"]["confusion"][a][b] == pairs.count((a, b))
    other = draw.sample(pairs, len(pairs))
    again = nli_scores([a for a, _ in other], [b for _, b in other], XNLI)
    assert again.pop("macro_f1") == pytest.approx(scores["macro_f1"])
    assert {name: scores[name] for name in again} == again


def test_labels_keep_the_order_that_is_given() -> None:
    # N3
    for labels in (XNLI, XNLI[::-1]):
        scores = nli_scores(["neutral"], ["neutral"], labels)
        assert list(scores["per_label"]) == list(scores["counts"]["confusion"]) == list(labels)
        assert scores["macro_f1"] == 1.0


@pytest.mark.parametrize(
    ("gold", "predicted", "said"),
    [
        (["neutral"], ["neutral", "neutral"], "number of pairs"),
        ([], [], "no pairs"),
        (["neutral", "-"], ["neutral", "neutral"], "pair 2"),
        (["neutral"], ["contradictory"], "predicted label"),
    ],
)
def test_nli_refuses(gold: list[str], predicted: list[str], said: str) -> None:
    with pytest.raises(ScoringError, match=said):
        nli_scores(gold, predicted, XNLI)
