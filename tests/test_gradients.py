"""Gradient conflict: the cosines, the study of checkpoints, its files and figures."""

from __future__ import annotations

import math
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import ddp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import CASES, Case, build_case, label
from convert_world import write_fairseq, write_ours
from pretrain_world import data_folder, sentences, train_here, write_tokens
from scipy import stats

from fairseq_interference import load
from fairseq_interference.analysis import conflict, gradient_figures, gradients, index, plots
from fairseq_interference.analysis.gradient_study import Gradients, Plan, compute
from fairseq_interference.analysis.gradients import ALL, Group
from fairseq_interference.analysis.probe import in_order, read_blocks, sizes
from fairseq_interference.analysis.study import Study, read_study
from fairseq_interference.appended_state import language_of
from fairseq_interference.cli import main
from fairseq_interference.errors import CheckpointError, DataError, DictionaryError, LanguageError, UsageError
from fairseq_interference.optim import cosines
from fairseq_interference.optim.conflict import FILE, read_rows

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
]


# ---------------------------------------------------------------- the maths


def lists(seed: int, missing: tuple[int, ...] = ()) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((3, 4), (7,), (2, 3, 5), (1,), (6, 6))
    found = [torch.randn(shape, generator=generator) for shape in shapes]
    return [None if number in missing else tensor for number, tensor in enumerate(found)]


def flattened(one: list[Any], other: list[Any]) -> float:
    shapes = [(y if x is None else x).shape for x, y in zip(one, other)]
    x, y = (
        torch.cat([(torch.zeros(shape) if t is None else t).double().flatten() for t, shape in zip(some, shapes)])
        for some in (one, other)
    )
    return float(F.cosine_similarity(x, y, dim=0))


@pytest.mark.parametrize("missing", [(), (0,), (1, 4)])
@pytest.mark.parametrize("chunk", [5, cosines.CHUNK])
def test_cosine_is_that_of_the_flattened_vectors(missing: Any, chunk: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(cosines, "CHUNK", chunk)
    one, other = lists(1, missing), lists(2)
    assert cosines.cosine(one, other) == pytest.approx(flattened(one, other), abs=1e-12)
    third = [None] * 5
    found = cosines.pairs({"x": one, "y": other, "z": third})
    assert list(found) == [("x", "y"), ("x", "z"), ("y", "z")] and found["x", "z"] is found["y", "z"] is None
    assert found["x", "y"] == pytest.approx(flattened(one, other), abs=1e-12)
    members = {Group(None, ALL): range(5), Group(0, ALL): [0, 2], Group(1, ALL): [1, 3, 4]}
    grouped = gradients.cosines(gradients.measured(one), gradients.measured(other), members)
    for group, chosen in members.items():
        expected = flattened([one[n] for n in chosen], [other[n] for n in chosen])
        assert grouped[group] == pytest.approx(expected, abs=1e-12)


def test_small_numbers_do_not_get_lost_in_a_long_sum() -> None:
    """In float32 much of the tail vanishes beside the head."""
    count = 1 << 20
    one, other = (torch.cat([torch.tensor([1e4]), torch.full((count,), tail)]) for tail in (0.125, -0.125))
    right = (1e8 - count / 64) / (1e8 + count / 64)
    assert cosines.cosine([one], [other]) == pytest.approx(right, abs=1e-12)
    assert abs(float(F.cosine_similarity(one, other, dim=0)) - right) > 1e-6


def test_no_gradient_is_no_number() -> None:
    one, zero, odd = lists(1), [torch.zeros_like(x) for x in lists(1)], lists(3)
    odd[0][0, 0] = math.inf
    assert [cosines.cosine(one, other) for other in (zero, [None] * 5, odd)] == [None] * 3
    some = [None, None, *one[2:]]
    found = gradients.cosines(
        gradients.measured(some), gradients.measured(one), {Group(0, "norms"): [0, 1], Group(None, ALL): range(5)}
    )
    assert found[Group(0, "norms")] is None and 0 < found[Group(None, ALL)] < 1


PLACES = {
    "encoder.sentence_encoder.embed_tokens.weight": (None, "embeddings"),
    "encoder.sentence_encoder.embed_positions.weight": (None, "embeddings"),
    "encoder.sentence_encoder.layernorm_embedding.bias": (None, "norms"),
    "encoder.sentence_encoder.layers.11.self_attn.out_proj.weight": (11, "attention"),
    "encoder.sentence_encoder.layers.1.self_attn_layer_norm.weight": (1, "norms"),
    "encoder.sentence_encoder.layers.1.final_layer_norm.weight": (1, "norms"),
    "encoder.sentence_encoder.layers.0.fc2.bias": (0, "feed-forward"),
    "encoder.sentence_encoder.layer_norm.weight": (None, "norms"),
    "encoder.lm_head.weight": (None, "embeddings"),
    "encoder.lm_head.bias": (None, "embeddings"),
    "encoder.lm_head.dense.weight": (None, "other"),
    "encoder.lm_head.layer_norm.weight": (None, "norms"),
}


def test_every_parameter_has_its_place() -> None:
    assert {name: tuple(gradients.place_of(name)) for name in PLACES} == PLACES


@pytest.mark.parametrize("case", CASES, ids=label)
def test_shared_parameters_are_grouped_by_layer(case: Case) -> None:
    named = [(name, p) for name, p in build_case(case).named_parameters() if language_of(p) is None]
    found = gradients.groups_of(name for name, _ in named)
    assert found[Group(None, ALL)] == list(range(len(named)))
    parts = [found[group] for group in found if group.layer is None and group.component != ALL]
    assert sorted(chain(*parts)) == found[Group(None, ALL)]
    for layer in range(2):
        inside = [found[group] for group in found if group.layer == layer and group.component != ALL]
        assert sorted(chain(*inside)) == found[Group(layer, ALL)]
        own = {"adpt": set(), "meta_adpt": set(), "ffn": {"feed-forward"}, "attn": {"attention"}}
        gone = own.get(case.arch.replace("_tiny", "").replace("xlm_", ""), set())
        there = {group.component for group in found if group.layer == layer} - {"other", "norms"}
        assert there == {ALL, "attention", "feed-forward"} - gone


def test_interval_is_students() -> None:
    values = [0.1, 0.4, None, -0.2, 0.3]
    known = [value for value in values if value is not None]
    low, high = stats.t.interval(0.95, 3, loc=np.mean(known), scale=stats.sem(known))
    assert gradients.interval(values) == pytest.approx((np.mean(known), low, high, 4))
    assert gradients.interval([0.5]) == (0.5, None, None, 1)
    assert gradients.interval([None]) == (None, None, None, 0)


# ---------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of three languages, the first with two checkpoints; and the text."""
    root = tmp_path_factory.mktemp("world")
    data = data_folder(root / "data", {"aa": 90, "bb": 120, "cc": 60})
    flags = ("--langs", "aa,bb,cc", "--dropout", 0.1, "--sample-break-mode", "eos", "--save-interval-updates", 2)
    train_here(data, root / "joint", *flags, "--max-update", 4, arch="xlm_joint_tiny")
    train_here(data, root / "adpt", *flags, "--max-update", 2)
    return root


def opened(world: Path, run: str = "adpt", **plan: Any) -> Gradients:
    loaded = load(world / run / "checkpoint_last.pt")
    blocks, _ = read_blocks(loaded, str(world / "data"), "train")
    made = Plan(**{"sentences": 20, "max_tokens": 64, **plan})
    return Gradients(loaded, blocks, sizes(blocks, made.sentences)[0], made)


@pytest.mark.parametrize("run", ["joint", "adpt"])
def test_gradient_of_an_effective_batch_is_that_of_one_batch(world: Path, run: str) -> None:
    study = opened(world, run, dropout=False)
    assert len(list(study.micro_batches(0, "bb", "a"))) > 2
    vectors = {}
    for code in ("aa", "bb"):
        for half in "ab":
            found = study.gradient(0, code, half)
            items = study.items(0, code, half)
            sample = study.dataset.collater(items)
            assert len(items) == 20 and {int(x) for x in sample["net_input"]["lang_id"]} == {study.ids[code]}
            loss = study.criterion.losses(study.model, sample)[0].mean()
            right = torch.autograd.grad(loss, [p for _, p in study.shared], allow_unused=True)
            assert [x is None for x in found] == [x is None for x in right]
            pairs = [(x, y) for x, y in zip(found, right) if x is not None]
            assert cosines.cosine(*zip(*pairs)) == pytest.approx(1, abs=1e-6)
            vectors[code, half] = torch.cat([y.double().flatten() for _, y in pairs])
    rows = {(row["one"], row["other"]): row["cosine"] for row in study.rows(0, print) if row["component"] == ALL}
    for one, other in (("aa", "bb"), ("aa", "aa")):
        right = [F.cosine_similarity(vectors[one, x], vectors[other, y], dim=0).item() for x, y in ("ab", "ba")]
        row = next(r for r in study.rows(0, print) if (r["one"], r["other"]) == (one, other))
        assert (row["layer"], row["component"]) == (None, ALL) and row["cosine"] == pytest.approx(
            sum(right) / 2, abs=1e-5
        )
    assert len(rows) == 6


def test_only_shared_parameters_count(world: Path) -> None:
    study = opened(world)
    names = [name for name, _ in study.shared]
    assert len(names) > 20 and not any(f".{code}." in name for name in names for code in ("aa", "bb", "cc"))
    assert any(".aa." in name for name, _ in study.model.named_parameters())


def test_batches_are_independent_and_draws_are_others(world: Path) -> None:
    study = opened(world)
    seen = {(draw, half): {item.visit[0] for item in study.items(draw, "aa", half)} for draw in (0, 1) for half in "ab"}
    assert not seen[0, "a"] & seen[0, "b"] and seen[0, "a"] != seen[1, "a"]
    again = [list(study.micro_batches(draw, "aa", "a")) for draw in (0, 0)]
    assert all(torch.equal(x["target"], y["target"]) for x, y in zip(*again))
    whole = opened(world, sentences=45)  # all of the text in each draw: masks are still others
    masks = [{}, {}]
    for draw in (0, 1):
        for half in "ab":
            for item in whole.items(draw, "aa", half):
                masks[draw][item.visit[0]] = whole.dataset.collater([item])["target"].tolist()
    assert masks[0].keys() == masks[1].keys() and len(masks[0]) == 90 and masks[0] != masks[1]


def test_dropout_is_drawn_again_the_same(world: Path) -> None:
    study, still = opened(world), opened(world, dropout=False)
    one, again, without = (s.gradient(1, "cc", "b") for s in (study, study, still))
    assert all(torch.equal(x, y) for x, y in zip(one, again) if x is not None)
    assert cosines.cosine(one, without) < 0.999


@pytest.mark.parametrize("keep", ["device", "recompute"])
def test_where_gradients_wait_makes_no_difference(world: Path, keep: str) -> None:
    calls: list[str] = []
    assert opened(world, keep=keep).rows(0, calls.append) == opened(world).rows(0, lambda _: None)
    assert len(calls) == {"device": 6, "recompute": 12}[keep]


def test_a_study_goes_on_where_it_was(world: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    files = [*sorted((world / "joint").glob("checkpoint_*_[24].pt")), world / "joint" / "checkpoint_last.pt"]
    plan = Plan(sentences=30, max_tokens=256)
    first = compute(files[1:2], str(world / "data"), tmp_path, draws=1, plan=plan)
    calls: list[Any] = []
    original = Gradients.rows
    monkeypatch.setattr(Gradients, "rows", lambda self, draw, tell: calls.append(draw) or original(self, draw, tell))
    both = compute(files[::-1], str(world / "data"), tmp_path, draws=2, plan=plan)
    assert calls == [0, 1, 1]  # the new checkpoint, and the second draw of the old one
    assert [row["update"] for row in both.tables["summary"]] == [2] * 6 + [4] * 6
    assert "is left out: joint/checkpoint_" in capsys.readouterr().err  # last is a copy of the newest
    kept = [row for row in both.tables["pairs"] if row["update"] == 4 and row["draw"] == 0]
    assert [row["cosine"] for row in kept] == [row["cosine"] for row in first.tables["pairs"]]
    overall = both.tables["summary"]
    assert len(overall) == 2 * 6 and all(row["n"] == 2 and row["low"] <= row["mean"] <= row["high"] for row in overall)
    layers = {(row["layer"], row["component"]) for row in both.tables["layers"]}
    assert {(None, "embeddings"), (0, "attention"), (0, "feed-forward"), (0, "norms"), (0, ALL)} <= layers


def test_little_text_is_halved_and_said(world: Path) -> None:
    blocks, _ = read_blocks(load(world / "joint" / "checkpoint_last.pt"), str(world / "data"), "train", "cc,aa")
    assert list(blocks) == ["aa", "cc"]  # the checkpoint's order
    counts, notes = sizes(blocks, 40)
    assert counts == {"aa": 40, "cc": 30} and len(notes) == 1 and "cc has 60 blocks: batches of 30, not 40" in notes[0]
    with pytest.raises(DataError, match="two blocks"):
        sizes({"aa": blocks["aa"].some(np.array([0]))}, 4)


def test_mistakes_are_named(world: Path, tmp_path: Path) -> None:
    loaded, data = load(world / "joint" / "checkpoint_last.pt"), str(world / "data")
    with pytest.raises(LanguageError, match="Unknown"):
        read_blocks(loaded, data, "train", "aa,zz")
    with pytest.raises(UsageError, match="at least two"):
        read_blocks(loaded, data, "train", "aa")
    with pytest.raises(DataError, match="no test data"):
        read_blocks(loaded, data, "test")
    other = data_folder(tmp_path / "other", {"aa": 5, "bb": 5})
    with pytest.raises(LanguageError, match="no such language"):
        read_blocks(loaded, str(other), "train", "aa,cc")
    (other / "dict.txt").write_text("a 1\nb 1\n")
    with pytest.raises(DictionaryError, match="another dictionary"):
        read_blocks(loaded, str(other), "train")
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        in_order([tmp_path / "none.pt"])
    with pytest.raises(UsageError, match="twice"):
        in_order([world / "adpt" / "checkpoint_last.pt"] * 2)


def test_a_fine_tuned_checkpoint_is_refused(tmp_path: Path) -> None:
    made = write_ours(tmp_path, task="xlm_nli", labels="yes,no")
    with pytest.raises(CheckpointError, match="trained for something else"):
        compute([made], str(tmp_path), tmp_path / "out")


def test_a_converted_model_is_measured(tmp_path: Path) -> None:
    from fairseq_interference.convert.fairseq_xlmr import convert
    from fairseq_interference.languages import LanguageList

    write_fairseq(tmp_path / "xlmr")
    made = convert(tmp_path / "xlmr", tmp_path / "model", "xlm_joint", LanguageList(["xa", "xb", "xc"]))
    for number, code in enumerate(("xa", "xb")):
        text = [[4 + word % 40 for word in line] for line in sentences(30, number)]
        write_tokens(tmp_path / "data" / code / "train", text)
    (tmp_path / "data" / "dict.txt").write_bytes((tmp_path / "model" / "dict.txt").read_bytes())
    found = compute([made.path], str(tmp_path / "data"), tmp_path / "out", draws=1, plan=Plan(sentences=8))
    assert found.settings["languages"] == ["xa", "xb"] and {row["update"] for row in found.tables["pairs"]} == {0}
    assert all(row["mean"] is not None and row["low"] is None for row in found.tables["summary"])


# ---------------------------------------------------------------- files and figures


def made_up(codes: list[str], updates: list[int]) -> Study:
    rng = np.random.default_rng(3)
    pairs = [
        {
            "checkpoint": f"run/checkpoint_{update}.pt",
            "update": update,
            "draw": draw,
            "one": one,
            "other": other,
            "layer": layer,
            "component": component,
            "cosine": float(rng.uniform(0.8, 1) if one == other else rng.uniform(-0.5, 0.5)),
        }
        for update in updates
        for draw in range(3)
        for number, one in enumerate(codes)
        for other in codes[number:]
        for layer in (None, 0, 1)
        for component in (ALL, "attention", "norms")
    ]
    batches = [
        {"checkpoint": f"run/checkpoint_{u}.pt", "lang": c, "blocks": 90, "batch": 40} for u in updates for c in codes
    ]
    settings = {"languages": codes, "draws": 3, "dropout": True}
    return Study("gradients", settings, {"pairs": pairs, "batches": batches})


def test_figures_say_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    study = made_up(["xa", "xb", "xc"], [10, 20, 30])
    found = {figure.name: figure for figure in gradient_figures.figures(study)}
    assert list(found) == [f"gradients-{name}" for name in ("matrix", "components", "layers", "updates")]
    assert all("n = 3 draws, 40 sentences a batch" in figure.title for figure in found.values())
    rows = [r for r in study.tables["pairs"] if (r["layer"], r["component"], r["update"]) == (None, ALL, 30)]
    values = [r["cosine"] for r in rows if (r["one"], r["other"]) == ("xa", "xc")]
    matrix = found["gradients-matrix"].panels[-1]
    assert [panel.title for panel in found["gradients-matrix"].panels] == ["update 10", "update 30"]
    assert matrix.values[0][2] == matrix.values[2][0] == pytest.approx(np.mean(values))
    curve = found["gradients-updates"].panels[0].curves["xa-xc"]
    assert curve.x == [10, 20, 30] and curve.y[-1] == pytest.approx(np.mean(values))
    assert curve.low[-1] < curve.y[-1] < curve.high[-1]
    assert [panel.title for panel in found["gradients-layers"].panels] == ["whole layer", "attention", "norms"]
    assert plots.draw_figure(found["gradients-components"], tmp_path)[0].stat().st_size > 1000


def test_of_many_languages_the_means_are_drawn() -> None:
    study = made_up(["xa", "xb", "xc", "xd"], [10])
    found = {figure.name: figure for figure in gradient_figures.figures(study)}
    assert "gradients-updates" not in found  # one checkpoint has no curve
    curves = found["gradients-layers"].panels[0].curves
    assert set(curves) == {"within a language (mean of 4)", "between languages (mean of 6 pairs)"}
    rows = [r for r in study.tables["pairs"] if (r["layer"], r["component"]) == (1, ALL) and r["one"] != r["other"]]
    draws = [np.mean([r["cosine"] for r in rows if r["draw"] == draw]) for draw in range(3)]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(draws), scale=stats.sem(draws))
    curve = curves["between languages (mean of 6 pairs)"]
    assert (curve.y[1], curve.low[1], curve.high[1]) == pytest.approx((np.mean(draws), low, high))


def test_a_run_is_drawn_in_windows(tmp_path: Path) -> None:
    lines = [
        {"update": 10 * n, "conflict": 0.1 * n, "pairs": [["xa", "xb", 0.1 * n], ["xa", "xc", None]]} for n in range(50)
    ]
    study = conflict.study({"some/run": lines})
    own = [row for row in study.tables["windows"] if row["other"] == "xb"]
    assert [(row["first"], row["last"], row["n"]) for row in own] == [(100 * k, 100 * k + 90, 10) for k in range(5)]
    assert own[1]["mean"] == pytest.approx(1.45) and own[1]["conflict"] == 0
    (figure,) = conflict.figures(study)
    assert figure.panels[0].curves["xa-xb"].x[0] == 45 and "means of 10" in figure.title.replace("0 to ", "")
    assert len(study.tables["cosines"]) == 100


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--checkpoint", "a.pt"], "--data"),
        (["--checkpoint", "a.pt", "--data", "d", "--draws", "0", "--sentences", "-1"], "--sentences -1; --draws 0"),
        (["--run", "r", "--draws", "3", "--no-dropout"], "--draws, --no-dropout"),
        (["--run", "r"], "--conflict-every 10"),
    ],
)
def test_flags_without_sense_are_refused(flags: list[str], words: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["diagnose", "gradients", *flags, "--out", str(tmp_path)]) in (1, 2)
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_from_training_to_the_index(tmp_path: Path) -> None:
    """The literal commands: a run that measures itself, then the study of its checkpoints, interrupted and resumed."""
    pytest.importorskip("matplotlib")
    data = data_folder(tmp_path / "data", {"aa": 80, "bb": 80})
    network = [
        "--sample-break-mode",
        "eos",
        "--encoder-layers",
        "2",
        "--encoder-embed-dim",
        "16",
        "--encoder-ffn-embed-dim",
        "32",
    ]
    flags = [str(data), "--task", "xlm_masked_lm", "--criterion", "xlm_masked_lm", "--arch", "xlm_joint_tiny", *network]
    flags += ["--langs", "aa,bb", "--optimizer", "adam", "--lr", "0.001", "--batch-size", "8", "--max-update", "6"]
    flags += ["--save-interval-updates", "3", "--conflict-every", "2", "--save-dir", "run", "--no-progress-bar"]
    log = ddp.train(*flags, "--log-interval", "1", cwd=tmp_path).log
    assert "conflict_aa_bb" in log
    console = [sys.executable, "-m", "fairseq_interference", "diagnose", "gradients"]
    ddp.run_command([*console, "--run", "run"], cwd=tmp_path)
    command = [*console, "--data", "data", "--sentences", "30", "--draws", "2", "--checkpoint"]
    command += sorted(map(str, (tmp_path / "run").glob("checkpoint_*_[36].pt")))
    done = ddp.run_command(command, cwd=tmp_path)
    assert "draw 2 of 2, bb (b)" in done.log and "DEBUG:matplotlib" not in done.log
    out = tmp_path / "results" / "diagnose"
    study = read_study(out / "gradients" / "gradients.json")
    before = (out / "gradients" / "pairs.csv").read_bytes()
    rows = out / "gradients" / "rows.jsonl"
    lines = rows.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 2 * 2
    rows.write_bytes(b"".join(lines[:3]) + lines[3][:40])  # stopped while it wrote
    again = ddp.run_command(command, cwd=tmp_path).log
    assert again.count("draw 1 of 2") == 4 and (out / "gradients" / "pairs.csv").read_bytes() == before
    assert {row["update"] for row in study.tables["summary"]} == {3, 6}
    text = (out / "index.md").read_text()
    for name in ("gradients-matrix", "gradients-layers", "gradients-updates", "conflict-updates"):
        assert f"figures/{name}.png" in text and (out / "figures" / f"{name}.pdf").is_file()
    assert [row["update"] for row in read_rows(tmp_path / "run" / FILE)] == [0, 2, 4]
    assert set(index.STUDIES) >= {"gradients", "conflict"}
