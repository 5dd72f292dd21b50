"""Who inherits which word: roots for every concept and language, with the asked share of cognates for every pair.

Languages are filled in order. For each concept the k-th language takes the word of an earlier language i with
probability w_i, or coins a new one. Then P(k and j share) = sum_i w_i P(i and j share), so the weights that give the
asked similarities s_k solve the linear system S w = s_k, S being the similarities among earlier languages.
Coined roots are unique in the whole world (affixes: in their language), so equal roots are cognates, never accidents.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy

from data_prep.synthetic.concepts import Inventory
from data_prep.synthetic.config import WorldConfig
from data_prep.synthetic.scripts import Phonotactics
from fairseq_interference.errors import UsageError

BLOCK = 20  # decisions are stratified within so many neighbours in frequency
TOLERANCE = 1e-6


def donor_weights(config: WorldConfig, number: int) -> list[float]:
    """Probability of taking a word from each earlier language, for the ``number``-th language.

    Raises:
        UsageError: no languages can be that similar and dissimilar at once.
    """
    codes, code = config.codes[:number], config.codes[number]
    asked = numpy.array([config.pair(code, other) for other in codes])
    among = numpy.array([[config.pair(one, other) for other in codes] for one in codes])
    weights = numpy.linalg.lstsq(among, asked, rcond=None)[0] if number else asked
    reached = numpy.clip(weights, 0.0, 1.0)
    reached = among @ (reached / max(1.0, reached.sum())) if number else asked
    gap = numpy.abs(reached - asked)
    if number and gap.max() > 0.005 + TOLERANCE:
        worst = int(gap.argmax())
        raise UsageError(
            "These similarities contradict each other.",
            where=f"--similarity of {codes[worst]} and {code}",
            value=float(asked[worst]),
            allowed=f"about {reached[worst]:.2f}, given the similarities among {','.join(codes)}",
            next_step="bring the similarities of these pairs closer together, or list the languages in another order",
        )
    clipped = numpy.clip(weights, 0.0, 1.0)
    return [float(weight) for weight in clipped / max(1.0, clipped.sum())]


def stratified(rng: random.Random, count: int) -> Iterator[float]:
    """``count`` uniform numbers, evenly spread within every block of neighbours."""
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        strata = rng.sample(range(size), size)
        yield from ((stratum + rng.random()) / size for stratum in strata)


def pick(weights: Sequence[float], chance: float) -> int:
    """Index of the weight that ``chance`` falls into; len(weights) if beyond all."""
    for index, weight in enumerate(weights):
        chance -= weight
        if chance < 0:
            return index
    return len(weights)


class Lexicon:
    """Roots (phonemes) of all languages.

    Attributes:
        roots: code -> concept -> phonemes; names with an alias hold the alias's root.
        sounds: code -> phonotactics.
    """

    def __init__(self, config: WorldConfig, inventory: Inventory) -> None:
        self.roots: dict[str, dict[str, str]] = {}
        self.sounds: dict[str, Phonotactics] = {}
        self.inventory = inventory
        self._taken: set[str] = set()
        for number, code in enumerate(config.codes):
            rng = random.Random(f"{config.seed}/lexicon/{code}")
            self.sounds[code] = Phonotactics.draw(rng)
            self.roots[code] = self._fill(code, config.codes[:number], donor_weights(config, number), rng)

    def _fill(self, code: str, earlier: list[str], weights: list[float], rng: random.Random) -> dict[str, str]:
        roots: dict[str, str] = {}
        for kind, concepts in self.inventory.classes.items():
            taken: set[str] = set() if kind == "affix" else self._taken
            for rank, (concept, chance) in enumerate(zip(concepts, stratified(rng, len(concepts)))):
                donor = pick(weights, chance)
                borrowed = self.roots[earlier[donor]][concept] if donor < len(earlier) else None
                if borrowed is None or (kind == "affix" and borrowed in taken):
                    ending = roots.get(self.inventory.endings.get(concept, ""), "")
                    borrowed = self._coin(code, kind, rank, ending, taken, rng)
                taken.add(borrowed)
                roots[concept] = borrowed
        for concept, source in self.inventory.alias.items():
            roots[concept] = roots[source]
        return roots

    def _coin(self, code: str, kind: str, rank: int, ending: str, taken: set[str], rng: random.Random) -> str:
        sounds = self.sounds[code]
        longer = 0
        while True:
            for _ in range(20):
                syllables = _syllables(kind, rank, rng) + longer - bool(ending)
                root = sounds.affix(rng) if kind == "affix" else sounds.root(rng, max(1, syllables)) + ending
                if root not in taken and (kind == "affix" or len(root) > 1):
                    return root
            longer += kind != "affix"


def _syllables(kind: str, rank: int, rng: random.Random) -> int:
    """Frequent words are shorter."""
    if kind in ("function", "numeral"):
        return 1 if rng.random() < 0.8 else 2
    if rank < 60:
        return rng.choice((1, 2, 2, 2))
    return rng.choice((2, 2, 3) if rank < 400 else (2, 3, 3, 4))
