"""Shared encoder: ``xlm_mono``, ``xlm_joint`` (Wang et al. 2020, section 3). Card: models/README.md."""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import Any, Optional

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture
from fairseq.utils import get_activation_fn
from torch import Tensor, nn

from fairseq_interference.errors import LanguageError
from fairseq_interference.languages import LanguageList
from fairseq_interference.models import _state as state_dicts
from fairseq_interference.models._components import language_parameters
from fairseq_interference.models._encoder import Encoder, LanguageEncoder
from fairseq_interference.models._options import ModelOptions, fill_gaps, pretrains
from fairseq_interference.modules.heads import TokenHead
from fairseq_interference.modules.language_parameters import LanguageEmbeddings

logger = logging.getLogger(__name__)


@register_model("xlm_joint")
class XLMModel(RobertaModel):
    """One encoder for all languages, optionally with a vector per language added to the embeddings.

    Args:
        args: options, the host's roberta options included.
        encoder: encoder with its masked-LM head.
        languages: languages by id; travel with the weights in the buffer ``language_codes``.
    """

    Options: type[ModelOptions] = ModelOptions

    def __init__(self, args: Any, encoder: Encoder, languages: LanguageList) -> None:
        super().__init__(args, encoder)
        self.options = self.Options.from_namespace(args)
        self.languages = languages
        self.token_heads = nn.ModuleDict()
        self.register_buffer("language_codes", state_dicts.encode_languages(languages))
        if self.options.lang_embeddings:
            self.sentence_encoder.codes = tuple(languages)
            self.sentence_encoder.lang_embeddings = LanguageEmbeddings(languages, args.encoder_embed_dim)
        self.add_components()
        self.mark_parameters()

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """The host's roberta flags and ours."""
        RobertaModel.add_args(parser)
        gen_parser_from_dataclass(parser, cls.Options(), delete_default=True)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> XLMModel:
        """Build for ``task.languages`` and ``task.source_dictionary``.

        Raises:
            UsageError: options that cannot be used, all in one message.
            LanguageError: pre-training from scratch on a number of languages that the arch is not for.
        """
        base_preset(args)
        options = cls.Options.from_namespace(args)
        options.validate(args)
        check_number_of_languages(options, args, task.languages)
        if not hasattr(args, "max_positions"):
            args.max_positions = getattr(args, "tokens_per_sample", None) or task.max_positions()
        return cls(args, Encoder(args, task.source_dictionary), task.languages)

    @property
    def sentence_encoder(self) -> LanguageEncoder:
        encoder: LanguageEncoder = self.encoder.sentence_encoder
        return encoder

    def add_components(self) -> None:
        """Fill the slots; nothing to fill here. Runs after the host has drawn its weights."""

    def mark_parameters(self) -> None:
        """Tell optimizers what each parameter is: they see neither names nor the model."""
        lang = dict(language_parameters(self))
        for name, parameter in self.named_parameters():
            code = lang.get(name)
            parameter.param_group = "shared" if code is None else "lang_specific"
            parameter.optim_overrides = {"interference": {"name": name, "lang": code}}

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        lang_id: Optional[Tensor] = None,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        masked_tokens: Optional[Tensor] = None,
        classification_head_name: Optional[str] = None,
        token_head_name: Optional[str] = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Run the encoder and one head.

        Args:
            src_tokens: (B, T).
            src_lengths: (B,); padding is found in ``src_tokens``.
            lang_id: (B,), required by models with language-specific parts.
            features_only: skip the heads.
            return_all_hiddens: put every layer's output into ``extra["inner_states"]``, each (T, B, C).
            masked_tokens: (B, T), the positions to project; all of them without.
            classification_head_name: a registered head on the first token, (B, classes).
            token_head_name: a registered head on every token, (B, T, classes).

        Returns:
            (B, T, C) features, (N, V) or (B, T, V) scores, or what the head gives; and ``extra``.
        """
        head = classification_head_name is not None or token_head_name is not None
        x, extra = self.encoder(
            src_tokens,
            features_only=features_only or head,
            return_all_hiddens=return_all_hiddens,
            masked_tokens=masked_tokens,
            lang_id=lang_id,
        )
        if classification_head_name is not None:
            x = self.classification_heads[classification_head_name](x)
        if token_head_name is not None:
            x = self.token_heads[token_head_name](x)
        return x, extra

    def register_token_head(self, name: str, num_classes: int, inner_dim: Optional[int] = None) -> None:
        """Add (or replace) a head that scores every token; ``inner_dim`` None makes it linear."""
        weight = next(self.parameters())
        self.token_heads[name] = TokenHead(
            self.args.encoder_embed_dim,
            num_classes,
            inner_dim,
            self.args.pooler_dropout,
            get_activation_fn(self.args.pooler_activation_fn),
        ).to(device=weight.device, dtype=weight.dtype)
        self.mark_parameters()

    def register_classification_head(self, name: str, *args: Any, **kwargs: Any) -> None:
        super().register_classification_head(name, *args, **kwargs)
        self.mark_parameters()

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """The host's upgrades, then languages, copies, added parts and token heads."""
        prefix = f"{name}." if name else ""
        super().upgrade_state_dict_named(state_dict, name)
        state_dicts.fit_languages(self, state_dict, prefix)
        state_dicts.fit_copies(self, state_dict, prefix)
        state_dicts.fit_added(self, state_dict, prefix)
        state_dicts.fit_token_heads(self, state_dict, prefix)
        state_dicts.fit_masks(self, state_dict, prefix)

    def load_state_dict(self, state_dict: dict[str, Tensor], strict: bool = True, **kwargs: Any) -> Any:
        """Load, strictly by default.

        Raises:
            CheckpointError: keys that are missing, unexpected or of another shape, all listed.
            LanguageError: the checkpoint's languages are not a prefix of the model's.
        """
        try:
            return super().load_state_dict(state_dict, strict, **kwargs)
        except RuntimeError as error:
            refusal = state_dicts.refusal(error)
            logger.error("%s", refusal)
            raise refusal from None


def check_number_of_languages(options: ModelOptions, args: Namespace, languages: LanguageList) -> None:
    """Refuse to pre-train from scratch on one language jointly, or on two with a monolingual arch."""
    if not pretrains(args):
        return
    if options.monolingual and len(languages) != 1:
        raise LanguageError(
            "A monolingual arch is pre-trained on one language.",
            where="--langs",
            value=",".join(languages),
            next_step="give one language, or --arch xlm_joint",
        )
    if not options.monolingual and len(languages) < 2 and not options.allow_single_lang:
        raise LanguageError(
            "A multilingual arch is pre-trained from scratch on two languages or more.",
            where="--langs",
            value=",".join(languages),
            next_step="give more languages, --arch xlm_mono, or --allow-single-lang",
        )


BASE = {
    "encoder_layers": 8,
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_attention_heads": 8,
}
TINY = {
    "encoder_layers": 2,
    "encoder_embed_dim": 64,
    "encoder_ffn_embed_dim": 256,
    "encoder_attention_heads": 4,
}


def base_preset(args: Namespace) -> None:
    """Sizes of Wang et al. 2020, section 4.1, with 8 heads (512 is not divisible by the 12 that it prints)."""
    fill_gaps(args, **BASE)
    model_defaults(args, ModelOptions)
    base_architecture(args)


def model_defaults(args: Namespace, options: type[ModelOptions]) -> None:
    """Fill what is still open with the defaults of our options."""
    fields = options.__dataclass_fields__.items()
    fill_gaps(args, **{name: option.default for name, option in fields if not name.startswith("_")})


@register_model_architecture("xlm_joint", "xlm_joint")
def xlm_joint(args: Namespace) -> None:
    base_preset(args)


@register_model_architecture("xlm_joint", "xlm_joint_tiny")
def xlm_joint_tiny(args: Namespace) -> None:
    fill_gaps(args, **TINY)
    xlm_joint(args)


@register_model_architecture("xlm_joint", "xlm_mono")
def xlm_mono(args: Namespace) -> None:
    fill_gaps(args, monolingual=True)
    base_preset(args)


@register_model_architecture("xlm_joint", "xlm_mono_tiny")
def xlm_mono_tiny(args: Namespace) -> None:
    fill_gaps(args, **TINY)
    xlm_mono(args)
