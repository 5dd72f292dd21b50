"""Probes of layers: which weights they touch, in real trainings; the grid; differences and sets from its scores."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import ddp
import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("fairseq")
from scipy import stats
from tagging_world import write_checkpoint, write_prepared

from fairseq_interference.analysis import layer_sets, layers, plots
from fairseq_interference.analysis.study import Study, read_study
from fairseq_interference.errors import CheckpointError, UsageError

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    # the host: CUDA's autocast by its old name, its scheduler before the first update
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
]
SIZES = ["--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--encoder-attention-heads", "2"]
BODY = "encoder.sentence_encoder.layers."
ADAM = ("--optimizer", "adam", "--lr", "0.01")
ARCHS = ["xlm_joint_tiny", "xlm_ffn_tiny", "xlm_attn_tiny", "xlm_adpt_tiny"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, plugin: Any) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("layers")
    found = {arch: write_checkpoint(folder / arch, ("xa", "xb"), arch) for arch in ARCHS}
    return {**found, "ner": write_prepared(folder / "ner", {"train": 12, "dev": 9})}


def trainer_of(world: dict[str, Path], arch: str, out: Path, *more: object) -> Any:
    """The host's trainer; languages, dictionary and sizes of the checkpoint."""
    import fairseq_cli.train as train
    from fairseq import options, tasks, utils
    from fairseq.trainer import Trainer

    from fairseq_interference import compat

    compat.install()
    assert train
    command = [str(world["ner"]), "--task", "xlm_tagging", "--criterion", "xlm_tagging", "--arch", arch, *SIZES]
    command += ["--finetune-from-model", str(world[arch]), "--save-dir", str(out), "--train-langs", "xa,xb", "--cpu"]
    command += ["--best-checkpoint-metric", "loss", "--batch-size", "6", "--dropout", "0", "--attention-dropout", "0"]
    command += [*map(str, more)]
    cfg = train.convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    task: Any = tasks.setup_task(cfg.task)
    utils.set_torch_seed(1)
    return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))


def batches(trainer: Any) -> list[Any]:
    trainer.task.load_dataset("train")
    dataset = trainer.task.dataset("train")
    return [dataset.collater([dataset[i] for i in range(k, len(dataset), 3)]) for k in range(3)]


def values(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.get_model().named_parameters()}


def names_in(checkpoint: Path) -> list[str]:
    return list(torch.load(checkpoint, weights_only=False)["model"])


def owned(model: Any, number: int, part: str) -> set[str]:
    """Names of a layer's part, by walking the modules of the real model."""
    layer = model.encoder.sentence_encoder.layers[number - 1]
    attention = [layer.attn if layer.attn is not None else layer.self_attn]
    ffn = [layer.ffn] if layer.ffn is not None else [layer.fc1, layer.fc2]
    modules = {"all": [layer], "attention": attention, "ffn": ffn}[part]
    chosen = {id(parameter) for module in modules for parameter in module.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in chosen}


# --- which weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_patterns_are_the_modules_of_a_layer(world: dict[str, Path], arch: str) -> None:
    from fairseq_interference import load

    model, names = load(world[arch]).model, names_in(world[arch])
    parameters = [name for name, _ in model.named_parameters()]
    assert layers.depth_of(names) == 2
    for number, part in itertools.product((1, 2), layers.PARTS):
        patterns = layers.patterns_of(names, [number], part)
        found = set(layers.fitting(parameters, patterns))
        assert found == owned(model, number, part) and all(layers.fitting(parameters, [p]) for p in patterns)
    both = set(layers.fitting(parameters, layers.patterns_of(names, [1, 2], "ffn")))
    assert both == owned(model, 1, "ffn") | owned(model, 2, "ffn")
    below = layers.patterns_below(names, 1)
    assert set(layers.fitting(parameters, below)) == set(parameters) - owned(model, 2, "all")
    assert all(layers.fitting(parameters, [pattern]) for pattern in below)
    assert set(layers.fitting(parameters, layers.patterns_below(names, 2))) == {
        name for name in parameters if not name.startswith(BODY)
    }


def test_two_digits_of_a_layer_are_no_prefix() -> None:
    names = [f"{BODY}{number}.fc1.weight" for number in range(12)]
    assert layers.depth_of(names) == 12
    assert layers.fitting(names, layers.patterns_of(names, [2], "all")) == [f"{BODY}1.fc1.weight"]
    assert layers.fitting(names, layers.patterns_of(names, [11, 12], "ffn")) == names[10:]
    with pytest.raises(CheckpointError, match="no layers"):
        layers.depth_of(["embed.weight"])


def grid_of(world: dict[str, Path], arch: str, *more: str) -> Any:
    from fairseq_interference.cli import diagnose_layers
    from fairseq_interference.cli.layer_runs import Grid

    parser = ArgumentParser()
    diagnose_layers.add_arguments(parser)
    command = ["--checkpoint", str(world[arch]), "--data", str(world["ner"]), "--train-lang", "xa"]
    args = parser.parse_args([*command, "--eval-langs", "xb", *more])
    args.out, args.force = Path("out"), False
    names = diagnose_layers.parameter_names(world[arch])
    return Grid(args, names), diagnose_layers.plan(args, layers.depth_of(names))


@pytest.mark.parametrize(
    ("arch", "cell"),
    [
        ("xlm_joint_tiny", "freeze-attention-2"),
        ("xlm_joint_tiny", "freeze-ffn-1-2"),
        ("xlm_joint_tiny", "last-k-all-2"),
        ("xlm_attn_tiny", "freeze-attention-1"),
        ("xlm_adpt_tiny", "freeze-all-1"),
        ("xlm_adpt_tiny", "last-k-all-2"),
    ],
)
def test_what_a_probe_freezes_stays_bit_for_bit(world: dict[str, Path], tmp_path: Path, arch: str, cell: str) -> None:
    """Three updates with weight decay: everything else moves but the MLM head, which fine-tuning does not use."""
    flags = ("--probe", "freeze,last-k", "--parts", "all,attention,ffn", "--layers", "1,2,1-2", "--k", "1")
    grid, cells = grid_of(world, arch, *flags)
    probed = next(one for one in cells if one.name == cell)
    (setting,) = grid.settings(probed)
    flag, _, patterns = setting.partition("=")
    trainer = trainer_of(world, arch, tmp_path, f"--{flag}", patterns, *ADAM, "--weight-decay", "0.1")
    before = values(trainer)
    for batch in batches(trainer):
        trainer.train_step([batch])
    still = {name for name, value in values(trainer).items() if torch.equal(value, before[name])}
    model = trainer.get_model()
    frozen = set().union(*(owned(model, number, probed.part) for number in probed.layers))
    if probed.probe == "last-k":
        frozen = {name for name in before if not name.startswith("token_heads.")} - frozen
    assert frozen and still == frozen | {name for name in before if ".lm_head." in name}


def test_a_scaled_step_is_ten_times_the_step(world: dict[str, Path], tmp_path: Path) -> None:
    """One update of plain SGD: p - 10 lr g where scaled, p - lr g elsewhere, bit for bit."""
    grid, cells = grid_of(world, "xlm_joint_tiny", "--probe", "enlarge", "--parts", "attention", "--layers", "2")
    flag, _, patterns = grid.settings(cells[-1])[0].partition("=")
    sgd = ("--optimizer", "sgd", "--lr", "0.125", "--clip-norm", "0")
    trainer = trainer_of(world, "xlm_joint_tiny", tmp_path, *sgd, f"--{flag}", patterns)
    before = values(trainer)
    trainer.train_step([batches(trainer)[0]])
    scaled = owned(trainer.get_model(), 2, "attention")
    moved = 0
    for name, parameter in trainer.get_model().named_parameters():
        if parameter.grad is None:
            continue
        wanted = before[name].add(parameter.grad, alpha=-(1.25 if name in scaled else 0.125))
        assert torch.equal(parameter, wanted), name
        moved += not torch.equal(parameter, before[name])
    assert len(scaled) == 8 and moved > 30
    plain = trainer_of(world, "xlm_joint_tiny", tmp_path, *sgd)
    plain.train_step([batches(plain)[0]])
    for name, value in values(plain).items():
        times = 10 if name in scaled else 1
        torch.testing.assert_close(
            values(trainer)[name] - before[name], times * (value - before[name]), atol=1e-6, rtol=0
        )


@pytest.mark.parametrize("precision", [(), ("--bf16",)])
def test_scaled_rates_follow_the_scheduler(world: dict[str, Path], tmp_path: Path, precision: tuple[str, ...]) -> None:
    """Through warm-up, a resume and set_lr; the head's rate beside them."""
    text = f"{BODY}0.*=x10, {BODY}1.fc?.*=x0.1,{BODY}1.self_attn.*=x10"
    flags = (*ADAM, "--lr-scale", text, "--head-lr", "x3", *precision)
    flags = (*flags, "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4", "--warmup-init-lr", "0.001")

    def rates(trainer: Any) -> dict[str, float]:
        groups = trainer.optimizer.param_groups
        return {p.optim_overrides["interference"]["name"]: group["lr"] for group in groups for p in group["params"]}

    def check(trainer: Any) -> None:
        for name, rate in rates(trainer).items():
            tenfold = name.startswith((f"{BODY}0.", f"{BODY}1.self_attn."))
            factor = 10 if tenfold else 0.1 if name.startswith(f"{BODY}1.fc") else 3 if "token_heads" in name else 1
            # self_attn_layer_norm is no part of self_attn
            assert rate == pytest.approx(factor * trainer.get_lr()), name
        assert len(rates(trainer)) == len(list(trainer.get_model().parameters()))

    trainer = trainer_of(world, "xlm_joint_tiny", tmp_path, *flags)
    seen = []
    for batch in batches(trainer):
        trainer.train_step([batch])
        check(trainer)
        seen.append(trainer.get_lr())
    assert len(set(seen)) == 3
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "saved.pt"), {"train_iterator": {"epoch": 1}, "val_loss": None})
    other = trainer_of(world, "xlm_joint_tiny", tmp_path, *flags)
    other.load_checkpoint(str(tmp_path / "saved.pt"))
    other.lr_step_update()
    check(other)
    assert other.get_lr() == trainer.get_lr()
    other.train_step([batches(other)[0]])
    check(other)
    other.optimizer.set_lr(0.5)
    check(other)
    assert other.get_lr() == 0.5


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lr-scale", f"{BODY}7.*=x10"), "No trained parameter"),
        (("--lr-scale", f"{BODY}0.*=x10", "--freeze", f"{BODY}0.*"), "No trained parameter"),
        (("--lr-scale", f"{BODY}0.*=x10,*.fc1.*=x2"), "two rates"),
        (("--lr-scale", "token_heads.*=x10", "--head-lr", "x2"), "two rates"),
        (("--lr-scale", f"{BODY}0.*"), "no learning rate"),
        (("--lr-scale", f"{BODY}0.*=0.1"), "scales no rate"),
        (("--lr-scale", f"{BODY}0.*=x1"), "scales no rate"),
        (("--lr-scale", f"{BODY}0.*=x2,{BODY}0.*=x3"), "scales no rate"),
    ],
)
def test_what_scales_nothing_is_refused(
    world: dict[str, Path], tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        _ = trainer_of(world, "xlm_joint_tiny", tmp_path, *ADAM, *flags).optimizer


# --- weights drawn anew --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(world: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints whose norms and biases are not at their beginning any more."""
    found = {}
    for arch in ("xlm_joint_tiny", "xlm_attn_tiny", "xlm_adpt_tiny"):
        folder = tmp_path_factory.mktemp("trained") / "run"
        shutil.copytree(world[arch].parent, folder)
        state = torch.load(folder / world[arch].name, weights_only=False)
        draw = torch.Generator().manual_seed(3)
        for value in state["model"].values():
            if value.is_floating_point():
                value.add_(0.1 * torch.randn(value.shape, generator=draw))
        torch.save(state, folder / world[arch].name)
        found[arch] = folder / world[arch].name
    return found


@pytest.mark.parametrize(
    ("arch", "part"),
    [("xlm_joint_tiny", "ffn"), ("xlm_joint_tiny", "all"), ("xlm_attn_tiny", "attention"), ("xlm_adpt_tiny", "all")],
)
def test_a_new_start_differs_in_the_named_tensors_only(
    trained: dict[str, Path], tmp_path: Path, arch: str, part: str
) -> None:
    from fairseq_interference import load
    from fairseq_interference.convert.reinit import reinitialise

    original = trained[arch].read_bytes()
    names = names_in(trained[arch])
    chosen = layers.fitting(names, layers.patterns_of(names, [2], part))
    paths = [reinitialise(trained[arch], chosen, seed, tmp_path / f"{place}") for place, seed in enumerate((1, 1, 2))]
    old, new, same, other = (load(path).model.state_dict() for path in (trained[arch], *paths))
    assert (
        {name for name in old if not torch.equal(old[name], new[name])}
        == set(chosen)
        == owned(load(trained[arch]).model, 2, part)
    )
    assert all(torch.equal(new[name], same[name]) for name in new)
    for name in chosen:
        value, drawn = new[name], name.endswith("weight") and "norm" not in name and ".up." not in name
        if drawn:  # the host's init: N(0, 0.02), adapters alike
            assert abs(value.mean()) < 0.01 and 0.015 < value.std() < 0.025
            assert not torch.equal(value, other[name])
        else:
            assert torch.equal(value, torch.full_like(value, float("norm" in name and name.endswith("weight"))))
    if arch == "xlm_attn_tiny" and part == "attention":  # as a fresh model: every language the same copy
        copies = [name for name in chosen if ".attn.xa." in name]
        assert copies and all(torch.equal(new[name], new[name.replace(".xa.", ".xb.")]) for name in copies)
    assert trained[arch].read_bytes() == original
    beside = {"languages.txt", "dict.txt", "tokenizer", "companions.json"}
    assert beside <= {path.name for path in paths[0].parent.iterdir()}
    torch.load(paths[0], weights_only=True)


def test_a_new_start_is_not_the_old_one(world: dict[str, Path], tmp_path: Path) -> None:
    """The world's checkpoint is the untrained model of seed 1: seed 1 draws another one."""
    from fairseq_interference import load
    from fairseq_interference.convert.reinit import reinitialise

    name = f"{BODY}1.fc1.weight"
    path = reinitialise(world["xlm_joint_tiny"], [name], 1, tmp_path / "new")
    old, new = (load(p).model.state_dict()[name] for p in (world["xlm_joint_tiny"], path))
    assert abs(np.corrcoef(old.flatten(), new.flatten())[0, 1]) < 0.15
    with pytest.raises(CheckpointError, match="no such tensor"):
        reinitialise(world["xlm_joint_tiny"], ["nothing"], 1, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_converted_xlm_r_is_probed_too(world: dict[str, Path], tmp_path: Path) -> None:
    from convert_world import write_fairseq

    from fairseq_interference import load
    from fairseq_interference.convert import fairseq_xlmr
    from fairseq_interference.convert.reinit import reinitialise
    from fairseq_interference.languages import LanguageList

    write_fairseq(tmp_path / "xlmr")
    made = fairseq_xlmr.convert(tmp_path / "xlmr", tmp_path / "start", "xlm_joint", LanguageList(["xa", "xb"]))
    grid, cells = grid_of({**world, "xlmr": made.path}, "xlmr", "--probe", "freeze,last-k,enlarge", "--k", "1")
    model = load(made.path).model
    parameters = [name for name, _ in model.named_parameters()]
    for cell in cells[1:]:
        texts = [text.rpartition("=x")[0] or text for text in grid.settings(cell)[0].partition("=")[2].split(",")]
        assert all(layers.fitting(parameters, [pattern]) for pattern in texts), cell
    chosen = layers.fitting(grid.names, layers.patterns_of(grid.names, [1], "all"))
    assert set(chosen) == owned(model, 1, "all")
    path = reinitialise(made.path, chosen, 1, tmp_path / "new")
    old, new = model.state_dict(), load(path).model.state_dict()
    assert {n for n in old if not torch.equal(old[n], new[n])} <= set(chosen)
    assert not torch.equal(old[f"{BODY}0.fc1.weight"], new[f"{BODY}0.fc1.weight"])


# --- plan --------------------------------------------------------------------------------------------------------


def test_the_plan_has_every_cell_once() -> None:
    groups = layers.parse_layers("1,2,1-4,1", 12)
    assert groups == [(1,), (2,), (1, 2, 3, 4)]
    cells = layers.plan(["freeze", "last-k", "enlarge"], ["all", "ffn"], groups, [1, 3], [7, 8], 12, 10.0)
    names = [cell.name for cell in cells]
    one = ["freeze-all-1", "freeze-all-2", "freeze-all-1-4", "freeze-ffn-1", "freeze-ffn-2", "freeze-ffn-1-4"]
    last = ["last-k-all-12", "last-k-all-10-12"]
    assert names == 2 * ["baseline", *one, *last, *(n.replace("freeze", "enlarge") + "-x10" for n in one)]
    assert len({cell.key for cell in cells}) == len(cells) and cells[0].key == "baseline seed7"
    for text in ("0", "13", "4-1", "1-13", "one", "", "1,,2"):
        with pytest.raises(UsageError, match="no layers"):
            layers.parse_layers(text, 12)


@pytest.mark.parametrize(
    "flags",
    [
        ("--probe", "melt"),
        ("--parts", "norms"),
        ("--layers", "3"),
        ("--k", "1"),
        ("--factor", "5"),
        ("--probe", "enlarge", "--factor", "1"),
        ("--probe", "last-k", "--layers", "1"),
        ("--probe", "last-k", "--parts", "ffn"),
        ("--probe", "last-k", "--k", "3"),
        ("--seeds", "1,1"),
        ("--eval-langs", "xa"),
        ("--split", "dev,test"),
        ("--jobs", "0"),
        ("--obvious-drop", "2"),
    ],
)
def test_flags_without_sense_are_refused(world: dict[str, Path], flags: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        grid_of(world, "xlm_joint_tiny", *flags)
    assert caught.value.where in flags


def test_a_dry_run_shows_and_checks_every_command(world: dict[str, Path], tmp_path: Path, capsys: Any) -> None:
    from fairseq_interference.cli import main

    command = ["diagnose", "layers", "--checkpoint", world["xlm_joint_tiny"], "--data", world["ner"], "--train-lang"]
    command += ["xa", "--eval-langs", "xb", "--layers", "1", "--out", tmp_path / "out", "--dry-run"]
    with pytest.raises(SystemExit) as left:
        main([*map(str, command)])
    assert left.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 runs" and [line.split()[0] for line in lines[1:]] == ["#", "+"] * 3
    assert f"freeze={BODY}0.*" in lines[4] and "starts/reinit-all-1.seed1/checkpoint_best.pt" in lines[6]
    assert not (tmp_path / "out").exists()
    assert main([*map(str, command), "--set", "max-epochh=1"]) == 2
    assert main([*map(str, command), "--set", "freeze=*"]) == 2
    assert "Probes set this" in capsys.readouterr().err


# --- tables, figures, sets -----------------------------------------------------------------------------------------


def made_up(langs: tuple[str, ...] = ("xa", "xb", "xc"), seeds: int = 4) -> tuple[list[dict[str, Any]], Any]:
    """Rows of a baseline and two probes with random scores (cells, languages), and the scores."""
    cells = [("baseline", "", ()), ("freeze", "all", (1,)), ("last-k", "all", (2, 3))]
    draw = np.random.default_rng(5)
    scores = draw.uniform(0, 100, (len(cells), seeds, len(langs)))
    rows = []
    for (probe, part, numbers), block in zip(cells, scores):
        for seed in range(seeds):
            cell = layers.Cell(probe, part, numbers, seed)
            rows += layers.score_rows(cell, {lang: (9, s) for lang, s in zip(langs, block[seed])}, ["xa"], 1.5)
    return rows[::-1], scores


def test_differences_are_paired_by_seed() -> None:
    rows, scores = made_up()
    tables = layers.tables(rows)
    source, targets = scores[..., 0], scores[..., 1:].mean(-1)
    wanted = {"source": source, "targets": targets, "average": scores.mean(-1), "gap": source - targets}
    for number, (probe, scope) in enumerate((("freeze", "1"), ("last-k", "2-3")), 1):
        for measure, every in wanted.items():
            (row,) = (r for r in tables["differences"] if r["probe"] == probe and r["measure"] == measure)
            assert (row["layers"], row["runs"]) == (scope, 4)
            paired = stats.ttest_rel(every[number], every[0])
            interval = paired.confidence_interval(0.95)
            assert row["difference"] == pytest.approx((every[number] - every[0]).mean())
            assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))
            assert (row["baseline"], row["score"]) == pytest.approx((every[0].mean(), every[number].mean()))
    assert [row["probe"] for row in tables["runs"]] == ["baseline"] * 4 + ["freeze"] * 4 + ["last-k"] * 4
    assert len(tables["scores"]) == 36


def test_a_run_without_its_baseline_is_no_difference() -> None:
    rows, scores = made_up(seeds=2)
    kept = [row for row in rows if row["probe"] != "baseline" or row["seed"] == 1]
    (row,) = (
        row for row in layers.tables(kept)["differences"] if row["probe"] == "freeze" and row["measure"] == "source"
    )
    assert (row["runs"], row["low"], row["high"]) == (1, None, None)
    assert row["difference"] == pytest.approx(scores[1, 1, 0] - scores[0, 1, 0])


def table(entries: dict[tuple[str, str, str], float]) -> list[dict[str, Any]]:
    """The differences of the mean over languages; a row of another measure that must not count."""
    found = []
    for (probe, part, scope), difference in entries.items():
        row = {"probe": probe, "part": part, "layers": scope, "factor": 10.0 if probe == "enlarge" else None}
        for measure, value in (("average", difference), ("gap", -50.0)):
            found.append({**row, "measure": measure, "runs": 4, "baseline": 60.0, "score": 60.0 + value})
            found[-1].update({"difference": value, "low": value - 1, "high": value + 1})
    return found


def patterns(numbers: Any, part: str) -> list[str]:
    return [f"{part} {number}" for number in numbers]


def test_sets_follow_the_rule() -> None:
    """Worked by hand: layers 1, 2, 3, 5 lose 2 points or more when drawn anew; of those 1 and 3 gain when frozen."""
    reinit = dict(zip("123456", (-9.0, -2.0, -4.0, -1.9, -2.5, 0.4)))
    freeze = dict(zip("123456", (0.5, 0.0, 0.1, 3.0, -0.2, 0.7)))
    entries = {("reinit", "all", n): d for n, d in reinit.items()} | {
        ("freeze", "all", n): d for n, d in freeze.items()
    }
    for n, attention, ffn in (("1", 2.0, 0.4), ("3", -1.0, 0.8)):  # means 0.5 and 0.6; all weights: 0.3
        entries.update({("freeze", "attention", n): attention, ("freeze", "ffn", n): ffn})
    for n, whole, attention, ffn in (("4", 1.0, 0.0, 0.5), ("6", 2.0, 0.0, 0.5)):
        entries.update(
            {("enlarge", "all", n): whole, ("enlarge", "attention", n): attention, ("enlarge", "ffn", n): ffn}
        )
    found = layer_sets.suggest(table(entries), 6, patterns, 2.0, 10.0)["sets"]
    assert {name: (one["layers"], one["part"]) for name, one in found.items()} == {
        "S_I": ([1, 2, 3, 5], "all"),
        "S_II": ([1, 3], "ffn"),
        "V_I": ([4, 6], "all"),
        "V_II": ([4, 6], "all"),
    }
    assert {one["layers_from"] for one in found.values()} == {"probes"}
    assert found["S_II"]["part_from"] == "probes" and found["S_II"]["patterns"] == ["ffn 1", "ffn 3"]
    assert found["S_II"]["part_evidence"] == pytest.approx({"all": 0.3, "attention": 0.5, "ffn": 0.6})
    assert [row["difference"] for row in found["S_I"]["layers_evidence"]] == list(reinit.values())


def test_a_group_says_more_than_its_layers() -> None:
    entries = {("reinit", "all", n): -5.0 for n in "1234"} | {("freeze", "all", n): 1.0 for n in "12"}
    entries |= {("freeze", "all", "3"): -1.0, ("freeze", "all", "4"): -1.0}
    for n in "12":
        entries.update({("freeze", "attention", n): 5.0, ("freeze", "ffn", n): 0.0})
    entries.update({("freeze", "attention", "1-2"): 0.0, ("freeze", "ffn", "1-2"): 0.2, ("freeze", "all", "1-2"): 0.1})
    found = layer_sets.suggest(table(entries), 4, patterns, 1.0, 10.0)["sets"]
    assert (found["S_II"]["layers"], found["S_II"]["part"]) == ([1, 2], "ffn")
    assert found["V_I"]["layers"] == [] and found["V_II"]["patterns"] == [] and "note" in found["V_II"]


@pytest.mark.parametrize(("depth", "sizes"), [(12, (10, 4, 2)), (24, (20, 8, 4)), (4, (3, 1, 1)), (2, (1, 1, 1))])
def test_without_probes_the_papers_sets_stand_in(tmp_path: Path, depth: int, sizes: tuple[int, int, int]) -> None:
    entries = {("reinit", "all", "1"): -5.0}  # of one layer only: no evidence for the others
    found = layer_sets.suggest(table(entries), depth, patterns, 1.0, 10.0)
    numbers, (slow, key, fast) = list(range(1, depth + 1)), sizes
    content = yaml.safe_load(layer_sets.write_sets(tmp_path / "sets.yaml", found, {"task": "ner"}).read_text())
    sets = content["sets"]
    assert {name: (one["layers"], one["part"]) for name, one in sets.items()} == {
        "S_I": (numbers[:slow], "all"),
        "S_II": (numbers[:key], "ffn"),
        "V_I": (numbers[-fast:], "all"),
        "V_II": (numbers[-fast:], "attention"),
    }
    assert {one["layers_from"] for one in sets.values()} == {"paper's fractions"} and content["task"] == "ner"
    assert {sets[name]["part_from"] for name in ("S_II", "V_II")} == {"paper's choice"}


def test_figures_are_described_from_the_tables(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    entries = {
        (probe, part, scope): float(number)
        for number, (probe, part, scope) in enumerate(
            itertools.product(("freeze", "enlarge"), ("all", "ffn"), ("1", "2", "1-2"))
        )
    }
    rows = table({**entries, ("last-k", "all", "2"): 4.0, ("last-k", "all", "1-2"): 5.0})
    every = [{**row, "measure": measure} for row in rows if row["measure"] == "average" for measure in layers.MEASURES]
    settings = {"data": "ner", "train_langs": ["xa"], "targets": ["xb"], "split": "dev"}
    curves, parts, groups = layers.figures(Study("layers", settings, {"differences": every}))
    last = next(panel for panel in curves.panels if panel.xlabel == "last k layers")
    assert list(last.curves["gap"].x) == [1, 2] and list(last.curves["gap"].y) == [4.0, 5.0]
    assert len(curves.panels) == 5 and [panel.title for panel in parts.panels] == ["frozen", "rate x10"]
    assert list(parts.panels[0].curves) == ["all weights", "feed-forward"]
    assert list(parts.panels[0].curves["feed-forward"].y) == [3.0, 4.0]
    assert [panel.rows for panel in groups.panels] == [["all weights, 1-2", "feed-forward, 1-2"]] * 2
    assert "4 seeds" in curves.title
    assert list(parts.panels[0].curves["feed-forward"].low) == [2.0, 3.0]
    few = layers.figures(Study("layers", settings, {"differences": [{**row, "runs": 2} for row in every]}))[0]
    assert all(set(curve.low) == {None} for panel in few.panels for curve in panel.curves.values())
    assert plots.draw_figure(groups, tmp_path)


# --- through the real command --------------------------------------------------------------------------------------


COMMAND = ["diagnose", "layers", "--checkpoint", "joint/checkpoint_last.pt", "--data", "ner", "--train-lang", "xa"]
COMMAND += [
    "--eval-langs",
    "xb",
    "--out",
    "out",
    "--layers",
    "1",
    "--probe",
    "freeze,reinit,last-k,enlarge",
    "--k",
    "1",
]
SETTINGS = ["--set", "max-epoch=3", "lr=5e-3", "batch-size=10"]


def diagnose(folder: Path, *more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fairseq_interference", *COMMAND, *map(str, more), *SETTINGS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, text=True, env=ddp.environment(), **pipes)


@pytest.mark.slow
def test_a_study_is_interrupted_and_goes_on(
    tmp_path: Path, plugin: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairseq_interference.cli import main

    checkpoint = write_checkpoint(tmp_path / "joint", ("xa", "xb"), "xlm_joint_tiny")
    write_prepared(tmp_path / "ner", {"train": 20, "dev": 6})
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    rows = tmp_path / "out" / "layers" / "rows.jsonl"

    running = diagnose(tmp_path)
    assert running.stderr is not None
    for line in running.stderr:
        if "run 3 of 5, reinit-all-1 seed1" in line:
            break
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=300)
    assert running.returncode == 75, said
    finished = rows.read_bytes()
    assert len(finished.splitlines()) == 3  # settings, baseline, freeze

    running = diagnose(tmp_path, "--jobs", "2", "--suggest-sets")
    told, said = running.communicate(timeout=300)
    assert running.returncode == 0, said
    assert "run 2 of 5" not in said and "run 3 of 5, reinit-all-1 seed1" in said and "run 5 of 5" in said
    assert rows.read_bytes().startswith(finished) and len(rows.read_bytes().splitlines()) == 6
    assert hashlib.sha256(checkpoint.read_bytes()).hexdigest() == digest
    study = read_study(tmp_path / "out" / "layers" / "layers.json")
    assert {row["probe"] for row in study.tables["differences"]} == set(layers.PROBES)
    for row in study.tables["scores"]:  # the table holds what the records hold
        name = layers.Cell(row["probe"], row["part"], (), 1).name
        found = [json.loads(p.read_text()) for p in (tmp_path / "out/layers/records").glob(f"{name}*/*.json")]
        (record,) = (one for one in found if one["evaluation"]["language"] == row["lang"])
        assert row["score"] == pytest.approx(100 * record["evaluation"]["metrics"]["f1"]) and row["n"] == 6
        task = record["run"]["config"]["task"]
        assert ("freeze" in task) == (row["probe"] in ("freeze", "last-k"))
        assert ("lr_scale" in task) == (row["probe"] == "enlarge")
        start = record["run"]["config"]["checkpoint"]["finetune_from_model"]
        assert ("starts/reinit-all-1.seed1" in start) == (row["probe"] == "reinit")
    assert len({row["score"] for row in study.tables["scores"]}) > 2
    assert not list((tmp_path / "out").rglob("*.pt")) and (tmp_path / "out" / "figures" / "layers-curves.png").is_file()
    assert yaml.safe_load((tmp_path / "out/layers/sets.yaml").read_text())["sets"]["S_I"]["layers"] == [1]

    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main([*COMMAND, *SETTINGS]) == 0
    told, said = capsys.readouterr()
    assert "run 1" not in said and "index:" in told
    assert main([*COMMAND, "--split", "train", *SETTINGS]) == 1
    assert "split: 'dev', now 'train'" in capsys.readouterr().err
