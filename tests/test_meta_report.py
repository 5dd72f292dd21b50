"""What the bilevel step says while it trains, and how good its difference is where tokens are rare."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.logging import metrics
from meta_world import META, STILL, distance, sample, setup, shaken, spread, update
from pretrain_world import FIRST, WORDS, data_folder, train_here, write_tokens

from fairseq_interference.optim import bilevel, meta_step
from fairseq_interference.optim.meta_task import _check_parts

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("data"), {"aa": 150, "bb": 120, "cc": 80})


def logged(task: Any, trainer: Any, rows: list[int], updates: int = 1) -> dict[str, float]:
    """Numbers that an update logs."""
    for _ in range(updates):
        with metrics.aggregate(new_root=True) as meters:
            trainer.train_step([sample(task, rows)])
    return dict(meters.get_smoothed_values())


def test_the_check_of_the_difference_sees_the_same_dropout(data: Path, tmp_path: Path) -> None:
    """The gap is that of the difference: without the same masks it would be some 0.5."""
    flags = ("--dropout", 0.3, "--meta-fd-check", 1, "--meta-estimator", "central", "--meta-inner-rule", "sgd")
    task, trainer = setup(data, tmp_path, *flags)
    shaken(trainer)
    found = logged(task, trainer, spread(task, 8))
    assert 0 < found["meta_fd_gap"] < 0.02
    assert 0 < found["meta_top_share"] <= 1 and found["meta_norm_w"] > 0


def test_checks_count_meta_steps(data: Path, tmp_path: Path) -> None:
    task, trainer = setup(data, tmp_path, "--meta-every", 2, "--meta-fd-check", 3)
    shaken(trainer)
    having = []
    for number in range(13):
        found = logged(task, trainer, spread(task, 8))
        having += [number] if "meta_fd_gap" in found else []
    assert having == [0, 6, 12]


def test_seconds_and_rates_are_logged(data: Path, tmp_path: Path) -> None:
    task, trainer = setup(data, tmp_path, "--meta-order", "paper", "--meta-lr", "x0.5", "--lr", 1e-3)
    found = logged(task, trainer, spread(task, 8))
    assert all(found[f"meta_{part}_seconds"] > 0 for part in ("val", "cross", "theta"))
    assert math.isclose(found["meta_lr"], 5e-4) and found["meta_epsilon"] > 0
    assert {f"meta_val_loss_{code}" for code in task.languages} <= set(found)


def test_the_choices_are_said_once(data: Path, tmp_path: Path, caplog: Any) -> None:
    """Also the inner rule, which changes when Adam's moments have warmed up."""
    caplog.set_level("INFO")
    train_here(data, tmp_path, *META, "--max-update", meta_step.WARM_UP + 3, "--max-epoch", 99, "--meta-fd-fp32")
    said = [line for line in caplog.text.splitlines() if "meta step: order" in line]
    assert len(said) == 2 and "sgd_rms" in said[0] and "rule adam" in said[1]
    assert all("one_sided difference, radius 0.0002" in line and "no use here" in line for line in said)


def test_others_alone_are_no_first_order_step(data: Path, tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    """Without a direct term all of the step is the cross term."""
    monkeypatch.setattr(meta_step, "PATIENCE", 2)
    flags = (*META, "--batch-composition", "single", "--meta-val-langs", "others", "--max-update", 6)
    train_here(data, tmp_path, *flags, "--max-epoch", 9)
    assert "first-order" not in caplog.text


def test_the_validation_loss_is_in_bits_and_of_the_languages_seen(data: Path, tmp_path: Path) -> None:
    """At chance the loss is log2 of the vocabulary, also where a tiny batch masks nothing of some language."""
    flags = ("--meta-val-batch-fraction", 1e-6, "--sample-break-mode", "eos", "--mask-prob", 0.15)
    task, trainer = setup(data, tmp_path, *flags)
    for parameter in trainer.get_model().parameters():
        parameter.data.zero_()
    counts = set()
    for _ in range(12):
        found = logged(task, trainer, spread(task, 8))
        losses = [value for name, value in found.items() if name.startswith("meta_val_loss")]
        counts.add(len(losses))
        assert all(abs(loss - math.log2(len(task.dictionary))) < 0.2 for loss in losses)
    assert len(counts) > 1


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.25])
def test_the_validation_batch_has_the_size_that_was_asked_for(data: Path, tmp_path: Path, fraction: float) -> None:
    task, _ = setup(data, tmp_path, "--tokens-per-sample", 8, "--meta-heldout-fraction", 0.4)
    sizes = []
    for number in range(40):
        batches = task.meta.validation.batch(number, range(3), int(fraction * 300), 0, 1, 99, 9999)
        sizes.append(sum(batch["ntokens"] for batch in batches))
    assert abs(np.mean(sizes) / 300 - fraction) < 0.05 * fraction


def test_parts_of_a_batch_are_refused_under_torch_s_wrapper(monkeypatch: Any) -> None:
    """The host hands on a proxy around it."""
    wrapper = object.__new__(torch.nn.parallel.DistributedDataParallel)
    proxy = type("ModuleProxyWrapper", (), {"module": wrapper})()
    monkeypatch.setattr(torch.nn.parallel.DistributedDataParallel, "module", None, raising=False)
    with pytest.raises(Exception, match="legacy_ddp"):
        _check_parts(2, proxy)


def test_the_difference_is_that_of_exact_with_rare_tokens(tmp_path: Path, caught: Any) -> None:
    """Adam's preconditioner on Zipf-distributed tokens: a few rare rows could take all of the perturbation."""
    rng = np.random.default_rng(1)
    folder = data_folder(tmp_path / "data", {"aa": 20, "bb": 20, "cc": 20})
    for code in ("aa", "bb", "cc"):
        drawn = [np.minimum(rng.zipf(1.3, rng.integers(4, 9)), len(WORDS)) + FIRST - 1 for _ in range(200)]
        write_tokens(folder / code / "train", [tokens.tolist() for tokens in drawn])
    task, trainer = setup(folder, tmp_path / "run", *STILL, "--lr", "1e-3", double=True)
    shaken(trainer)
    for number in range(meta_step.WARM_UP + 2):
        update(task, trainer, sample(task, list(range(number * 8, number * 8 + 8))))
    arguments = {name: value for name, value in caught[-1][0].items() if name != "observe"}
    assert arguments["inner_rule"] == "adam"
    moments = [trainer.optimizer.optimizer.state[p]["exp_avg_sq"] for p in trainer.optimizer.group("shared")]
    assert max(float(x.max() / x[x > 0].median()) for x in moments) > 500  # common and rare ones
    losses = arguments.pop("train_loss"), arguments.pop("val_loss")
    places = arguments.pop("theta"), arguments.pop("phi")
    found = {}
    for estimator in ("exact", "central", "one_sided"):
        arguments.update(estimator=estimator, train_grads=None)
        found[estimator] = bilevel.meta_gradient(*losses, *places, **arguments)
    assert distance(found["central"].cross, found["exact"].cross) < 1e-3
    assert distance(found["one_sided"].cross, found["exact"].cross) < 3e-2
