"""Order, endings, inference labels and answer spans, each recomputed by a second way from the files and the truth."""

from __future__ import annotations

import csv
import json
import random
import shlex
from collections import Counter
from pathlib import Path
from typing import Any, Optional

import conllu
import pytest

from data_prep.synthetic.__main__ import main
from data_prep.synthetic.concepts import Inventory
from data_prep.synthetic.grammar import Grammar
from data_prep.synthetic.inference import LABELS, Inference
from data_prep.synthetic.meaning import Clause, Phrase, Sentence

CODES = ("xa", "xb", "xc", "xd", "xe", "xf")
SETTINGS = shlex.split(
    "--langs 6 --sentences 20 --labelled 120,40,40 --concepts 900 --seed 3 "
    "--order-of xd=SOV xe=SVO --morphology-of xd=agreement xe=suffixing "
    "--adjective-of xe=after --adposition-of xf=after"
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("structure") / "world"
    assert main(["--out", str(out), *SETTINGS]) == 0
    return out


@pytest.fixture(scope="module")
def truth(world: Path) -> dict[str, Any]:
    return json.loads((world / "truth.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def trees(world: Path) -> dict[str, list[conllu.TokenList]]:
    return {code: conllu.parse((world / f"pos/{code}/train.conllu").read_text("utf-8")) for code in CODES}


def test_settings_are_the_declared_ones(truth: dict[str, Any]) -> None:
    got = {code: (v["order"], v["morphology"], v["adjective"]) for code, v in truth["languages"].items()}
    assert got["xa"] == ("SVO", "isolating", "before")
    assert got["xb"] == ("SOV", "suffixing", "before")
    assert got["xc"] == ("VSO", "agreement", "after")
    assert got["xd"] == ("SOV", "agreement", "before")
    assert got["xe"] == ("SVO", "suffixing", "after")


@pytest.mark.parametrize("code", CODES)
def test_word_order_is_the_declared_one(code: str, truth: dict[str, Any], trees: dict[str, Any]) -> None:
    language = truth["languages"][code]
    clauses = phrases = adpositions = 0
    for sentence in trees[code]:
        for token in sentence:
            children = {child["deprel"]: child for child in sentence if child["head"] == token["id"]}
            if token["upos"] == "VERB" and token["deprel"] != "acl:relcl" and {"nsubj", "obj"} <= children.keys():
                at = {"S": children["nsubj"]["id"], "O": children["obj"]["id"], "V": token["id"]}
                assert "".join(sorted(at, key=lambda letter: at[letter])) == language["order"]
                clauses += 1
            if "amod" in children:
                assert (children["amod"]["id"] < token["id"]) == (language["adjective"] == "before")
                phrases += 1
            if "case" in children:
                assert (children["case"]["id"] < token["id"]) == (language["adposition"] == "before")
                adpositions += 1
            if "acl:relcl" in children:
                assert (children["acl:relcl"]["id"] < token["id"]) == (language["relative_clause"] == "before")
    assert min(clauses, phrases, adpositions) > 20


def spell(phonemes: str, language: dict[str, Any]) -> str:
    """Spelling by pairs of neighbours: a second way beside scripts.write."""
    letters, signs, virama = language["letters"], language["vowel_signs"], language["virama"]
    consonant = {phoneme for phoneme in letters if phoneme not in "aeiou"}
    written = ""
    for before, phoneme, after in zip(" " + phonemes, phonemes, phonemes[1:] + " "):
        written += signs[phoneme] if phoneme in signs and before in consonant else letters[phoneme]
        written += virama if phoneme in consonant and (after in consonant or after == " ") else ""
    return written


def expected_affixes(token: Any, kind: str) -> Optional[list[str]]:
    """Endings that the features demand; None where the features do not decide."""
    feats = token["feats"] or {}
    number = {"Sing": "sing", "Plur": "plur"}.get(feats.get("Number", ""))
    tense = {"Past": "past", "Pres": "present", "Fut": "future"}.get(feats.get("Tense", ""))
    if not feats:
        return []
    if kind == "suffixing" and tense:
        return [f"a:{tense}"] + ["a:negative"] * (feats["Polarity"] == "Neg")
    if kind == "suffixing":
        return ["a:plural"] * (number == "plur") + ["a:accusative"] * (feats["Case"] == "Acc")
    gender = {"Masc": "a", "Fem": "b", "Neut": "c"}[feats["Gender"]]
    if tense:
        return [f"a:tense.{tense}"] * (tense != "present") + [f"a:verb.{gender}.{number}"]
    return [f"a:noun.{gender}.{number}"]


@pytest.mark.parametrize("code", CODES)
def test_every_form_is_root_and_endings(code: str, world: Path, truth: dict[str, Any], trees: dict[str, Any]) -> None:
    language = truth["languages"][code]
    with open(world / "lexicon.tsv", encoding="utf-8", newline="") as stream:
        roots = {row[code] for row in csv.DictReader(stream, delimiter="\t") if row["class"] != "affix"}
    by_lemma = {spell(root, language): root for root in roots}
    inflected = 0
    for sentence in trees[code]:
        for token in sentence:
            if token["upos"] == "PUNCT" or token["form"].isdigit():
                continue
            affixes = expected_affixes(token, language["morphology"])
            assert affixes is not None
            endings = "".join(language["affixes"][affix] for affix in affixes)
            assert token["form"] == spell(by_lemma[token["lemma"]] + endings, language)
            inflected += bool(affixes)
    assert (inflected > 100) == (language["morphology"] != "isolating")


@pytest.mark.parametrize("code", ["xc", "xd", "xf"])
def test_agreement(code: str, truth: dict[str, Any], trees: dict[str, Any]) -> None:
    assert truth["languages"][code]["morphology"] == "agreement"
    checked = 0
    for sentence in trees[code]:
        by_id = {token["id"]: token for token in sentence}
        for token in sentence:
            if token["deprel"] in ("amod", "nsubj") and token["head"]:
                other = by_id[token["head"]]
                noun, word = (other, token) if token["deprel"] == "amod" else (token, other)
                if noun["upos"] != "NOUN" or not (word["feats"] and noun["feats"]):
                    continue
                assert noun["feats"]["Gender"] == word["feats"]["Gender"]
                joined = any(child["deprel"] == "conj" and child["head"] == noun["id"] for child in sentence)
                assert noun["feats"]["Number"] == word["feats"]["Number"] or (joined and token["deprel"] == "nsubj")
                checked += 1
    assert checked > 30


def test_number_of_arguments_is_the_same_in_every_language(trees: dict[str, Any]) -> None:
    def counts(sentence: Any) -> Counter[str]:
        relations = ("obj", "obl", "amod", "nmod", "conj")
        return Counter(token["deprel"] for token in sentence if token["deprel"] in relations)

    for code in CODES[1:]:
        assert [counts(s) for s in trees[code]] == [counts(s) for s in trees["xa"]]


# Natural logic by comparison of two trees, independent of how the second was made out of the first.
class Oracle:
    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory

    def noun_implies(self, one: Phrase, other: Phrase) -> bool:
        head: Optional[str] = one.head
        while head is not None and head != other.head:
            head = self.inventory.parent.get(head) if one.entity is None else None
        return head is not None and one.entity == other.entity

    def phrase_implies(self, one: Phrase, other: Phrase) -> bool:
        def kept(name: str) -> bool:
            return getattr(other, name) is None or getattr(one, name) == getattr(other, name)

        same = (one.plural, one.determiner) == (other.plural, other.determiner)
        adjectives = not Counter(other.adjectives) - Counter(one.adjectives)
        decoration = all(kept(name) for name in ("modifier", "relative", "title", "also"))
        return same and adjectives and decoration and self.noun_implies(one, other)

    def core_implies(self, one: Clause, other: Clause) -> bool:
        """Whether ``one`` implies ``other``, negation aside."""
        same = (one.verb, one.predicate, one.tense) == (other.verb, other.predicate, other.tense)
        adverb = other.adverb is None or other.adverb == one.adverb
        if other.object is None or one.object is None:
            done_to = one.object == other.object
        else:
            done_to = self.phrase_implies(one.object, other.object)
        place = other.place is None or (
            one.place is not None
            and one.place.adposition == other.place.adposition
            and self.phrase_implies(one.place.phrase, other.place.phrase)
        )
        return same and adverb and done_to and place and self.phrase_implies(one.subject, other.subject)

    def opposites(self, clause: Clause) -> list[Clause]:
        antonym = self.inventory.antonym
        turned = [clause._replace(verb=antonym[clause.verb])] if clause.verb in antonym else []
        if clause.predicate in antonym:
            turned.append(clause._replace(predicate=antonym[clause.predicate]))
        return turned

    def clause_label(self, premise: Clause, hypothesis: Clause) -> str:
        if premise.negated == hypothesis.negated:
            pair = (hypothesis, premise) if premise.negated else (premise, hypothesis)
            if self.core_implies(*pair):
                return "entailment"
            opposed = any(self.core_implies(premise, turned) for turned in self.opposites(hypothesis))
            return "contradiction" if opposed and not premise.negated else "neutral"
        pair = (hypothesis, premise) if premise.negated else (premise, hypothesis)
        return "contradiction" if self.core_implies(*pair) else "neutral"

    def label(self, premise: Sentence, hypothesis: Sentence) -> str:
        given = [clause for clause in (premise.first, premise.second) if clause is not None]
        wanted = [clause for clause in (hypothesis.first, hypothesis.second) if clause is not None]
        labels = [{self.clause_label(one, other) for one in given} for other in wanted]
        if any("contradiction" in found for found in labels):
            return "contradiction"
        return "entailment" if all("entailment" in found for found in labels) else "neutral"


def test_inference_labels_follow_from_the_meanings() -> None:
    inventory = Inventory(900, random.Random("oracle"))
    inference = Inference(Grammar(inventory, "train", random.Random("pairs")))
    oracle = Oracle(inventory)
    for number in range(1500):
        pair = inference.pair(LABELS[number % 3])
        assert oracle.label(pair.premise, pair.hypothesis) == pair.label, pair


def test_inference_files(world: Path) -> None:
    columns = {}
    for code in CODES:
        for split, count in (("train", 120), ("dev", 40), ("test", 40)):
            lines = (world / f"nli/{code}/{split}.tsv").read_text("utf-8").split("\n")
            assert lines.pop() == "" and len(lines) == count
            rows = [line.split("\t") for line in lines]
            assert all(len(row) == 3 and row[0] and row[1] for row in rows)
            labels = Counter(row[2] for row in rows)
            assert set(labels) == set(LABELS) and max(labels.values()) - min(labels.values()) <= 1
            columns[code, split] = [row[2] for row in rows]
            assert columns[code, split] == columns["xa", split]


def test_answers_stand_where_they_are_said_to(world: Path) -> None:
    reference: dict[str, list[str]] = {}
    for code in CODES:
        for split in ("train", "dev", "test"):
            paragraphs = json.loads((world / f"qa/{code}/{split}.json").read_text("utf-8"))["data"][0]["paragraphs"]
            identifiers = []
            for paragraph in paragraphs:
                context = paragraph["context"]
                for entry in paragraph["qas"]:
                    identifiers.append(entry["id"])
                    (answer,) = entry["answers"]
                    begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
                    assert answer["text"] and context[begin:end] == answer["text"]
                    assert begin == 0 or context[begin - 1] == " "
                    assert end == len(context) or context[end] in " .,؟،।"
                    assert entry["question"][-1] in "?؟"
            assert len(set(identifiers)) == len(identifiers)
            assert reference.setdefault(split, identifiers) == identifiers
