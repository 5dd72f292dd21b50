"""``load(path)``: in a fresh Python, from another folder, with the dictionary beside the checkpoint (U5, U6, U8)."""

from __future__ import annotations

import argparse
import shutil
import sys

import ddp
import pytest
import torch

import fairseq_interference
from fairseq_interference.errors import CheckpointError, LanguageError, UnsafeCheckpointError, UsageError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Save folder of a tiny model with languages en, hi, trained with a *relative* data path that is gone now."""
    folder = tmp_path_factory.mktemp("load")
    data = folder / "data-bin"
    lines = [" ".join("abcdefgh"[(i * 3 + j * j) % 8] for j in range(4 + i % 9)) for i in range(60)]
    (folder / "text").write_text("\n".join(lines) + "\n")
    common = ["--only-source", "--workers", 1, "--trainpref", folder / "text", "--validpref", folder / "text"]
    preprocess = ddp.host_command("fairseq-preprocess")
    ddp.run_command([*preprocess, *common, "--destdir", data / "en"])
    shutil.copy(data / "en" / "dict.txt", data / "dict.txt")
    shutil.copytree(data / "en", data / "hi")
    (data / "languages.txt").write_text("en\nhi\n")
    ddp.train(
        *("data-bin", "--task", "xlm_masked_lm", "--criterion", "xlm_masked_lm", "--arch", "xlm_adpt_tiny"),
        *("--langs", "en,hi", "--max-update", 2, "--batch-size", 8, "--tokens-per-sample", 32, "--num-workers", 0),
        *("--optimizer", "adam", "--lr", 1e-3, "--save-dir", "run", "--disable-validation"),
        cwd=folder,
    )
    shutil.rmtree(data)
    return folder / "run"


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of the save folder that the test may break."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run" / "checkpoint_last.pt"


def edit(path, change):
    """Rewrite a checkpoint after ``change(state)``."""
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


def test_fresh_python_from_another_folder(trained, tmp_path):
    code = (
        "import fairseq_interference, torch\n"
        f"it = fairseq_interference.load({str(trained / 'checkpoint_last.pt')!r})\n"
        "out = it.model(torch.tensor([[0, 5, 2]]), lang_id=torch.tensor([1]))[0]\n"
        "print('GOT', it.languages.codes, len(it.dictionary), tuple(out.shape), it.model.training, it.notes)\n"
    )
    done = ddp.run_command([sys.executable, "-c", code], cwd=tmp_path)
    assert "GOT ['en', 'hi'] 17 (1, 3, 17) False ()" in done.log


def test_override_and_unknown_override(copy):
    loaded = fairseq_interference.load(copy, seed=5)
    assert loaded.cfg.common.seed == 5
    with pytest.raises(UsageError, match="no such option") as caught:
        fairseq_interference.load(copy, sead=5)
    assert "seed" in str(caught.value)


def test_tokenizer_folder_travels(copy):
    (copy.parent / "tokenizer").mkdir()
    (copy.parent / "tokenizer" / "tokenizer.json").write_text("{}")
    assert fairseq_interference.load(copy).tokenizer_dir == copy.parent / "tokenizer"


def test_missing_dictionary_says_what_to_copy(copy):
    for name in ("dict.txt", "languages.txt", "companions.json"):
        (copy.parent / name).unlink()
    with pytest.raises(CheckpointError, match="dictionary") as caught:
        fairseq_interference.load(copy)
    assert "data-bin" in str(caught.value) and "dict.txt" in str(caught.value)


def test_data_override_is_used(copy, tmp_path):
    data = tmp_path / "elsewhere"
    data.mkdir()
    for name in ("dict.txt", "languages.txt"):
        shutil.move(copy.parent / name, data / name)
    (copy.parent / "companions.json").unlink()
    assert fairseq_interference.load(copy, data=str(data)).languages.codes == ["en", "hi"]


def test_other_languages_beside_it_are_refused(copy):
    (copy.parent / "languages.txt").write_text("hi\nen\n")
    with pytest.raises((LanguageError, CheckpointError)):
        fairseq_interference.load(copy)


def test_no_such_file_lists_the_others(copy):
    with pytest.raises(CheckpointError, match=r"checkpoint_last\.pt"):
        fairseq_interference.load(copy.with_name("checkpoint_lost.pt"))


def test_missing_option_is_reported(copy, caplog):
    def forget(state):
        section = state["cfg"]["model"]
        del (vars(section) if isinstance(section, argparse.Namespace) else section)["adapter_dim"]

    edit(copy, forget)
    notes = fairseq_interference.load(copy).notes
    assert any("adapter_dim" in note and "is used" in note for note in notes)
    assert "adapter_dim" in caplog.text


def test_unknown_option_is_reported(copy):
    def invent(state):
        state["cfg"]["task"]["sampling_magic"] = 3

    edit(copy, invent)
    notes = fairseq_interference.load(copy).notes
    assert any("sampling_magic" in note and "no effect" in note for note in notes)


def test_weights_that_do_not_fit_are_listed(copy):
    def rename(state):
        key = next(key for key in state["model"] if key.endswith("fc1.weight"))
        state["model"][key + "_old"] = state["model"].pop(key)

    edit(copy, rename)
    with pytest.raises(CheckpointError, match="fit") as caught:
        fairseq_interference.load(copy)
    assert "fc1.weight_old" in str(caught.value) and "Missing" in str(caught.value)


def test_foreign_class_is_refused(copy):
    import fractions

    state = torch.load(copy, weights_only=True)
    state["extra"] = fractions.Fraction(1, 2)
    torch.save(state, copy)
    with pytest.raises(UnsafeCheckpointError, match=r"fractions\.Fraction"):
        fairseq_interference.load(copy)
