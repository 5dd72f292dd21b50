"""Every arch through one matrix: forward, backward, resume, padding, order, isolation, identity, checkpointing."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from cases import CASES, VARIANTS, Case, batch, build, build_case, gradients, label, loss_of, rows, shake

pytestmark = pytest.mark.usefixtures("plugin")
MATRIX = pytest.mark.parametrize("case", [case for case in CASES if case.full_size > 64] + VARIANTS, ids=label)
ROUTED = pytest.mark.parametrize("case", [c for c in CASES if c.full_size > 64 and c.routed] + VARIANTS, ids=label)


def scores(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model.eval()(**inputs)[0]
    return out


def test_every_arch_has_a_case() -> None:
    from fairseq.models import ARCH_MODEL_REGISTRY

    ours = {n for n, model in ARCH_MODEL_REGISTRY.items() if model.__module__.startswith("fairseq_interference.")}
    assert ours == {case.arch for case in CASES}


def test_models_are_ours() -> None:
    """The host keeps the old class under a name that is taken, without a word."""
    from fairseq.models import MODEL_REGISTRY

    for name in ("xlm_joint", "xlm_components"):
        assert MODEL_REGISTRY[name].__module__.startswith("fairseq_interference.models.")


@pytest.mark.parametrize("case", CASES, ids=label)
def test_presets(case: Case) -> None:
    import argparse

    from fairseq.models import ARCH_CONFIG_REGISTRY

    args = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[case.arch](args)
    tiny = case.arch.endswith("_tiny")
    assert args.encoder_embed_dim == case.full_size
    assert args.encoder_layers == (2 if tiny else 8)
    assert args.encoder_embed_dim % args.encoder_attention_heads == 0
    given = argparse.Namespace(encoder_layers=3)
    ARCH_CONFIG_REGISTRY[case.arch](given)
    assert given.encoder_layers == 3


@MATRIX
def test_forward_shapes(case: Case) -> None:
    model = build_case(case).eval()
    inputs = batch(case.langs)
    full, extra = model(**inputs, return_all_hiddens=True)
    count, length = inputs["src_tokens"].shape
    assert full.shape == (count, length, len(model.encoder.dictionary))
    assert [state.shape for state in extra["inner_states"]] == [(length, count, 16)] * 3
    masked = inputs["src_tokens"].eq(7)
    projected, _ = model(**inputs, masked_tokens=masked)
    torch.testing.assert_close(projected, full[masked])
    features, _ = model(**inputs, features_only=True)
    assert features.shape == (count, length, 16)
    torch.testing.assert_close(last_state(model, extra), features)


def last_state(model: Any, extra: dict[str, Any]) -> torch.Tensor:
    """(B, T, C): the last layer's output, through the closing layer norm of a pre-norm encoder."""
    state: torch.Tensor = extra["inner_states"][-1].transpose(0, 1)
    norm = model.sentence_encoder.layer_norm
    return state if norm is None else norm(state)


@MATRIX
def test_rows_equal_a_loop_over_examples(case: Case) -> None:
    """Oracle: each sequence alone, unpadded. Holds order, size, padding and other languages at once."""
    model = shake(build_case(case))
    inputs = batch(case.langs)
    together = scores(model, inputs)
    for row, length in enumerate(inputs["src_lengths"].tolist()):
        alone = rows(inputs, [row])
        alone["src_tokens"] = alone["src_tokens"][:, :length]
        torch.testing.assert_close(together[row, :length], scores(model, alone)[0], rtol=1e-10, atol=1e-12)


@MATRIX
def test_batch_order(case: Case) -> None:
    model = shake(build_case(case))
    inputs = batch(case.langs)
    order = [4, 0, 5, 2, 3, 1]
    torch.testing.assert_close(scores(model, rows(inputs, order)), scores(model, inputs)[order], rtol=1e-10, atol=1e-12)


@MATRIX
def test_batch_order_in_single_precision(case: Case) -> None:
    model = shake(build_case(case)).float()
    inputs = batch(case.langs)
    order = [4, 0, 5, 2, 3, 1]
    torch.testing.assert_close(scores(model, rows(inputs, order)), scores(model, inputs)[order], rtol=1e-5, atol=1e-5)


@MATRIX
def test_backward_reaches_every_present_parameter(case: Case) -> None:
    model = shake(build_case(case))
    loss_of(model, batch(case.langs)).backward()
    silent = {name for name, _ in model.named_parameters()} - set(gradients(model))
    # a key's bias shifts all scores of a query alike: its gradient is 0
    assert not {name for name in silent if not name.endswith("k_proj.bias")}


@ROUTED
def test_only_present_languages_get_gradients(case: Case) -> None:
    model = shake(build_case(case))
    inputs = batch(case.langs)
    present = rows(inputs, [0, 2, 3])  # languages 0 and 2
    loss_of(model, present).backward()
    found = {p.optim_overrides["interference"]["lang"] for p in model.parameters() if p.grad is not None}
    assert found == {None, case.langs[0], case.langs[2]}


@ROUTED
def test_language_gradients_equal_those_of_the_language_alone(case: Case) -> None:
    model = shake(build_case(case)).eval()
    inputs = batch(case.langs)
    loss_of(model, inputs).backward()
    together = gradients(model)
    model.zero_grad()
    loss_of(model, rows(inputs, [1, 4])).backward()  # all rows of language 1
    own = {n for n, p in model.named_parameters() if p.optim_overrides["interference"]["lang"] == case.langs[1]}
    alone = gradients(model)
    assert own
    for name in own & set(alone):
        torch.testing.assert_close(together[name], alone[name], rtol=1e-9, atol=1e-11)


@MATRIX
def test_identity_at_the_start(case: Case) -> None:
    """Shared weights bit-equal to the joint model's, outputs equal, and the generator left in the same state."""
    model = build_case(case)
    state = torch.get_rng_state()
    options = {name: value for name, value in case.options.items() if name.startswith(("encoder", "layernorm"))}
    joint = build("xlm_joint", case.langs, **options)
    assert torch.equal(state, torch.get_rng_state())
    theirs = dict(joint.named_parameters())
    for name, parameter in model.named_parameters():
        if name in theirs:
            assert torch.equal(parameter, theirs[name]), name
    inputs = batch(case.langs)
    torch.testing.assert_close(scores(model, inputs), scores(joint, inputs), rtol=0, atol=1e-6)


@MATRIX
def test_checkpointed_activations_give_the_same_gradients(case: Case) -> None:
    """Dropout on: layers that run again in backward must draw and route alike."""
    found = []
    for checkpointed in (False, True):
        model = shake(build_case(case, checkpoint_activations=checkpointed)).train()
        torch.manual_seed(9)
        loss_of(model, batch(case.langs)).backward()
        found.append(gradients(model))
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name


@MATRIX
def test_save_and_resume(case: Case) -> None:
    """Four updates straight equal two, a checkpoint through the safe loader, and two more, bit for bit."""

    def train(model: Any, optimizer: torch.optim.Optimizer, seeds: list[int]) -> None:
        for seed in seeds:
            torch.manual_seed(seed)
            optimizer.zero_grad()
            loss_of(model.train(), batch(case.langs, seed=seed)).backward()
            optimizer.step()

    straight = build_case(case)
    optimizer = torch.optim.AdamW(straight.parameters(), lr=1e-2)
    train(straight, optimizer, [1, 2])
    file = io.BytesIO()
    torch.save({"model": straight.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(straight, optimizer, [3, 4])

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = build_case(case, seed=8)
    optimizer = torch.optim.AdamW(resumed.parameters(), lr=1e-2)
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(resumed, optimizer, [3, 4])
    for name, parameter in straight.state_dict().items():
        assert torch.equal(parameter, resumed.state_dict()[name]), name


@MATRIX
def test_parameters_are_marked(case: Case) -> None:
    model = build_case(case)
    names = dict(model.named_parameters())
    for name, parameter in names.items():
        mark = parameter.optim_overrides["interference"]
        assert mark["name"] == name
        parts = [part for part in name.split(".") if part in case.langs]
        assert mark["lang"] == (parts[0] if parts else None)
        assert parameter.param_group == ("lang_specific" if parts else "shared")
    owned = [name for name, p in names.items() if p.param_group == "lang_specific"]
    assert bool(owned) == case.routed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@MATRIX
def test_half_precision_keeps_marks_and_runs(case: Case, dtype: torch.dtype) -> None:
    model = build_case(case).to(dtype)
    loss = loss_of(model, batch(case.langs))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(hasattr(p, "param_group") for p in model.parameters())


@ROUTED
def test_missing_or_unknown_language_is_an_error(case: Case) -> None:
    from fairseq_interference.errors import LanguageError

    model = build_case(case)
    inputs = batch(case.langs)
    for wrong in (None, inputs["lang_id"] + 1, inputs["lang_id"] - 1, inputs["lang_id"][:2]):
        with pytest.raises(LanguageError):
            model(**{**inputs, "lang_id": wrong})


@pytest.mark.parametrize("arch", ["xlm_mono", "xlm_joint", "xlm_share_adpt"])
def test_shared_archs_need_no_language(arch: str) -> None:
    model = build(arch, ["en"])
    inputs = batch(["en"])
    with_id = scores(model, inputs)
    del inputs["lang_id"]
    assert torch.equal(scores(model, inputs), with_id)
