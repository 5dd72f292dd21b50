"""Fill the slots of an encoder, at identity, after the host has drawn its weights."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import nn

from fairseq_interference.models._encoder import EncoderLayer
from fairseq_interference.models._options import ComponentOptions
from fairseq_interference.modules.adapter import SHARED, Adapter, AdapterSlot
from fairseq_interference.modules.encoder_layer import FeedForward, SelfAttention
from fairseq_interference.modules.language_parameters import LanguageEmbeddings
from fairseq_interference.modules.language_switch import LanguageModules

#: --adapter-placement -> slots of a layer
PLACES = {"each": ("attn_adapter", "ffn_adapter"), "layer": ("layer_adapter",), "layer-norm": ("layer_adapter",)}


def _copy(holder: nn.Module, name: str) -> nn.Module:
    return copy.deepcopy(holder.get_submodule(name))


def split_feed_forward(layer: EncoderLayer, codes: Sequence[str]) -> None:
    """Give every language a copy of the feed-forward sub-layer; the shared one goes."""
    layer.ffn = LanguageModules((code, FeedForward(_copy(layer, "fc1"), _copy(layer, "fc2"))) for code in codes)
    del layer.fc1, layer.fc2


def split_attention(layer: EncoderLayer, codes: Sequence[str]) -> None:
    """Give every language a copy of the self-attention; the shared one goes."""
    shared = layer.self_attn
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    layer.attn = LanguageModules((code, SelfAttention(*(_copy(shared, name) for name in names))) for code in codes)
    del layer.self_attn


def _generator(seed: int, *names: object) -> torch.Generator:
    """A generator of its own for every adapter, so that a language's start does not depend on the others."""
    digest = hashlib.blake2b("\0".join(map(str, (seed, *names))).encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


def add_adapters(layers: Sequence[EncoderLayer], codes: Sequence[str], options: ComponentOptions, dim: int) -> None:
    """Add adapters to every layer that is not skipped. The global generator is left as it was."""
    codes = [SHARED] if options.adapter_sharing == "all" else codes
    with torch.random.fork_rng(devices=[]):
        seed = int(torch.randint(2**62, ()))
        for number, layer in enumerate(layers):
            if number in options.skipped_layers:
                continue
            layer.renormalize = options.adapter_placement == "layer-norm"
            for place in PLACES[options.adapter_placement]:
                draw = partial(_generator, seed, number, place)
                slot = AdapterSlot(LanguageModules((code, _adapter(options, dim, draw(code))) for code in codes))
                setattr(layer, place, slot)


def _adapter(options: ComponentOptions, dim: int, generator: torch.Generator) -> Adapter:
    adapter = Adapter(
        dim, options.adapter_dim, options.adapter_activation, options.adapter_dropout, options.adapter_layer_norm
    )
    adapter.reset_parameters(generator)
    return adapter


def language_parameters(model: nn.Module) -> Iterator[tuple[str, str]]:
    """(parameter name, code) of every parameter that belongs to one language."""
    for prefix, module in model.named_modules():
        if not isinstance(module, (LanguageModules, LanguageEmbeddings)):
            continue
        for code, part in module.items():
            if code == SHARED:
                continue
            names = [""] if isinstance(part, nn.Parameter) else [f".{name}" for name, _ in part.named_parameters()]
            for name in names:
                yield f"{prefix}.{code}{name}", code
