"""The host's transformer encoder, batch first and with the languages of the batch handed to every layer."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.models.roberta import RobertaEncoder
from fairseq.models.roberta.model import RobertaLMHead
from fairseq.models.transformer import TransformerConfig, TransformerEncoder
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_interference.modules.dropout import Dropout
from fairseq_interference.modules.encoder_layer import SlottedLayer
from fairseq_interference.modules.language_parameters import LanguageEmbeddings
from fairseq_interference.modules.language_switch import SortPlan, sort_plan


class EncoderLayer(SlottedLayer, TransformerEncoderLayerBase):
    """The host's layer (its parameters, names and old-name upgrades) with our forward and empty slots."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.heads = cfg.encoder.attention_heads
        self.attention_dropout = cfg.attention_dropout
        self.dropout_module = Dropout(cfg.dropout)
        self.activation_dropout_module = Dropout(cfg.activation_dropout or cfg.relu_dropout or 0.0)
        self.attn = self.ffn = self.attn_adapter = self.ffn_adapter = self.layer_adapter = None
        self.renormalize = False


class LanguageEncoder(TransformerEncoder):
    """``sentence_encoder`` of our models.

    Attributes:
        codes: language codes by id; empty as long as nothing in here depends on the language.
        lang_embeddings: one vector per language, or None.
    """

    def __init__(self, args: Any, dictionary: Any, embed_tokens: Any) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.dropout_module = Dropout(args.dropout)
        self.checkpoint_activations = args.checkpoint_activations
        self.codes: tuple[str, ...] = ()
        self.lang_embeddings: Optional[LanguageEmbeddings] = None

    def build_encoder_layer(self, args: Any) -> EncoderLayer:
        return EncoderLayer(TransformerConfig.from_namespace(args))

    def _embed(
        self, src_tokens: Tensor, token_embedding: Optional[Tensor], plan: Optional[SortPlan]
    ) -> tuple[Tensor, Tensor]:
        """(B, T) -> (B, T, C) after dropout, and the scaled token embeddings."""
        if token_embedding is None:
            token_embedding = self.embed_tokens(src_tokens)
        x = embed = token_embedding if self.embed_scale == 1.0 else self.embed_scale * token_embedding
        if self.embed_positions is not None:
            x = x + self.embed_positions(src_tokens)
        if self.lang_embeddings is not None and plan is not None:
            x = x + self.lang_embeddings(plan)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        return x, embed

    def _run(self, layer: EncoderLayer, x: Tensor, mask: Optional[Tensor], plan: Optional[SortPlan]) -> Tensor:
        if self.checkpoint_activations and torch.is_grad_enabled():
            return checkpoint(layer, x, mask, plan, use_reentrant=False)  # type: ignore[no-any-return]
        return layer(x, mask, plan)  # type: ignore[no-any-return]

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
        lang_id: Optional[Tensor] = None,
    ) -> dict[str, list[Tensor]]:
        """Encode a batch.

        Args:
            src_tokens: (B, T).
            src_lengths: (B,); not needed, padding is found in ``src_tokens``.
            return_all_hiddens: also return what every layer put out.
            token_embeddings: (B, T, C) in place of the looked-up ones.
            lang_id: (B,); required if anything in here depends on the language.

        Returns:
            The host's dictionary: ``encoder_out`` [(T, B, C)], ``encoder_states`` [(T, B, C), …] and so on.

        Raises:
            LanguageError: ``lang_id`` missing or unknown.
        """
        plan = sort_plan(lang_id, self.codes, src_tokens.size(0)) if self.codes else None
        padding = src_tokens.eq(self.padding_idx)
        tokens, mask = src_tokens, padding
        if plan is not None:
            tokens, mask = plan.sort(tokens), plan.sort(mask)
            token_embeddings = None if token_embeddings is None else plan.sort(token_embeddings)
        x, embed = self._embed(tokens, token_embeddings, plan)  # B x T x C, sorted by language
        padded = bool(mask.any())
        if padded:
            x = x.masked_fill(mask.unsqueeze(-1), 0.0)
        states = [x]
        for layer in self.layers:
            x = self._run(layer, x, mask if padded else None, plan)
            if return_all_hiddens:
                states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)

        def restore(y: Tensor) -> Tensor:  # B x T x C sorted -> T x B x C in the batch's order
            return (y if plan is None else plan.unsort(y)).transpose(0, 1)

        return {
            "encoder_out": [restore(x)],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embed if plan is None else plan.unsort(embed)],
            "encoder_states": [restore(state) for state in states] if return_all_hiddens else [],
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [padding.logical_not().sum(dim=1, dtype=torch.int32).unsqueeze(1)],
        }


class LMHead(RobertaLMHead):
    """The host's head; the bias goes into the projection instead of a second pass over (N, V)."""

    def forward(self, features: Tensor, masked_tokens: Optional[Tensor] = None, **unused: Any) -> Tensor:
        """(B, T, C) -> (N, V) at ``masked_tokens`` (B, T), or (B, T, V) without."""
        if masked_tokens is not None:
            features = features.flatten(0, 1).index_select(0, masked_tokens.flatten().nonzero().squeeze(1))
        x = self.layer_norm(self.activation_fn(self.dense(features)))
        return F.linear(x, self.weight, self.bias)


class Encoder(RobertaEncoder):
    """The host's encoder with head; hands ``lang_id`` on, which the host would drop."""

    def build_encoder(self, args: Any, dictionary: Any, embed_tokens: Any) -> LanguageEncoder:
        encoder = LanguageEncoder(args, dictionary, embed_tokens)
        encoder.apply(init_bert_params)
        return encoder

    def build_lm_head(self, embed_dim: int, output_dim: int, activation_fn: str, weight: Any) -> LMHead:
        return LMHead(embed_dim, output_dim, activation_fn, weight)

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        masked_tokens: Optional[Tensor] = None,
        lang_id: Optional[Tensor] = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """(B, T) -> (B, T, C), (B, T, V) or (N, V), and ``{"inner_states": [(T, B, C), …] or None}``."""
        x, extra = self.extract_features(src_tokens, return_all_hiddens=return_all_hiddens, lang_id=lang_id)
        return (x if features_only else self.output_layer(x, masked_tokens=masked_tokens)), extra

    def extract_features(
        self,
        src_tokens: Tensor,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
        lang_id: Optional[Tensor] = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """(B, T) -> (B, T, C)."""
        out = self.sentence_encoder(
            src_tokens,
            return_all_hiddens=return_all_hiddens,
            token_embeddings=token_embeddings,
            lang_id=lang_id,
        )
        states = out["encoder_states"] if return_all_hiddens else None
        return out["encoder_out"][0].transpose(0, 1), {"inner_states": states}
