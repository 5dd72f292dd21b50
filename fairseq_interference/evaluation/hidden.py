"""Hidden states of text, layer by layer: one vector for every piece, whatever is in the batch beside it.

Layer 0 is what the embeddings give, layer k what the k-th layer puts out; the last one includes the encoder's closing
norm, if it has one. ``<s>`` and ``</s>`` are read by the model, but have no vector in what comes back, unless that of
``<s>`` is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_interference.data.blocks import split_long
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.errors import CheckpointError, LanguageError, TokenizerError, UsageError

if TYPE_CHECKING:
    from fairseq_interference.loading import Loaded

MAX_TOKENS = 4096


class Route(NamedTuple):
    """How a language goes through a model.

    Attributes:
        lang_id: id for the batch, None for a model without languages.
        parts: ``own``; ``none`` for a language that the model was not trained on; or whose parts it uses.
    """

    lang_id: Optional[int]
    parts: str


def route(loaded: Loaded, lang: str, fallback_lang: Optional[str] = None, where: str = "lang") -> Route:
    """How ``lang`` goes through the model.

    Raises:
        LanguageError: unknown to a model with language-specific parts, and no fall-back.
    """
    from fairseq_interference.optim.presence import has_language_parts

    languages = loaded.languages
    if not len(languages):
        return Route(None, "own")
    if lang in languages:
        return Route(languages.id(lang), "own")
    fallback = fallback_lang or getattr(getattr(loaded.task, "cfg", None), "fallback_lang", None)
    if fallback:
        return Route(languages.id(fallback, "--fallback-lang"), fallback)
    if not has_language_parts(loaded.model.parameters()):
        return Route(0, "none")
    what = "The checkpoint has no parts for this language."
    advice = "name a language whose parts it shall use: --fallback-lang (evaluate, predict)"
    raise LanguageError(what, where=where, value=lang, allowed=",".join(languages), next_step=advice)


def tokenizer_of(loaded: Loaded) -> Tokenizer:
    """The tokenizer that travels with the checkpoint.

    Raises:
        TokenizerError: none does.
    """
    if loaded.tokenizer_dir is None:
        advice = "put the tokenizer/ of its data beside the checkpoint"
        raise TokenizerError("No tokenizer travels with this checkpoint.", where=loaded.path, next_step=advice)
    return Tokenizer.load(loaded.tokenizer_dir)


def layers_of(loaded: Loaded) -> int:
    """Number of layers of its encoder.

    Raises:
        CheckpointError: a model without one.
    """
    encoder = getattr(getattr(loaded.model, "encoder", None), "sentence_encoder", None)
    if encoder is None:
        what = "This model is no encoder of sentences."
        raise CheckpointError(what, where=loaded.path, value=type(loaded.model).__name__, allowed="XLM-R, xlm_…")
    return len(encoder.layers)


def width_of(loaded: Loaded) -> int:
    """Size C of its hidden states."""
    return int(loaded.model.encoder.sentence_encoder.embed_tokens.embedding_dim)


def layer_number(layer: int, layers: int, where: str = "layer") -> int:
    """``layer`` counted from 0 (embeddings); -1 is the last one.

    Raises:
        UsageError: there is no such layer.
    """
    if type(layer) is not int or not -layers - 1 <= layer <= layers:
        allowed = f"0 (embeddings) to {layers}, or -1 (last) to {-layers - 1}"
        raise UsageError("The encoder has no such layer.", where=where, value=layer, allowed=allowed)
    return layer % (layers + 1)


def longest_row(loaded: Loaded) -> int:
    """Tokens of a row that the model takes, special symbols included."""
    positions = int(loaded.model.max_positions())
    trained = getattr(loaded.cfg.task, "tokens_per_sample", None)
    return min(positions, int(trained)) if trained else positions


class _Row(NamedTuple):
    """Part of a text as the model reads it: number of the text, its tokens, and how many of them are pieces."""

    text: int
    tokens: list[int]
    pieces: int


def _rows(texts: Sequence[Sequence[int]], length: int, dictionary: Any) -> list[_Row]:
    """Rows of at most ``length`` tokens in the order of the texts; a longer text is cut into equal parts."""
    rows = []
    for number, ids in enumerate(texts):
        whole = [*ids, dictionary.eos()]
        for first, stop in split_long(np.array([[0, len(whole)]]), length - 1) if ids else ():
            pieces = min(stop, len(ids)) - first
            rows.append(_Row(number, [dictionary.bos(), *whole[first:stop]], pieces))
    return rows


def padded(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    """Rows of ids as (B, T)."""
    tokens = torch.full((len(rows), max(map(len, rows))), pad)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = torch.tensor(row)
    return tokens


def in_batches(sizes: Sequence[int], max_tokens: int = MAX_TOKENS, most: Optional[int] = None) -> Iterator[list[int]]:
    """Numbers of rows, by length, in batches of at most ``max_tokens`` tokens (padding counted) and ``most`` rows."""
    batch: list[int] = []
    for number in sorted(range(len(sizes)), key=lambda number: sizes[number]):
        if batch and (sizes[number] * (len(batch) + 1) > max_tokens or len(batch) == most):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


@torch.no_grad()
def hidden_states(
    loaded: Loaded,
    texts: Sequence[Sequence[int]],
    lang_id: Optional[int],
    layers: Sequence[int],
    *,
    mean: bool = False,
    first: bool = False,
    batch_size: Optional[int] = None,
    max_tokens: int = MAX_TOKENS,
) -> list[Tensor]:
    """Vectors of each text's pieces.

    Args:
        loaded: its model is read in eval mode, on its device, in its precision.
        texts: ids of the pieces of each text, without special symbols. Too long a text is read in parts.
        lang_id: language of all of them, see :func:`route`.
        layers: numbers from 0, see :func:`layer_number`; K of them.
        mean: give the mean over a text's pieces.
        first: give ``<s>`` instead, of a text's first part.
        batch_size, max_tokens: most rows and tokens of a batch.

    Returns:
        (K, T, C) for each text, or (K, C) with ``mean`` or ``first``; T = 0, or zeros, for a text without pieces.
        On the CPU.
    """
    model, count = loaded.model.eval(), layers_of(loaded)
    rows = _rows(texts, longest_row(loaded), loaded.dictionary)
    like = next(model.parameters())
    found: dict[int, Tensor] = {}
    for batch in in_batches([len(row.tokens) for row in rows], max_tokens, batch_size):
        tokens = padded([rows[number].tokens for number in batch], loaded.dictionary.pad()).to(like.device)
        extra = {} if lang_id is None else {"lang_id": torch.full((len(batch),), lang_id, device=like.device)}
        last, said = model(src_tokens=tokens, features_only=True, return_all_hiddens=True, **extra)
        states = [last if layer == count else said["inner_states"][layer].transpose(0, 1) for layer in layers]
        for place, number in enumerate(batch):
            part = slice(0, 1) if first else slice(1, 1 + rows[number].pieces)
            own = torch.stack([state[place, part] for state in states])  # K x T x C
            found[number] = (own.sum(dim=1) if mean else own).cpu()
    width = width_of(loaded)
    parts: list[list[Tensor]] = [[] for _ in texts]
    for number, row in enumerate(rows):
        parts[row.text].append(found[number])
    zero = torch.zeros(len(layers), width, dtype=like.dtype)
    if first:
        return [own[0][:, 0] if own else zero for own in parts]
    if mean:
        return [sum(own, zero) / max(len(ids), 1) for own, ids in zip(parts, texts)]
    none = torch.zeros(len(layers), 0, width, dtype=like.dtype)
    return [torch.cat([none, *own], dim=1) for own in parts]
