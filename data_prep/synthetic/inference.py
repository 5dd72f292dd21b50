"""Sentence pairs whose label follows from how the hypothesis was made out of the premise.

Noun phrases are existential and both sentences speak of one situation, as annotators of such data are told. Then

* making a positive clause more general (hypernym, dropped modifier, dropped conjunct) is entailed; making it more
  special is neutral; under negation it is the other way round;
* negating something entailed, or turning the verb or predicate of a positive clause into its opposite, contradicts;
* another name, noun, or exchanged arguments are neutral, negated or not.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from data_prep.synthetic.grammar import Grammar
from data_prep.synthetic.meaning import Clause, Phrase, Sentence, phrases_of, with_phrase

LABELS = ("entailment", "neutral", "contradiction")
TWO_CLAUSES = 0.25
NEGATED_PREMISE = 0.35


class Pair(NamedTuple):
    """One example."""

    premise: Sentence
    hypothesis: Sentence
    label: str


class Inference:
    """Draws pairs.

    Args:
        grammar: where premises come from; also gives the material that hypotheses add.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.inventory = grammar.inventory
        self.rng = grammar.rng

    def pair(self, label: str) -> Pair:
        """A pair with the label asked for."""
        while True:
            clauses = [self._clause() for _ in range(1 + (self.rng.random() < TWO_CLAUSES))]
            target = self.rng.randrange(len(clauses))
            changed = self._hypothesis(clauses[target], label)
            if changed is None or changed == clauses[target]:
                continue
            others = [changed if number == target else clause for number, clause in enumerate(clauses)]
            if len(others) == 2 and self.rng.random() < 0.6:
                others = [changed]
            return Pair(_join(clauses), _join(others), label)

    def _clause(self) -> Clause:
        clause = self.grammar.clause()
        for role, phrase in phrases_of(clause):
            clause = with_phrase(clause, role, _plain(phrase))
        return clause._replace(negated=self.rng.random() < NEGATED_PREMISE)

    def _hypothesis(self, clause: Clause, label: str) -> Optional[Clause]:
        entailed = clause
        for _ in range(self.rng.choice((1, 1, 2)) if label == "entailment" else self.rng.choice((0, 1))):
            entailed = self._choose(self._entailed(entailed)) or entailed
        if label == "entailment":
            return entailed
        if label == "contradiction":
            return self._choose(self._contradicted(entailed))
        if self.rng.random() < 0.45:
            return self._choose(self._special(clause) if not clause.negated else self._general(clause))
        changed = self._choose(self._changed(entailed, dict(phrases_of(clause))))
        if changed is not None and self.rng.random() < 0.35:
            changed = changed._replace(negated=not changed.negated)
        return changed

    def _choose(self, candidates: list[Clause]) -> Optional[Clause]:
        return self.rng.choice(candidates) if candidates else None

    def _entailed(self, clause: Clause) -> list[Clause]:
        return self._special(clause) if clause.negated else self._general(clause)

    def _contradicted(self, clause: Clause) -> list[Clause]:
        candidates = [clause._replace(negated=not clause.negated)]
        antonym = self.inventory.antonym
        if not clause.negated:
            if clause.verb in antonym:
                candidates.append(clause._replace(verb=antonym[clause.verb]))
            if clause.predicate in antonym:
                candidates.append(clause._replace(predicate=antonym[clause.predicate]))
        return candidates

    def _general(self, clause: Clause) -> list[Clause]:
        """Clauses that follow from a positive clause by one step."""
        candidates = []
        for role, phrase in phrases_of(clause):
            parent = self.inventory.parent.get(phrase.head) if phrase.entity is None else None
            simpler = [phrase._replace(head=parent)] if parent else []
            simpler += [
                phrase._replace(adjectives=phrase.adjectives[:n] + phrase.adjectives[n + 1 :])
                for n in range(len(phrase.adjectives))
            ]
            simpler += [
                phrase._replace(modifier=None),
                phrase._replace(relative=None),
                phrase._replace(also=None),
                phrase._replace(title=None),
            ]
            candidates += [with_phrase(clause, role, each) for each in simpler if each != phrase]
        if clause.adverb is not None:
            candidates.append(clause._replace(adverb=None))
        if clause.place is not None:
            candidates.append(clause._replace(place=None))
        return candidates

    def _special(self, clause: Clause) -> list[Clause]:
        """Clauses from which a positive clause follows by one step."""
        rng, candidates = self.rng, []
        for role, phrase in phrases_of(clause):
            children = self.inventory.children.get(phrase.head, []) if phrase.entity is None else []
            if children:
                candidates.append(with_phrase(clause, role, phrase._replace(head=rng.choice(children))))
            if not phrase.adjectives and phrase.entity is None and phrase.head.startswith("n:"):
                quality = self.inventory.adjectives[phrase.category].draw(rng)
                candidates.append(with_phrase(clause, role, phrase._replace(adjectives=(quality,))))
        if clause.adverb is None:
            candidates.append(clause._replace(adverb=self.inventory.adverb.draw(rng)))
        if clause.place is None:
            place = self.grammar.place(0.0)
            candidates.append(clause._replace(place=place._replace(phrase=_plain(place.phrase))))
        return candidates

    def _changed(self, clause: Clause, premise: dict[str, Phrase]) -> list[Clause]:
        """Clauses that neither follow nor are excluded: other participants, where the premise's still stand."""
        candidates = []
        kept = [(role, phrase) for role, phrase in phrases_of(clause) if premise.get(role) == phrase]
        for role, phrase in kept:
            other = _plain(self.grammar.phrase(phrase.category, self.rng.randrange(8), 0.0))
            if phrase.also is None and not self._related(phrase, other):
                candidates.append(with_phrase(clause, role, other._replace(adjectives=phrase.adjectives)))
        found = dict(kept)
        if "subject" in found and "object" in found:
            one, other = found["subject"], found["object"]
            if not (one.also or other.also or self._related(one, other)):
                candidates.append(clause._replace(subject=other, object=one))
        return candidates

    def _related(self, one: Phrase, other: Phrase) -> bool:
        """Whether one noun could stand for the other: same, hypernym or hyponym, pronoun, or a name beside a noun."""
        if one.head.startswith("f:") or other.head.startswith("f:"):
            return True
        if one.entity is not None or other.entity is not None:
            same_kind = one.entity is not None and other.entity is not None
            return not same_kind or one.entity == other.entity
        return one.head in self._upwards(other.head) or other.head in self._upwards(one.head)

    def _upwards(self, noun: str) -> list[str]:
        chain = [noun]
        while chain[-1] in self.inventory.parent:
            chain.append(self.inventory.parent[chain[-1]])
        return chain


def _plain(phrase: Phrase) -> Phrase:
    """Without *every* and *no*, which would turn the direction of entailment round inside a phrase."""
    determiner = "f:some" if phrase.determiner == "f:every" else phrase.determiner
    also = None if phrase.also is None else _plain(phrase.also)
    return phrase._replace(determiner=determiner, also=also)


def _join(clauses: list[Clause]) -> Sentence:
    return Sentence(clauses[0]) if len(clauses) == 1 else Sentence(clauses[0], "f:and", clauses[1])
