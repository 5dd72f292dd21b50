"""Transformer layer with slots for language-specific parts. Batch first: (B, T, C), sorted by language.

The functions take the projections as modules, so that one body serves the shared sub-layer and every language's copy.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_interference.modules.dropout import dropout
from fairseq_interference.modules.language_switch import LanguageModules, SortPlan, run_by_language


class SelfAttention(nn.Module):
    """Parameters of one language's self-attention, named as the host names them."""

    def __init__(self, q_proj: nn.Module, k_proj: nn.Module, v_proj: nn.Module, out_proj: nn.Module) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = q_proj, k_proj, v_proj, out_proj


class FeedForward(nn.Module):
    """Parameters of one language's feed-forward sub-layer, named as the host names them."""

    def __init__(self, fc1: nn.Module, fc2: nn.Module) -> None:
        super().__init__()
        self.fc1, self.fc2 = fc1, fc2


# Weights of attention that are made at a time on a CPU: few enough to stay in its cache.
_CHUNK = 1 << 19


def _attend_with_dropout(q: Tensor, k: Tensor, v: Tensor, keep: Optional[Tensor], probability: float) -> Tensor:
    """Attention with dropout on a CPU, a few sequences at a time; torch's fused kernel has no dropout there."""
    batch, heads, length, size = q.shape
    rows = max(1, _CHUNK // (heads * length * length))
    q = q * size**-0.5
    out = []
    for begin in range(0, batch, rows):
        part = slice(begin, begin + rows)
        weights = torch.matmul(q[part], k[part].transpose(-1, -2))
        if keep is not None:
            weights = weights.masked_fill(~keep[part], float("-inf"))
        out.append(torch.matmul(dropout(weights.softmax(-1), probability), v[part]))
    return torch.cat(out)


def self_attention(
    x: Tensor, attention: Any, heads: int, padding_mask: Optional[Tensor] = None, probability: float = 0.0
) -> Tensor:
    """Multi-head self-attention.

    Args:
        x: (B, T, C).
        attention: holder of ``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``.
        heads: H.
        padding_mask: (B, T), True at padding; None if there is none.
        probability: dropout on the attention weights; 0 outside training.

    Returns:
        (B, T, C).
    """
    batch, length, _ = x.shape
    q, k, v = (
        projection(x).view(batch, length, heads, -1).transpose(1, 2)  # B x H x T x C/H
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    keep = None if padding_mask is None else padding_mask.logical_not()[:, None, None, :]
    if probability and x.device.type == "cpu":
        y = _attend_with_dropout(q, k, v, keep, probability)
    else:
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, dropout_p=probability)
    out: Tensor = attention.out_proj(y.transpose(1, 2).reshape(batch, length, -1))
    return out


class SlottedLayer(nn.Module):
    """Forward of the host's encoder layer with slots. Mixed into a class that owns the host's parameters.

    Slots, each None or filled: ``attn`` and ``ffn`` (a copy per language instead of the shared sub-layer),
    ``attn_adapter`` and ``ffn_adapter`` (after the
    sub-layer, before its dropout, residual and layer norm), ``layer_adapter`` (after the feed-forward's residual;
    with ``renormalize`` after its layer norm too, which is then applied again, as X-MOD does).
    """

    attn: Optional[LanguageModules]
    ffn: Optional[LanguageModules]
    attn_adapter: Optional[nn.Module]
    ffn_adapter: Optional[nn.Module]
    layer_adapter: Optional[nn.Module]
    renormalize: bool
    normalize_before: bool
    activation_fn: Callable[[Tensor], Tensor]
    self_attn: nn.Module
    self_attn_layer_norm: nn.Module
    final_layer_norm: nn.Module
    dropout_module: nn.Module
    activation_dropout_module: nn.Module
    heads: int
    attention_dropout: float

    def _attend(self, x: Tensor, padding_mask: Optional[Tensor], plan: Optional[SortPlan]) -> Tensor:
        probability = self.attention_dropout if self.training else 0.0
        attn = self.attn
        if attn is None or plan is None:
            return self_attention(x, self.self_attn, self.heads, padding_mask, probability)

        def attend(language: int, part: Tensor, mask: Optional[Tensor]) -> Tensor:
            return self_attention(part, attn.of(language), self.heads, mask, probability)

        return run_by_language(attend, plan, x, padding_mask)

    def _transform(self, x: Tensor, holder: Any) -> Tensor:
        y: Tensor = holder.fc2(self.activation_dropout_module(self.activation_fn(holder.fc1(x))))
        return y

    def _feed_forward(self, x: Tensor, plan: Optional[SortPlan]) -> Tensor:
        ffn = self.ffn
        if ffn is None or plan is None:
            return self._transform(x, self)
        return run_by_language(lambda language, part: self._transform(part, ffn.of(language)), plan, x)

    def forward(self, x: Tensor, padding_mask: Optional[Tensor], plan: Optional[SortPlan]) -> Tensor:
        """(B, T, C) -> (B, T, C), rows sorted as ``plan`` says.

        Args:
            x: (B, T, C).
            padding_mask: (B, T), True at padding; None if there is none.
            plan: sort plan; None only if no slot holds language-specific parts.
        """
        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x)
        x = self._attend(x, padding_mask, plan)
        if self.attn_adapter is not None:
            x = self.attn_adapter(x, plan)
        x = residual + self.dropout_module(x)
        if not self.normalize_before:
            x = self.self_attn_layer_norm(x)

        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x)
        x = self._feed_forward(x, plan)
        if self.ffn_adapter is not None:
            x = self.ffn_adapter(x, plan)
        x = residual + self.dropout_module(x)
        if self.layer_adapter is not None:
            x = self.layer_adapter(self.final_layer_norm(x) if self.renormalize else x, plan)
        if not self.normalize_before:
            x = self.final_layer_norm(x)
        return x
