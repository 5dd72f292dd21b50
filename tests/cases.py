"""The table of archs that drives the matrix tests; an arch of ours without a row fails a test."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Optional

import torch

PIECES = 40
LANGS = ("en", "to", "hi")  # `to` is also the name of a method of every module


@dataclass(frozen=True)
class Case:
    """One arch.

    Args:
        arch: registered name.
        routed: every sequence goes through parts of its own language, ``lang_id`` is required.
        langs: languages that the tests build it for.
        options: options beside the tiny sizes.
        identity: its outputs equal those of ``xlm_joint`` at the same seed.
        full_size: C of its preset.
    """

    arch: str
    routed: bool
    langs: tuple[str, ...] = LANGS
    options: dict[str, Any] = field(default_factory=dict)
    identity: bool = True
    full_size: int = 512


def _pair(arch: str, **values: Any) -> list[Case]:
    return [Case(arch, **values), Case(f"{arch}_tiny", full_size=64, **values)]


CASES = [
    *_pair("xlm_mono", routed=False, langs=("to",)),
    *_pair("xlm_joint", routed=False),
    *_pair("xlm_ffn", routed=True),
    *_pair("xlm_attn", routed=True),
    *_pair("xlm_adpt", routed=True),
    *_pair("xlm_share_adpt", routed=False),
    *_pair("xlm_meta_adpt", routed=True),
]

# The same archs with options that change the structure; rows for the matrix, not for the registry.
VARIANTS = [
    Case("xlm_joint", routed=True, options={"lang_embeddings": True}),
    Case("xlm_ffn", routed=True, options={"lang_parts": "ffn,attn,adapter", "lang_embeddings": True}),
    Case("xlm_adpt", routed=True, options={"adapter_layer_norm": "before", "adapter_skip_layers": "0"}),
    Case("xlm_adpt", routed=True, options={"adapter_layer_norm": "after", "adapter_activation": "relu"}),
    Case("xlm_adpt", routed=True, options={"encoder_normalize_before": True, "layernorm_embedding": False}),
    Case("xlm_adpt", routed=True, options={"adapter_placement": "layer", "adapter_layer_norm": "before"}),
    Case("xlm_adpt", routed=True, options={"adapter_placement": "layer-norm"}, identity=False),
]

SIZES = {
    "encoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 4,
    "adapter_dim": 8,
    "max_positions": 32,
}


def label(case: Case) -> str:
    """Name of a case in the list of tests."""
    return "-".join([case.arch, *(f"{name}={value}" for name, value in case.options.items())])


def dictionary(pieces: int = PIECES) -> Any:
    """A made-up dictionary with ``<mask>``."""
    from fairseq.data import Dictionary

    made = Dictionary()
    for number in range(pieces):
        made.add_symbol(f"piece{number}")
    made.add_symbol("<mask>")
    return made


def build(arch: str, langs: Sequence[str] = LANGS, seed: int = 1, task: str = "none", **options: Any) -> Any:
    """A small model of ``arch``, built as the host builds it, in float64 and training mode."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    from fairseq_interference.languages import LanguageList

    args = argparse.Namespace(**{"arch": arch, "task": task, **SIZES, **options})
    ARCH_CONFIG_REGISTRY[arch](args)
    setup = SimpleNamespace(source_dictionary=dictionary(), languages=LanguageList(langs), max_positions=lambda: 32)
    torch.manual_seed(seed)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, setup).double()


def build_case(case: Case, **options: Any) -> Any:
    """The model of a case."""
    return build(case.arch, case.langs, **{**case.options, **options})


def batch(langs: Sequence[str] = LANGS, lengths: Sequence[int] = (7, 3, 9, 5, 9, 4), seed: int = 3) -> dict[str, Any]:
    """``net_input`` of sequences in turning languages, padded: (B, T) with T the longest length."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.full((len(lengths), max(lengths)), 1)
    for row, length in enumerate(lengths):
        tokens[row, :length] = torch.randint(4, 4 + PIECES, (length,), generator=generator)
        tokens[row, 0], tokens[row, length - 1] = 0, 2
    lang_id = torch.tensor([row % len(langs) for row in range(len(lengths))])
    return {"src_tokens": tokens, "src_lengths": torch.tensor(lengths), "lang_id": lang_id}


def rows(inputs: dict[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """Some rows of a batch, in another order."""
    return {name: value[list(order)] for name, value in inputs.items()}


def shake(model: Any, seed: int = 5) -> Any:
    """Move every weight away from its start, so that languages differ and adapters do something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


def loss_of(model: Any, inputs: dict[str, Any], masked: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Summed cross entropy at ``masked`` (default: every third token of the text)."""
    tokens = inputs["src_tokens"]
    if masked is None:
        masked = tokens.ne(1) & (torch.arange(tokens.size(1)) % 3 == 1)
    scores, _ = model(**inputs, masked_tokens=masked)
    return torch.nn.functional.cross_entropy(scores, tokens[masked], reduction="sum")


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Name -> gradient, of the parameters that have one that is not zero."""
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: grad.clone() for name, grad in found.items() if grad is not None and bool(grad.any())}
