"""Speaks a meaning in one language: word order, morphology, spelling, and the labels that follow from the meaning."""

from __future__ import annotations

import random
from typing import Optional

from data_prep.synthetic.config import LanguageSpec
from data_prep.synthetic.lexicon import Lexicon
from data_prep.synthetic.meaning import COORDINATING, REPORTING, Clause, Entity, Phrase, Place, Sentence
from data_prep.synthetic.morphology import Morphology
from data_prep.synthetic.scripts import COMMA, QUESTION, STOP, write

DETERMINERS = ("f:the", "f:a", "f:every", "f:some")


class Token:
    """One word. ``head`` is the word it depends on (None: root); ``role`` marks the heads of a clause's arguments."""

    __slots__ = ("feats", "form", "head", "label", "lemma", "rel", "role", "upos")

    def __init__(
        self, form: str, lemma: str, upos: str, rel: str, feats: str = "_", head: Optional[Token] = None
    ) -> None:
        self.form = form
        self.lemma = lemma
        self.upos = upos
        self.rel = rel
        self.feats = feats
        self.head = head
        self.label = "O"
        self.role = ""


Tokens = list[Token]
Headed = tuple[Tokens, Token]


class Speaker:
    """One language.

    Args:
        spec: its typology.
        lexicon: roots of all languages; this one's are taken.
        seed: of the world; decides grammatical gender.
    """

    def __init__(self, spec: LanguageSpec, lexicon: Lexicon, seed: int) -> None:
        self.spec = spec
        self.roots = lexicon.roots[spec.code]
        self.morphology = Morphology(spec, self.roots, random.Random(f"{seed}/gender/{spec.code}"))
        self._words: dict[str, str] = {}
        self.comma, self.stop, self.mark = COMMA[spec.script], STOP[spec.script], QUESTION[spec.script]
        self._before = spec.adjective == "before"
        self._preposition = spec.adposition == "before"
        self._verb_last = spec.order == "SOV"
        self._particles = spec.morphology == "isolating"

    def sentence(self, meaning: Sentence) -> Tokens:
        """All words of a sentence in order, punctuation included."""
        tokens, root = self._clause(meaning.first, "1")
        if meaning.second is not None and meaning.link is not None:
            other, head = self._clause(meaning.second, "2")
            coordinating = meaning.link in COORDINATING
            upos, rel = ("CCONJ", "cc") if coordinating else ("SCONJ", "mark")
            link = self._word(meaning.link, upos, rel, head)
            head.head = root
            head.rel = "conj" if coordinating else "ccomp" if meaning.link == REPORTING else "advcl"
            comma = [] if meaning.link == REPORTING else [Token(self.comma, self.comma, "PUNCT", "punct", head=head)]
            tokens += [*comma, link, *other]
        if meaning.opening is not None:
            comma_token = Token(self.comma, self.comma, "PUNCT", "punct", head=root)
            tokens = [self._word(meaning.opening, "INTJ", "discourse", root), comma_token, *tokens]
        end = self.mark if meaning.question else self.stop
        tokens.append(Token(end, end, "PUNCT", "punct", head=root))
        root.rel = "root"
        return tokens

    def _word(self, concept: str, upos: str, rel: str, head: Optional[Token] = None) -> Token:
        form = self.bare(concept)
        return Token(form, form, upos, rel, head=head)

    def bare(self, concept: str) -> str:
        """Written root of a concept, without affixes; digits stand for themselves."""
        form = self._words.get(concept)
        if form is None:
            form = concept[1:] if concept[0] == "#" else write(self.roots[concept], self.spec.script)
            self._words[concept] = form
        return form

    def _inflected(self, concept: str, upos: str, rel: str, affixes: str, feats: str) -> Token:
        return Token(self.morphology.form(concept, affixes), self.bare(concept), upos, rel, feats)

    def _clause(self, clause: Clause, number: str, relative: bool = False) -> Headed:
        """Words of a clause and its predicate; in a relative clause the subject is left out."""
        subject: Tokens = []
        if not relative:
            subject, subject_head = self._phrase(clause.subject, "nsubj")
            subject_head.role = f"{number}.subject"
        verbal, head = self._predicate(clause)
        objects: Tokens = []
        if clause.object is not None:
            objects, object_head = self._phrase(clause.object, "obj", accusative=True)
            object_head.role, object_head.head = f"{number}.object", head
        place: Tokens = []
        if clause.place is not None:
            place, place_head = self._place(clause.place, "obl")
            place_head.role, place_head.head = f"{number}.place", head
        adverb = [] if clause.adverb is None else [self._word(clause.adverb, "ADV", "advmod", head)]
        if not relative:
            subject_head.head = head
        if self._verb_last:
            return [*subject, *place, *objects, *adverb, *verbal], head
        if self.spec.order == "SVO":
            return [*subject, *verbal, *objects, *adverb, *place], head
        return [*verbal, *subject, *objects, *adverb, *place], head

    def _predicate(self, clause: Clause) -> Headed:
        """The verb with its particles, or copula and adjective."""
        subject = clause.subject
        plural = subject.plural or subject.also is not None
        verb = "f:be" if clause.verb is None else clause.verb
        affixes, feats = self.morphology.verb(subject.head, plural, clause.tense, clause.negated)
        token = self._inflected(verb, "AUX" if clause.verb is None else "VERB", "root", affixes, feats)
        head, tokens = token, [token]
        if clause.predicate is not None:
            affixes, feats = self.morphology.adjective(subject.head, plural)
            head = self._inflected(clause.predicate, "ADJ", "root", affixes, feats)
            token.head, token.rel = head, "cop"
            tokens = [head, token] if self._verb_last else [token, head]
        before: Tokens = []
        if clause.negated and self.spec.morphology != "suffixing":
            before.append(self._word("f:not", "PART", "advmod", head))
        if self._particles and clause.tense != "present":
            before.append(self._word(f"f:{clause.tense}", "AUX", "aux", head))
        return (tokens + before if self._verb_last else before + tokens), head

    def _phrase(self, phrase: Phrase, rel: str, accusative: bool = False) -> Headed:
        """Words of a noun phrase and its head."""
        core, head = self._core(phrase, rel, accusative)
        if phrase.title is not None:
            affixes, feats = self.morphology.noun(phrase.title, False, False)
            title = self._inflected(phrase.title, "NOUN", "compound", affixes, feats)
            title.head = head
            core.insert(0, title)
        adjectives = []
        for concept in phrase.adjectives:
            affixes, feats = self.morphology.adjective(phrase.head, phrase.plural)
            adjective = self._inflected(concept, "ADJ", "amod", affixes, feats)
            adjective.head = head
            adjectives.append(adjective)
        tokens = [*adjectives, *core] if self._before else [*core, *adjectives]
        if phrase.determiner is not None:
            tokens.insert(0, self._determiner(phrase.determiner, head))
        if phrase.modifier is not None:
            modifier, modifier_head = self._place(phrase.modifier, "nmod")
            modifier_head.head = head
            tokens = [*tokens, *modifier] if self._preposition else [*modifier, *tokens]
        if phrase.relative is not None:
            tokens = self._relative(phrase.relative, tokens, head)
        if phrase.also is not None:
            other, other_head = self._phrase(phrase.also, "conj", accusative)
            other_head.head = head
            tokens += [self._word("f:and", "CCONJ", "cc", other_head), *other]
        return tokens, head

    def _relative(self, relative: Clause, tokens: Tokens, head: Token) -> Tokens:
        clause, predicate = self._clause(relative, "r", relative=True)
        predicate.head, predicate.rel = head, "acl:relcl"
        marker = self._word("f:which", "PRON", "nsubj", predicate)
        return [*clause, marker, *tokens] if self._verb_last else [*tokens, marker, *clause]

    def _determiner(self, concept: str, head: Token) -> Token:
        if concept in DETERMINERS:
            return self._word(concept, "DET", "det", head)
        return self._word(concept, "NUM", "nummod", head)

    def _core(self, phrase: Phrase, rel: str, accusative: bool) -> Headed:
        if phrase.entity is not None:
            return self._entity(phrase.entity, rel, accusative)
        affixes, feats = self.morphology.noun(phrase.head, phrase.plural, accusative)
        upos = "PRON" if phrase.head[0] == "f" else "NOUN"
        head = self._inflected(phrase.head, upos, rel, affixes, feats)
        if self._particles and phrase.plural and upos == "NOUN" and phrase.determiner in (None, *DETERMINERS):
            return [self._word("f:plural", "PART", "dep", head), head], head
        return [head], head

    def _entity(self, entity: Entity, rel: str, accusative: bool) -> Headed:
        """A name with its labels; the case ending goes on the head."""
        tokens, head = self._name_words(entity, accusative)
        head.rel = rel
        for number, token in enumerate(tokens):
            token.label = f"{'B' if number == 0 else 'I'}-{entity.kind}"
        return tokens, head

    def _name_words(self, entity: Entity, accusative: bool) -> Headed:
        first, second = entity.parts[0], entity.parts[-1]
        affixes, feats = self.morphology.name(accusative)
        if entity.shape == "of":
            head = self._inflected(first, "NOUN", "", *self.morphology.noun(first, False, accusative))
            name = self._word(second, "PROPN", "nmod", head)
            of = self._word("f:of", "ADP", "case", name)
            return ([head, of, name] if self._preposition else [name, of, head]), head
        if entity.shape == "typed":
            head = self._inflected(second, "NOUN", "", *self.morphology.noun(second, False, accusative))
            name = self._word(first, "PROPN", "compound", head)
            return ([name, head] if self._before else [head, name]), head
        if entity.shape == "adjective":
            head = self._inflected(second, "PROPN", "", affixes, feats)
            quality = self._inflected(first, "ADJ", "amod", *self.morphology.adjective(second, False))
            quality.head = head
            return ([quality, head] if self._before else [head, quality]), head
        if entity.shape == "full":
            one, two = (second, first) if self._verb_last else (first, second)
            head = self._inflected(one, "PROPN", "", affixes, feats)
            return [head, self._word(two, "PROPN", "flat", head)], head
        head = self._inflected(first, "PROPN", "", affixes, feats)
        return [head], head

    def _place(self, place: Place, rel: str) -> Headed:
        tokens, head = self._phrase(place.phrase, rel)
        adposition = self._word(place.adposition, "ADP", "case", head)
        return ([adposition, *tokens] if self._preposition else [*tokens, adposition]), head


def text_of(tokens: Tokens) -> tuple[str, list[int]]:
    """Running text (punctuation joined to the word before it) and the offset of each word in code points."""
    pieces: list[str] = []
    offsets: list[int] = []
    length = 0
    for token in tokens:
        if pieces and token.upos != "PUNCT":
            pieces.append(" ")
            length += 1
        offsets.append(length)
        pieces.append(token.form)
        length += len(token.form)
    return "".join(pieces), offsets
