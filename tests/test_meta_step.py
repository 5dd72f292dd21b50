"""The bilevel step inside the host's update: against closures of its own, in every place where training runs."""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ddp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from meta_world import META, STILL, distance, sample, setup, shaken, spread, update
from pretrain_world import NETWORK, build, data_folder, read_checkpoint, train_here
from torch import Tensor

from fairseq_interference.appended_state import language_of, name_of
from fairseq_interference.errors import HostError, InterferenceError, UsageError
from fairseq_interference.optim import bilevel, meta_step
from fairseq_interference.optim.meta_replay import Replay

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    # the host asks for CUDA's autocast by its old name
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
    pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("data"), {"aa": 150, "bb": 120, "cc": 80})


# ---------------------------------------------------------------- the mathematics, in place


def oracle(task: Any, trainer: Any, batch: dict[str, Any], update: int) -> tuple[Any, Any]:
    """Training and validation loss of an update, written down from Eq. 2 by themselves."""
    model = trainer.get_model()
    pad = task.dictionary.pad()

    def by_language(some: dict[str, Any]) -> dict[int, list[Tensor]]:
        found: dict[int, list[Tensor]] = {}
        for row in range(len(some["target"])):
            inputs = {name: value[row : row + 1] for name, value in some["net_input"].items()}
            target = some["target"][row]
            logits = model(**inputs)[0][0]
            wanted = target != pad
            losses = F.cross_entropy(logits[wanted], target[wanted], reduction="none")
            found.setdefault(int(inputs["lang_id"]), []).append(losses)
        return found

    def train() -> Tensor:
        losses = torch.cat([part for parts in by_language(batch).values() for part in parts])
        return losses.sum() / len(losses)

    tokens = batch["ntokens"]
    held = task.meta.validation.batch(update, range(3), tokens, 0, 1, 10_000, 10**9)

    def val() -> Tensor:
        merged: dict[int, list[Tensor]] = {}
        for some in held:
            for language, parts in by_language(some).items():
                merged.setdefault(language, []).extend(parts)
        assert len(merged) == 3
        return sum((torch.cat(parts).mean() for parts in merged.values()), torch.zeros(())) / 3

    return train, val


@pytest.mark.parametrize("estimator", ["exact", "central", "one_sided"])
def test_meta_gradient_is_that_of_the_equations(data: Path, tmp_path: Path, caught: Any, estimator: str) -> None:
    """Eq. 2 to 4 with the task's weights, from closures that share nothing with the step's own."""
    flags = (*STILL, "--meta-estimator", estimator, "--meta-inner-rule", "sgd", "--meta-inner-lr", "0.05")
    flags += {"central": ("--meta-radius", "1e-4"), "one_sided": ("--meta-radius", "2e-4")}.get(estimator, ())
    task, trainer = setup(data, tmp_path, *flags, double=True)
    shaken(trainer)
    batch = sample(task, spread(task, 8))
    before = copy.deepcopy(trainer.get_model().state_dict())
    update(task, trainer, batch)
    (arguments, found), after = caught[0], copy.deepcopy(trainer.get_model().state_dict())
    trainer.get_model().load_state_dict(before)
    losses = oracle(task, trainer, batch, 0)
    right = bilevel.meta_gradient(*losses, arguments["theta"], arguments["phi"], inner_lr=0.05, estimator="exact")
    cross = distance(found.cross, right.cross)
    assert distance(found.direct, right.direct) < 1e-6
    assert cross < {"exact": 1e-6, "central": 1e-4, "one_sided": 3e-2}[estimator]
    assert bilevel.norm(right.cross) > 1e-3 * bilevel.norm(right.direct)
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("order", ["simultaneous", "paper"])
def test_order_of_the_two_steps(data: Path, tmp_path: Path, caught: Any, order: str) -> None:
    """``paper``: theta's gradient is taken at the new phi; ``simultaneous``: at the old one."""
    task, trainer = setup(data, tmp_path, *STILL, "--meta-order", order, "--lr", "0.01", double=True)
    shaken(trainer)
    batch = sample(task, spread(task, 8))
    model, optimizer = trainer.get_model(), trainer.optimizer
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    update(task, trainer, batch)
    beta = optimizer.param_groups[0]["betas"][0]
    moved = {name: value.detach().clone() for name, value in model.named_parameters()}
    meta = {id(p): value for p, value in zip(caught[0][0]["phi"], caught[0][1].total)}
    theta = {n: p for n, p in model.named_parameters() if language_of(p) is None}
    for name, parameter in model.named_parameters():
        old = name in theta or order == "simultaneous"
        parameter.data.copy_(before[name] if old else moved[name])
    losses = oracle(task, trainer, batch, 0)
    right = torch.autograd.grad(losses[0](), list(theta.values()), allow_unused=True)
    for parameter, gradient in zip(theta.values(), right):
        taken = optimizer.optimizer.state[parameter]["exp_avg"] / (1 - beta)
        gradient = torch.zeros_like(taken) if gradient is None else gradient
        assert torch.linalg.vector_norm(taken - gradient) <= 1e-6 * torch.linalg.vector_norm(gradient) + 1e-12
    for parameter in model.parameters():
        if id(parameter) in meta:
            taken = optimizer.optimizer.state[parameter]["exp_avg"] / (1 - beta)
            assert torch.allclose(taken, meta[id(parameter)], rtol=1e-9, atol=1e-14)


PASSES = [
    ("simultaneous", "one_sided", 3),
    ("simultaneous", "central", 4),
    ("paper", "one_sided", 4),
    ("paper", "central", 5),
]


@pytest.mark.parametrize(("order", "estimator", "passes"), PASSES)
@pytest.mark.parametrize("count", [2, 8])
def test_passes_do_not_depend_on_the_number_of_languages(
    tmp_path: Path, order: str, estimator: str, passes: int, count: int
) -> None:
    """methods.md 1.5, S1 and S5 included."""
    codes = [f"l{letter}" for letter in "abcdefgh"[:count]]
    root = data_folder(tmp_path / "data", dict.fromkeys(codes, 40))
    flags = ("--langs", ",".join(codes), "--meta-order", order, "--meta-estimator", estimator)
    task, trainer = setup(root, tmp_path, *flags)
    calls: list[int] = []
    trainer.get_model().encoder.register_forward_hook(lambda *_: calls.append(1))
    batch = sample(task, spread(task, 2 * count))
    assert len(set(batch["net_input"]["lang_id"].tolist())) == count
    rows = len(batch["target"])
    task.meta.validation.batch = partial(_one_micro_batch, task.meta.validation.batch)
    trainer.train_step([batch])
    assert len(calls) == passes and rows == 2 * count


def _one_micro_batch(batch: Any, update: int, langs: Any, tokens: int, worker: int, workers: int, *_: int) -> Any:
    return batch(update, langs, tokens, worker, workers, 10_000, 10**9)


@pytest.mark.parametrize("flags", [(), ("--checkpoint-activations",)])
def test_a_replay_at_zero_radius_gives_the_same_bits(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    """Dropout 0.1, two micro-batches, padding, several languages: h(theta) again is the host's gradient."""
    cross: list[Tensor] = []
    original = bilevel.meta_gradient

    def at_zero(*args: Any, **kwargs: Any) -> bilevel.MetaGradient:
        cross.extend(original(*args, **{**kwargs, "radius": 0.0}).cross)
        return original(*args, **kwargs)

    monkeypatch.setattr(bilevel, "meta_gradient", at_zero)
    task, trainer = setup(data, tmp_path, "--dropout", 0.1, "--attention-dropout", 0.1, *flags)
    shaken(trainer)
    rows = spread(task, 9)
    trainer.train_step([sample(task, rows[::2]), sample(task, rows[1::2])])
    assert cross and all(bool((value == 0).all()) for value in cross)


def test_another_dropout_mask_is_noticed(data: Path, tmp_path: Path, caught: Any, monkeypatch: Any) -> None:
    """Without the replay the difference is noise over epsilon."""
    ratios = []
    for replayed in (True, False):
        task, trainer = setup(data, tmp_path / str(replayed), "--dropout", 0.1, "--meta-inner-lr", "0.05")
        shaken(trainer)
        if not replayed:
            monkeypatch.setattr(bilevel, "set_rng_state", lambda state: None)
        trainer.train_step([sample(task, spread(task, 8))])
        ratios.append(bilevel.norm(caught[-1][1].cross))
    assert ratios[1] > 20 * ratios[0]


@pytest.mark.parametrize("estimator", ["one_sided", "central"])
def test_parts_of_the_batch_give_the_cross_term_on_average(
    data: Path, tmp_path: Path, caught: Any, monkeypatch: pytest.MonkeyPatch, estimator: str
) -> None:
    """Dropout 0.1; each part is replayed from its own state, and counts as often as there are parts."""

    def choose(self: Any, parts: int, seed: int) -> int:
        wanted = len(caught)
        self.chosen = self.batches if wanted == 3 else self.batches[wanted : wanted + 1]
        return 1 if wanted == 3 else parts

    monkeypatch.setattr(Replay, "draw", choose)
    for number in range(4):
        flags = ("--dropout", 0.1, "--meta-estimator", estimator, "--meta-cross-batch-fraction", 0.33)
        task, trainer = setup(data, tmp_path / str(number), *flags, double=True)
        shaken(trainer)
        update(task, trainer, sample(task, spread(task, 8)))
    *each, whole = (found.cross for _, found in caught)
    assert distance([sum(values) / 3 for values in zip(*each)], whole) < 1e-6
    assert distance(each[0], whole) > 0.1 and distance(caught[0][1].direct, caught[3][1].direct) == 0


def test_parts_are_drawn_anew_each_update(data: Path, tmp_path: Path, caught: Any) -> None:
    task, trainer = setup(data, tmp_path, "--meta-cross-batch-fraction", 0.5, *STILL)
    drawn = []
    for _ in range(12):
        trainer.train_step([sample(task, spread(task, 8))])
        drawn.append(tuple(caught[-1][0]["train_loss"][0].args[0]["id"].tolist()))
    assert len(set(drawn)) == 2
    assert all(len(rows) == 4 for rows in drawn)


# ---------------------------------------------------------------- wherever training runs


def test_one_batch_or_two_micro_batches(data: Path, tmp_path: Path, caught: Any) -> None:
    """Batch 8, and 4 with --update-freq 2: the same meta gradient."""
    for number in (1, 2):
        task, trainer = setup(data, tmp_path / str(number), *STILL, double=True)
        shaken(trainer)
        rows = spread(task, 8)
        update(task, trainer, *(sample(task, rows[part::number]) for part in range(number)))
    assert distance(caught[1][1].total, caught[0][1].total) < 1e-5
    assert bilevel.norm(caught[0][1].cross) > 0


def test_two_workers_take_the_meta_gradient_of_one(data: Path, tmp_path: Path) -> None:
    """2 workers x 4, and 1 x (4 x --update-freq 2): equal to 1e-5, the languages of a batch differing by worker."""
    common = [data, *META, *STILL, "--task", "xlm_masked_lm", "--criterion", "xlm_masked_lm", "--arch", "xlm_adpt_tiny"]
    common += [*NETWORK, "--lr", "0.001", "--batch-size", "4", "--disable-validation", "--meta-estimator", "central"]
    ddp.train(*common, "--update-freq", 2, "--max-update", 1, "--save-dir", tmp_path / "one")
    ddp.train_ranks([*common, "--max-update", "1", "--save-dir", tmp_path / "two"], logs=tmp_path)
    found = []
    for name in ("one", "two"):
        state = read_checkpoint(tmp_path / name / "checkpoint_last.pt")["last_optimizer_state"]["state"]
        moments = {key: entry["exp_avg"] for key, entry in state.items()}
        found.append([value for _, value in sorted(moments.items())])
        specific = [value for key, value in sorted(moments.items()) if ".aa." in key or ".bb." in key or ".cc." in key]
        found.append(specific)
    assert len(found[0]) == len(found[2]) and len(found[1]) == len(found[3]) > 0
    assert distance(found[2], found[0]) < 1e-5 and distance(found[3], found[1]) < 1e-5


def test_amp_scales_every_pass_and_unscales_once(data: Path, tmp_path: Path, caught: Any) -> None:
    """With a scaler that runs on CPU: the meta gradient is that of fp32, and the scale follows the update once."""
    from fairseq.optim import AMPOptimizer

    for number in (0, 1):
        flags = (*STILL, "--meta-estimator", "central", "--meta-radius", "2e-4")
        task, trainer = setup(data, tmp_path / str(number), *flags)
        shaken(trainer)
        batch = sample(task, spread(task, 8))
        if number:
            wrapper = object.__new__(AMPOptimizer)
            wrapper.fp32_optimizer = trainer.optimizer
            wrapper._grad_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
            trainer._optimizer = wrapper
        trainer._set_seed()
        trainer.model.train()
        trainer.zero_grad()
        optimizer = trainer.optimizer
        size = task.train_step(batch, trainer.model, trainer.criterion, optimizer, 0)[1]
        optimizer.multiply_grads(1.0 / size) if not number else optimizer.fp32_optimizer.multiply_grads(1.0 / size)
        task.optimizer_step(optimizer, trainer.model, 0)
    assert wrapper.scaler.get_scale() == 2048.0
    assert distance(caught[1][1].total, caught[0][1].total) < 1e-3
    assert distance(caught[1][0]["train_grads"][0], caught[0][0]["train_grads"][0]) < 1e-5


def test_an_update_that_was_given_up_does_not_spoil_the_next(data: Path, tmp_path: Path, caught: Any) -> None:
    """Overflow or out of memory: the micro-batches of before are forgotten, and h(theta) is taken anew."""
    task, trainer = setup(data, tmp_path / "a", *STILL)
    other, straight = setup(data, tmp_path / "b", *STILL)
    shaken(trainer)
    shaken(straight)
    rows = spread(task, 8)
    trainer.zero_grad()
    trainer.model.train()
    task.train_step(sample(task, rows[::2]), trainer.model, trainer.criterion, trainer.optimizer, 0)
    trainer.train_step([sample(task, rows)])
    straight.train_step([sample(other, rows)])
    assert caught[0][0]["train_grads"] is None and caught[1][0]["train_grads"] is not None
    assert distance(caught[0][1].total, caught[1][1].total) < 1e-4


def test_out_of_memory_in_one_of_two_micro_batches(data: Path, tmp_path: Path, caught: Any) -> None:
    task, trainer = setup(data, tmp_path, *STILL)
    shaken(trainer)
    rows = spread(task, 8)
    forward, calls = trainer.criterion.forward, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("CUDA out of memory (made up)")
        return forward(*args, **kwargs)

    trainer.criterion.forward = failing
    assert trainer.train_step([sample(task, rows[::2]), sample(task, rows[1::2])]) is None
    trainer.criterion.forward = forward
    trainer.train_step([sample(task, rows)])
    assert len(caught) == 1 and len(caught[0][0]["train_loss"]) == 1
    assert all(math.isfinite(bilevel.norm([x])) for x in caught[0][1].total)


def test_out_of_memory_in_the_last_micro_batch_of_one_worker(data: Path, tmp_path: Path, caught: Any) -> None:
    """The host forgets this worker's gradients and steps with the others': h(theta) is not of the kept batches."""
    task, trainer = setup(data, tmp_path, *STILL)
    shaken(trainer)
    arguments = trainer.model, trainer.criterion, trainer.optimizer, 0
    first, second = (sample(task, rows) for rows in (spread(task, 8)[::2], spread(task, 8)[1::2]))
    task.train_step(first, *arguments)
    with pytest.raises(AttributeError):
        task.train_step({**second, "target": None}, *arguments)
    for parameter in trainer.model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    task.optimizer_step(trainer.optimizer, trainer.model, 0)
    trainer.zero_grad()
    update(task, trainer, second)
    assert [taken["train_grads"] is None for taken, _ in caught] == [True, False]


def test_a_dummy_batch_is_left_out(data: Path, tmp_path: Path, caught: Any) -> None:
    task, trainer = setup(data, tmp_path, *STILL)
    shaken(trainer)
    rows = spread(task, 8)
    trainer.reset_dummy_batch(sample(task, rows))
    trainer.train_step([{}, sample(task, rows[::2])])
    assert len(caught[0][0]["train_loss"]) == 1


def test_bf16_takes_the_gradient_of_fp32(data: Path, tmp_path: Path, caught: Any) -> None:
    """The masters' gradient is unscaled before it is read; the difference is central, with the larger radius."""
    for flag in ((), ("--bf16",)):
        task, trainer = setup(data, tmp_path / str(len(flag)), *STILL, "--meta-estimator", "central", *flag)
        shaken(trainer)
        trainer.optimizer.__dict__.get("fp32_params") and _copy_to_masters(trainer.optimizer)
        trainer.train_step([sample(task, spread(task, 8))])
    (full, _), (half, found) = caught
    assert full["radius"] == 2e-4 and half["radius"] == 1e-2
    assert distance(half["train_grads"][0], full["train_grads"][0]) < 0.05
    assert distance(found.direct, caught[0][1].direct) < 0.1
    masters = trainer.optimizer.fp32_params
    assert all(torch.equal(p.data, m.data.bfloat16()) for p, m in zip(trainer.optimizer.fp16_params, masters))


def test_bf16_passes_can_run_on_the_masters(data: Path, tmp_path: Path, caught: Any) -> None:
    """``--meta-fd-fp32``: the cross term of fp32, whose gradient g alone is of bf16; weights stay in bf16."""
    start: dict[str, Tensor] = {}
    fp32 = ("--bf16", "--meta-fd-fp32", "--checkpoint-activations")  # layers run again would see half weights
    for flag in ((), fp32, ("--bf16",)):
        task, trainer = setup(data, tmp_path / str(len(flag)), *STILL, "--meta-estimator", "central", *flag)
        if flag:
            _copy_to_masters(trainer.optimizer, start)
        else:
            shaken(trainer)
            start.update({n: p.detach().clone() for n, p in trainer.get_model().named_parameters()})
        trainer.train_step([sample(task, spread(task, 8))])
    (full, right), (masters, good), (_, coarse) = caught
    assert masters["radius"] == full["radius"] == 2e-4
    assert distance(good.direct, right.direct) < 0.02
    assert distance(good.cross, right.cross) < 0.05 < distance(coarse.cross, right.cross)


def test_cosine_between_languages_is_that_of_their_gradients(data: Path, tmp_path: Path) -> None:
    task, trainer = setup(data, tmp_path, *STILL, "--meta-log-conflict", 1, double=True)
    shaken(trainer)
    model, batch = trainer.get_model(), sample(task, spread(task, 9))
    theta = [p for p in model.parameters() if language_of(p) is None]
    right = {}
    for language in range(3):
        rows = (batch["net_input"]["lang_id"] == language).nonzero()[:, 0]
        part = {"target": batch["target"][rows], "net_input": {k: v[rows] for k, v in batch["net_input"].items()}}
        loss = trainer.criterion.losses(model.train(), part)[0].mean()
        found = torch.autograd.grad(loss, theta, allow_unused=True)
        right[language] = torch.cat([g.flatten() for g in found if g is not None])
    from fairseq.logging import metrics

    with metrics.aggregate(new_root=True) as logged:
        update(task, trainer, batch)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        name = f"meta_cosine_{'abc'[one] * 2}_{'abc'[other] * 2}"
        expected = float(F.cosine_similarity(right[one], right[other], dim=0))
        assert logged.get_smoothed_values()[name] == pytest.approx(expected, abs=2e-4)


def _copy_to_masters(optimizer: Any, values: Any = None) -> None:
    for number, (parameter, master) in enumerate(zip(optimizer.fp16_params, optimizer.fp32_params)):
        master.data.copy_(parameter.data if values is None else values[name_of(master, number)])
        parameter.data.copy_(master.data)


def test_resuming_gives_the_bits_of_the_straight_run(data: Path, tmp_path: Path) -> None:
    """Also mid-epoch, with two micro-batches an update, past the change from sgd_rms to adam."""
    flags = (*META, "--update-freq", 2, "--save-interval-updates", 7, "--keep-interval-updates", 9, "--dropout", 0.1)
    flags = (*flags, "--lr-scheduler", "inverse_sqrt", "--warmup-updates", 4, "--max-epoch", 9)
    train_here(data, tmp_path / "straight", *flags, "--max-update", 14)
    train_here(data, tmp_path / "halves", *flags, "--max-update", 7)
    train_here(data, tmp_path / "halves", *flags, "--max-update", 14)
    one, two = (read_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("straight", "halves"))
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])
    states = one["last_optimizer_state"]["state"], two["last_optimizer_state"]["state"]
    assert states[0].keys() == states[1].keys() and any(".bb." in name for name in states[0])
    for name, entry in states[0].items():
        assert all(torch.equal(torch.as_tensor(entry[k]), torch.as_tensor(states[1][name][k])) for k in entry)


# ---------------------------------------------------------------- text


def test_held_out_blocks_are_trained_on_by_no_arm(data: Path, tmp_path: Path) -> None:
    task, _ = setup(data, tmp_path / "meta")
    other, _ = build(data, tmp_path / "adam", *META[:2], "--meta-heldout-fraction", "0.2")
    other.load_dataset("train")
    whole, _ = build(data, tmp_path / "whole", *META[:2])
    whole.load_dataset("train")

    def starts(dataset: Any) -> list[set[int]]:
        return [set(part._starts.tolist()) for part in dataset.blocks]

    held, trained = starts(task.meta.validation.dataset), starts(task.dataset("train"))
    for mine, kept, there, every in zip(held, trained, starts(other.dataset("train")), starts(whole.dataset("train"))):
        assert kept == there and not mine & kept and mine | kept == every
        assert len(mine) == round(0.2 * len(every))
    alone, _ = build(data, tmp_path / "mono", "--langs", "bb", "--allow-single-lang", "--meta-heldout-fraction", "0.2")
    alone.load_dataset("train")
    assert starts(alone.dataset("train")) == trained[1:2]


def test_the_valid_split_is_used_where_it_is_asked_for(data: Path, tmp_path: Path) -> None:
    """Also where a part of the training text is held out, as other arms of the study hold it out."""
    task, _ = setup(data, tmp_path, "--meta-val-subset", "valid")
    task.load_dataset("valid")
    assert task.meta.validation.dataset.block_counts == task.dataset("valid").block_counts
    files = {part.file.prefix for part in task.meta.validation.dataset.blocks}
    assert all(str(prefix).endswith("valid") for prefix in files)


def test_validation_batches_depend_on_the_update_alone(data: Path, tmp_path: Path) -> None:
    task, _ = setup(data, tmp_path)
    provider = task.meta.validation

    def tokens(batches: Any) -> list[tuple[int, ...]]:
        return sorted(tuple(row.tolist()) for some in batches for row in (some["target"] * 0 + some["id"][:, None]))

    def blocks(update: int, workers: int) -> list[tuple[int, int]]:
        some = [b for w in range(workers) for b in provider.batch(update, range(3), 200, w, workers, 4, 96)]
        return sorted(
            (int(lang), int(number)) for b in some for lang, number in zip(b["net_input"]["lang_id"], b["id"])
        )

    assert blocks(5, 1) == blocks(5, 2) == blocks(5, 3) != blocks(6, 1)
    for batch in provider.batch(5, range(3), 200, 0, 1, 4, 96):
        assert len(batch["target"]) <= 4 and (batch["target"].numel() <= 96 or len(batch["target"]) == 1)


@pytest.mark.parametrize(("langs", "seen"), [("others", {1, 2}), ("same", {0}), ("all", {0, 1, 2})])
def test_languages_of_the_validation_loss(data: Path, tmp_path: Path, langs: str, seen: set[int]) -> None:
    task, trainer = setup(data, tmp_path, "--batch-composition", "single", "--meta-val-langs", langs)
    rows = [int(row) for row in np.flatnonzero(task.dataset("train").language == 0)][:4]
    found: list[set[int]] = []
    original = task.meta._log
    task.meta._log = lambda result, work, adam: (
        found.append(set(work.validation_by_language())),
        original(result, work, adam),
    )[-1]
    trainer.train_step([sample(task, rows)])
    assert found == [seen]


# ---------------------------------------------------------------- what is said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--clip-norm", 1), "--meta-clip-theta"),
        (("--meta-lr", "fast"), "--meta-lr"),
        (("--meta-betas", "1"), "--meta-betas"),
        (("--meta-clip-phi", "-1"), "--meta-clip-phi -1"),
        (("--meta-every", 0), "--meta-every 0"),
        (("--meta-radius", 1), "--meta-radius 1"),
        (("--meta-cross-batch-fraction", 0.4), "--meta-cross-batch-fraction 0.4"),
        (("--meta-val-langs", "others"), "--batch-composition single"),
        (("--meta-heldout-fraction", 0), "needs some"),
        (("--optimizer", "adam", "--meta-order", "paper"), "--meta-order (needs --optimizer meta_adapter)"),
        (("--bf16", "--meta-estimator", "one_sided"), "--meta-estimator one_sided"),
        (("--meta-terms", "direct", "--meta-fd-check", 5), "--meta-fd-check (no use with --meta-terms direct)"),
        (("--meta-estimator", "exact", "--meta-radius", 1e-3), "no use with --meta-estimator exact"),
        (("--meta-estimator", "exact", "--meta-cross-batch-fraction", 0.5), "no use with --meta-estimator exact"),
        (("--meta-eps", 0), "--meta-eps 0"),
        (("--meta-weight-decay", "nan"), "--meta-weight-decay nan"),
        (("--meta-lr", 0.01, "--lr", 0), "--lr"),
        (("--meta-val-subset", "valid", "--valid-subset", "nowhere", "--disable-validation"), "no validation data"),
    ],
)
def test_what_cannot_run_is_refused(data: Path, tmp_path: Path, flags: tuple[object, ...], message: str) -> None:
    with pytest.raises(InterferenceError) as caught:
        train_here(data, tmp_path, *META, *flags, "--max-update", 1)
    assert message in str(caught.value)


def test_archs_and_optimizers_that_do_not_belong_together(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no language-specific"):
        train_here(data, tmp_path, *META, "--max-update", 1, arch="xlm_joint_tiny")
    with pytest.raises(UsageError, match="--optimizer adam"):
        train_here(data, tmp_path, "--langs", "aa,bb,cc", "--max-update", 1, arch="xlm_meta_adpt_tiny")
    for arch in ("xlm_meta_adpt_tiny", "xlm_ffn_tiny", "xlm_attn_tiny"):
        train_here(data, tmp_path / arch, *META, "--max-update", 2, arch=arch)
        assert (tmp_path / arch / "checkpoint_last.pt").is_file()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adafactor"])
def test_the_host_s_other_optimizers_train(data: Path, tmp_path: Path, optimizer: str) -> None:
    """Some of them have no dataclass, so that the configuration has no section of theirs."""
    train_here(data, tmp_path, *META[:2], "--optimizer", optimizer, "--max-update", 2)
    assert (tmp_path / "checkpoint_last.pt").is_file()


def test_a_task_without_a_meta_step_refuses_the_optimizer(data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    task, trainer = setup(data, tmp_path)
    monkeypatch.setattr(type(task), "takes_meta_step", False)
    with pytest.raises(UsageError, match="no meta step"):
        trainer.train_step([sample(task, spread(task, 4))])


def test_sharded_wrappers_are_refused() -> None:
    class FullyShardedDataParallel:
        pass

    with pytest.raises(HostError, match="every parameter"):
        meta_step.check_wrapper(object(), FullyShardedDataParallel())
    with pytest.raises(HostError, match="every parameter"):  # the host wraps once more, to hand on attributes
        meta_step.check_wrapper(object(), SimpleNamespace(module=FullyShardedDataParallel()))


def test_a_practically_first_order_step_is_pointed_out(
    data: Path, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(meta_step, "PATIENCE", 3)
    flags = (*META, "--meta-inner-rule", "sgd", "--meta-inner-lr", "1e-7", "--max-update", 5, "--max-epoch", 9)
    train_here(data, tmp_path, *flags)
    assert caplog.text.count("practically first-order") == 1


def test_a_rate_of_zero_is_not_taken_for_a_first_order_step(
    data: Path, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(meta_step, "PATIENCE", 3)
    decay = ("--lr-scheduler", "polynomial_decay", "--total-num-update", 2)
    train_here(data, tmp_path, *META, *decay, "--max-update", 7, "--max-epoch", 9)
    assert "first-order" not in caplog.text


def test_text_held_out_late_is_pointed_out(data: Path, tmp_path: Path, caplog: Any) -> None:
    train_here(data, tmp_path / "joint", "--langs", "aa,bb,cc", "--max-update", 1, arch="xlm_joint_tiny")
    start = tmp_path / "joint" / "checkpoint_last.pt"
    train_here(data, tmp_path / "meta", *META, "--finetune-from-model", start, "--max-update", 1)
    assert f"{start} has trained on the text held out here" in caplog.text
