"""Draws meanings. Verbs choose what kind of things do them and suffer them, so context tells names from nouns."""

from __future__ import annotations

import random
from typing import Optional

from data_prep.synthetic.concepts import (
    CATEGORIES,
    HUMAN,
    NAME_OF,
    NUMERALS,
    OBJECT_WEIGHTS,
    ORGANISATION,
    OTHER_ADPOSITIONS,
    PLACE,
    PLACE_ADPOSITIONS,
    Inventory,
    Verb,
    Zipf,
)
from data_prep.synthetic.meaning import (
    COORDINATING,
    REPORTING,
    SUBORDINATING,
    Clause,
    Entity,
    Phrase,
    Sentence,
    sentence_size,
)
from data_prep.synthetic.meaning import Place as PlacePhrase

SHORTEST, LONGEST = 5, 22  # concepts in a sentence; particles make the words a few more
OUT_OF_CHARACTER = 0.06  # arguments of another category than the verb likes
NAME_SHARE = {HUMAN: 0.5, PLACE: 0.6, ORGANISATION: 0.65}
HELD_OUT_SHARE = {"raw": 0.25, "train": 0.0, "dev": 0.3, "test": 0.3}
DETERMINERS = ("f:the", "f:the", "f:a", "f:a", "f:every", "f:some")


class Grammar:
    """Draws sentences for one use.

    Args:
        inventory: what can be talked about.
        split: ``raw``, ``train``, ``dev`` or ``test``; decides how often names come from the held-out ones.
    """

    def __init__(self, inventory: Inventory, split: str, rng: random.Random) -> None:
        self.inventory = inventory
        self.held_out = HELD_OUT_SHARE[split]
        self.rng = rng

    def sentence(self) -> Sentence:
        """A sentence of a tolerable length."""
        while True:
            drawn = self._sentence()
            if SHORTEST <= sentence_size(drawn) <= LONGEST:
                return drawn

    def _sentence(self) -> Sentence:
        rng = self.rng
        chance = rng.random()
        opening = rng.choice(("f:oh", "f:alas")) if rng.random() < 0.02 else None
        if chance < 0.62:
            return Sentence(self.clause(), opening=opening)
        if chance < 0.78:
            return Sentence(self.clause(0.6), rng.choice(COORDINATING), self.clause(0.6), opening)
        if chance < 0.9:
            return Sentence(self.clause(0.6), rng.choice(SUBORDINATING), self.clause(0.6), opening)
        verb = rng.choice(self.inventory.reporting)
        frame = self.inventory.verbs[verb]
        says = Clause(verb, self.phrase(frame.subject, frame.subject_group, 0.3), tense=self._tense())
        return Sentence(says, REPORTING, self.clause(0.6), opening)

    def clause(self, rich: float = 1.0, subject: Optional[Phrase] = None) -> Clause:
        """One predication; ``rich`` scales how much decoration its phrases get."""
        rng, inventory = self.rng, self.inventory
        adverb = inventory.adverb.draw(rng) if rng.random() < 0.25 * rich else None
        negated = rng.random() < 0.15
        if subject is None and rng.random() < 0.12:
            category = rng.choices(range(CATEGORIES), OBJECT_WEIGHTS)[0]
            phrase = self.phrase(category, rng.randrange(8), rich)
            return Clause(
                None, phrase, predicate=self._adjective(category), adverb=adverb, tense=self._tense(), negated=negated
            )
        frame = self._frame(None if subject is None else subject.category)
        done_by = subject or self.phrase(frame.subject, frame.subject_group, rich)
        done_to = None if frame.object is None else self.phrase(frame.object, frame.object_group, rich * 0.8)
        place = self.place(rich) if rng.random() < (0.6 if done_to is None else 0.35) * rich else None
        return Clause(frame.concept, done_by, done_to, None, adverb, place, self._tense(), negated)

    def _frame(self, category: Optional[int]) -> Verb:
        """A verb; if possible one whose subject is of the category."""
        for _ in range(8):
            frame = self.inventory.verbs[self.inventory.verb.draw(self.rng)]
            if category is None or frame.subject == category:
                break
        return frame

    def place(self, rich: float) -> PlacePhrase:
        rng = self.rng
        if rng.random() < 0.75:
            return PlacePhrase(rng.choice(PLACE_ADPOSITIONS), self.phrase(PLACE, rng.randrange(8), rich * 0.4))
        category = rng.choices(range(CATEGORIES), OBJECT_WEIGHTS)[0]
        return PlacePhrase(rng.choice(OTHER_ADPOSITIONS), self.phrase(category, rng.randrange(8), rich * 0.4))

    def phrase(self, category: int, group: int, rich: float) -> Phrase:
        """A noun phrase of a category (rarely of another one, so that nothing is certain)."""
        rng = self.rng
        if rng.random() < OUT_OF_CHARACTER:
            category = rng.randrange(CATEGORIES)
        if category in NAME_OF and rng.random() < NAME_SHARE[category]:
            phrase = self._named(category, rich)
        elif category == HUMAN and rng.random() < 0.15:
            return Phrase(*rng.choice((("f:he", HUMAN, False), ("f:they", HUMAN, True))))
        else:
            phrase = self._noun(category, group, rich)
        if rng.random() < 0.05 * rich:
            other = self._named(category, 0.0) if category in NAME_OF else self._noun(category, group, 0.0)
            phrase = phrase._replace(also=other)
        return phrase

    def _noun(self, category: int, group: int, rich: float) -> Phrase:
        rng, inventory = self.rng, self.inventory
        mixed, by_group = inventory.leaves[category]
        chance = rng.random()
        if chance < 0.08:
            head = inventory.tops[category]
        elif chance < 0.28:
            head = inventory.groups[category].draw(rng)
        else:
            head = (by_group[group] if chance < 0.75 else mixed).draw(rng)
        plural = rng.random() < 0.3
        determiner = rng.choice(DETERMINERS)
        if plural and rng.random() < 0.35:
            determiner = rng.choice(NUMERALS) if rng.random() < 0.6 else f"#{rng.randrange(13, 1000)}"
        elif determiner in ("f:a", "f:every"):
            plural = False
        adjectives: tuple[str, ...] = ()
        if rng.random() < 0.35 * rich:
            adjectives = (self._adjective(category),)
            if rng.random() < 0.2 * rich:
                adjectives += (self._adjective(category),)
        phrase = Phrase(head, category, plural, determiner, adjectives)
        chance = rng.random()
        if chance < 0.1 * rich:
            owner = rng.choice((HUMAN, PLACE, ORGANISATION))
            return phrase._replace(modifier=PlacePhrase("f:of", self.phrase(owner, rng.randrange(8), 0.0)))
        if chance < 0.18 * rich:
            return phrase._replace(relative=self.clause(0.3, subject=Phrase(head, category, plural)))
        return phrase

    def _adjective(self, category: int) -> str:
        rng = self.rng
        return (self.inventory.adjectives[category] if rng.random() < 0.75 else self.inventory.adjective).draw(rng)

    def _tense(self) -> str:
        return self.rng.choice(("present", "past", "past", "future"))

    def _name(self, kind: str) -> str:
        names = self.inventory.names[kind]
        return (names.held_out if self.rng.random() < self.held_out else names.seen).draw(self.rng)

    def _named(self, category: int, rich: float) -> Phrase:
        rng, inventory = self.rng, self.inventory
        kind, chance, title = NAME_OF[category], rng.random(), None
        by_group = inventory.leaves[category][1]
        if kind == "PER":
            if chance < 0.4:
                entity = Entity(kind, "full", (self._name("given"), self._name("family")))
            else:
                entity = Entity(kind, "single", (self._name("family" if chance < 0.75 else "given"),))
            if rng.random() < 0.35 * rich:
                title = by_group[0].draw(rng)
        elif kind == "LOC":
            shape = "single" if chance < 0.65 else "typed" if chance < 0.85 else "adjective"
            entity = Entity(kind, shape, self._parts(shape, "LOC", by_group[0]))
        else:
            shape = "single" if chance < 0.5 else "typed" if chance < 0.8 else "of"
            entity = Entity(kind, shape, self._parts(shape, "ORG", by_group[0]))
        head = entity.parts[1] if entity.shape in ("typed", "adjective") else entity.parts[0]
        phrase = Phrase(head, category, entity=entity, title=title)
        if rng.random() < 0.04 * rich:
            phrase = phrase._replace(relative=self.clause(0.3, subject=Phrase(head, category)))
        return phrase

    def _parts(self, shape: str, kind: str, types: Zipf) -> tuple[str, ...]:
        if shape == "typed":
            return self._name(kind), types.draw(self.rng)
        if shape == "of":
            return types.draw(self.rng), self._name("LOC")
        if shape == "adjective":
            return self.inventory.adjective.draw(self.rng), self._name(kind)
        return (self._name(kind),)
