"""``--optimizer meta_adapter`` by itself: groups, rates, clipping, state, and languages that are absent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from meta_world import META, sample, setup, shaken, spread
from pretrain_world import build, data_folder, moved, read_checkpoint, snapshot, train_here

from fairseq_interference.appended_state import language_of, name_of
from fairseq_interference.optim import bilevel

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    # the host asks for CUDA's autocast by its old name
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
    pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("data"), {"aa": 150, "bb": 120, "cc": 80})


def test_p2_absent_languages_and_the_other_updates_stand_still(data: Path, tmp_path: Path) -> None:
    """Weights and moments, bit for bit."""
    task, trainer = setup(data, tmp_path, "--meta-every", 2)
    shaken(trainer)
    dataset = task.dataset("train")
    of = {language: [int(row) for row in np.flatnonzero(dataset.language == language)] for language in range(3)}

    def moved_by(rows: list[int]) -> set[Any]:
        before = snapshot(trainer)
        trainer.train_step([sample(task, rows)])
        return moved(before, snapshot(trainer))

    trainer.train_step([sample(task, spread(task, 8))])  # every language has moments now
    trainer.train_step([sample(task, spread(task, 8))])
    assert moved_by([*of[0][:3], *of[2][:3]]) == {"None", "aa", "cc"}
    assert moved_by(of[0][:4]) == {"None"}  # update 1 of --meta-every 2
    assert moved_by(of[1][:4]) == {"None", "bb"}


def test_groups_follow_the_scheduler_and_survive_resuming(data: Path, tmp_path: Path) -> None:
    flags = (*META, "--lr", 0.01, "--meta-weight-decay", 0.3, "--meta-betas", "(0.8,0.9)", "--meta-eps", 1e-5)
    for rate, expected in (("x0.5", 0.005), ("0.002", 0.002)):
        folder = tmp_path / rate
        train_here(data, folder, *flags, "--meta-lr", rate, "--max-update", 3)
        _, trainer = build(data, folder, *flags, "--meta-lr", rate)
        trainer.load_checkpoint(str(folder / "checkpoint_last.pt"))
        shared, specific = trainer.optimizer.param_groups
        assert math.isclose(specific["lr"], expected) and shared["lr"] == 0.01
        trainer.optimizer.set_lr(0.02)
        assert math.isclose(specific["lr"], 2 * expected) and shared["lr"] == trainer.optimizer.get_lr() == 0.02
        assert (specific["betas"], specific["eps"], specific["weight_decay"]) == ((0.8, 0.9), 1e-5, 0.3)
        assert shared["weight_decay"] == 0.1
    assert read_checkpoint(folder / "checkpoint_last.pt")["cfg"]["optimizer"]["meta_lr"] == "0.002"


def test_o4_languages_can_be_appended(data: Path, tmp_path: Path, caplog: Any) -> None:
    """The old state goes by name, the new parameters have none, and both are listed."""
    train_here(data, tmp_path, "--langs", "aa,bb", *META[2:], "--max-update", 3)
    old = read_checkpoint(tmp_path / "checkpoint_last.pt")["last_optimizer_state"]["state"]
    _, trainer = build(data, tmp_path, *META)
    caplog.clear()
    trainer.load_checkpoint(str(tmp_path / "checkpoint_last.pt"))
    state = trainer.optimizer.optimizer.state
    names = {name_of(p, 0): p for p in trainer.get_model().parameters()}
    assert {name for name, p in names.items() if state.get(p)} == old.keys()
    assert all(torch.equal(state[names[name]]["exp_avg"], entry["exp_avg"]) for name, entry in old.items())
    kept, fresh = (
        next(message for message in caplog.messages if said in message).split(": ")[1].split(", ")
        for said in ("kept by name", "begins anew")
    )
    assert set(kept) == old.keys() and set(fresh) == {name for name in names if ".cc." in name}


def test_o6_multipliers_survive_overrides(data: Path, tmp_path: Path) -> None:
    """``--optimizer-overrides`` in a state's round trip: what is of a group's own stays its own."""
    flags = (*META, "--meta-lr", "x0.5", "--meta-weight-decay", 0.3)
    train_here(data, tmp_path, *flags, "--max-update", 2)
    _, trainer = build(data, tmp_path, *flags)
    overrides = {"lr": 0.04, "weight_decay": 0.2, "eps": 1e-5}
    trainer.optimizer.load_state_dict(trainer.optimizer.state_dict(), overrides)
    shared, specific = trainer.optimizer.param_groups
    assert (shared["lr"], specific["lr"]) == (0.04, 0.02)
    assert (shared["weight_decay"], specific["weight_decay"]) == (0.2, 0.3)
    assert shared["eps"] == specific["eps"] == 1e-5, "without an epsilon of their own they take the shared one"


@pytest.mark.parametrize("optimizer", ["adam", "meta_adapter"])
def test_o8_weight_decay_leaves_frozen_weights(data: Path, tmp_path: Path, optimizer: str) -> None:
    """A frozen body has the same bits after 10 updates, the rest moves."""
    task, trainer = setup(data, tmp_path, "--optimizer", optimizer, "--weight-decay", 0.5)
    shaken(trainer)
    frozen = {n: p for n, p in trainer.get_model().named_parameters() if ".layers." in n and language_of(p) is None}
    others = {n: p for n, p in trainer.get_model().named_parameters() if n not in frozen}
    before = {name: value.detach().clone() for name, value in (frozen | others).items()}
    for parameter in frozen.values():
        parameter.requires_grad_(False)
    for _ in range(10):
        trainer.train_step([sample(task, spread(task, 8))])
    assert all(torch.equal(value, before[name]) for name, value in frozen.items())
    assert {language_of(p) for n, p in others.items() if not torch.equal(p, before[n])} == {None, "aa", "bb", "cc"}


@pytest.mark.parametrize(("theta", "phi"), [(1e-3, 0.0), (0.0, 1e-4)])
def test_each_group_is_clipped_alone(data: Path, tmp_path: Path, theta: float, phi: float) -> None:
    """By the norm of what the optimizer got: its first moment after one step."""
    task, trainer = setup(data, tmp_path, "--meta-clip-theta", theta, "--meta-clip-phi", phi)
    shaken(trainer)
    trainer.train_step([sample(task, spread(task, 8))])
    norms = []
    for group in trainer.optimizer.param_groups:
        states = [trainer.optimizer.optimizer.state.get(p) for p in group["params"]]
        norms.append(bilevel.norm([s["exp_avg"] / (1 - group["betas"][0]) for s in states if s]))
    for norm, limit in zip(norms, (theta, phi)):
        assert math.isclose(norm, limit, rel_tol=1e-3) if limit else norm > 1e-3


def test_the_preconditioner_is_adam_s(data: Path, tmp_path: Path) -> None:
    """1 / (sqrt(bias-corrected second moment with this gradient) + eps), cut at 100 times the known ones' median."""
    task, trainer = setup(data, tmp_path)
    for _ in range(3):
        trainer.train_step([sample(task, spread(task, 8))])
    adam, seen = trainer.optimizer, set()
    generator = torch.Generator().manual_seed(1)
    for parameter in adam.group("shared"):
        moment, beta = adam.optimizer.state[parameter]["exp_avg_sq"], adam.param_groups[0]["betas"][1]
        gradient = torch.randn(parameter.shape, generator=generator) * (moment > 0) * moment.max().sqrt()
        after = beta * moment + (1 - beta) * gradient**2
        plain = 1 / ((after / (1 - beta**4)).sqrt() + 1e-8)
        known = after > 0
        limit = 100 / float((1 / plain[known]).median())
        right = torch.where(known, plain.clamp(max=limit), 0.0)  # what never had a gradient is not moved
        assert torch.allclose(adam.inverse_root(parameter, gradient), right, rtol=1e-2)
        seen.add(bool(known.all()))
    assert seen == {True, False}


def test_a_checkpoint_loads_without_a_word_about_the_optimizer(data: Path, tmp_path: Path, caplog: Any) -> None:
    import fairseq_interference

    train_here(data, tmp_path, *META, "--max-update", 1, "--meta-weight-decay", 0.1, arch="xlm_meta_adpt_tiny")
    caplog.clear()
    loaded = fairseq_interference.load(str(tmp_path / "checkpoint_last.pt"))
    assert list(loaded.languages) == ["aa", "bb", "cc"]
    assert "meta_" not in caplog.text
