"""Options: errors all at once, numbers of languages, options without effect, the host's parser, ``params``."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
import torch
from cases import batch, build, loss_of, shake

from fairseq_interference.errors import LanguageError, UsageError

pytestmark = pytest.mark.usefixtures("plugin")


def test_every_error_is_shown_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        build(
            "xlm_adpt",
            encoder_attention_heads=5,
            adapter_dim=0,
            adapter_dropout=1.0,
            adapter_activation="swish",
            adapter_layer_norm="between",
            adapter_placement="above",
            adapter_sharing="some",
            adapter_skip_layers="7",
            lang_parts="adapter,embedding",
        )
    flags = "attention-heads adapter-dim adapter-dropout adapter-activation adapter-layer-norm adapter-sharing"
    flags += " adapter-placement"
    for flag in [*flags.split(), "adapter-skip-layers", "lang-parts"]:
        assert flag in str(caught.value)


@pytest.mark.parametrize("skip", ["0,1", "x"])
def test_layers_to_skip_are_checked(skip: str) -> None:
    with pytest.raises(UsageError, match="adapter-skip-layers"):
        build("xlm_adpt", adapter_skip_layers=skip)


def test_skipped_layers_have_no_adapters() -> None:
    layers = build("xlm_adpt", adapter_skip_layers="0").sentence_encoder.layers
    assert [layer.attn_adapter is None for layer in layers] == [True, False]


def test_option_without_effect_warns(caplog: pytest.LogCaptureFixture) -> None:
    build("xlm_ffn", adapter_dim=7)
    assert "--adapter-dim has no effect" in caplog.text


@pytest.mark.parametrize(
    ("arch", "langs", "options", "fits"),
    [
        ("xlm_mono", "en", {}, True),
        ("xlm_mono", "en,hi", {}, False),
        ("xlm_joint", "en,hi", {}, True),
        ("xlm_joint", "en", {}, False),
        ("xlm_adpt_tiny", "en", {}, False),
        ("xlm_adpt", "en", {"allow_single_lang": True}, True),
        ("xlm_adpt", "en", {"finetune_from_model": "joint.pt"}, True),
        ("xlm_mono", "en,hi", {"task": "xlm_tagging"}, True),
    ],
)
def test_number_of_languages_in_pre_training_from_scratch(
    arch: str, langs: str, options: dict[str, Any], fits: bool
) -> None:
    options = {"task": "xlm_masked_lm", **options}
    if fits:
        build(arch, langs.split(","), **options)
    else:
        with pytest.raises(LanguageError, match="pre-trained"):
            build(arch, langs.split(","), **options)


@pytest.mark.parametrize("arch", ["xlm_joint", "xlm_adpt"])
def test_the_parser_knows_every_declared_field(arch: str) -> None:
    """A flag that two dataclasses declare is dropped by the host without a word."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    model = ARCH_MODEL_REGISTRY[arch]
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    model.add_args(parser)
    flags = {action.dest: action for action in parser._actions}
    for name, option in model.Options.__dataclass_fields__.items():
        if not name.startswith("_"):
            assert name in flags and flags[name].help == option.metadata["help"]
            assert flags[name].default == argparse.SUPPRESS, "a default would hide the arch's preset"


def test_language_embeddings_start_at_zero_and_differ_later() -> None:
    model = build("xlm_joint", lang_embeddings=True)
    vectors = dict(model.sentence_encoder.lang_embeddings.items())
    assert list(vectors) == ["en", "to", "hi"] and not any(vector.any() for vector in vectors.values())
    shake(model).eval()
    inputs = batch()
    turned = {**inputs, "lang_id": inputs["lang_id"].roll(1)}
    assert not torch.allclose(model(**inputs)[0], model(**turned)[0])


def test_layer_drop_and_quantisation_noise_of_the_host_work() -> None:
    for arch in ("xlm_adpt", "xlm_ffn", "xlm_attn"):
        model = build(arch, encoder_layerdrop=0.5, quant_noise_pq=0.1, quant_noise_pq_block_size=8).train()
        torch.manual_seed(2)
        loss_of(model, batch()).backward()


def test_params(capsys: pytest.CaptureFixture[str]) -> None:
    from fairseq_interference.cli import main

    flags = ["--langs", "en,hi", "--vocab-size", "1000", "--encoder-layers", "8", "--json"]
    assert main(["params", "xlm_adpt", *flags]) == 0
    counts = json.loads(capsys.readouterr().out)
    # two adapters per layer: (512 x 128 + 128) + (128 x 512 + 512) = 131,712 each
    assert counts["per_language"] == {"en": 16 * 131712, "hi": 16 * 131712}
    assert counts["total"] == counts["shared"] + 2 * 16 * 131712
    assert main(["params", "xlm_joint_tiny", "--langs", "en,hi"]) == 0
    assert "total" in capsys.readouterr().out


def test_params_of_an_unknown_arch(capsys: pytest.CaptureFixture[str]) -> None:
    from fairseq_interference.cli import main

    assert main(["params", "xlm_nothing"]) == 2
    assert "xlm_adpt" in capsys.readouterr().err
