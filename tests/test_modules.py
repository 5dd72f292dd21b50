"""Modules against oracles: loops, autograd's own checks, frequencies."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fairseq_interference.errors import LanguageError
from fairseq_interference.modules.adapter import ACTIVATIONS, LAYER_NORMS, Adapter, AdapterSlot
from fairseq_interference.modules.dropout import Dropout, dropout
from fairseq_interference.modules.encoder_layer import SelfAttention, self_attention
from fairseq_interference.modules.heads import TokenHead
from fairseq_interference.modules.language_switch import (
    LanguageModules,
    run_by_language,
    sort_plan,
    stacking,
    worth_stacking,
)

CODES = ["en", "to", "pop", "keys", "hi"]
# names of attributes of nn.Module and nn.ModuleDict that are language codes by their form
AWKWARD = ["to", "pop", "keys", "items", "values", "apply", "eval", "half", "type", "children", "modules", "forward"]


@given(st.lists(st.integers(0, len(CODES) - 1), min_size=1, max_size=20))
def test_sort_plan(ids: list[int]) -> None:
    lang_id = torch.tensor(ids)
    plan = sort_plan(lang_id, CODES, len(ids))
    assert list(plan.languages) == sorted(set(ids))
    assert list(plan.sizes) == [ids.count(language) for language in plan.languages]
    assert plan.sort(lang_id).tolist() == sorted(ids)
    x = torch.randn(len(ids), 2, 3)
    assert torch.equal(plan.unsort(plan.sort(x)), x)
    assert (plan.order is None) == (ids == sorted(ids))


@given(st.lists(st.integers(0, len(CODES) - 1), min_size=1, max_size=12))
def test_each_language_runs_once_over_its_own_rows(ids: list[int]) -> None:
    lang_id = torch.tensor(ids)
    plan = sort_plan(lang_id, CODES, len(ids))
    calls = []

    def function(language: int, part: torch.Tensor) -> torch.Tensor:
        calls.append(language)
        return part * (language + 1)

    x = torch.randn(len(ids), 2)
    routed = plan.unsort(run_by_language(function, plan, plan.sort(x)))
    assert torch.equal(routed, x * (lang_id + 1).unsqueeze(1))
    assert calls == sorted(set(ids))


@pytest.mark.parametrize("wrong", [None, torch.tensor([0, 5]), torch.tensor([-1, 0]), torch.tensor([0])])
def test_languages_have_no_default(wrong: object) -> None:
    with pytest.raises(LanguageError, match="lang_id"):
        sort_plan(wrong, CODES, 2)  # type: ignore[arg-type]


def test_codes_that_are_names_of_attributes() -> None:
    slot = AdapterSlot(LanguageModules((code, Adapter(4, 2)) for code in AWKWARD))
    holder = nn.Sequential(slot)
    names = set(holder.state_dict())
    for code in AWKWARD:
        assert f"0.adapters.{code}.down.weight" in names
    twin = copy.deepcopy(holder)
    twin.load_state_dict(holder.state_dict())
    twin.eval().double().apply(lambda module: None)
    assert not twin[0].adapters.of(0).training
    assert len(list(twin.parameters())) == 4 * len(AWKWARD)
    plan = sort_plan(torch.tensor([1, 0]), AWKWARD, 2)
    assert twin[0](torch.randn(2, 3, 4, dtype=torch.float64), plan).shape == (2, 3, 4)


@pytest.mark.parametrize("norm", LAYER_NORMS)
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_adapter_formula(activation: str, norm: str) -> None:
    adapter = Adapter(6, 3, activation, layer_norm=norm).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    assert torch.equal(adapter(x), x), "identity at the start"
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_()
    inner = F.layer_norm(x, (6,), adapter.norm.weight, adapter.norm.bias) if norm == "before" else x
    inner = ACTIVATIONS[activation](inner @ adapter.down.weight.T + adapter.down.bias)
    inner = inner @ adapter.up.weight.T + adapter.up.bias
    if norm == "after":
        inner = F.layer_norm(inner, (6,), adapter.norm.weight, adapter.norm.bias)
    torch.testing.assert_close(adapter(x), x + inner)


@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4], [4, 0, 0, 2, 0, 3, 3, 1]], ids=["even", "uneven"])
@pytest.mark.parametrize("norm", LAYER_NORMS)
def test_stacked_adapters_equal_a_call_per_language(norm: str, ids: list[int]) -> None:
    """The way of an accelerator, checked on a CPU: outputs and gradients."""
    slot = AdapterSlot(LanguageModules((code, Adapter(6, 3, layer_norm=norm)) for code in CODES)).double()
    for parameter in slot.parameters():
        nn.init.normal_(parameter)
    plan = sort_plan(torch.tensor(ids), CODES, len(ids))
    assert plan.stacking is None
    stacked = dataclasses.replace(plan, stacking=stacking(plan.sizes, torch.device("cpu")))
    found = []
    for way in (plan, stacked):
        x = torch.arange(len(ids) * 24, dtype=torch.float64).sin().view(-1, 4, 6).requires_grad_()
        y = slot(x, way)
        grads = torch.autograd.grad(y.pow(2).sum(), [x, *slot.parameters()])
        found.append([y, *grads])
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_when_slices_are_stacked() -> None:
    gpu = torch.device("cuda")
    assert worth_stacking([2] * 8, gpu) and worth_stacking([1, 2, 3, 4], gpu)
    assert not worth_stacking([2] * 8, torch.device("cpu"))
    assert not worth_stacking([2, 2], gpu) and not worth_stacking([1, 1, 1, 1, 30], gpu)


def test_adapter_learns_from_its_start() -> None:
    """W_up = 0 lets no gradient into W_down at first, so both being 0 would never move."""
    adapter = Adapter(6, 3)
    adapter(torch.randn(4, 6)).pow(2).sum().backward()
    assert adapter.up.weight.grad is not None and adapter.up.weight.grad.any()
    assert adapter.down.weight.any()


@pytest.mark.parametrize("shape", [(3,), (50, 41), (7, 3, 5, 9)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dropout_keeps_or_scales(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.rand(shape).to(dtype) + 1
    y = dropout(x, 0.25)
    assert y.dtype == dtype and y.shape == x.shape
    scaled = (x.double() / 0.75).to(dtype)
    assert bool(((y == 0) | torch.isclose(y, scaled, rtol=1e-2)).all())


def test_dropout_frequency_independence_and_seed() -> None:
    x = torch.ones(400_000)
    for probability in (0.1, 0.5, 0.9):
        torch.manual_seed(4)
        kept = dropout(x, probability).ne(0)
        sd = (probability * (1 - probability) / x.numel()) ** 0.5
        assert abs(kept.double().mean().item() - (1 - probability)) < 5 * sd
        lanes = kept.view(-1, 4).double()
        assert (lanes.mean(0) - (1 - probability)).abs().max() < 10 * sd  # every lane of a draw alike
        together = torch.corrcoef(lanes.T) - torch.eye(4)
        assert together.abs().max() < 5 / lanes.size(0) ** 0.5  # and independent
        torch.manual_seed(4)
        assert torch.equal(dropout(x, probability).ne(0), kept)


def test_dropout_off() -> None:
    x = torch.randn(5)
    assert dropout(x, 0.5, training=False) is x and dropout(x, 0.0) is x
    assert Dropout(0.5).eval()(x) is x
    assert dropout(torch.empty(0, 3), 0.5).shape == (0, 3)


def test_dropout_derivatives() -> None:
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return dropout(x, 0.3) ** 2

    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


def attention() -> SelfAttention:
    return SelfAttention(*(nn.Linear(8, 8) for _ in range(4))).double()


@pytest.mark.parametrize("padded", [False, True])
def test_self_attention_equals_torchs(padded: bool) -> None:
    ours = attention()
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in (ours.q_proj, ours.k_proj, ours.v_proj)]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in (ours.q_proj, ours.k_proj, ours.v_proj)]))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    mask = torch.arange(5)[None] >= torch.tensor([5, 3, 1])[:, None] if padded else None
    expected, _ = theirs(x, x, x, key_padding_mask=mask, need_weights=False)
    torch.testing.assert_close(self_attention(x, ours, 2, mask), expected)


@pytest.mark.parametrize("padded", [False, True])
def test_attention_in_chunks_equals_the_fused_kernel(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a dropout that drops nothing, whatever the size of a chunk."""
    ours = attention()
    x = torch.randn(5, 4, 8, dtype=torch.float64)
    mask = torch.arange(4)[None] >= torch.tensor([4, 3, 1, 2, 4])[:, None] if padded else None
    expected = self_attention(x, ours, 2, mask)
    for chunk in (1, 2 * 2 * 16, 1 << 19):
        monkeypatch.setattr("fairseq_interference.modules.encoder_layer._CHUNK", chunk)
        torch.testing.assert_close(self_attention(x, ours, 2, mask, probability=1e-9), expected)


def test_token_head_formula() -> None:
    head = TokenHead(6, 3, inner_dim=4).eval()
    x = torch.randn(2, 5, 6)
    assert head.dense is not None
    torch.testing.assert_close(head(x), head.out_proj(torch.tanh(head.dense(x))))
    linear = TokenHead(6, 3).eval()
    assert linear.inner_dim is None and linear.num_classes == 3
    torch.testing.assert_close(linear(x), x @ linear.out_proj.weight.T)
