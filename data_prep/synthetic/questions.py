"""Paragraphs with questions: a question is a clause of the paragraph with one argument asked for.

Other arguments are given in a shorter or more general form, and distracting sentences share the verb, so that neither
the verb nor a copied string gives the answer away; exactly one sentence of the paragraph answers.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from data_prep.synthetic.concepts import HUMAN
from data_prep.synthetic.grammar import Grammar
from data_prep.synthetic.meaning import Clause, Phrase, Sentence, phrase_size, phrases_of, with_phrase
from data_prep.synthetic.speech import Speaker, Token, Tokens, text_of

LONGEST_ANSWER = 5
DISTRACTED = 0.6


class Question(NamedTuple):
    """What is asked, in which sentence of the paragraph and in which role of its clause the answer stands."""

    meaning: Sentence
    sentence: int
    role: str


class Paragraph(NamedTuple):
    """Sentences of one clause each, and questions on them."""

    sentences: tuple[Sentence, ...]
    questions: tuple[Question, ...]


class Asking:
    """Draws paragraphs with ``count`` questions each."""

    def __init__(self, grammar: Grammar, count: int = 2) -> None:
        self.grammar = grammar
        self.inventory = grammar.inventory
        self.rng = grammar.rng
        self.count = count

    def paragraph(self) -> Paragraph:
        while True:
            clauses = [self._askable() for _ in range(self.count)]
            clauses += [self._distractor(clause) for clause in clauses if self.rng.random() < DISTRACTED]
            clauses += [self.grammar.clause(0.6) for _ in range(self.rng.choice((1, 1, 2)))]
            order = self.rng.sample(range(len(clauses)), len(clauses))
            shuffled = [clauses[number] for number in order]
            questions = [self._question(shuffled, order.index(number)) for number in range(self.count)]
            asked = tuple(question for question in questions if question is not None)
            if len(asked) == self.count:
                return Paragraph(tuple(Sentence(clause) for clause in shuffled), asked)

    def _askable(self) -> Clause:
        """A positive clause with two arguments at least, and a verb."""
        while True:
            clause = self.grammar.clause(0.6)
            if clause.verb is not None and len(phrases_of(clause)) > 1:
                return clause._replace(negated=False)

    def _distractor(self, clause: Clause) -> Clause:
        """The same verb with other participants."""
        for role, phrase in phrases_of(clause):
            clause = with_phrase(clause, role, self.grammar.phrase(phrase.category, self.rng.randrange(8), 0.2))
        return clause._replace(adverb=None)

    def _question(self, clauses: list[Clause], number: int) -> Optional[Question]:
        clause = clauses[number]
        roles = [
            role
            for role, phrase in phrases_of(clause)
            if not phrase.head.startswith("f:") and phrase.also is None and phrase_size(phrase) <= LONGEST_ANSWER
        ]
        if not roles:
            return None
        asked = self.rng.choice(roles)
        question = clause._replace(adverb=None)
        for role, phrase in phrases_of(clause):
            word = "f:where" if role == "place" else "f:who" if phrase.category == HUMAN else "f:what"
            shorter = Phrase(word, phrase.category) if role == asked else self._shorter(phrase)
            question = with_phrase(question, role, shorter)
        answering = [other for other in clauses if self._answers(other, question, asked)]
        return Question(Sentence(question, question=True), number, asked) if len(answering) == 1 else None

    def _shorter(self, phrase: Phrase) -> Phrase:
        parent = self.inventory.parent.get(phrase.head)
        head = parent if parent is not None and phrase.entity is None and self.rng.random() < 0.3 else phrase.head
        adjectives = phrase.adjectives if self.rng.random() < 0.5 else ()
        return phrase._replace(head=head, adjectives=adjectives, modifier=None, relative=None, title=None)

    def _answers(self, clause: Clause, question: Clause, asked: str) -> bool:
        """Whether a clause could be taken for the answer: same verb, every other argument fits."""
        if clause.verb != question.verb:
            return False
        given = dict(phrases_of(clause))
        wanted = [(role, phrase) for role, phrase in phrases_of(question) if role != asked]
        return asked in given and all(role in given and self._fits(given[role], phrase) for role, phrase in wanted)

    def _fits(self, phrase: Phrase, description: Phrase) -> bool:
        head: Optional[str] = phrase.head
        while head is not None and head != description.head:
            head = self.inventory.parent.get(head)
        return head is not None


def answer_span(tokens: Tokens, role: str) -> tuple[int, int]:
    """First and last word (inclusive) of the phrase that holds a role, its adposition left out."""
    top = next(token for token in tokens if token.role == f"1.{role}")
    inside = [number for number, token in enumerate(tokens) if _below(token, top) and not _own_case(token, top)]
    return inside[0], inside[-1]


def _below(token: Optional[Token], top: Token) -> bool:
    while token is not None and token is not top:
        token = token.head
    return token is top


def _own_case(token: Token, top: Token) -> bool:
    return token.head is top and token.rel == "case"


def speak_paragraph(paragraph: Paragraph, speaker: Speaker, name: str) -> dict[str, Any]:
    """One SQuAD paragraph in one language; ``answer_start`` counts code points of the context."""
    context, spoken = "", []
    for meaning in paragraph.sentences:
        tokens = speaker.sentence(meaning)
        text, offsets = text_of(tokens)
        context += " " if context else ""
        spoken.append((tokens, [len(context) + offset for offset in offsets]))
        context += text
    entries = []
    for number, question in enumerate(paragraph.questions, 1):
        tokens, offsets = spoken[question.sentence]
        first, last = answer_span(tokens, question.role)
        begin, end = offsets[first], offsets[last] + len(tokens[last].form)
        asked = text_of(speaker.sentence(question.meaning))[0]
        answers = [{"text": context[begin:end], "answer_start": begin}]
        entries.append({"id": f"{name}-{number}", "question": asked, "answers": answers})
    return {"context": context, "qas": entries}
