"""Names of an encoder's tensors: the host's (ours) and those of transformers' XLM-R and X-MOD. Plain text, no torch."""

from __future__ import annotations

import re
from typing import Optional

ENCODER = "encoder.sentence_encoder."
LM_HEAD = "encoder.lm_head."
BASE = "roberta."  # transformers' prefix of the encoder in a model with a head
EMBED, POSITIONS = f"{ENCODER}embed_tokens.weight", f"{ENCODER}embed_positions.weight"
OUTPUT = f"{LM_HEAD}weight"
VERSION, TODAY = f"{ENCODER}version", 3.0  # without it the host takes a pre-norm encoder for one without a last norm
TOKEN_TYPES = "embeddings.token_type_embeddings.weight"

#: transformers, without :data:`BASE` -> ours; whole modules, ``.weight`` and ``.bias`` alike
_BODY = {
    "embeddings.word_embeddings": f"{ENCODER}embed_tokens",
    "embeddings.position_embeddings": f"{ENCODER}embed_positions",
    "embeddings.LayerNorm": f"{ENCODER}layernorm_embedding",
    "encoder.LayerNorm": f"{ENCODER}layer_norm",  # pre-norm X-MOD
}
_LAYER = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
_HEAD = {"lm_head.dense": f"{LM_HEAD}dense", "lm_head.layer_norm": f"{LM_HEAD}layer_norm"}
_BOTTLENECK = {"dense1": "down", "dense2": "up"}

_HF_LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)")
_HF_ADAPTER = re.compile(r"encoder\.layer\.(\d+)\.output\.adapter_modules\.([^.]+)\.(dense[12])\.(weight|bias)")
_HF_NORM = re.compile(r"encoder\.layer\.(\d+)\.output\.adapter_layer_norm\.(weight|bias)")
_OUR_LAYER = re.compile(re.escape(ENCODER) + r"layers\.(\d+)\.(.+)")
_OUR_ADAPTER = re.compile(
    re.escape(ENCODER) + r"layers\.(\d+)\.layer_adapter\.adapters\.([^.]+)\.(down|up|norm)\.(weight|bias)"
)

# containers of language-specific parts; the code is the whole dotted part behind them
_LANGUAGE = re.compile(
    "("
    + re.escape(ENCODER)
    + r"(?:layers\.\d+\.(?:attn|ffn|[a-z]+_adapter\.adapters)|lang_embeddings))\.([^.]+)(\..+)?"
)
ANY = "{lang}"  # stands for the code


def language_of(name: str) -> Optional[tuple[str, str]]:
    """Code of the language that a tensor of ours belongs to, and its name with :data:`ANY` for the code."""
    found = _LANGUAGE.fullmatch(name)
    if found is None or found.group(2) == "shared":
        return None
    before, code, behind = found.groups()
    return code, f"{before}.{ANY}{behind or ''}"


def to_ours(name: str) -> Optional[str]:
    """Our name of a shared tensor of transformers (prefix :data:`BASE` dropped); None if it has none."""
    module, _, kind = name.rpartition(".")
    if name == "lm_head.bias":
        return f"{LM_HEAD}bias"
    if name == "lm_head.decoder.weight":
        return OUTPUT
    stem = _BODY.get(module) or _HEAD.get(module)
    if stem is not None:
        return f"{stem}.{kind}"
    found = _HF_LAYER.fullmatch(module)
    part = _LAYER.get(found.group(2)) if found else None
    return f"{ENCODER}layers.{found.group(1)}.{part}.{kind}" if found and part else None


def to_hf(name: str) -> Optional[str]:
    """transformers' name (with its prefix) of a shared tensor of ours; None if it has none."""
    module, _, kind = name.rpartition(".")
    if name == f"{LM_HEAD}bias":
        return "lm_head.bias"
    if name == OUTPUT:
        return "lm_head.decoder.weight"
    for theirs, ours in _BODY.items():
        if module == ours:
            return f"{BASE}{theirs}.{kind}"
    for theirs, ours in _HEAD.items():
        if module == ours:
            return f"{theirs}.{kind}"
    found = _OUR_LAYER.fullmatch(module)
    if found:
        for theirs, ours in _LAYER.items():
            if found.group(2) == ours:
                return f"{BASE}encoder.layer.{found.group(1)}.{theirs}.{kind}"
    return None


def adapter_to_ours(name: str, codes: dict[str, str]) -> Optional[list[str]]:
    """Our names of a tensor of X-MOD's adapters; None if it is not one, ``[]`` if its language is left out.

    Args:
        name: without :data:`BASE`.
        codes: X-MOD's language -> our code. A layer norm that X-MOD shares becomes every language's own.
    """
    found = _HF_ADAPTER.fullmatch(name)
    if found:
        layer, language, dense, kind = found.groups()
        if language not in codes:
            return []
        return [f"{ENCODER}layers.{layer}.layer_adapter.adapters.{codes[language]}.{_BOTTLENECK[dense]}.{kind}"]
    found = _HF_NORM.fullmatch(name)
    if found:
        layer, kind = found.groups()
        return [f"{ENCODER}layers.{layer}.layer_adapter.adapters.{code}.norm.{kind}" for code in codes.values()]
    return None


def adapter_to_hf(name: str) -> Optional[str]:
    """X-MOD's name of a tensor of our adapters that stand once a layer; None if it is not one."""
    found = _OUR_ADAPTER.fullmatch(name)
    if found is None:
        return None
    layer, code, part, kind = found.groups()
    stem = f"{BASE}encoder.layer.{layer}.output."
    if part == "norm":
        return f"{stem}adapter_layer_norm.{kind}"
    dense = {ours: theirs for theirs, ours in _BOTTLENECK.items()}[part]
    return f"{stem}adapter_modules.{code}.{dense}.{kind}"
