"""Scores of answers: cases made by hand from the rules of each scorer, and a second writing of them as oracle."""

from __future__ import annotations

import random
import re
import string
import unicodedata
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_interference.errors import ScoringError, UsageError
from fairseq_interference.evaluation.metrics_qa import (
    EXTENDED_LANGUAGES,
    MLQA_LANGUAGES,
    answer_scores,
    answer_tokens,
    qa_scores,
    token_f1,
)

# --- the rules, by hand ------------------------------------------------------------------------------------------

GOLDEN = [
    # rules, language, answer, its tokens
    ("squad", None, "The  Cat, sat on a mat.", "cat sat on mat"),
    ("squad", None, "theatre An-other", "theatre another"),  # articles are whole words; punctuation joins
    ("squad", None, "U.S.A.", "usa"),
    ("squad", None, "5€a€", "5€ €"),  # an article leaves a blank
    ("squad", None, "«Ça va»", "«ça va»"),  # ASCII punctuation only
    ("squad", None, "el gato", "el gato"),  # English articles only
    ("squad", "es", "el gato a", "el gato"),  # in every language
    ("squad", "zh", "北京大学。", "北京大学。"),  # no segmentation
    ("squad", "th", "กรุงเทพ", "กรุงเทพ"),
    ("squad", None, "$5+", "5"),
    ("squad", None, "a\u00a0b\u3000c\u2003d", "b c d"),  # every blank of Unicode
    ("mlqa", "en", "The “Cat”, sat…", "cat sat"),
    ("mlqa", "en", "$5 + €6", "5 €6"),  # ASCII punctuation and category P; the euro sign is neither
    ("mlqa", "en", "el gato 5€a€", "el gato 5€ €"),
    ("mlqa", "es", "¿El gato de las Unas?", "gato de"),
    ("mlqa", "es", "la unión, lo", "unión lo"),
    ("mlqa", "de", "Der Hund des eines Einens", "hund einens"),
    ("mlqa", "vi", "Những chiếc xe của tôi là", "xe tôi"),
    ("mlqa", "ar", "الكتاب", "كتاب"),
    ("mlqa", "ar", "قال محمد؟", "ق محمد"),  # the two letters go inside words too
    ("mlqa", "ar", "سالم", "س م"),
    ("mlqa", "hi", "यह है।", "यह है"),  # vowel signs stay (Q4), the danda is punctuation
    ("mlqa", "zh", "北京,大学 NASA 2020年。", "北 京 大 学 nasa 2020 年"),
    ("mlqa", "zh", "the 北a", "the 北 a"),  # no articles
    ("mlqa", "zh", "㐀𠀀カ", "㐀𠀀カ"),  # characters outside U+4E00 to U+9FA5 are none
    ("mlqa", "ja", "東京タワー、333 m", "東 京 タ ワ ー 333 m"),
    ("mlqa", "th", "น้ำ 5 ลิตร", "น้ ำ 5 ลิ ต ร"),  # marks stay with their letter
]


@pytest.mark.parametrize(("rules", "lang", "answer", "tokens"), GOLDEN)
def test_tokens(rules: str, lang: Optional[str], answer: str, tokens: str) -> None:
    # Q2
    assert answer_tokens(answer, rules, lang) == tokens.split()


def test_articles_of_each_language_are_those_of_the_script() -> None:
    articles = {
        "en": "a an the",
        "es": "un una unos unas el la los las",
        "de": "ein eine einen einem eines einer der die das den dem des",
        "vi": "của là cái chiếc những",
        "hi": "",
        "zh": "",
    }
    everything = sorted({word for words in articles.values() for word in words.split()})
    for lang, words in articles.items():
        left = [word for word in everything if not answer_tokens(word, "mlqa", lang)]
        assert left == sorted(words.split()), lang


@pytest.mark.parametrize(
    ("prediction", "golds", "rules", "lang", "em", "f1"),
    [
        ("the cat sat", ["cat sat down"], "squad", None, 0.0, 2 * 2 / (2 + 3)),
        ("the the cat", ["cat"], "squad", None, 1.0, 1.0),
        ("dog dog", ["dog"], "squad", None, 0.0, 2 / 3),  # bags, not sets
        ("sat cat", ["cat sat"], "squad", None, 0.0, 1.0),  # F1 knows no order, EM does
        ("Paris, France", ["Lyon", "paris", "Paris France"], "squad", None, 1.0, 1.0),
        ("Paris France", ["paris", "Lyon"], "squad", None, 0.0, 2 / 3),
        ("x", ["y"], "squad", None, 0.0, 0.0),
        ("北京", ["北京市"], "squad", "zh", 0.0, 0.0),
        ("北京", ["北京市"], "mlqa", "zh", 0.0, 0.8),
        ("北 京", ["北京"], "mlqa", "zh", 1.0, 1.0),
        ("das Haus", ["Haus"], "mlqa", "de", 1.0, 1.0),
        ("das Haus", ["Haus"], "squad", "de", 0.0, 2 / 3),
        ("the", ["?"], "squad", None, 1.0, 1.0),  # no token is left on either side
        ("", [""], "mlqa", "en", 1.0, 1.0),
        ("", [], "squad", None, 1.0, 1.0),
        ("", ["cat"], "squad", None, 0.0, 0.0),
        ("cat", ["", "the"], "squad", None, 0.0, 0.0),
        ("ر", ["الر"], "mlqa", "ar", 1.0, 1.0),
    ],
)
def test_scores_by_hand(
    prediction: str, golds: list[str], rules: str, lang: Optional[str], em: float, f1: float
) -> None:
    assert answer_scores(prediction, golds, rules, lang) == (em, pytest.approx(f1))


def test_composed_and_decomposed_are_one() -> None:
    # Q4: Hindi letters with nukta get longer in NFC, French ones shorter; both sides get the same
    for text in ("Orléans", "लड़का", "للُّغة"):
        forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
        for given_, wanted in (forms, forms[::-1]):
            assert answer_scores(given_, [wanted], "squad") == (1.0, 1.0)
    assert answer_scores("Orle\u0301ans", ["Orléans"], "squad", normal_form="none") == (0.0, 0.0)
    golds = [["Orléans"], ["Rome\u0301"], ["e\u0301"], ["Rome"]]
    scores = qa_scores(golds, ["Orle\u0301ans", "Rome\u0301", "x", "Rome"], "squad")
    assert (scores["em"], scores["counts"]["changed_by_nfc"]) == (0.75, 1)
    exact = qa_scores([["Orléans"]], ["Orle\u0301ans"], "squad", normal_form="none")
    assert (exact["em"], exact["counts"]["changed_by_nfc"]) == (0.0, 0)


# --- many questions ----------------------------------------------------------------------------------------------


def test_mean_and_counts() -> None:
    golds = [["cat"], ["dog", "the dog house"], ["?"], [], ["x"]]
    scores = qa_scores(golds, ["cat", "dog house big", "the", "", None], "squad")
    assert scores["em"] == 3 / 5
    assert scores["f1"] == pytest.approx((1 + 2 * 2 / (2 + 3) + 1 + 1 + 0) / 5)
    assert scores["n"] == 5
    assert scores["counts"] == {
        "questions": 5,
        "exact": 3,
        "missing": 1,
        "no_answer": 1,
        "both_empty": 2,
        "changed_by_nfc": 0,
    }


def test_language_is_needed_where_the_rules_depend_on_it() -> None:
    with pytest.raises(UsageError, match="depend on the language"):
        qa_scores([["x"]], ["x"], "mlqa")
    with pytest.raises(UsageError, match="say nothing") as error:
        qa_scores([["x"]], ["x"], "mlqa", "sw")
    assert "en, es, de, ar, hi, vi, zh" in str(error.value) and "--rules squad" in str(error.value)
    for lang in (*MLQA_LANGUAGES, *EXTENDED_LANGUAGES):
        assert qa_scores([["x"]], ["x"], "mlqa", lang)["em"] == 1.0
    assert qa_scores([["x"]], ["x"], "squad")["em"] == qa_scores([["x"]], ["x"], "squad", "sw")["em"] == 1.0


def test_what_cannot_be_scored() -> None:
    with pytest.raises(UsageError, match="squad, mlqa"):
        qa_scores([["x"]], ["x"], "xquad")
    with pytest.raises(UsageError, match="NFC, none"):
        qa_scores([["x"]], ["x"], "squad", normal_form="NFKC")
    with pytest.raises(ScoringError, match="1 gold, 2 predicted"):
        qa_scores([["x"]], ["x", "y"], "squad")
    with pytest.raises(ScoringError, match="no questions"):
        qa_scores([], [], "squad")
    with pytest.raises(ScoringError, match="unlabelled"):  # quirk 37
        qa_scores([[""], [""]], ["x", ""], "squad")


# --- a second writing of the rules -------------------------------------------------------------------------------


def oracle_tokens(text: str, rules: str, lang: str) -> list[str]:
    """The rules of methods.md 6.3 letter by letter: classify, cut, drop."""
    text = unicodedata.normalize("NFC", text).lower()
    kept = ""
    for letter in text:
        if letter in string.punctuation or (rules == "mlqa" and unicodedata.category(letter).startswith("P")):
            continue
        kept += letter
    articles = {"en": "a an the", "es": "un una unos unas el la los las"}
    articles["de"] = "ein eine einen einem eines einer der die das den dem des"
    words = articles["en"].split() if rules == "squad" else articles.get(lang, "").split()
    kept = "".join(" " if run in words else run for run in re.findall(r"\w+|\W+", kept))
    if rules == "mlqa" and lang == "ar":
        kept = " ".join(kept.split("ال"))
    tokens = []
    for token in kept.split():
        current = ""
        for letter in token:
            if rules == "mlqa" and lang == "zh" and 0x4E00 <= ord(letter) <= 0x9FA5:
                tokens += [current, letter]
                current = ""
            else:
                current += letter
        tokens.append(current)
    return [token for token in tokens if token]


def oracle_f1(gold: list[str], predicted: list[str]) -> float:
    left, shared = list(gold), 0
    for token in predicted:
        if token in left:
            left.remove(token)
            shared += 1
    if not gold and not predicted:
        return 1.0
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(gold)
    return 2 * precision * recall / (precision + recall)


PIECES = [
    "a",
    "the",
    "an",
    "el",
    "der",
    "un",
    "ال",
    "قال",
    "北",
    "京",
    "é",
    "e\u0301",
    "ड\u093c",
    ".",
    "'",
    "。",
    "؟",
    "¿",
]
texts = st.lists(st.sampled_from([*PIECES, "cat", "THE", " ", "  ", "\u00a0", "-", "5", "€"]), max_size=8).map("".join)
rule_sets = st.sampled_from([("squad", "en"), *(("mlqa", lang) for lang in ("en", "es", "de", "ar", "hi", "zh"))])


@given(texts, rule_sets)
def test_tokens_by_brute_force(text: str, rules: tuple[str, str]) -> None:
    assert answer_tokens(text, *rules) == oracle_tokens(text, *rules)


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_f1_by_brute_force(gold: list[str], predicted: list[str]) -> None:
    assert token_f1(gold, predicted) == pytest.approx(oracle_f1(gold, predicted))
    assert token_f1(gold, predicted) == token_f1(predicted, gold)


questions = st.lists(
    st.tuples(st.lists(texts, max_size=3), st.one_of(st.none(), texts)), min_size=1, max_size=6
).filter(lambda rows: any(any(golds) for golds, _ in rows))


@given(questions, rule_sets, st.randoms(use_true_random=False))
def test_mean_by_brute_force_in_any_order(
    rows: list[tuple[list[str], Optional[str]]], rules: tuple[str, str], draw: random.Random
) -> None:
    em = f1 = 0.0
    for golds, prediction in rows:
        if prediction is not None:
            found = oracle_tokens(prediction, *rules)
            wanted = [oracle_tokens(gold, *rules) for gold in golds] or [[]]
            em += max(tokens == found for tokens in wanted)
            f1 += max(oracle_f1(tokens, found) for tokens in wanted)
    scores = qa_scores([golds for golds, _ in rows], [answer for _, answer in rows], *rules)
    assert (scores["em"], scores["f1"]) == (pytest.approx(em / len(rows)), pytest.approx(f1 / len(rows)))
    assert 0 <= scores["em"] <= 1 and scores["em"] <= scores["f1"] <= 1
    other = draw.sample(rows, len(rows))
    assert qa_scores([golds for golds, _ in other], [answer for _, answer in other], *rules) == scores
