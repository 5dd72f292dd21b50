"""What a transformers ``config.json`` means in our options, and the other way round. What cannot be said is refused."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from fairseq_interference.errors import CheckpointError

KINDS = ("xlm-roberta", "xmod")
EPS = 1e-5  # of the host's layer norm, which has no option for it
#: transformers' hidden_act -> the host's activation_fn
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_accurate",
    "gelu_pytorch_tanh": "gelu_accurate",
    "relu": "relu",
    "tanh": "tanh",
}
_BERT = (
    "BERT's layer norm has eps 1e-12 where the host has 1e-5, its pieces are WordPiece with [CLS] and [SEP], and its "
    "positions and token types are counted otherwise"
)
REASONS = {
    "bert": _BERT,
    "distilbert": _BERT,
    "xlm-roberta-xl": "its layers are pre-norm with other names; the host's own xlmr.xl loads with from-fairseq-xlmr",
    "roberta": "its byte-level pieces of a word depend on the blank before it; multilingual models are xlm-roberta",
    "xlm": "its language embeddings, eps 1e-12 and positions are not the host's",
}


def check_readable(config: Mapping[str, Any], where: object) -> None:
    """Raise one CheckpointError that names every setting which has no counterpart here."""
    kind = config.get("model_type")
    if kind not in KINDS:
        raise CheckpointError(
            "This kind of model is not converted.",
            where=where,
            value=f"model_type {kind}" + (f": {REASONS[kind]}" if kind in REASONS else ""),
            allowed=", ".join(KINDS),
        )
    wrong = [*_shared_problems(config), *(_xmod_problems(config) if kind == "xmod" else [])]
    if wrong:
        raise CheckpointError("Settings of this model have no counterpart here.", where=where, value="; ".join(wrong))


def _shared_problems(config: Mapping[str, Any]) -> list[str]:
    fixed = {
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    }
    wrong = [
        f"{name} {config[name]} (only {value})" for name, value in fixed.items() if config.get(name, value) != value
    ]
    eps = config.get("layer_norm_eps", 1e-12)  # transformers' default
    if abs(eps - EPS) > 1e-9:
        wrong.append(f"layer_norm_eps {eps} (only {EPS})")
    if config.get("hidden_act", "gelu") not in ACTIVATIONS:
        wrong.append(f"hidden_act {config['hidden_act']} (only {', '.join(ACTIVATIONS)})")
    return wrong


def _xmod_problems(config: Mapping[str, Any]) -> list[str]:
    wrong = []
    own, reuse, before = (_flag(config, name) for name in ("adapter_layer_norm", "adapter_reuse_layer_norm", BEFORE))
    if (own and before) or (not own and reuse and not before):
        norm = "adapter_layer_norm" if own else "adapter_reuse_layer_norm"
        wrong.append(f"{norm} with {BEFORE} {before} (no public X-MOD has it)")
    if config.get("hidden_act", "gelu") not in ("gelu", "gelu_python", "relu", "tanh"):
        wrong.append(f"hidden_act {config['hidden_act']} in the adapters (only gelu, relu, tanh)")
    return wrong


BEFORE = "ln_before_adapter"
_XMOD_DEFAULTS = {"adapter_layer_norm": False, "adapter_reuse_layer_norm": True, BEFORE: True, "pre_norm": False}


def _flag(config: Mapping[str, Any], name: str) -> bool:
    return bool(config.get(name, _XMOD_DEFAULTS[name]))


def encoder_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of our model for a configuration that :func:`check_readable` has let through."""
    dropout = config.get("hidden_dropout_prob", 0.1)
    head = config.get("classifier_dropout")
    options = {
        "encoder_layers": config.get("num_hidden_layers", 12),
        "encoder_embed_dim": config.get("hidden_size", 768),
        "encoder_ffn_embed_dim": config.get("intermediate_size", 3072),
        "encoder_attention_heads": config.get("num_attention_heads", 12),
        "max_positions": config.get("max_position_embeddings", 512) - 2,  # the table begins behind <pad>
        "activation_fn": ACTIVATIONS[config.get("hidden_act", "gelu")],
        "dropout": dropout,
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.1),
        "pooler_dropout": dropout if head is None else head,
        "encoder_normalize_before": config.get("model_type") == "xmod" and _flag(config, "pre_norm"),
        "layernorm_embedding": True,
    }
    return {**options, **(_adapter_options(config) if config.get("model_type") == "xmod" else {})}


def _adapter_options(config: Mapping[str, Any]) -> dict[str, Any]:
    own, reuse = _flag(config, "adapter_layer_norm"), _flag(config, "adapter_reuse_layer_norm")
    return {
        "adapter_dim": config.get("hidden_size", 768) // config.get("adapter_reduction_factor", 2),
        "adapter_activation": ACTIVATIONS[config.get("hidden_act", "gelu")],
        "adapter_layer_norm": "before" if own else "none",
        "adapter_placement": "layer-norm" if reuse and not own else "layer",
    }


def our_codes(languages: Sequence[str]) -> dict[str, str]:
    """X-MOD's languages (``en_XX``, ``zh_CN``) -> our codes: the part before ``_`` where that is unambiguous."""
    short = [language.split("_")[0].lower() for language in languages]
    return {
        language: code if short.count(code) == 1 else language.lower().replace(" ", "_")
        for language, code in zip(languages, short)
    }


# --- the other way round -----------------------------------------------------------------------------------------


def config_problems(args: Any, options: Any, codes: Sequence[str]) -> list[str]:
    """Why transformers has no class for this encoder; each names the option.

    Args:
        args: the model's options, the host's included.
        options: our part of them.
        codes: languages that have adapters; empty for a shared encoder.
    """
    wrong = []
    if options.lang_embeddings:
        wrong.append("--lang-embeddings: XLM-R and X-MOD add no vector of the language to the tokens")
    own = [part for part in getattr(options, "parts", []) if part != "adapter"]
    if own:
        wrong.append(f"--lang-parts {','.join(own)}: no class of transformers has {' or '.join(own)} per language")
    if codes:
        wrong += _adapter_problems(args, options)
    elif args.encoder_normalize_before:
        wrong.append("--encoder-normalize-before: XLM-R in transformers is post-norm")
    if not args.layernorm_embedding:
        wrong.append("layernorm_embedding off: XLM-R in transformers normalises its embeddings")
    if args.activation_fn not in ACTIVATIONS.values():
        wrong.append(f"--activation-fn {args.activation_fn}: transformers' XLM-R knows {', '.join(ACTIVATIONS)}")
    if getattr(args, "no_token_positional_embeddings", False) or not getattr(args, "encoder_learned_pos", True):
        wrong.append("positions that are not learned: transformers' XLM-R learns them")
    return wrong


def _adapter_problems(args: Any, options: Any) -> list[str]:
    wrong = []
    if options.adapter_placement == "each":
        return [
            "--adapter-placement each: two adapters a layer, each before its residual; X-MOD has one a layer, behind "
            "the feed-forward's residual, and no other class has adapters"
        ]
    norms = {"layer": ("none", "before"), "layer-norm": ("none",)}[options.adapter_placement]
    if options.adapter_layer_norm not in norms:
        wrong.append(f"--adapter-layer-norm {options.adapter_layer_norm}: X-MOD has {' or '.join(norms)} here")
    if options.adapter_activation != args.activation_fn:
        theirs = f"X-MOD's adapters have the encoder's, {args.activation_fn}"
        wrong.append(f"--adapter-activation {options.adapter_activation}: {theirs}")
    if options.skipped_layers:
        wrong.append(f"--adapter-skip-layers {options.adapter_skip_layers}: X-MOD has an adapter in every layer")
    if reduction_factor(args.encoder_embed_dim, options.adapter_dim) is None:
        wrong.append(f"--adapter-dim {options.adapter_dim}: X-MOD divides {args.encoder_embed_dim} by a whole number")
    return wrong


def reduction_factor(dim: int, bottleneck: int) -> Optional[int]:
    """Whole number f with ``dim // f == bottleneck``, or None."""
    factor = dim // bottleneck if bottleneck else 0
    return factor if factor and dim // factor == bottleneck else None


def config_of(args: Any, options: Any, codes: Sequence[str], rows: int, positions: int) -> dict[str, Any]:
    """``config.json`` without the part of the head.

    Args:
        args, options, codes: as in :func:`config_problems`, which has found nothing.
        rows: V, of the token embeddings. positions: rows of the position table.
    """
    theirs = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    config = {
        "model_type": "xmod" if codes else "xlm-roberta",
        "vocab_size": rows,
        "hidden_size": args.encoder_embed_dim,
        "num_hidden_layers": args.encoder_layers,
        "num_attention_heads": args.encoder_attention_heads,
        "intermediate_size": args.encoder_ffn_embed_dim,
        "hidden_act": theirs[args.activation_fn],
        "hidden_dropout_prob": args.dropout,
        "attention_probs_dropout_prob": args.attention_dropout,
        "classifier_dropout": args.pooler_dropout,
        "max_position_embeddings": positions,
        "type_vocab_size": 1,
        "layer_norm_eps": EPS,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
        "tie_word_embeddings": not args.untie_weights_roberta,
    }
    if codes:
        own, reuse = options.adapter_layer_norm == "before", options.adapter_placement == "layer-norm"
        config.update(
            pre_norm=bool(args.encoder_normalize_before),
            adapter_reduction_factor=reduction_factor(args.encoder_embed_dim, options.adapter_dim),
            adapter_layer_norm=own,
            adapter_reuse_layer_norm=reuse,
            ln_before_adapter=reuse,
            languages=list(codes),
            default_language=None,
        )
    return config


def as_namespace(args: Any) -> Namespace:
    """The model's options as attributes, whatever kind of configuration holds them."""
    return args if isinstance(args, Namespace) else Namespace(**{str(name): args[name] for name in args})
