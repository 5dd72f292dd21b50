"""Scores of answers to questions, under the rules of two official scorers. No host, no tensors.

* ``squad``: SQuAD 1.1 (Rajpurkar et al. 2016), as XTREME scores XQuAD and TyDiQA GoldP: lower case, no ASCII
  punctuation, no English articles, tokens between blanks, in every language.
* ``mlqa``: MLQA (Lewis et al. 2020): lower case, no punctuation of any script (Unicode category P, and ASCII), the
  articles of the answer's language, tokens between blanks; in Chinese every character is a token.

Under both, EM is 1 where all tokens are equal, F1 is that of the two bags of tokens, and an answer gets the best score
over the gold answers, each score by itself. Two things differ from the scripts, and both are counted in the result:
answers of which no token is left on either side have F1 1 (the scripts say 0), and both sides are brought to NFC.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any, Optional

from fairseq_interference.errors import ScoringError, UsageError

RULES = ("squad", "mlqa")
NORMAL_FORMS = ("NFC", "none")
#: articles that ``mlqa`` takes away, whole words; Hindi and Chinese have none
ARTICLES: dict[str, tuple[str, ...]] = {
    "en": ("a", "an", "the"),
    "es": ("un", "una", "unos", "unas", "el", "la", "los", "las"),
    "de": ("ein", "eine", "einen", "einem", "eines", "einer", "der", "die", "das", "den", "dem", "des"),
    "vi": ("của", "là", "cái", "chiếc", "những"),
}
#: two letters that ``mlqa`` takes away wherever they stand, inside words too: its pattern was meant otherwise
ARABIC_ARTICLE = "\N{ARABIC LETTER ALEF}\N{ARABIC LETTER LAM}"
MLQA_LANGUAGES = ("en", "es", "de", "ar", "hi", "vi", "zh")
#: our reading of ``mlqa`` for two languages without blanks that it does not define: a letter with its marks is a token
EXTENDED_LANGUAGES = ("ja", "th")
_LETTER = {
    "zh": re.compile("[\u4e00-\u9fa5]"),
    "ja": re.compile("[\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uff66-\uff9f\U00020000-\U0003ffff]"),
    "th": re.compile("[\u0e01-\u0e30\u0e32\u0e33\u0e3f-\u0e46\u0e4f-\u0e5b][\u0e31\u0e34-\u0e3a\u0e47-\u0e4e]*"),
}
_WORDS = {lang: re.compile(rf"\b(?:{'|'.join(words)})\b") for lang, words in ARTICLES.items()}
_ASCII = dict.fromkeys(map(ord, string.punctuation))


class _Punctuation(dict[int, Optional[int]]):
    """A table for ``str.translate``: drops ASCII punctuation and category P, keeps the rest."""

    def __missing__(self, code: int) -> Optional[int]:
        drop = code in _ASCII or unicodedata.category(chr(code))[0] == "P"
        self[code] = None if drop else code
        return self[code]


_PUNCTUATION = _Punctuation()


def check_rules(rules: str, lang: Optional[str]) -> str:
    """``rules``, if they are known and say how answers in ``lang`` are scored.

    Raises:
        UsageError: unknown rules, or rules that depend on the language without one, or with one they do not define.
    """
    if rules not in RULES:
        raise UsageError("Unknown rules.", where="--rules", value=rules, allowed=", ".join(RULES))
    if rules == "mlqa" and lang not in (*MLQA_LANGUAGES, *EXTENDED_LANGUAGES):
        raise UsageError(
            "The rules mlqa depend on the language of the answers."
            if lang is None
            else "The rules mlqa say nothing about this language.",
            where="--lang",
            value=lang,
            allowed=f"{', '.join(MLQA_LANGUAGES)}; by our extension {', '.join(EXTENDED_LANGUAGES)}",
            next_step="give the language of the contexts" if lang is None else "score it with --rules squad",
        )
    return rules


def answer_tokens(answer: str, rules: str, lang: Optional[str] = None, normal_form: str = "NFC") -> list[str]:
    """The tokens of an answer that are compared.

    Args:
        answer: text as it stands in the file.
        rules: ``squad`` or ``mlqa``.
        lang: language of the answer; ``squad`` does without.
        normal_form: ``NFC``, or ``none`` for the text as it is.

    Raises:
        UsageError: as :func:`check_rules`.
    """
    check_rules(rules, lang)
    text = (unicodedata.normalize("NFC", answer) if normal_form == "NFC" else answer).lower()
    if rules == "squad":
        return _WORDS["en"].sub(" ", text.translate(_ASCII)).split()
    text = text.translate(_PUNCTUATION)
    if lang == "ar":
        text = text.replace(ARABIC_ARTICLE, " ")
    elif lang in _WORDS:
        text = _WORDS[lang].sub(" ", text)
    if lang in _LETTER:
        text = _LETTER[lang].sub(r" \g<0> ", text)
    return text.split()


def token_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """F1 of two bags of tokens; 1 if both are empty, 0 if one is."""
    if not gold and not predicted:
        return 1.0
    shared = sum((Counter(gold) & Counter(predicted)).values())
    return 2 * shared / (len(gold) + len(predicted))


def answer_scores(
    prediction: str, golds: Sequence[str], rules: str, lang: Optional[str] = None, normal_form: str = "NFC"
) -> tuple[float, float]:
    """EM and F1 of one answer, each the best over the gold answers; no gold answer stands for the empty one."""
    given = answer_tokens(prediction, rules, lang, normal_form)
    wanted = [answer_tokens(gold, rules, lang, normal_form) for gold in golds or ("",)]
    return float(given in wanted), max(token_f1(tokens, given) for tokens in wanted)


def qa_scores(
    golds: Sequence[Sequence[str]],
    predictions: Sequence[Optional[str]],
    rules: str,
    lang: Optional[str] = None,
    normal_form: str = "NFC",
) -> dict[str, Any]:
    """Mean EM and F1 over questions.

    Args:
        golds: gold answers of each question; none, or only empty ones, if it has no answer.
        predictions: the answer to each; None, not answered, has 0 and is counted.
        rules: ``squad`` or ``mlqa``.
        lang: language of the answers (in MLQA that of the contexts); ``squad`` does without.
        normal_form: ``NFC`` or ``none``.

    Returns:
        ``em f1`` between 0 and 1; ``counts``: questions, exact, ``missing`` (not answered), ``no_answer`` (no gold
        answer), ``both_empty`` (F1 1 since no token is left on either side; the official scripts give 0) and
        ``changed_by_nfc`` (EM or F1 would differ without it); ``n``, the number of questions.

    Raises:
        UsageError: as :func:`check_rules`, or an unknown normal form.
        ScoringError: lengths differ, no questions, or no gold answer at all.
    """
    check_rules(rules, lang)
    if normal_form not in NORMAL_FORMS:
        raise UsageError("Unknown form.", where="--normal-form", value=normal_form, allowed=", ".join(NORMAL_FORMS))
    _check_questions(golds, predictions)
    em: list[float] = []
    f1: list[float] = []
    counts = dict.fromkeys(("missing", "no_answer", "both_empty", "changed_by_nfc"), 0)
    for wanted, given in zip(golds, predictions):
        counts["no_answer"] += not any(wanted)
        if given is None:
            counts["missing"] += 1
            continue
        scores = answer_scores(given, wanted, rules, lang, normal_form)
        em.append(scores[0])
        f1.append(scores[1])
        counts["both_empty"] += scores[0] == 1.0 and not answer_tokens(given, rules, lang, normal_form)
        if normal_form == "NFC" and not all(unicodedata.is_normalized("NFC", text) for text in (given, *wanted)):
            counts["changed_by_nfc"] += scores != answer_scores(given, wanted, rules, lang, "none")
    total = len(golds)
    return {
        "em": sum(em) / total,
        "f1": math.fsum(f1) / total,  # the same in any order
        "counts": {"questions": total, "exact": round(sum(em)), **counts},
        "n": total,
    }


def _check_questions(golds: Sequence[Sequence[str]], predictions: Sequence[Optional[str]]) -> None:
    if len(golds) != len(predictions):
        what = "Gold and predictions differ in the number of questions."
        raise ScoringError(what, value=f"{len(golds)} gold, {len(predictions)} predicted")
    if not golds:
        raise ScoringError("There are no questions.")
    if not any(text for answers in golds for text in answers):
        raise ScoringError(
            "The gold answers are all empty: this set is unlabelled, and a score would say nothing.",
            value=f"{len(golds)} questions",
            next_step="score a labelled split (the TyDiQA GoldP dev files of XTREME have no answers)",
        )
