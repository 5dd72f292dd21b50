"""Weights from elsewhere: the host's roberta and XLM-R, the joint model, fewer languages; and what is refused."""

from __future__ import annotations

import argparse
import logging
from typing import Any

import pytest
import torch
from cases import CASES, LANGS, SIZES, Case, batch, build, build_case, dictionary, gradients, label, shake

from fairseq_interference.errors import CheckpointError, LanguageError

pytestmark = pytest.mark.usefixtures("plugin")
ARCHS = pytest.mark.parametrize("case", [case for case in CASES if case.full_size > 64], ids=label)


def host_roberta(**options: Any) -> Any:
    """The host's own model at the sizes of the cases."""
    from fairseq.models.roberta import RobertaModel

    args = argparse.Namespace(arch="roberta", **{**SIZES, **options})
    torch.manual_seed(1)
    task = argparse.Namespace(source_dictionary=dictionary())
    return shake(RobertaModel.build_model(args, task).double(), seed=7)


def old_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state dict in the names of 2019, in which XLM-R was published."""
    old = {}
    for name, value in state.items():
        name = name.replace("encoder.", "decoder.", 1).replace(".layernorm_embedding.", ".emb_layer_norm.")
        if not name.endswith(".version"):
            old[name] = value
    for name in [name for name in old if ".q_proj." in name]:
        parts = [old.pop(name.replace(".q_proj.", f".{letter}_proj.")) for letter in "qkv"]
        old[name.replace(".q_proj.", ".in_proj_").replace("in_proj_.", "in_proj_")] = torch.cat(parts)
    return old


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("before", [False, True], ids=["post-norm", "pre-norm"])
def test_joint_equals_the_host(before: bool, training: bool) -> None:
    """Outputs and gradients, padding included; in training without dropout, since the draws differ."""
    options = {"encoder_normalize_before": before, "dropout": 0.0, "attention_dropout": 0.0}
    host = host_roberta(**options).train(training)
    ours = build("xlm_joint", **options).train(training)
    ours.load_state_dict(host.state_dict())
    inputs = batch()
    tokens = inputs["src_tokens"]
    masked = tokens.ne(1) & (torch.arange(tokens.size(1)) % 3 == 1)
    out = []
    for model, more in ((host, {}), (ours, {"lang_id": inputs["lang_id"]})):
        scores, _ = model(tokens, masked_tokens=masked, **more)
        scores.pow(2).sum().backward()
        out.append(scores)
    torch.testing.assert_close(out[0], out[1], rtol=0, atol=1e-10)
    theirs, mine = gradients(host), gradients(ours)
    assert theirs.keys() == mine.keys()
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-9, atol=1e-11)


def test_same_seed_draws_the_hosts_weights() -> None:
    from fairseq.models.roberta import RobertaModel

    torch.manual_seed(1)
    task = argparse.Namespace(source_dictionary=dictionary())
    host = RobertaModel.build_model(argparse.Namespace(arch="roberta", **SIZES), task).double().state_dict()
    ours = build("xlm_joint").state_dict()
    assert all(torch.equal(ours[name], value) for name, value in host.items())


@pytest.mark.parametrize("old", [False, True], ids=["roberta", "XLM-R"])
@ARCHS
def test_public_checkpoint_fills_every_copy(case: Case, old: bool) -> None:
    host = host_roberta().eval()
    state = host.state_dict()
    model = build_case(case).eval()
    model.load_state_dict(old_names(state) if old else dict(state))
    inputs = batch(case.langs)
    torch.testing.assert_close(model(**inputs)[0], host(inputs["src_tokens"])[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("arch", ["xlm_ffn", "xlm_attn", "xlm_adpt", "xlm_share_adpt"])
def test_parts_are_added_to_a_joint_checkpoint(arch: str, caplog: pytest.LogCaptureFixture) -> None:
    joint = shake(build("xlm_joint")).eval()
    model = build(arch).eval()
    with caplog.at_level(logging.INFO, logger="fairseq_interference"):
        model.load_state_dict(joint.state_dict())
    torch.testing.assert_close(model(**batch())[0], joint(**batch())[0], rtol=0, atol=1e-10)
    told = " ".join(record.message for record in caplog.records)
    assert ("starts fresh" in told) == ("adpt" in arch)
    assert ("copied from the shared" in told) == ("adpt" not in arch)


@pytest.mark.parametrize("arch", ["xlm_joint", "xlm_ffn", "xlm_attn", "xlm_adpt"])
def test_languages_may_be_appended(arch: str, caplog: pytest.LogCaptureFixture) -> None:
    small = shake(build(arch, ["en", "to"])).eval()
    large = build(arch, ["en", "to", "hi"]).eval()
    untouched = {name: value.clone() for name, value in large.state_dict().items() if ".hi." in name}
    with caplog.at_level(logging.INFO, logger="fairseq_interference"):
        large.load_state_dict(small.state_dict())
    inputs = batch(["en", "to"])
    torch.testing.assert_close(large(**inputs)[0], small(**inputs)[0], rtol=0, atol=1e-12)
    state = large.state_dict()
    assert bytes(state["language_codes"].tolist()) == b"en\nto\nhi"
    if arch == "xlm_adpt":
        assert untouched and all(torch.equal(state[name], value) for name, value in untouched.items())
    for name in untouched if arch in ("xlm_ffn", "xlm_attn") else ():
        mean = (state[name.replace(".hi.", ".en.")] + state[name.replace(".hi.", ".to.")]) / 2
        torch.testing.assert_close(state[name], mean, rtol=1e-6, atol=1e-7)
    assert arch == "xlm_joint" or any("hi" in record.message for record in caplog.records)


@pytest.mark.parametrize("langs", [["to", "en"], ["en"], ["en", "hi", "to"]], ids=",".join)
@pytest.mark.parametrize("arch", ["xlm_joint", "xlm_adpt"])
def test_languages_may_not_be_renumbered_or_dropped(arch: str, langs: list[str]) -> None:
    state = build(arch, ["en", "to"]).state_dict()
    with pytest.raises(LanguageError, match="ids"):
        build(arch, langs).load_state_dict(state)


def test_what_is_missing_or_unexpected_is_listed() -> None:
    model = build("xlm_adpt")
    state = model.state_dict()
    gone = "encoder.sentence_encoder.layers.0.attn_adapter.adapters.hi.up.weight"
    del state[gone]
    state["encoder.stranger"] = torch.zeros(1)
    with pytest.raises(CheckpointError) as caught:
        model.load_state_dict(state)
    assert gone in str(caught.value) and "encoder.stranger" in str(caught.value)


@pytest.mark.parametrize(
    ("trained", "loaded", "named"),
    [
        ("xlm_adpt", "xlm_joint", "attn_adapter.adapters.en"),
        ("xlm_ffn", "xlm_joint", "layers.0.fc1.weight"),
        ("xlm_ffn", "xlm_attn", "layers.0.ffn.en.fc1.weight"),
        ("xlm_share_adpt", "xlm_adpt", "adapters.shared"),
    ],
)
def test_nothing_is_dropped_silently(trained: str, loaded: str, named: str) -> None:
    state = build(trained).state_dict()
    with pytest.raises(CheckpointError, match=named):
        build(loaded).load_state_dict(state)


def test_another_bottleneck_is_refused() -> None:
    state = build("xlm_adpt", adapter_dim=4).state_dict()
    with pytest.raises(CheckpointError, match="size mismatch"):
        build("xlm_adpt", adapter_dim=8).load_state_dict(state)


def test_an_adapters_start_does_not_depend_on_the_other_languages() -> None:
    few, many = build("xlm_adpt", ["en", "hi"]).state_dict(), build("xlm_adpt", ["en", "to", "te", "hi"]).state_dict()
    names = [name for name in few if ".adapters.hi." in name]
    assert names and all(torch.equal(few[name], many[name]) for name in names)
    down = [many[f"encoder.sentence_encoder.layers.0.ffn_adapter.adapters.{code}.down.weight"] for code in ("en", "hi")]
    assert not torch.equal(*down)


def test_token_head_travels_with_the_checkpoint() -> None:
    model = build("xlm_adpt")
    model.register_token_head("ner", 5)
    model.register_token_head("pos", 3, inner_dim=6)
    scores, _ = model.eval()(**batch(), token_head_name="pos")
    assert scores.shape == (6, 9, 3)
    head = model.token_heads["ner"].out_proj.weight
    assert head.param_group == "shared" and head.optim_overrides["interference"]["lang"] is None

    again = build("xlm_adpt", load_checkpoint_heads=True).eval()
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(**batch(), token_head_name="pos")[0], scores)
    assert again.token_heads["ner"].num_classes == 5


def test_token_heads_of_another_task(caplog: pytest.LogCaptureFixture) -> None:
    trained = build("xlm_joint")
    trained.register_token_head("ner", 5)
    plain = build("xlm_joint")
    plain.load_state_dict(trained.state_dict())
    assert "dropping token head 'ner'" in caplog.text
    other = build("xlm_joint")
    other.register_token_head("ner", 7)
    kept = other.token_heads["ner"].out_proj.weight.clone()
    other.load_state_dict(trained.state_dict())
    assert torch.equal(other.token_heads["ner"].out_proj.weight, kept)


def test_classification_heads_of_the_host_work() -> None:
    model = build("xlm_adpt").eval()
    model.register_classification_head("pairs", num_classes=3)
    assert model.double()(**batch(), classification_head_name="pairs")[0].shape == (6, 3)
    assert all(hasattr(parameter, "param_group") for parameter in model.parameters())


def test_language_codes_travel_in_the_state() -> None:
    from fairseq_interference.models._state import checkpoint_languages

    assert checkpoint_languages(build("xlm_joint").half().state_dict()).codes == list(LANGS)
    assert checkpoint_languages(host_roberta().state_dict()).codes == []
