"""Linear CKA against its definition; the study over checkpoints of a fine-tuning run."""

from __future__ import annotations

import json
import random
import shutil
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_interference.analysis.cka import cka, figures, hsic
from fairseq_interference.errors import (
    CheckpointError,
    DataError,
    DictionaryError,
    LanguageError,
    StageError,
    TokenizerError,
    UsageError,
)


def features(n, p, seed=0):
    return np.random.default_rng(seed).normal(size=(n, p))


def grams(x, y):
    """Explicit n x n Gram matrices."""
    n = len(x)
    return [[[float(a[i] @ a[j]) for j in range(n)] for i in range(n)] for a in (x, y)]


def biased_by_hand(x, y):
    """tr(K H L H) (Kornblith et al. 2019, equation 2; Gretton et al. 2005)."""
    n = len(x)
    k, m = map(np.array, grams(x, y))
    h = np.eye(n) - np.ones((n, n)) / n
    return np.trace(k @ h @ m @ h)


def unbiased_by_hand(x, y):
    """HSIC_1 with its sums as loops (Song et al. 2012, equation 5), of features that are not centred."""
    n, (k, m) = len(x), grams(x, y)
    for i in range(n):
        k[i][i] = m[i][i] = 0.0
    trace = sum(k[i][j] * m[j][i] for i in range(n) for j in range(n))
    ones = sum(map(sum, k)) * sum(map(sum, m))
    middle = sum(k[i][j] * m[j][r] for i in range(n) for j in range(n) for r in range(n))
    return (trace + ones / ((n - 1) * (n - 2)) - 2 / (n - 2) * middle) / (n * (n - 3))


BY_HAND = {True: biased_by_hand, False: unbiased_by_hand}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("n", "p", "q"), [(4, 3, 2), (7, 30, 20), (12, 2, 40), (25, 3, 4)])
def test_it_is_the_definition(n, p, q, biased):
    """Narrow features go through the feature form, wide ones through the Gram form."""
    x = features(n, p, 1) + 3.0
    y = 0.5 * x[:, :1] + features(n, q, 2) - 1.0
    by_hand = BY_HAND[biased]
    expected = by_hand(x, y) / np.sqrt(by_hand(x, x) * by_hand(y, y))
    assert cka(x, y, biased) == pytest.approx(expected, rel=1e-9)
    assert hsic(x - x.mean(0), y - y.mean(0), biased) == pytest.approx(by_hand(x, y), rel=1e-9)


@given(st.integers(4, 30), st.integers(1, 40), st.integers(0, 1000), st.booleans())
def test_itself_rotated_scaled_and_shifted_is_one(n, p, seed, biased):
    x = features(n, p, seed)
    rotation, _ = np.linalg.qr(features(p, p, seed + 1))
    assert cka(x, x, biased) == pytest.approx(1, abs=1e-9)
    assert cka(x, 1e-3 * (x @ rotation) + 5.0, biased) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("biased", [True, False])
def test_rotation_scale_and_place_do_not_matter(biased):
    x, y = features(20, 6, 1), features(20, 9, 2)
    y[:, :6] += x
    rotation, _ = np.linalg.qr(features(9, 9, 3))
    value = cka(x, y, biased)
    assert 0.1 < value < 0.95
    assert cka(40 * x, 1e-6 * (y @ rotation) - 7, biased) == pytest.approx(value, abs=1e-6)
    assert cka(y, x, biased) == pytest.approx(value, abs=1e-12)
    stretched = y * np.array([10.0] + [1.0] * 8)  # not isotropic: that does matter
    assert abs(cka(x, stretched, biased) - value) > 1e-3


def test_only_the_unbiased_one_is_near_zero_for_what_is_unrelated():
    """32 samples of width 256, as the paper's batch: the biased one says they are alike."""
    pairs = [(features(32, 256, 2 * k), features(32, 256, 2 * k + 1)) for k in range(20)]
    assert np.mean([cka(x, y, True) for x, y in pairs]) > 0.8
    assert abs(np.mean([cka(x, y) for x, y in pairs])) < 0.03


def test_what_is_constant_has_no_number():
    x, flat = features(10, 4), np.full((10, 3), 0.1)
    assert cka(x, flat) is None and cka(flat, x, True) is None and cka(flat, flat) is None
    one = np.zeros((10, 3))
    one[0] = 1.0  # HSIC_1 of it with itself is 0
    assert unbiased_by_hand(one, one) == pytest.approx(0) and cka(one, x) is None


def test_too_few_or_unequal_samples_are_refused():
    with pytest.raises(DataError, match="few"):
        cka(features(3, 2), features(3, 2))
    with pytest.raises(DataError, match="same samples"):
        cka(features(5, 2), features(6, 2))


# -- the study ----------------------------------------------------------------------------------------------------

pytest.importorskip("fairseq")
from pretrain_world import write_tokens  # noqa: E402
from tagging_world import sentence, write_checkpoint, write_finetuned  # noqa: E402

LABELS = ("O", "B-LOC", "I-LOC")


@pytest.fixture(scope="module")
def world(tmp_path_factory, plugin):
    """A pre-trained checkpoint, three of a run that moves away from it, and text."""
    import torch

    from fairseq_interference import load

    folder = tmp_path_factory.mktemp("cka")
    pretrained = write_checkpoint(folder / "pretrained", ("xa", "xb"), "xlm_adpt_tiny")
    tuned = write_finetuned(folder / "tuned", pretrained, "xlm_tagging", LABELS)
    state = torch.load(tuned, weights_only=False)
    tuned.unlink()
    weights = torch.load(pretrained, weights_only=False)["model"]
    state["model"].update({name: weights[name] for name in weights if name in state["model"]})
    generator = torch.Generator().manual_seed(3)
    for updates, name in ((0, "checkpoint1.pt"), (20, "checkpoint_2_20.pt"), (100, "checkpoint_last.pt")):
        if updates:
            for name_of, value in state["model"].items():
                if ".layers.1." in name_of and value.dim() == 2:
                    value += 0.2 * updates * value.std() * torch.randn(value.shape, generator=generator)
        state["optimizer_history"][-1]["num_updates"] = updates
        torch.save(state, tuned.parent / name)
    shutil.copy(tuned.parent / "checkpoint_last.pt", tuned.parent / "checkpoint_best.pt")
    dictionary = load(str(pretrained)).dictionary
    tokenizer = load(str(pretrained)).tokenizer_dir
    from fairseq_interference.data.tokenizer import Tokenizer

    read = Tokenizer.load(str(tokenizer))
    for lang in ("xa", "xb"):
        draw = random.Random(lang)
        lines = list(dict.fromkeys(" ".join(sentence(lang, draw)[0]) for _ in range(60)))[:40]
        (folder / f"{lang}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        ids = [[dictionary.index(piece) for piece in read.encode_line(line, lang)] for line in lines]
        write_tokens(folder / "pretrained" / "data" / lang / "valid", ids)
    return types.SimpleNamespace(folder=folder, pretrained=pretrained, tuned=tuned.parent)


def diagnose(world, out, *flags, data=True, checkpoint=None):
    import argparse

    from fairseq_interference.cli import diagnose as verb
    from fairseq_interference.cli.diagnose_cka import run

    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    where = ["--data", world.folder / "pretrained/data"] if data else ["--text", f"xa:{world.folder}/xa.txt"]
    command = ["cka", "--checkpoint", *(checkpoint or [world.tuned]), "--against", world.pretrained, *where, "--cpu"]
    return run(parser.parse_args([*map(str, command), *map(str, flags), "--out", str(out)]))


def by_key(study):
    return {(row["update"], row["lang"], row["layer"]): row["cka"] for row in study.tables["cka"]}


def test_checkpoints_of_a_run_by_language_and_layer(world, tmp_path, capsys):
    study = diagnose(world, tmp_path)
    found = by_key(study)
    assert list(found) == [(u, lang, k) for u in (0, 20, 100) for lang in ("xa", "xb") for k in (0, 1, 2)]
    assert all(row["samples"] == 40 for row in study.tables["cka"])
    for lang in ("xa", "xb"):
        assert [found[0, lang, k] for k in range(3)] == pytest.approx([1, 1, 1], abs=1e-5)
        assert [found[100, lang, k] for k in (0, 1)] == pytest.approx([1, 1], abs=1e-5)  # only layer 2 was moved
        assert found[100, lang, 2] < found[20, lang, 2] - 0.01 and found[20, lang, 2] < 0.9999
    said = capsys.readouterr().err
    assert said.count("pretrained/checkpoint_last.pt, xa") == 1 and "checkpoint 3 of 3" in said
    curves, profile = figures(study)
    assert len(curves.panels) == 2 and set(curves.panels[0].curves) == {"embeddings", "layer 1", "layer 2"}
    assert curves.panels[0].curves["layer 2"].y == [found[u, "xa", 2] for u in (0, 20, 100)]
    assert profile.panels[0].curves["xb"].y == [found[100, "xb", k] for k in range(3)]
    assert "n = 40" in curves.title and "mean over a sentence's pieces" in curves.title and "unbiased" in curves.title


def test_it_is_the_definition_of_the_models_own_states(world, tmp_path):
    """Features taken one sentence at a time from the model itself; all three kinds of pooling."""
    import torch

    from fairseq_interference import load

    models = [load(str(path)) for path in (world.pretrained, world.tuned / "checkpoint_last.pt")]
    lines = (world.folder / "xa.txt").read_text(encoding="utf-8").splitlines()

    def states(loaded, line):
        from fairseq_interference.evaluation.hidden import tokenizer_of

        ids = [loaded.dictionary.index(piece) for piece in tokenizer_of(loaded).encode_line(line, "xa")]
        tokens = torch.tensor([[0, *ids, 2]])
        with torch.no_grad():
            out = loaded.model(tokens, features_only=True, lang_id=torch.zeros(1, dtype=torch.long))
        return out[0][0].double().numpy()

    every = [[states(loaded, line) for line in lines] for loaded in models]
    pooled = {
        "mean": [np.stack([s[1:-1].mean(0) for s in own]) for own in every],
        "first": [np.stack([s[0] for s in own]) for own in every],
        "tokens": [np.concatenate([s[1:-1] for s in own]) for own in every],
    }
    for pool, (x, y) in pooled.items():
        out = tmp_path / pool
        flags = ("--pool", pool, "--biased") if pool == "first" else ("--pool", pool)
        checkpoint = [world.tuned / "checkpoint_last.pt"]
        study = diagnose(world, out, *flags, data=False, checkpoint=checkpoint)
        row = study.tables["cka"][2]
        assert (row["layer"], row["samples"]) == (2, len(x))
        assert row["cka"] == pytest.approx(cka(x, y, pool == "first"), abs=1e-5) and row["cka"] < 0.99
        if pool == "first":  # the embedding of <s> is the same in every sentence
            assert study.tables["cka"][0]["cka"] is None
        assert len(figures(study)) == 1


def test_text_and_the_same_text_binarised_agree(world, tmp_path):
    one = {"checkpoint": [world.tuned / "checkpoint_last.pt"]}
    data, text = (diagnose(world, tmp_path / str(n), "--langs", "xa", data=n == 0, **one) for n in (0, 1))
    assert by_key(data) == pytest.approx(by_key(text), abs=1e-5)
    fewer = diagnose(world, tmp_path / "few", "--langs", "xa", "--sentences", 20, **one)
    other = diagnose(world, tmp_path / "other", "--langs", "xa", "--sentences", 20, "--seed", 2, **one)
    assert by_key(fewer) != by_key(other)
    assert fewer.tables["cka"][0]["samples"] == 20


def test_it_goes_on_behind_the_checkpoints_that_are_done(world, tmp_path, capsys):
    first = diagnose(world, tmp_path, "--langs", "xa", checkpoint=[world.tuned / "checkpoint_2_20.pt"])
    capsys.readouterr()
    study = diagnose(world, tmp_path, "--langs", "xa")
    assert "checkpoint_2_20.pt" not in capsys.readouterr().err
    assert [r for r in study.tables["cka"] if r["update"] == 20] == first.tables["cka"]
    with pytest.raises(StageError, match="other settings"):
        diagnose(world, tmp_path, "--langs", "xa", "--pool", "tokens")


def test_what_cannot_be_compared_is_refused(world, tmp_path):
    deep = write_checkpoint(tmp_path / "deep", ("xa", "xb"), "xlm_joint_tiny", "--encoder-layers", "3")
    with pytest.raises(CheckpointError, match="depth"):
        diagnose(world, tmp_path / "1", checkpoint=[deep])
    with pytest.raises(LanguageError, match="no text"):
        diagnose(world, tmp_path / "2", "--langs", "xa,xc")
    with pytest.raises(UsageError, match="Too few"):
        diagnose(world, tmp_path / "3", "--sentences", 3)
    with pytest.raises(CheckpointError, match="no such"):
        diagnose(world, tmp_path / "4", checkpoint=[tmp_path / "none.pt"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no readable"):
        diagnose(world, tmp_path / "5", checkpoint=[tmp_path / "empty"])
    with pytest.raises(DataError, match="such a split"):
        diagnose(world, tmp_path / "6", "--split", "test")
    with pytest.raises(UsageError, match="no splits"):
        diagnose(world, tmp_path / "7", "--split", "test", data=False)
    elsewhere = tmp_path / "copy"
    elsewhere.mkdir()
    shutil.copy(world.tuned / "checkpoint_last.pt", elsewhere / "checkpoint_7.pt")
    with pytest.raises(UsageError, match="same number"):
        diagnose(world, tmp_path / "8", checkpoint=[world.tuned, elsewhere / "checkpoint_7.pt"])


@pytest.mark.slow
def test_another_tokenizer_and_width_compare_by_sentence_on_raw_text_only(world, tmp_path):
    other = write_checkpoint(tmp_path / "other", ("xa", "xb"), "xlm_joint_tiny", "--encoder-embed-dim", "16")
    from subword_nmt.learn_bpe import learn_bpe

    from fairseq_interference.data.companions import write_companions
    from fairseq_interference.data.tokenizer import Tokenizer
    from fairseq_interference.languages import LanguageList

    with open(tmp_path / "codes", "w", encoding="utf-8") as stream:
        learn_bpe(["walks walks sees sees"], stream, 3, min_frequency=2)
    shutil.rmtree(other.parent / "tokenizer")
    (tmp_path / "new").mkdir()
    Tokenizer.create(
        tmp_path / "new" / "tokenizer", "subword-nmt", tmp_path / "codes", normalization="nfc", pretokenizer="none"
    )
    dictionary = tmp_path / "dict.txt"
    lines = (other.parent / "dict.txt").read_text(encoding="utf-8").splitlines()
    dictionary.write_text("".join(f"{line}\n" for line in reversed(lines)), encoding="utf-8")
    write_companions(other.parent, LanguageList(("xa", "xb")), dictionary, tmp_path / "new" / "tokenizer")
    study = diagnose(world, tmp_path / "1", data=False, checkpoint=[other])
    assert all(row["samples"] == 40 and -0.5 < row["cka"] < 0.99 for row in study.tables["cka"])
    with pytest.raises(TokenizerError, match="different pieces"):
        diagnose(world, tmp_path / "2", "--pool", "tokens", data=False, checkpoint=[other])
    with pytest.raises(DictionaryError, match="another dictionary"):
        diagnose(world, tmp_path / "3", checkpoint=[other])


@pytest.mark.slow
def test_the_command_writes_tables_and_figures(world, tmp_path, capsys):
    from fairseq_interference.cli import main

    command = ["diagnose", "cka", "--checkpoint", world.tuned, "--against", world.pretrained, "--cpu"]
    command += ["--data", world.folder / "pretrained/data", "--out", tmp_path, "--sentences", "16"]
    assert main([*map(str, command)]) == 0
    assert json.loads((tmp_path / "cka/cka.json").read_text())["settings"]["langs"] == ["xa", "xb"]
    index = (tmp_path / "index.md").read_text()
    for name in ("cka-curves", "cka-profile"):
        assert (tmp_path / f"figures/{name}.png").stat().st_size > 5000 and f"{name}.png" in index
    assert main([*map(str, command), "--pool", "tokens"]) == 1
    assert "--force" in capsys.readouterr().err
