"""The tokenizer that goes with weights to transformers, and the order of rows that its ids ask for."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq_interference.convert import vocabulary
from fairseq_interference.data.tokenizer import KINDS, Tokenizer
from fairseq_interference.errors import TokenizerError
from fairseq_interference.stages import write_json

SPECIAL = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
# kind of ours -> name of its file in transformers, its class there
FORMS = {
    "sentencepiece": ("sentencepiece.bpe.model", "XLMRobertaTokenizer"),
    "huggingface": ("tokenizer.json", "PreTrainedTokenizerFast"),
}


@dataclass(frozen=True)
class Plan:
    """What becomes of a tokenizer.

    Attributes:
        source: its library's file; None if transformers gets no tokenizer.
        kind: of ours.
        order: row of ours for each id there, None where the dictionary has no such piece; None for the same order.
        notes: what a user should know, in words.
    """

    source: Optional[Path] = None
    kind: str = ""
    order: Optional[list[Optional[int]]] = None
    notes: list[str] = field(default_factory=list)

    def write(self, folder: Path, positions: int) -> None:
        """Write the tokenizer's files into the folder of the weights; ``positions``: most tokens of a sequence."""
        if self.source is None:
            return
        name, kind = FORMS[self.kind]
        shutil.copyfile(self.source, folder / name)
        config = {**SPECIAL, "tokenizer_class": kind, "model_max_length": positions}
        write_json(folder / "tokenizer_config.json", config)
        write_json(folder / "special_tokens_map.json", SPECIAL)


def plan(tokenizer_dir: Optional[Path], dictionary: Any) -> Plan:
    """See :class:`Plan`.

    Args:
        tokenizer_dir: beside the checkpoint.
        dictionary: the host's, with ``<mask>``.
    """
    if tokenizer_dir is None:
        return Plan(notes=["no tokenizer travels with this checkpoint, so none is written"])
    tokenizer = Tokenizer.load(tokenizer_dir)
    if tokenizer.kind not in FORMS or tokenizer.pretokenizer != "none":
        how = tokenizer.kind if tokenizer.kind not in FORMS else f"{tokenizer.pretokenizer} before {tokenizer.kind}"
        return Plan(notes=[f"no tokenizer is written: transformers has none for {how}; encode with `Tokenizer.load`"])
    source = tokenizer.folder / tokenizer.options["files"][KINDS[tokenizer.kind][0]]
    try:
        read = vocabulary.pieces_of_json if tokenizer.kind == "huggingface" else vocabulary.pieces_of_sentencepiece
        pieces = list(read(source))
    except TokenizerError as error:
        return Plan(notes=[f"no tokenizer is written: {error.what}"])
    problem = _problem(pieces, dictionary)
    if problem:
        return Plan(notes=[f"no tokenizer is written: {problem}"])
    notes = []
    if tokenizer.normalization != "none":
        notes.append(
            f"text must be {tokenizer.normalization.upper()}: the tokenizer of transformers does not see to it"
        )
    order = _order(pieces, dictionary)
    if order is not None:
        notes.append("rows of the embeddings follow the tokenizer's ids, which are not those of dict.txt")
    return Plan(source, tokenizer.kind, order, notes)


def _problem(pieces: Sequence[Optional[str]], dictionary: Any) -> Optional[str]:
    if list(pieces[:4]) != list(vocabulary.FIRST) or vocabulary.MASK not in pieces:
        return "its special symbols are not those of XLM-R"
    known = set(pieces)
    lost = [s for s in dictionary.symbols if s not in known and not s.startswith("madeupword")]
    return f"the dictionary has {len(lost)} symbols that it lacks, such as {lost[0]!r}" if lost else None


def _order(pieces: Sequence[Optional[str]], dictionary: Any) -> Optional[list[Optional[int]]]:
    order = [dictionary.index(piece) if piece is not None and piece in dictionary else None for piece in pieces]
    rows = len(dictionary)
    same = len(order) <= rows and all(row in (None, number) for number, row in enumerate(order))
    return None if same else order
