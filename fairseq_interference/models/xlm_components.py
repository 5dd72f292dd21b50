"""Language-specific sub-layers: ``xlm_ffn``, ``xlm_attn``, ``xlm_adpt``, ``xlm_share_adpt``, ``xlm_meta_adpt``.

Wang et al. 2020, section 5. Cards: models/README.md.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from fairseq.models import register_model, register_model_architecture

from fairseq_interference.models import _components as components
from fairseq_interference.models._options import ComponentOptions, ModelOptions, fill_gaps
from fairseq_interference.models.xlm import TINY, XLMModel, base_preset, model_defaults


@register_model("xlm_components")
class XLMComponentsModel(XLMModel):
    """The shared encoder with slots filled per language (``--lang-parts``), at identity."""

    Options: type[ModelOptions] = ComponentOptions
    options: ComponentOptions

    @classmethod
    def build_model(cls, args: Any, task: Any) -> XLMModel:
        model_defaults(args, ComponentOptions)
        return super().build_model(args, task)

    def add_components(self) -> None:
        encoder, codes, parts = self.sentence_encoder, list(self.languages), self.options.parts
        layers = list(encoder.layers._modules.values())  # iterating would drop some at random (layer drop)
        for layer in layers:
            if "ffn" in parts:
                components.split_feed_forward(layer, codes)
            if "attn" in parts:
                components.split_attention(layer, codes)
        if "adapter" in parts:
            components.add_adapters(layers, codes, self.options, self.args.encoder_embed_dim)
        if set(parts) - {"adapter"} or self.options.adapter_sharing == "language":
            encoder.codes = tuple(codes)


def _preset(args: Namespace, **parts: Any) -> None:
    fill_gaps(args, **parts)
    model_defaults(args, ComponentOptions)
    base_preset(args)


@register_model_architecture("xlm_components", "xlm_ffn")
def xlm_ffn(args: Namespace) -> None:
    _preset(args, lang_parts="ffn")


@register_model_architecture("xlm_components", "xlm_attn")
def xlm_attn(args: Namespace) -> None:
    _preset(args, lang_parts="attn")


@register_model_architecture("xlm_components", "xlm_adpt")
def xlm_adpt(args: Namespace) -> None:
    _preset(args, lang_parts="adapter")


@register_model_architecture("xlm_components", "xlm_meta_adpt")
def xlm_meta_adpt(args: Namespace) -> None:
    fill_gaps(args, meta_adapters=True)
    xlm_adpt(args)


@register_model_architecture("xlm_components", "xlm_share_adpt")
def xlm_share_adpt(args: Namespace) -> None:
    _preset(args, lang_parts="adapter", adapter_sharing="all")


@register_model_architecture("xlm_components", "xlm_ffn_tiny")
def xlm_ffn_tiny(args: Namespace) -> None:
    fill_gaps(args, **TINY)
    xlm_ffn(args)


@register_model_architecture("xlm_components", "xlm_attn_tiny")
def xlm_attn_tiny(args: Namespace) -> None:
    fill_gaps(args, **TINY)
    xlm_attn(args)


@register_model_architecture("xlm_components", "xlm_adpt_tiny")
def xlm_adpt_tiny(args: Namespace) -> None:
    fill_gaps(args, adapter_dim=16, **TINY)
    xlm_adpt(args)


@register_model_architecture("xlm_components", "xlm_share_adpt_tiny")
def xlm_share_adpt_tiny(args: Namespace) -> None:
    fill_gaps(args, adapter_dim=16, **TINY)
    xlm_share_adpt(args)


@register_model_architecture("xlm_components", "xlm_meta_adpt_tiny")
def xlm_meta_adpt_tiny(args: Namespace) -> None:
    fill_gaps(args, meta_adapters=True)
    xlm_adpt_tiny(args)
