"""Spoken sentences in the official formats: raw text, panx, CoNLL-U, XNLI."""

from __future__ import annotations

from data_prep.synthetic.inference import Pair
from data_prep.synthetic.speech import Speaker, Tokens, text_of


def raw_line(tokens: Tokens) -> str:
    """One line of running text."""
    return text_of(tokens)[0] + "\n"


def panx(tokens: Tokens, code: str) -> str:
    """``lang:word<TAB>label`` lines and a blank line."""
    return "".join(f"{code}:{token.form}\t{token.label}\n" for token in tokens) + "\n"


def conllu(tokens: Tokens, code: str, number: int, split: str) -> str:
    """One CoNLL-U sentence: ids from 1, heads, features sorted by name, ``SpaceAfter=No`` before punctuation."""
    position = {id(token): index for index, token in enumerate(tokens, 1)}
    lines = [f"# sent_id = {code}-{split}-{number}", f"# text = {text_of(tokens)[0]}"]
    for index, token in enumerate(tokens, 1):
        head = 0 if token.head is None else position[id(token.head)]
        glued = index < len(tokens) and tokens[index].upos == "PUNCT"
        misc = "SpaceAfter=No" if glued else "_"
        lines.append(
            f"{index}\t{token.form}\t{token.lemma}\t{token.upos}\t_\t{token.feats}\t{head}\t{token.rel}\t_\t{misc}"
        )
    return "\n".join(lines) + "\n\n"


def xnli(pair: Pair, speaker: Speaker) -> str:
    """``premise<TAB>hypothesis<TAB>label``, no header."""
    premise, hypothesis = (text_of(speaker.sentence(meaning))[0] for meaning in (pair.premise, pair.hypothesis))
    return f"{premise}\t{hypothesis}\t{pair.label}\n"
