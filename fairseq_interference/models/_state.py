"""Fit a state dict to a model: languages checked, copies filled from shared weights, fresh parts listed.

Only whole sets are filled: a language that the checkpoint knows but whose parts are incomplete stays an error.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_interference.errors import CheckpointError
from fairseq_interference.languages import LanguageList
from fairseq_interference.models._encoder import EncoderLayer
from fairseq_interference.modules.adapter import AdapterSlot
from fairseq_interference.modules.language_parameters import LanguageEmbeddings
from fairseq_interference.modules.masks import NAME as MASKS

logger = logging.getLogger(__name__)

CODES_KEY = "language_codes"
State = dict[str, Tensor]


def encode_languages(languages: LanguageList) -> Tensor:
    """Codes as uint8 (utf-8, one a line): the form in which they travel in a state dict."""
    return torch.tensor(list("\n".join(languages.codes).encode()), dtype=torch.uint8)


def decode_languages(codes: Tensor) -> LanguageList:
    """Inverse of :func:`encode_languages`."""
    text = bytes(codes.tolist()).decode()
    return LanguageList(text.split("\n") if text else [], where=CODES_KEY)


def checkpoint_languages(state_dict: State) -> LanguageList:
    """Languages that a checkpoint of ours was trained on; empty for the host's own models."""
    codes = state_dict.get(CODES_KEY)
    return LanguageList() if codes is None else decode_languages(codes)


def fit_languages(model: Any, state: State, prefix: str) -> None:
    """Check that the checkpoint's ids mean the same languages here.

    Raises:
        LanguageError: languages were renumbered, dropped or replaced.
    """
    key = prefix + CODES_KEY
    if key in state:
        model.languages.check_extends(decode_languages(state[key]), where="checkpoint")
    state[key] = model.language_codes.clone()


def _copy_shared(state: State, shared: str, copies: str, codes: list[str], names: list[str]) -> bool:
    """Fill every language's copy from the shared sub-layer of an ordinary checkpoint."""
    if f"{shared}{names[0]}" not in state:
        return False
    for name in names:
        weight = state.pop(f"{shared}{name}")
        state.update({f"{copies}.{code}.{name}": weight for code in codes})
    return True


def _average_known(state: State, copies: str, codes: list[str], names: list[str]) -> list[str]:
    """Languages that the checkpoint lacks altogether start from the mean of those that it has."""
    has = {code: sum(f"{copies}.{code}.{name}" in state for name in names) for code in codes}
    known = [code for code in codes if has[code] == len(names)]
    new = [code for code in codes if has[code] == 0]
    if not known:
        return []
    for code in new:
        for name in names:
            mean = torch.stack([state[f"{copies}.{old}.{name}"].float() for old in known]).mean(0)
            state[f"{copies}.{code}.{name}"] = mean.to(state[f"{copies}.{known[0]}.{name}"].dtype)
    return new


def fit_copies(model: nn.Module, state: State, prefix: str) -> None:
    """Fill per-language feed-forward and attention from shared weights, or new languages from the known ones."""
    done: dict[str, set[str]] = defaultdict(set)
    for path, layer in model.named_modules(prefix=prefix.rstrip(".")):
        if not isinstance(layer, EncoderLayer):
            continue
        for slot, shared in (("attn", f"{path}.self_attn."), ("ffn", f"{path}.")):
            copies = getattr(layer, slot)
            if copies is None:
                continue
            if slot == "attn":
                MultiheadAttention.upgrade_state_dict_named(layer, state, shared.rstrip("."))
            names = list(copies.of(0).state_dict())
            if _copy_shared(state, shared, f"{path}.{slot}", copies.codes, names):
                done[f"copied from the shared {slot}"].update(copies.codes)
            else:
                done[f"{slot} of new languages set to the mean of the known ones"].update(
                    _average_known(state, f"{path}.{slot}", copies.codes, names)
                )
    for what, codes in done.items():
        if codes:
            logger.info("%s: %s", what, ", ".join(sorted(codes)))


def fit_added(model: nn.Module, state: State, prefix: str) -> None:
    """Let adapters and language embeddings that the checkpoint lacks altogether start fresh (identity)."""
    missing: dict[tuple[str, str], list[str]] = defaultdict(list)
    partial: set[tuple[str, str]] = set()
    own = model.state_dict()
    for path, module in model.named_modules():
        kind = {AdapterSlot: "adapters", LanguageEmbeddings: "lang_embeddings"}.get(type(module))
        if kind is None:
            continue
        container = f"{path}.adapters" if kind == "adapters" else path
        holder: Any = module.adapters if isinstance(module, AdapterSlot) else module
        for code in holder.codes:
            stem = f"{container}.{code}"
            keys = [key for key in own if key == stem or key.startswith(stem + ".")]
            absent = [key for key in keys if prefix + key not in state]
            missing[kind, code] += absent
            if len(absent) < len(keys):
                partial.add((kind, code))
    fresh = {key: names for key, names in missing.items() if names and key not in partial}
    for (kind, code), names in fresh.items():
        state.update({prefix + name: own[name].clone() for name in names})
        logger.info("not in the checkpoint, starts fresh: %s of %s (%d tensors)", kind, code, len(names))


def fit_token_heads(model: Any, state: State, prefix: str) -> None:
    """Token heads as the host treats classification heads: register, drop, or keep the current ones."""
    stem = f"{prefix}token_heads."
    for name in sorted({key[len(stem) :].split(".")[0] for key in state if key.startswith(stem)}):
        classes = state[f"{stem}{name}.out_proj.weight"].size(0)
        dense = state.get(f"{stem}{name}.dense.weight")
        inner = None if dense is None else dense.size(0)
        if name not in model.token_heads and getattr(model.args, "load_checkpoint_heads", False):
            model.register_token_head(name, classes, inner)
        head = dict(model.token_heads.items()).get(name)
        if head is None or (head.num_classes, head.inner_dim) != (classes, inner):
            logger.warning("dropping token head %r (%d classes) of the checkpoint: not in this model", name, classes)
            for key in [key for key in state if key.startswith(f"{stem}{name}.")]:
                del state[key]
    for key, value in model.token_heads.state_dict().items():
        if stem + key not in state:
            logger.info("not in the checkpoint, starts fresh: token_heads.%s", key)
            state[stem + key] = value


def fit_masks(model: Any, state: State, prefix: str) -> None:
    """Let L0 masks that the checkpoint lacks start fresh; drop those of a model that has none."""
    stem, own = f"{prefix}{MASKS}.", getattr(model, MASKS, None)
    if own is None:
        dropped = [key for key in state if key.startswith(stem)]
        for key in dropped:
            del state[key]
        if dropped:
            logger.info("the checkpoint's masks are left out: this is its body")
        return
    for key, value in own.state_dict().items():
        state.setdefault(stem + key, value)


def refusal(error: Exception) -> CheckpointError:
    """The error of a state dict that does not fit; names every missing, unexpected and misshapen key."""
    return CheckpointError(
        "The checkpoint does not fit this model.",
        where="model weights",
        value="\n" + str(error),
        allowed="the same arch and sizes, or a shared encoder (roberta, XLM-R, xlm_joint) to which parts are added",
        next_step="give the --arch and --encoder-* / --adapter-* values that the checkpoint was trained with",
    )
