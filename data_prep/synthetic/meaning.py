"""Meanings: language-free trees that every language can speak. Fields hold concepts, never words."""

from __future__ import annotations

from typing import NamedTuple, Optional


class Entity(NamedTuple):
    """A name. ``parts`` depends on ``shape``:

    single (name), full (given, family), typed (name, type noun), of (type noun, LOC name), adjective (adjective, name)
    """

    kind: str
    shape: str
    parts: tuple[str, ...]


class Phrase(NamedTuple):
    """A noun phrase: a noun, a name (``entity``), a pronoun or a question word (``head`` starts with f:)."""

    head: str
    category: int
    plural: bool = False
    determiner: Optional[str] = None
    adjectives: tuple[str, ...] = ()
    modifier: Optional[Place] = None
    relative: Optional[Clause] = None
    entity: Optional[Entity] = None
    title: Optional[str] = None
    also: Optional[Phrase] = None


class Place(NamedTuple):
    """An adposition with its noun phrase."""

    adposition: str
    phrase: Phrase


class Clause(NamedTuple):
    """One predication. ``verb`` None: copular, ``predicate`` holds the adjective."""

    verb: Optional[str]
    subject: Phrase
    object: Optional[Phrase] = None
    predicate: Optional[str] = None
    adverb: Optional[str] = None
    place: Optional[Place] = None
    tense: str = "present"
    negated: bool = False


class Sentence(NamedTuple):
    """One clause, or two with a link: coordination (and, but, or), subordination (because, when) or report (that)."""

    first: Clause
    link: Optional[str] = None
    second: Optional[Clause] = None
    opening: Optional[str] = None
    question: bool = False


COORDINATING = ("f:and", "f:but", "f:or")
SUBORDINATING = ("f:because", "f:when")
REPORTING = "f:that"


def phrases_of(clause: Clause) -> list[tuple[str, Phrase]]:
    """Arguments that are there, by role: subject, object, place."""
    found = [("subject", clause.subject), ("object", clause.object), ("place", clause.place and clause.place.phrase)]
    return [(role, phrase) for role, phrase in found if phrase is not None]


def with_phrase(clause: Clause, role: str, phrase: Phrase) -> Clause:
    """The clause with another phrase in a role; a place keeps its adposition."""
    if role == "place":
        return clause._replace(place=clause.place and clause.place._replace(phrase=phrase))
    return clause._replace(subject=phrase) if role == "subject" else clause._replace(object=phrase)


def phrase_size(phrase: Optional[Phrase]) -> int:
    """Number of concepts in a noun phrase: a lower bound of its words in any language."""
    if phrase is None:
        return 0
    size = len(phrase.entity.parts) if phrase.entity else 1
    size += (phrase.determiner is not None) + (phrase.title is not None) + len(phrase.adjectives)
    if phrase.modifier:
        size += 1 + phrase_size(phrase.modifier.phrase)
    if phrase.relative:
        size += clause_size(phrase.relative)
    return size + (1 + phrase_size(phrase.also) if phrase.also else 0)


def clause_size(clause: Clause) -> int:
    """Number of concepts in a clause."""
    size = 1 + phrase_size(clause.subject) + phrase_size(clause.object) + (clause.predicate is not None)
    size += (clause.adverb is not None) + clause.negated
    return size + (1 + phrase_size(clause.place.phrase) if clause.place else 0)


def sentence_size(sentence: Sentence) -> int:
    """Number of concepts in a sentence, its full stop included."""
    size = 1 + clause_size(sentence.first) + (sentence.opening is not None)
    return size + (1 + clause_size(sentence.second) if sentence.second else 0)
