"""Endings. Isolating languages have none, suffixing ones stack them, agreeing ones fuse gender, number and tense."""

from __future__ import annotations

import random

from data_prep.synthetic.config import LanguageSpec
from data_prep.synthetic.scripts import write

GENDERS = "abc"
GENDER_FEATS = {"a": "Masc", "b": "Fem", "c": "Neut"}
TENSES = {"past": "Past", "present": "Pres", "future": "Fut"}


class Morphology:
    """Chooses endings for one language.

    Every method returns the affix concepts, joined by ``+`` in the order in which they follow the root, and the
    CoNLL-U features. Affixes and roots are joined as phonemes and spelt together.
    """

    def __init__(self, spec: LanguageSpec, roots: dict[str, str], rng: random.Random) -> None:
        self.kind = spec.morphology
        self.script = spec.script
        self.roots = roots
        gendered = [concept for concept in sorted(roots) if concept[0] not in "vjdam" and concept[:2] != "f:"]
        self.genders = {concept: rng.choice(GENDERS) for concept in gendered}
        self._forms: dict[tuple[str, str], str] = {}

    def form(self, concept: str, affixes: str) -> str:
        """Written form of a root with its affixes."""
        key = (concept, affixes)
        written = self._forms.get(key)
        if written is None:
            phonemes = self.roots[concept]
            if affixes:
                phonemes += "".join(self.roots[affix] for affix in affixes.split("+"))
            written = self._forms[key] = write(phonemes, self.script)
        return written

    def gender(self, concept: str) -> str:
        """Gender of a noun or name; pronouns and question words have the first one."""
        return self.genders.get(concept, GENDERS[0])

    def noun(self, concept: str, plural: bool, accusative: bool) -> tuple[str, str]:
        if concept[0] == "f" and concept[1] == ":":
            return self.name(accusative)
        number = "Plur" if plural else "Sing"
        if self.kind == "suffixing":
            affixes = ["a:plural"] * plural + ["a:accusative"] * accusative
            return "+".join(affixes), f"Case={'Acc' if accusative else 'Nom'}|Number={number}"
        if self.kind == "agreement":
            gender = self.gender(concept)
            return f"a:noun.{gender}.{number.lower()}", f"Gender={GENDER_FEATS[gender]}|Number={number}"
        return "", "_"

    def name(self, accusative: bool) -> tuple[str, str]:
        if self.kind == "suffixing":
            return ("a:accusative", "Case=Acc") if accusative else ("", "Case=Nom")
        return "", "_"

    def adjective(self, noun: str, plural: bool) -> tuple[str, str]:
        if self.kind != "agreement":
            return "", "_"
        number = "Plur" if plural else "Sing"
        gender = self.gender(noun)
        return f"a:noun.{gender}.{number.lower()}", f"Gender={GENDER_FEATS[gender]}|Number={number}"

    def verb(self, subject: str, plural: bool, tense: str, negated: bool) -> tuple[str, str]:
        if self.kind == "suffixing":
            polarity = "Neg" if negated else "Pos"
            return f"a:{tense}" + "+a:negative" * negated, f"Polarity={polarity}|Tense={TENSES[tense]}"
        if self.kind == "agreement":
            number = "Plur" if plural else "Sing"
            gender = self.gender(subject)
            affixes = f"a:verb.{gender}.{number.lower()}"
            if tense != "present":
                affixes = f"a:tense.{tense}+{affixes}"
            return affixes, f"Gender={GENDER_FEATS[gender]}|Number={number}|Tense={TENSES[tense]}"
        return "", "_"
