"""What can be talked about: nouns under hypernyms, verbs with preferences, antonyms, names. Language-free.

A concept is named by a string ``class:number`` (``n:3.1.7`` leaf 7 of group 1 of category 3). Frequencies in every
class follow a Zipf-Mandelbrot law.
"""

from __future__ import annotations

import random
from bisect import bisect
from itertools import accumulate
from typing import NamedTuple, Optional

HUMAN, ANIMAL, ARTIFACT, FOOD, PLACE, ORGANISATION, EVENT, PLANT, IDEA, MATERIAL = range(10)
CATEGORIES = 10
GROUPS = 8
SUBJECT_WEIGHTS = (44, 12, 6, 3, 7, 18, 4, 2, 3, 1)
OBJECT_WEIGHTS = (17, 8, 16, 10, 14, 14, 7, 4, 7, 3)
NAME_OF = {HUMAN: "PER", PLACE: "LOC", ORGANISATION: "ORG"}
FUNCTION_WORDS = (
    "and", "but", "or", "because", "when", "that", "which", "the", "a", "every", "some", "no", "not", "past",
    "future", "be", "plural", "of", "in", "on", "at", "near", "from", "with", "for", "under", "after", "he",
    "they", "who", "what", "where", "oh", "alas", "percent",
)
PLACE_ADPOSITIONS = ("f:in", "f:at", "f:near", "f:from", "f:on", "f:under")
OTHER_ADPOSITIONS = ("f:with", "f:for", "f:after")
NUMERALS = tuple(f"m:{number}" for number in range(2, 13))
AFFIXES = (
    [f"a:{name}" for name in ("plural", "accusative", "past", "present", "future", "negative")]
    + [f"a:noun.{gender}.{number}" for gender in "abc" for number in ("sing", "plur")]
    + [f"a:verb.{gender}.{number}" for gender in "abc" for number in ("sing", "plur")]
    + [f"a:tense.{tense}" for tense in ("past", "future")]
    + [f"a:name.{kind}.{variant}" for kind in ("given", "family", "LOC", "ORG") for variant in range(2)]
)


class Zipf:
    """Draws items with probability proportional to 1 / (rank + shift) ** exponent, first item most often."""

    def __init__(self, items: list[str], exponent: float = 1.0, shift: float = 2.7) -> None:
        self.items = items
        self._cumulative = list(accumulate((rank + shift) ** -exponent for rank in range(len(items))))

    def draw(self, rng: random.Random) -> str:
        return self.items[bisect(self._cumulative, rng.random() * self._cumulative[-1])]


class Verb(NamedTuple):
    """A verb and what it likes: categories and, inside them, a favourite group; ``object`` None: intransitive."""

    concept: str
    subject: int
    subject_group: int
    object: Optional[int]
    object_group: int
    antonym: Optional[str]
    reports: bool


class Names(NamedTuple):
    """Names of one kind; ``held_out`` never occurs in labelled training data."""

    seen: Zipf
    held_out: Zipf


class Inventory:
    """All concepts of a world.

    Args:
        size: about how many content words that are not names.
        rng: the only source of chance.

    Attributes:
        classes: class -> concepts, most frequent first; the lexicon gives each a root.
        alias: name concept -> concept whose word it shares (*Baker*, *Apple*, *Washington*).
        parent: noun -> hypernym, up to the category's own noun.
        antonym: adjective or verb -> its opposite.
        endings: name -> affix that its root ends in where it is coined (*-son*, *-burg*).
    """

    def __init__(self, size: int, rng: random.Random) -> None:
        self.parent: dict[str, str] = {}
        self.children: dict[str, list[str]] = {}
        self.antonym: dict[str, str] = {}
        self.alias: dict[str, str] = {}
        self.classes: dict[str, list[str]] = {"affix": list(AFFIXES)}
        self.classes["function"] = [f"f:{word}" for word in FUNCTION_WORDS]
        self.classes["numeral"] = list(NUMERALS)
        self._nouns(round(size * 0.55), rng)
        self._verbs(round(size * 0.22), rng)
        self._modifiers(round(size * 0.17), round(size * 0.06), rng)
        self._names(size, rng)

    def _nouns(self, size: int, rng: random.Random) -> None:
        leaves = max(1, size // (CATEGORIES * GROUPS) - 1)
        nouns = []
        self.tops, self.groups, self.leaves = [], [], []
        for category in range(CATEGORIES):
            top = f"n:{category}"
            groups = [f"{top}.{group}" for group in range(GROUPS)]
            self.parent.update((group, top) for group in groups)
            inside = [[f"{group}.{leaf}" for leaf in range(leaves)] for group in groups]
            for group, members in zip(groups, inside):
                self.parent.update((leaf, group) for leaf in members)
            nouns += [top, *groups, *(leaf for members in inside for leaf in members)]
            self.tops.append(top)
            self.groups.append(Zipf(groups))
            mixed = [leaf for members in inside for leaf in members]
            rng.shuffle(mixed)
            self.leaves.append((Zipf(mixed), [Zipf(rng.sample(members, leaves)) for members in inside]))
        for child, parent in self.parent.items():
            self.children.setdefault(parent, []).append(child)
        rng.shuffle(nouns)
        self.classes["noun"] = nouns

    def _verbs(self, size: int, rng: random.Random) -> None:
        concepts = [f"v:{number}" for number in range(size)]
        self.verbs: dict[str, Verb] = {}
        for number, concept in enumerate(concepts):
            paired = number % 5 == 1  # every fifth verb is the opposite of the one before it
            subject = rng.choices(range(CATEGORIES), SUBJECT_WEIGHTS)[0]
            patient = None if rng.random() < 0.3 else rng.choices(range(CATEGORIES), OBJECT_WEIGHTS)[0]
            reports = rng.random() < 0.06 and subject in (HUMAN, ORGANISATION)
            verb = Verb(concept, subject, rng.randrange(GROUPS), patient, rng.randrange(GROUPS), None, reports)
            if paired:
                before = concepts[number - 1]
                verb = self.verbs[before]._replace(concept=concept, antonym=before)
                self.verbs[before] = self.verbs[before]._replace(antonym=concept)
                self.antonym.update({concept: before, before: concept})
            self.verbs[concept] = verb
        self.verb = Zipf(concepts)
        self.reporting = [verb for verb in concepts if self.verbs[verb].reports] or concepts[:1]
        self.classes["verb"] = concepts

    def _modifiers(self, adjectives: int, adverbs: int, rng: random.Random) -> None:
        concepts = [f"j:{number}" for number in range(adjectives - adjectives % 2)]
        liked: list[list[str]] = [[] for _ in range(CATEGORIES)]
        for first, second in zip(concepts[::2], concepts[1::2]):
            self.antonym.update({first: second, second: first})
            for category in rng.sample(range(CATEGORIES), 3):
                liked[category] += [first, second]
        self.adjective = Zipf(concepts)
        self.adjectives = [Zipf(words or concepts) for words in liked]
        self.classes["adjective"] = concepts
        self.classes["adverb"] = [f"d:{number}" for number in range(adverbs)]
        self.adverb = Zipf(self.classes["adverb"])

    def _names(self, size: int, rng: random.Random) -> None:
        nouns = self.classes["noun"]
        sizes = {"given": size // 8, "family": size // 5, "LOC": size // 5, "ORG": size // 7}
        ambiguous = {"given": 0.0, "family": 0.2, "LOC": 0.25, "ORG": 0.4}
        own: list[str] = []
        pool: dict[str, list[str]] = {"noun": list(nouns)}
        self.names: dict[str, Names] = {}
        for kind, count in sizes.items():
            concepts = [f"{kind}:{number}" for number in range(count)]
            for concept in concepts:
                sources = [name for name in pool if pool[name]]
                if rng.random() < ambiguous[kind]:
                    source = pool[rng.choice(sources)]
                    self.alias[concept] = source.pop(rng.randrange(len(source)))
                else:
                    own.append(concept)
            pool[kind] = [concept for concept in concepts if concept not in self.alias]
            held_out = set(rng.sample(concepts, count // 4))
            self.names[kind] = Names(
                Zipf([c for c in concepts if c not in held_out]), Zipf([c for c in concepts if c in held_out])
            )
        self.classes["name"] = own
        self.endings = {
            concept: f"a:name.{concept.split(':')[0]}.{rng.randrange(2)}" for concept in own if rng.random() < 0.75
        }
