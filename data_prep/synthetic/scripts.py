"""Phonemes, phonotactics and four ways of writing them.

A root is a string of phonemes, one ASCII letter each. All languages draw from one inventory, so a word can be
transliterated from any script into any other without loss. Written forms are in NFC and hold no capital letters.
"""

from __future__ import annotations

import random
from typing import NamedTuple

CONSONANTS = "pbtdkgmnlrszfvhSCx"
VOWELS = "aeiou"
VIRAMA = "\u094d"

LETTERS: dict[str, dict[str, str]] = {
    "latin": dict(zip(CONSONANTS + VOWELS, "pbtdkgmnlrszfvhščxaeiou")),
    "cyrillic": dict(zip(CONSONANTS + VOWELS, "пбтдкгмнлрсзфвһшчхаеиоу")),
    "devanagari": dict(zip(CONSONANTS + VOWELS, "पबतदकगमनलरसजफवहशचखअएइओउ")),
    "arabic": dict(zip(CONSONANTS + VOWELS, "پبتدكگمنلرسزفڤهشچخاإيأو")),
}
# Vowels after a consonant, where the script writes them otherwise than on their own.
SIGNS: dict[str, dict[str, str]] = {
    "devanagari": {"a": "", "e": "\u0947", "i": "\u093f", "o": "\u094b", "u": "\u0941"},
    "arabic": {"e": "\u0650", "o": "\u064f"},
}
STOP = {"latin": ".", "cyrillic": ".", "devanagari": "।", "arabic": "."}
COMMA = {"latin": ",", "cyrillic": ",", "devanagari": ",", "arabic": "،"}
QUESTION = {"latin": "?", "cyrillic": "?", "devanagari": "?", "arabic": "؟"}


def write(phonemes: str, script: str) -> str:
    """Spell phonemes in a script.

    Devanagari-like: a consonant carries an ``a``; other vowels are combining signs, a consonant without a vowel
    carries a virama. Arabic-like: ``e`` and ``o`` after a consonant are combining marks.
    """
    letters, signs = LETTERS[script], SIGNS.get(script, {})
    if not signs:
        return "".join(letters[phoneme] for phoneme in phonemes)
    written, after_consonant = [], False
    for phoneme in phonemes:
        vowel = phoneme in VOWELS
        if vowel:
            written.append(signs.get(phoneme, letters[phoneme]) if after_consonant else letters[phoneme])
        else:
            if after_consonant and script == "devanagari":
                written.append(VIRAMA)
            written.append(letters[phoneme])
        after_consonant = not vowel
    if after_consonant and script == "devanagari":
        written.append(VIRAMA)
    return "".join(written)


class Phonotactics(NamedTuple):
    """Sounds of one language and how they make syllables.

    Attributes:
        onsets, vowels, codas: sounds with repetition in proportion to their frequency.
        clusters: two-consonant onsets.
        closed, clustered: probability that a syllable has a coda, or a cluster as onset.
    """

    onsets: str
    vowels: str
    codas: str
    clusters: tuple[str, ...]
    closed: float
    clustered: float

    @classmethod
    def draw(cls, rng: random.Random) -> Phonotactics:
        """A language's own sounds: 12 of the 18 consonants, 4 or 5 vowels, skewed frequencies."""
        own = rng.sample(CONSONANTS, 12)
        vowels = rng.sample(VOWELS, rng.choice((4, 5)))
        stops = [c for c in own if c in "pbtdkgsfvx"]
        clusters = tuple(c + liquid for c in stops for liquid in own if liquid in "lr" and c != liquid)
        return cls(
            onsets="".join(c * (1 + 18 // (2 + rank)) for rank, c in enumerate(own)),
            vowels="".join(v * (1 + 8 // (1 + rank)) for rank, v in enumerate(vowels)),
            codas="".join(rng.sample(own, rng.choice((3, 5, 7)))),
            clusters=clusters,
            closed=rng.choice((0.1, 0.3, 0.5)),
            clustered=rng.choice((0.0, 0.1, 0.2)) if clusters else 0.0,
        )

    def syllable(self, rng: random.Random, first: bool) -> str:
        chance = rng.random()
        if first and chance < 0.12:
            onset = ""
        elif chance > 1.0 - self.clustered:
            onset = rng.choice(self.clusters)
        else:
            onset = rng.choice(self.onsets)
        coda = rng.choice(self.codas) if rng.random() < self.closed else ""
        return onset + rng.choice(self.vowels) + coda

    def root(self, rng: random.Random, syllables: int) -> str:
        return "".join(self.syllable(rng, number == 0) for number in range(syllables))

    def affix(self, rng: random.Random) -> str:
        """One short syllable: CV, VC or CVC."""
        shape = rng.random()
        onset = "" if shape < 0.25 else rng.choice(self.onsets)
        coda = rng.choice(self.codas) if shape < 0.25 or shape > 0.8 else ""
        return onset + rng.choice(self.vowels) + coda
