"""What a world is made of: languages, sizes and similarity, checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from fairseq_interference.errors import UsageError
from fairseq_interference.languages import LanguageList

SCRIPTS = ("latin", "devanagari", "arabic", "latin", "cyrillic")
ORDERS = ("SVO", "SOV", "VSO")
MORPHOLOGIES = ("isolating", "suffixing", "agreement")
CHOICES: dict[str, tuple[str, ...]] = {
    "script": ("latin", "cyrillic", "devanagari", "arabic"),
    "order": ORDERS,
    "morphology": MORPHOLOGIES,
    "adjective": ("before", "after"),
    "adposition": ("before", "after"),
}
LABELLED: dict[str, tuple[int, int, int]] = {
    "ner": (1000, 300, 600),
    "pos": (1000, 300, 600),
    "nli": (3000, 600, 900),
    "qa": (1000, 200, 400),
}
SPLITS = ("train", "dev", "test")
MIN_CONCEPTS, MAX_CONCEPTS = 400, 20000


class LanguageSpec(NamedTuple):
    """Typology of one language; ``adjective`` and ``adposition`` say on which side of the noun they stand."""

    code: str
    script: str
    order: str
    morphology: str
    adjective: str
    adposition: str
    sentences: int


class WorldConfig(NamedTuple):
    """Everything that the output depends on.

    Attributes:
        languages: one specification per language, in the order of their ids.
        similarity: asked share of cognates for every pair of codes, earlier language first.
        labelled: task -> sentences (ner, pos), pairs (nli) or paragraphs (qa) in train, dev, test.
        concepts: number of content-word meanings that are not names (about; the classes are rounded).
    """

    languages: tuple[LanguageSpec, ...]
    similarity: Mapping[tuple[str, str], float]
    labelled: Mapping[str, tuple[int, int, int]]
    concepts: int
    seed: int

    @property
    def codes(self) -> list[str]:
        return [spec.code for spec in self.languages]

    def pair(self, one: str, other: str) -> float:
        """Asked similarity of two languages, in either order; 1.0 with itself."""
        if one == other:
            return 1.0
        return self.similarity[(one, other)] if (one, other) in self.similarity else self.similarity[(other, one)]


def default_spec(number: int, code: str, sentences: int, settings: Mapping[str, str]) -> LanguageSpec:
    """Typology of the ``number``-th language: defaults cycle, ``settings`` (property -> value) win."""
    order = settings.get("order", ORDERS[number % len(ORDERS)])
    return LanguageSpec(
        code=code,
        script=settings.get("script", SCRIPTS[number % len(SCRIPTS)]),
        order=order,
        morphology=settings.get("morphology", MORPHOLOGIES[number % len(MORPHOLOGIES)]),
        adjective=settings.get("adjective", "after" if order == "VSO" else "before"),
        adposition=settings.get("adposition", "after" if order == "SOV" else "before"),
        sentences=sentences,
    )


def make_config(
    codes: Sequence[str],
    *,
    similarity: float = 0.3,
    similarity_of: Optional[Mapping[tuple[str, str], float]] = None,
    sentences: int = 20000,
    sentences_of: Optional[Mapping[str, int]] = None,
    settings_of: Optional[Mapping[str, Mapping[str, str]]] = None,
    labelled: Optional[Mapping[str, tuple[int, int, int]]] = None,
    concepts: int = 1000,
    seed: int = 1,
) -> WorldConfig:
    """Check all settings and put them together.

    Args:
        settings_of: property (script, order, …) -> code -> value.

    Raises:
        UsageError: lists every wrong setting with its flag.
        LanguageError: malformed or repeated code.
    """
    langs = LanguageList(codes, where="--langs").codes
    similarity_of, sentences_of, settings_of = similarity_of or {}, sentences_of or {}, settings_of or {}
    labelled = {**LABELLED, **(labelled or {})}
    wrong = _wrong_settings(langs, sentences_of, settings_of, similarity_of)
    wrong += _wrong_numbers(langs, similarity, similarity_of, sentences, sentences_of, labelled, concepts)
    if wrong:
        raise UsageError("These settings make no world.", value="; ".join(wrong), next_step="see --help")
    specs = [
        default_spec(
            number,
            code,
            sentences_of.get(code, sentences),
            {name: values[code] for name, values in settings_of.items() if code in values},
        )
        for number, code in enumerate(langs)
    ]
    pairs = {
        (one, other): similarity_of.get((one, other), similarity_of.get((other, one), similarity))
        for number, one in enumerate(langs)
        for other in langs[number + 1 :]
    }
    return WorldConfig(tuple(specs), pairs, labelled, concepts, seed)


def _wrong_settings(
    langs: Sequence[str],
    sentences_of: Mapping[str, int],
    settings_of: Mapping[str, Mapping[str, str]],
    similarity_of: Mapping[tuple[str, str], float],
) -> list[str]:
    wrong = [f"--sentences-of {code}: not in --langs" for code in sentences_of if code not in langs]
    for name, values in settings_of.items():
        for code, value in values.items():
            if code not in langs:
                wrong.append(f"--{name}-of {code}: not in --langs")
            if value not in CHOICES[name]:
                wrong.append(f"--{name}-of {code}={value}: allowed {', '.join(CHOICES[name])}")
    for one, other in similarity_of:
        if one not in langs or other not in langs or one == other:
            wrong.append(f"--similarity-of {one}:{other}: two different codes of --langs")
        if (other, one) in similarity_of and one < other:
            wrong.append(f"--similarity-of {one}:{other} and {other}:{one}: give one of them")
    return wrong


def _wrong_numbers(
    langs: Sequence[str],
    similarity: float,
    similarity_of: Mapping[tuple[str, str], float],
    sentences: int,
    sentences_of: Mapping[str, int],
    labelled: Mapping[str, tuple[int, int, int]],
    concepts: int,
) -> list[str]:
    wrong = [] if langs else ["--langs: at least one language"]
    for name, value in [("", similarity)] + [(f"-of {one}:{other}", v) for (one, other), v in similarity_of.items()]:
        if not 0.0 <= value <= 1.0:
            wrong.append(f"--similarity{name} {value}: between 0 and 1")
    for name, count in [("", sentences)] + [(f"-of {code}", n) for code, n in sentences_of.items()]:
        if count < 1:
            wrong.append(f"--sentences{name} {count}: at least 1")
    for task, counts in labelled.items():
        if task not in LABELLED or min(counts) < 1:
            wrong.append(f"--labelled-of {task}={counts}: a task of {', '.join(LABELLED)} and three numbers above 0")
    if not MIN_CONCEPTS <= concepts <= MAX_CONCEPTS:
        wrong.append(f"--concepts {concepts}: between {MIN_CONCEPTS} and {MAX_CONCEPTS}")
    return wrong
