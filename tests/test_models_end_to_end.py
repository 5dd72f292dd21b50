"""Every arch through the host's own training: a joint checkpoint, parts added, resumed with a language appended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.usefixtures("plugin")]
LANGS = ("aa", "to")


@pytest.fixture(scope="module")
def world(plugin: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    from pretrain_world import data_folder, train_here

    root = tmp_path_factory.mktemp("models")
    data = data_folder(root / "data", {"aa": 60, "to": 60, "cc": 60})
    train_here(data, root / "joint", "--langs", ",".join(LANGS), "--max-update", 3, arch="xlm_joint_tiny")
    yield {"data": data, "joint": root / "joint" / "checkpoint_last.pt"}


def state_of(path: Path) -> dict[str, torch.Tensor]:
    from pretrain_world import read_checkpoint

    state: dict[str, torch.Tensor] = read_checkpoint(path)["model"]
    return state


@pytest.mark.parametrize("parts", ["joint", "ffn", "attn", "adpt", "share_adpt"])
def test_continue_from_joint_and_append_a_language(parts: str, world: dict[str, Any], tmp_path: Path) -> None:
    from pretrain_world import train_here

    arch = f"xlm_{parts}_tiny"
    flags = ["--checkpoint-activations", "--lang-embeddings", "--max-update", 2]
    start = ["--finetune-from-model", world["joint"]]
    train_here(world["data"], tmp_path, "--langs", ",".join(LANGS), *start, *flags, arch=arch)
    first = state_of(tmp_path / "checkpoint_last.pt")
    assert bytes(first["language_codes"].tolist()).decode().split("\n") == list(LANGS)
    joint = state_of(world["joint"])
    name = "encoder.sentence_encoder.embed_tokens.weight"
    assert (first[name] - joint[name]).abs().max() < 0.01, "two small steps from the joint weights"
    assert all(first[f"encoder.sentence_encoder.lang_embeddings.{code}"].any() for code in LANGS)

    larger = tmp_path / "larger"
    more = ["--finetune-from-model", tmp_path / "checkpoint_last.pt"]
    train_here(world["data"], larger, "--langs", "aa,to,cc", *more, *flags, arch=arch)
    second = state_of(larger / "checkpoint_last.pt")
    assert any(".cc" in key for key in second)
    assert set(first) <= set(second)


def test_mono_runs_on_one_language(world: dict[str, Any], tmp_path: Path) -> None:
    from pretrain_world import train_here

    from fairseq_interference.errors import LanguageError

    train_here(world["data"], tmp_path, "--langs", "cc", "--max-update", 2, arch="xlm_mono_tiny")
    assert bytes(state_of(tmp_path / "checkpoint_last.pt")["language_codes"].tolist()) == b"cc"
    with pytest.raises(LanguageError):
        train_here(world["data"], tmp_path / "two", "--langs", "aa,cc", "--max-update", 2, arch="xlm_mono_tiny")
