"""``convert export-lang`` and ``import-lang``: one language's parts out of one checkpoint and into another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, VARIANTS, build_case, label
from convert_world import tokens, write_ours

from fairseq_interference.errors import CheckpointError, LanguageError, UsageError

pytestmark = pytest.mark.usefixtures("plugin")
PARTS = [
    ("xlm_adpt_tiny", ()),
    ("xlm_ffn_tiny", ()),
    ("xlm_attn_tiny", ()),
    ("xlm_joint_tiny", ("--lang-embeddings",)),
    ("xlm_adpt_tiny", ("--adapter-placement", "layer-norm", "--adapter-skip-layers", "1")),
]


def load(path: Path) -> Any:
    import fairseq_interference

    return fairseq_interference.load(str(path))


def export(path: Path, lang: str, out: Path) -> Any:
    from fairseq_interference.convert.language_parts import export_language

    return export_language(path, lang, out)


def take(path: Path, file: Path, out: Path, force: bool = False) -> Any:
    from fairseq_interference.convert.language_parts import import_language

    return import_language(path, file, out, force)


def renamed(file: Path, lang: str, out: Path, **changes: Any) -> Path:
    content = torch.load(file, weights_only=True)
    torch.save({**content, "lang": lang, **changes}, out)
    return out


@torch.no_grad()
def scores(model: Any, lang: int) -> torch.Tensor:
    ids, _ = tokens(model.encoder.sentence_encoder.embed_tokens.num_embeddings)
    found: torch.Tensor = model(ids, lang_id=torch.full((len(ids),), lang))[0]
    return found


@pytest.mark.parametrize("case", CASES + VARIANTS, ids=label)
def test_names_of_parts_are_those_of_the_model(case: Any) -> None:
    from fairseq_interference.convert import names
    from fairseq_interference.models._components import language_parameters

    model = build_case(case)
    found = {name: owner[0] for name, _ in model.named_parameters() if (owner := names.language_of(name))}
    assert found == dict(language_parameters(model))


@pytest.mark.parametrize(("arch", "flags"), PARTS, ids=str)
def test_a_language_is_appended(tmp_path: Path, arch: str, flags: tuple[str, ...]) -> None:
    """Under a new name it computes what it computed under its old one; the others are as they were."""
    path = write_ours(tmp_path / "ours", arch, *flags)
    exported = export(path, "xb", tmp_path / "xb.pt")
    assert exported.parts and (tmp_path / "xb.pt").stat().st_size < path.stat().st_size
    found = take(path, renamed(tmp_path / "xb.pt", "to", tmp_path / "to.pt"), tmp_path / "out")
    assert found.notes == ("to: appended to the languages",)
    old, new = load(path), load(found.path)
    assert new.languages.codes == ["xa", "xb", "to"] and new.tokenizer_dir is not None
    for mine, other in ((0, 0), (1, 1), (2, 1)):
        assert torch.equal(scores(new.model, mine), scores(old.model, other))
    assert not torch.equal(scores(new.model, 0), scores(new.model, 1))


def test_parts_are_replaced(tmp_path: Path) -> None:
    """Adapters trained elsewhere with the body frozen come back into their place."""
    path = write_ours(tmp_path / "ours", "xlm_adpt_tiny")
    trained = torch.load(path, weights_only=True)
    for name, value in trained["model"].items():
        if ".adapters.xa." in name:
            value.add_(0.3)
    (tmp_path / "trained").mkdir()
    for child in path.parent.iterdir():
        if child.is_file():
            shutil.copyfile(child, tmp_path / "trained" / child.name)
    shutil.copytree(path.parent / "tokenizer", tmp_path / "trained" / "tokenizer")
    torch.save(trained, tmp_path / "trained" / path.name)
    export(tmp_path / "trained" / path.name, "xa", tmp_path / "xa.pt")
    found = take(path, tmp_path / "xa.pt", tmp_path / "out")
    assert found.notes == ("xa: its parts are replaced",)
    old, elsewhere, new = load(path), load(tmp_path / "trained" / path.name), load(found.path)
    assert new.languages.codes == ["xa", "xb"]
    assert torch.equal(scores(new.model, 0), scores(elsewhere.model, 0))
    assert not torch.equal(scores(new.model, 0), scores(old.model, 0))
    assert torch.equal(scores(new.model, 1), scores(old.model, 1))
    assert take(path, tmp_path / "xa.pt", tmp_path / "out").done_before


def test_another_body_is_refused_unless_forced(tmp_path: Path) -> None:
    path = write_ours(tmp_path / "ours", "xlm_adpt_tiny")
    export(path, "xa", tmp_path / "xa.pt")
    state = torch.load(path, weights_only=True)
    state["model"]["encoder.sentence_encoder.layers.1.fc1.bias"][3] += 1e-6
    torch.save(state, path)
    with pytest.raises(CheckpointError, match="other shared weights"):
        take(path, tmp_path / "xa.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    found = take(path, tmp_path / "xa.pt", tmp_path / "out", force=True)
    assert "other shared weights" in found.notes[0]
    load(found.path)


def test_another_dictionary_is_refused(tmp_path: Path) -> None:
    path = write_ours(tmp_path / "ours", "xlm_adpt_tiny")
    export(path, "xa", tmp_path / "xa.pt")
    other = renamed(tmp_path / "xa.pt", "xa", tmp_path / "other.pt", dictionary="0" * 64)
    with pytest.raises(CheckpointError, match="other dictionary"):
        take(path, other, tmp_path / "out")


def test_a_fine_tuned_checkpoint_takes_a_language_of_its_own_body(tmp_path: Path) -> None:
    """The head and its labels stay; heads are no part of the body."""
    path = write_ours(tmp_path / "ours", "xlm_adpt_tiny", task="xlm_tagging", labels="O,B-X")
    export(path, "xa", tmp_path / "xa.pt")
    found = take(path, renamed(tmp_path / "xa.pt", "te", tmp_path / "te.pt"), tmp_path / "out")
    loaded = load(found.path)
    assert loaded.languages.codes == ["xa", "xb", "te"] and loaded.task.labels == ["O", "B-X"]
    assert loaded.task.lang_id("te") == 2
    ids, _ = tokens(loaded.model.encoder.sentence_encoder.embed_tokens.num_embeddings)
    with torch.no_grad():
        tags = loaded.model(ids, lang_id=torch.tensor([2, 2, 2]), token_head_name="tagging")[0]
        old = load(path).model(ids, lang_id=torch.tensor([0, 0, 0]), token_head_name="tagging")[0]
    assert torch.equal(tags, old)


@pytest.mark.parametrize(
    ("arch", "flags", "said"),
    [
        ("xlm_adpt_tiny", ("--adapter-dim", "8"), "adapter_dim 16"),
        ("xlm_adpt_tiny", ("--adapter-activation", "relu"), "adapter_activation 'gelu'"),
        ("xlm_adpt_tiny", ("--adapter-placement", "layer"), "adapter_placement 'each'"),
        ("xlm_ffn_tiny", (), "lang_parts 'adapter'"),
    ],
)
def test_another_structure_is_always_refused(tmp_path: Path, arch: str, flags: tuple[str, ...], said: str) -> None:
    export(write_ours(tmp_path / "one", "xlm_adpt_tiny"), "xa", tmp_path / "xa.pt")
    other = write_ours(tmp_path / "two", arch, *flags)
    with pytest.raises(CheckpointError, match=said):
        take(other, tmp_path / "xa.pt", tmp_path / "out", force=True)


def test_missing_and_strange_tensors_are_named(tmp_path: Path) -> None:
    path = write_ours(tmp_path / "ours", "xlm_adpt_tiny")
    parts = dict(export(path, "xa", tmp_path / "xa.pt").parts)
    name, value = parts.popitem()
    wrong = renamed(tmp_path / "xa.pt", "xa", tmp_path / "wrong.pt", parts={**parts, "stranger": value})
    with pytest.raises(CheckpointError) as caught:
        take(path, wrong, tmp_path / "out", force=True)
    assert name in str(caught.value) and "stranger" in str(caught.value)


def test_models_and_languages_without_parts(tmp_path: Path) -> None:
    path = write_ours(tmp_path / "ours")
    with pytest.raises(CheckpointError, match="no parts of a single language"):
        export(path, "xa", tmp_path / "xa.pt")
    shared = write_ours(tmp_path / "shared", "xlm_share_adpt_tiny")
    with pytest.raises(CheckpointError, match="no parts of a single language"):
        export(shared, "xa", tmp_path / "xa.pt")
    adapters = write_ours(tmp_path / "adapters", "xlm_adpt_tiny")
    with pytest.raises(LanguageError, match="xa,xb"):
        export(adapters, "sw", tmp_path / "sw.pt")


def test_files_that_are_not_a_language(tmp_path: Path) -> None:
    """Fault C1: cut short or empty. A class inside is never loaded."""
    path = write_ours(tmp_path / "ours", "xlm_adpt_tiny")
    export(path, "xa", tmp_path / "xa.pt")
    whole = (tmp_path / "xa.pt").read_bytes()
    for content in (whole[: len(whole) // 2], b""):
        (tmp_path / "cut.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match="cut short"):
            take(path, tmp_path / "cut.pt", tmp_path / "out")
    with pytest.raises(CheckpointError, match="not a file of one language"):
        take(path, path, tmp_path / "out")
    with pytest.raises(CheckpointError, match="format"):
        take(path, renamed(tmp_path / "xa.pt", "xa", tmp_path / "new.pt", format=2), tmp_path / "out")
    torch.save({"kind": Path("x")}, tmp_path / "class.pt")
    with pytest.raises(CheckpointError, match="outside the allow-list"):
        take(path, tmp_path / "class.pt", tmp_path / "out")
    with pytest.raises(UsageError, match="no such file"):
        take(path, tmp_path / "nothing.pt", tmp_path / "out")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fairseq_interference.cli import main

    path = write_ours(tmp_path / "ours", "xlm_adpt_tiny")
    command = ["convert", "export-lang", "--checkpoint", str(path), "--output", str(tmp_path / "xb.pt"), "--lang"]
    assert main([*command, "xb"]) == 0
    assert main([*command, "XB"]) == 2
    capsys.readouterr()
    command = ["convert", "import-lang", "--checkpoint", str(path), "--input", str(tmp_path / "xb.pt")]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    assert "its parts are replaced" in capsys.readouterr().out
