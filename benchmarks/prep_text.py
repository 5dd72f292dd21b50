"""Text for the benchmarks of data preparation: Zipf-distributed words in several scripts, seeded."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

ALPHABETS = {
    "en": "etaoinshrdlucmfwypvbgkjqxz",
    "ru": "оеаинтсрвлкмдпуяыьгзбчйхжшюцщэф",
    "hi": "करनतसमलपहयवदगबजचटशडखथभधघछझञठढणफषअआइई",
    "sw": "aiunkwmhlsytbezpgdjorcfv",
}


def vocabulary(lang: str, words: int, rng: random.Random) -> list[str]:
    """Different words; the more frequent ones are the shorter ones."""
    letters = ALPHABETS[lang]
    weights = [1 / (rank + 2) for rank in range(len(letters))]
    found: dict[str, None] = {}
    while len(found) < words:
        length = 2 + min(12, int(rng.gammavariate(2, 1) + len(found) ** 0.2))
        found.setdefault("".join(rng.choices(letters, weights, k=length)))
    return list(found)


def write(path: Path, lang: str, size: int, seed: int = 1, words: int = 100_000) -> int:
    """Write about ``size`` bytes of sentences, nearly all distinct; returns the number of lines."""
    rng = random.Random(f"{seed} {lang}")
    known = vocabulary(lang, words, rng)
    cumulative = list(itertools.accumulate(1 / (rank + 3) for rank in range(words)))
    path.parent.mkdir(parents=True, exist_ok=True)
    written = lines = 0
    with open(path, "w", encoding="utf-8") as out:
        while written < size:
            block = rng.choices(known, cum_weights=cumulative, k=5000)
            begin = 0
            while begin < len(block):
                length = rng.randint(5, 30)
                sentence = " ".join(block[begin : begin + length])
                begin += length
                line = sentence.capitalize() + rng.choice([".", ".", "?", ", (x).", "!"]) + "\n"
                written += len(line.encode("utf-8"))
                lines += 1
                out.write(line)
    return lines
