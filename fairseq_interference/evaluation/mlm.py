"""Perplexity of a checkpoint that can be compared: the same masks every time, per token and per character.

Every token is predicted exactly once, in a few passes over the text; a pass hides one part of each line behind
``<mask>``. Lines are read one at a time, so that the context does not depend on the vocabulary. Per token means
nothing across vocabularies; per character does.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import torch
from numpy.typing import NDArray

from fairseq_interference.data import dictionary as dictionaries
from fairseq_interference.data.blocks import split_long
from fairseq_interference.data.masking import U64, keys, mix
from fairseq_interference.data.token_file import TokenFile
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import DONE, CheckpointError, DataError, DictionaryError, TokenizerError, UsageError

PARTS = 7  # about 15 % of the tokens are hidden at a time, as in training
MAX_TOKENS = 4096
UNKNOWN = "\ufffd"
PathLike = Union[str, Path]
Ids = NDArray[np.int64]


@dataclass
class Lines:
    """Text to be scored: token ids of each line with ``</s>``, and the characters of all lines."""

    ids: list[Ids]
    characters: int


def read_text(path: PathLike, tokenizer: Tokenizer, dictionary: Any, lang: str, most: Optional[int] = None) -> Lines:
    """Encode a text file as the training data was; characters are those of the file's lines, without line ends."""
    found = Lines([], 0)
    with open(path, "rb") as stream:
        for place, raw in enumerate(stream, 1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError("This text is not UTF-8.", where=f"{path}:{place}", value=str(error)) from None
            if most is not None and len(found.ids) >= most:
                break
            pieces = tokenizer.encode_line(line.rstrip("\r\n"), lang)
            if not pieces:
                continue
            found.characters += len(line.strip())
            found.ids.append(np.array([*map(dictionary.index, pieces), dictionary.eos()], dtype=np.int64))
    return found


def symbols_of(dictionary: Any) -> list[str]:
    """Pieces of a dictionary in order, without the special symbols and ``<mask>``."""
    numbers = range(dictionary.nspecial, len(dictionary))
    return [dictionary[number] for number in numbers if dictionary[number] != "<mask>"]


def vocabulary_of(dictionary: Any) -> dict[str, Any]:
    """What a record says of the dictionary: perplexities per token compare only where it is the same."""
    return {"dictionary": dictionaries.digest(symbols_of(dictionary))[:12], "dictionary_size": len(dictionary)}


def split_file(folder: PathLike, lang: str, split: str) -> Path:
    """Index of a split; ``dev`` is another name of ``valid``."""
    return Path(folder) / lang / f"{'valid' if split == 'dev' else split}.idx"


def read_data(
    folder: PathLike, lang: str, split: str, dictionary: Any, tokenizer: Optional[Tokenizer], most: Optional[int] = None
) -> Lines:
    """Lines of a data folder; characters are counted in the decoded text."""
    theirs = [symbol for symbol in dictionaries.symbols_of_file(Path(folder) / "dict.txt") if symbol != "<mask>"]
    if dictionaries.digest(symbols_of(dictionary)) != dictionaries.digest(theirs):
        raise DictionaryError(
            "This data was binarised with another dictionary than the checkpoint's.",
            where=folder,
            next_step="give the text itself: --text FILE",
        )
    index = split_file(folder, lang, split)
    if not index.is_file():
        there = sorted(path.stem for path in index.parent.glob("*.idx"))
        raise DataError("There is no such split.", where=index, allowed=", ".join(there) or None)
    file = TokenFile(index.with_suffix(""))
    ends = np.cumsum(file.sizes, dtype=np.int64)[:most]
    found = Lines([], 0)
    for begin, end in zip(ends - file.sizes[: len(ends)], ends):
        ids = file.tokens[begin:end].astype(np.int64)
        if len(ids) > 1:
            found.ids.append(ids)
            # what an unknown piece was is not known: one character
            pieces = [UNKNOWN if number == dictionary.unk() else dictionary[number] for number in ids[:-1]]
            found.characters += len(_decoded(pieces, tokenizer))
    return found


def _decoded(pieces: Sequence[str], tokenizer: Optional[Tokenizer]) -> str:
    if tokenizer is not None:
        return tokenizer.decode(pieces)
    text = " ".join(pieces)
    return "".join(pieces).replace("▁", " ").strip() if "▁" in text else text.replace("@@ ", "")


def parts_of(tokens: Ids, key: U64, never: Sequence[int], parts: int) -> Ids:
    """Part in which each token is hidden, -1 for tokens that never are; ``(B, T)``.

    The tokens of a row are dealt to the parts like cards after a shuffle that depends on the key alone.
    """
    counter = np.arange(1, tokens.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    allowed = ~np.isin(tokens, np.asarray(never))
    draw = np.where(allowed, mix(key[:, None] + counter), np.iinfo(np.uint64).max)
    rank = np.argsort(np.argsort(draw, axis=1, kind="stable"), axis=1, kind="stable")
    return np.where(allowed, rank % parts, -1)


def batches(lines: Lines, length: int, dictionary: Any, max_tokens: int = MAX_TOKENS) -> Iterator[tuple[Ids, U64]]:
    """Padded rows ``(B, T)`` with ``<s>`` and one key a row; lines longer than ``length`` are cut, none is dropped."""
    rows = []
    for number, ids in enumerate(lines.ids):
        for piece, (begin, end) in enumerate(split_long(np.array([[0, len(ids)]]), length - 1)):
            rows.append((end - begin + 1, number, piece, ids[begin:end]))
    rows.sort(key=lambda row: row[:3])
    first = 0
    while first < len(rows):
        last = first + 1
        while last < len(rows) and rows[last][0] * (last + 1 - first) <= max_tokens:
            last += 1
        some = rows[first:last]
        tokens = np.full((len(some), some[-1][0]), dictionary.pad(), dtype=np.int64)
        tokens[:, 0] = dictionary.bos()
        for row, (size, _, _, ids) in zip(tokens, some):
            row[1:size] = ids
        yield tokens, keys(np.array([row[1] for row in some]), np.array([row[2] for row in some]))
        first = last


@torch.no_grad()
def score(loaded: Any, lines: Lines, lang: str, parts: int = PARTS) -> tuple[float, int, int]:
    """Summed loss in nats, predicted tokens and unknown tokens among them.

    Args:
        loaded: what :func:`fairseq_interference.load` returns.
    """
    dictionary, model = loaded.dictionary, loaded.model.float()
    mask, pad = dictionary.index("<mask>"), dictionary.pad()
    if mask == dictionary.unk():
        raise DictionaryError("The checkpoint's dictionary has no <mask>: it is not a masked language model.")
    length = min(int(loaded.cfg.task.tokens_per_sample), int(model.max_positions()))
    extra = {}
    total, count, unknown = 0.0, 0, 0
    for tokens, key in batches(lines, length, dictionary):
        part = parts_of(tokens, key, (pad, dictionary.bos(), dictionary.eos()), parts)
        if len(loaded.languages):
            extra = {"lang_id": torch.full((len(tokens),), loaded.languages.id(lang, "--lang"))}
        lengths = torch.from_numpy((tokens != pad).sum(1))
        for number in range(min(parts, int(part.max(initial=-1)) + 1)):
            hidden = part == number
            source = torch.from_numpy(np.where(hidden, mask, tokens))
            chosen = torch.from_numpy(hidden)
            logits = model(src_tokens=source, src_lengths=lengths, masked_tokens=chosen, **extra)[0]
            target = torch.from_numpy(tokens[hidden])
            losses = torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")
            total += float(losses.double().sum())
            count += len(target)
            unknown += int((target == dictionary.unk()).sum())
    return total, count, unknown


def mlm_perplexity(
    checkpoint: PathLike,
    data: Optional[PathLike] = None,
    text: Optional[PathLike] = None,
    lang: str = "",
    *,
    split: str = "valid",
    max_lines: Optional[int] = None,
    parts: int = PARTS,
) -> dict[str, Any]:
    """Perplexity of a checkpoint on one language.

    Args:
        checkpoint: file of a masked language model.
        data: prepared data folder (its ``split`` of ``lang`` is read), or
        text: a text file, encoded with the tokenizer beside the checkpoint.
        lang: language of the text.
        max_lines: read only the first lines.
        parts: number of passes; each hides 1/parts of the tokens.

    Returns:
        The object of ``evaluate --json``: task, lang, n (lines), rules, metrics. Losses are in bits.

    Raises:
        UsageError: neither or both of data and text. TokenizerError: text, but no tokenizer beside the checkpoint.
        LanguageError: a language that the checkpoint does not know. DictionaryError: data of another dictionary.
    """
    from fairseq_interference import load

    if (data is None) == (text is None):
        raise UsageError("Give the data folder or a text file.", where="--data, --text", allowed="exactly one of them")
    if max_lines is not None and max_lines < 1:
        raise UsageError("At least 1.", where="--max-lines", value=max_lines)
    loaded = load(str(checkpoint))
    if hasattr(loaded.task, "labels"):
        raise CheckpointError("This checkpoint was fine-tuned to label words.", where=checkpoint, allowed="--task ner")
    if len(loaded.languages):
        loaded.languages.id(lang, "--lang")
    tokenizer = None if loaded.tokenizer_dir is None else Tokenizer.load(loaded.tokenizer_dir)
    if data is not None:
        lines = read_data(data, lang, split, loaded.dictionary, tokenizer, max_lines)
    elif tokenizer is None:
        raise TokenizerError(
            "There is no tokenizer beside the checkpoint to encode the text with.",
            where=checkpoint,
            next_step="give binarised data: --data FOLDER",
        )
    else:
        lines = read_text(str(text), tokenizer, loaded.dictionary, lang, max_lines)
    if not lines.ids:
        raise DataError("There is no text to score.", where=data or text, value=lang)
    total, count, unknown = score(loaded, lines, lang, parts)
    rules = {"context": "line", "masking": f"every token once, in {parts} parts, hidden behind <mask>", "loss": "bits"}
    return {
        "task": "mlm",
        "lang": lang,
        "n": len(lines.ids),
        "rules": {**rules, "split": split if data is not None else None, **vocabulary_of(loaded.dictionary)},
        "metrics": metrics_of(total, count, unknown, lines.characters),
    }


def metrics_of(nats: float, tokens: int, unknown: int, characters: int) -> dict[str, Any]:
    """Losses in bits and perplexities per token and per character."""
    per_token, per_character = nats / max(tokens, 1), nats / max(characters, 1)
    return {
        "loss_per_token": per_token / math.log(2),
        "perplexity_per_token": math.exp(min(per_token, 700.0)),
        "loss_per_character": per_character / math.log(2),
        "perplexity_per_character": math.exp(min(per_character, 700.0)),
        "tokens": tokens,
        "characters": characters,
        "unknown_rate": unknown / max(tokens, 1),
    }


def add_mlm_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``evaluate --task mlm``; ``--lang`` and ``--json`` are the verb's own."""
    group = parser.add_argument_group("--task mlm")
    group.add_argument("--checkpoint", metavar="FILE", help="checkpoint of a masked language model")
    group.add_argument("--data", metavar="DIR", help="prepared data folder")
    group.add_argument("--split", default="valid", help="which part of --data [%(default)s]")
    group.add_argument("--text", metavar="FILE", help="text, one sentence a line")
    group.add_argument("--max-lines", type=int, help="read only the first lines")


def run_mlm(args: argparse.Namespace) -> int:
    """``evaluate --task mlm``: prints a table, or one object with ``--json``."""
    for flag in ("checkpoint", "lang"):
        if not getattr(args, flag, None):
            raise UsageError(f"--task mlm needs --{flag}.", where=f"--{flag}")
    result = mlm_perplexity(
        args.checkpoint, args.data, args.text, args.lang, split=args.split, max_lines=args.max_lines
    )
    if args.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        for name, value in result["metrics"].items():
            print(f"{name:<26} {value:.4f}" if isinstance(value, float) else f"{name:<26} {value}")
    return DONE
