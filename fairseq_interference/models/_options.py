"""Options of our models: dataclasses with help under each field; ``validate`` collects every error."""

# No postponed annotations here: the host's parser needs the fields' real types.

import logging
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass

from fairseq_interference.errors import UsageError
from fairseq_interference.modules.adapter import ACTIVATIONS, LAYER_NORMS

logger = logging.getLogger(__name__)

PARTS = ("ffn", "attn", "adapter")
SHARING = ("language", "all")
PLACEMENTS = ("each", "layer", "layer-norm")


def fill_gaps(args: Namespace, **preset: Any) -> None:
    """Set what the command line left open; the form of every arch function."""
    for name, value in preset.items():
        if not hasattr(args, name):
            setattr(args, name, value)


def pretrains(args: Namespace) -> bool:
    """Whether this is pre-training from scratch."""
    return getattr(args, "task", None) == "xlm_masked_lm" and not getattr(args, "finetune_from_model", None)


@dataclass
class ModelOptions(FairseqDataclass):
    """Options of every arch of ours, beside the host's roberta options."""

    monolingual: bool = field(
        default=False, metadata={"help": "built for one language; pre-training from scratch refuses two (xlm_mono)"}
    )
    allow_single_lang: bool = field(
        default=False, metadata={"help": "let a multilingual arch be pre-trained from scratch on one language"}
    )
    lang_embeddings: bool = field(
        default=False, metadata={"help": "add a learned vector of the language to every token's embedding; starts at 0"}
    )
    checkpoint_activations: bool = field(
        default=False, metadata={"help": "run layers again in backward instead of keeping their activations"}
    )

    def errors(self, args: Namespace) -> list[str]:
        """Every mistake, each naming its flag."""
        heads, dim = args.encoder_attention_heads, args.encoder_embed_dim
        if dim % heads:
            return [f"--encoder-attention-heads {heads}: does not divide --encoder-embed-dim {dim}"]
        return []

    def validate(self, args: Namespace) -> None:
        """Raise one :class:`UsageError` that holds every mistake.

        Args:
            args: all options, the host's included, gaps filled.
        """
        found = self.errors(args)
        if found:
            raise UsageError("Options of the model that cannot be used:\n  - " + "\n  - ".join(found), where="--arch")


@dataclass
class ComponentOptions(ModelOptions):
    """Options of the archs with language-specific sub-layers."""

    lang_parts: str = field(
        default="adapter",
        metadata={"help": f"comma-separated parts that each language has of its own: {', '.join(PARTS)}"},
    )
    adapter_sharing: str = field(
        default="language",
        metadata={"help": "language: an adapter per language; all: one that serves all languages (xlm_share_adpt)"},
    )
    adapter_dim: int = field(default=128, metadata={"help": "size of the bottleneck"})
    adapter_activation: str = field(
        default="gelu", metadata={"help": f"activation in the bottleneck: {', '.join(ACTIVATIONS)}"}
    )
    adapter_dropout: float = field(default=0.0, metadata={"help": "dropout after the bottleneck's activation"})
    adapter_layer_norm: str = field(
        default="none", metadata={"help": f"layer norm inside the adapter: {', '.join(LAYER_NORMS)}"}
    )
    adapter_placement: str = field(
        default="each",
        metadata={
            "help": "each: after both sub-layers, before the residual; layer: one a layer, after the feed-forward's "
            "residual; layer-norm: after its layer norm too, which is applied once more (X-MOD; no identity at start)"
        },
    )
    adapter_skip_layers: Optional[str] = field(
        default=None, metadata={"help": "comma-separated layers (0 is the lowest) that get no adapter"}
    )

    @property
    def parts(self) -> list[str]:
        return [part.strip() for part in self.lang_parts.split(",") if part.strip()]

    @property
    def skipped_layers(self) -> list[int]:
        return [int(part) for part in str(self.adapter_skip_layers or "").split(",") if part.strip()]

    meta_adapters: bool = field(
        default=False, metadata={"help": "adapters of the bilevel step: pre-training needs --optimizer meta_adapter"}
    )

    def errors(self, args: Namespace) -> list[str]:
        found = super().errors(args)
        if self.meta_adapters and pretrains(args) and getattr(args, "optimizer", None) not in (None, "meta_adapter"):
            what = "pre-training with this arch needs meta_adapter (xlm_adpt is the same network, trained ordinarily)"
            found.append(f"--optimizer {args.optimizer}: {what}")
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            found.append(f"--lang-parts {self.lang_parts}: allowed are {', '.join(PARTS)}")
        for flag, value, allowed in (
            ("sharing", self.adapter_sharing, SHARING),
            ("activation", self.adapter_activation, tuple(ACTIVATIONS)),
            ("layer-norm", self.adapter_layer_norm, LAYER_NORMS),
            ("placement", self.adapter_placement, PLACEMENTS),
        ):
            if value not in allowed:
                found.append(f"--adapter-{flag} {value}: allowed are {', '.join(allowed)}")
        if self.adapter_dim < 1:
            found.append(f"--adapter-dim {self.adapter_dim}: must be at least 1")
        if not 0 <= self.adapter_dropout < 1:
            found.append(f"--adapter-dropout {self.adapter_dropout}: must lie in [0, 1)")
        try:
            wrong = [layer for layer in self.skipped_layers if not 0 <= layer < args.encoder_layers]
        except ValueError:
            found.append(f"--adapter-skip-layers {self.adapter_skip_layers}: comma-separated numbers are expected")
        else:
            if wrong:
                found.append(f"--adapter-skip-layers {wrong}: the layers are 0 to {args.encoder_layers - 1}")
            elif "adapter" in self.parts and len(set(self.skipped_layers)) == args.encoder_layers:
                found.append(f"--adapter-skip-layers {self.adapter_skip_layers}: leaves no layer with an adapter")
        return found

    def validate(self, args: Namespace) -> None:
        super().validate(args)
        kinks = "relu" in (self.adapter_activation, getattr(args, "activation_fn", None))
        exact = getattr(args, "meta_estimator", None) == "exact"
        if kinks and getattr(args, "optimizer", None) == "meta_adapter" and not exact:
            logger.warning("ReLU breaks the meta step's finite difference: use gelu, or --meta-estimator exact")
        if "adapter" in self.parts:
            return
        for name, option in self.__dataclass_fields__.items():
            if name.startswith("adapter_") and getattr(self, name) != option.default:
                logger.warning("--%s has no effect: this arch has no adapters", name.replace("_", "-"))
