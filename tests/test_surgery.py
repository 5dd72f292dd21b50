"""``--optimizer surgery`` inside the host's update: which gradient it leaves, wherever and however training runs."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import ddp
import numpy as np
import pytest
import torch
import torch.multiprocessing
from meta_world import STILL, distance, sample, shaken, spread
from pretrain_world import NETWORK, build, data_folder, moved, read_checkpoint, snapshot, train_here
from torch import Tensor, distributed

from fairseq_interference.appended_state import language_of
from fairseq_interference.errors import HostError, InterferenceError, ResumeError, UsageError
from fairseq_interference.optim import gradient_surgery, parts, surgery
from fairseq_interference.optim.presence import inner_optimizer
from fairseq_interference.optim.wrapping import INNER
from tests.test_downstream_tasks import trainer_of
from tests.test_downstream_tasks import world as downstream  # noqa: F401  (a fixture)
from tests.test_gradient_surgery import gradvac_of_vectors, pcgrad_of_vectors

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    # the host: CUDA's autocast by its old name
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
    # the host steps its scheduler before the first update
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
    # the host leaves its log file open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SURGERY = ("--langs", "aa,bb,cc", "--optimizer", "surgery")
ADAM = ("--langs", "aa,bb,cc", "--optimizer", "adam")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("data"), {"aa": 90, "bb": 60, "cc": 50})


def setup(data: Path, folder: Path, *flags: object, arch: str = "xlm_adpt_tiny", double: bool = True) -> Any:
    """Task and trainer, still or in float64, away from where adapters are the identity."""
    smooth = ("--activation-fn", "gelu_accurate") if double else ()  # the host's gelu computes in fp32
    task, trainer = build(data, folder, *STILL, *smooth, *flags, arch=arch)
    if double:
        trainer.get_model().double()
    shaken(trainer)
    task.load_dataset("train")
    return task, trainer


def run(task: Any, trainer: Any, *batches: dict[str, Any], update: int = 0, dummy: int = -1) -> float:
    """The passes and the reduction of an update; returns its sample size."""
    trainer.model.train()
    trainer.zero_grad()
    sizes = []
    for number, batch in enumerate(batches):
        arguments = batch, trainer.model, trainer.criterion, trainer.optimizer, update
        sizes.append(float(task.train_step(*arguments, ignore_grad=number == dummy)[1]) * (number != dummy))
    trainer.optimizer.all_reduce_grads(trainer.model)
    return sum(sizes)


def grads(trainer: Any) -> dict[str, Optional[Tensor]]:
    named = trainer.get_model().named_parameters()
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in named}


def gap(one: dict[str, Optional[Tensor]], other: dict[str, Optional[Tensor]]) -> float:
    """Relative distance of two gradients, which must have the same parameters without any."""
    assert [name for name, x in one.items() if x is None] == [name for name, x in other.items() if x is None]
    return distance(*([x for x in some.values() if x is not None] for some in (one, other)))


def by_example(task: Any, trainer: Any, rows: list[int]) -> dict[int, list[Tensor]]:
    """Language -> summed gradient of the shared parameters, one sentence after the other."""
    theta = [p for p in trainer.get_model().parameters() if language_of(p) is None]
    found: dict[int, list[Tensor]] = {}
    for row in rows:
        batch = sample(task, [row])
        loss = trainer.criterion(trainer.get_model().train(), batch)[0]
        grown = torch.autograd.grad(loss, theta, allow_unused=True)
        mine = [torch.zeros_like(p) if g is None else g for p, g in zip(theta, grown)]
        language = int(batch["net_input"]["lang_id"])
        found[language] = [x + y for x, y in zip(found.get(language, mine), mine)] if language in found else mine
    return dict(sorted(found.items()))


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in tensors])


# ---------------------------------------------------------------- which gradient


@pytest.mark.parametrize("arch", ["xlm_joint_tiny", "xlm_adpt_tiny"])
def test_none_is_the_plain_step(data: Path, tmp_path: Path, arch: str) -> None:
    """Gradients to 1e-12 in float64, and what is logged, of two micro-batches."""
    found, logs = [], []
    for flags in (ADAM, (*SURGERY, "--surgery", "none")):
        task, trainer = setup(data, tmp_path, *flags, arch=arch)
        rows = spread(task, 12)
        trainer.model.train()
        trainer.zero_grad()
        arguments = trainer.model, trainer.criterion, trainer.optimizer, 0
        logs.append([task.train_step(sample(task, rows[part::2]), *arguments) for part in range(2)])
        trainer.optimizer.all_reduce_grads(trainer.model)
        found.append(grads(trainer))
    assert gap(found[1], found[0]) < 1e-12
    for plain, mine in zip(*logs):
        assert float(mine[0].detach()) == pytest.approx(float(plain[0].detach()), rel=1e-12) and int(mine[1]) == int(
            plain[1]
        )
        assert mine[2].keys() == plain[2].keys()
        for name, value in plain[2].items():
            torch.testing.assert_close(torch.as_tensor(mine[2][name]), torch.as_tensor(value), msg=name)


def test_in_single_precision_too(data: Path, tmp_path: Path) -> None:
    found = []
    for flags in (ADAM, (*SURGERY, "--surgery", "none")):
        task, trainer = setup(data, tmp_path, *flags, double=False)
        run(task, trainer, sample(task, spread(task, 12)))
        found.append(grads(trainer))
    assert gap(found[1], found[0]) < 1e-6


def test_without_conflict_pcgrad_takes_the_plain_step(data: Path, tmp_path: Path) -> None:
    """Three languages that say the same: a shared model has the same gradient for each."""
    found = []
    for flags in (ADAM, SURGERY):
        task, trainer = setup(data, tmp_path, *flags, arch="xlm_joint_tiny")
        one = sample(task, spread(task, 2))
        same = {"src_tokens": one["net_input"]["src_tokens"][:1].expand(3, -1).clone(), "lang_id": torch.arange(3)}
        same["src_lengths"] = one["net_input"]["src_lengths"][:1].expand(3).clone()
        batch = {**one, "net_input": same, "target": one["target"][:1].expand(3, -1).clone(), "id": torch.arange(3)}
        batch.update(ntokens=3 * int(same["src_lengths"][0]), nsentences=3)
        run(task, trainer, batch)
        found.append(grads(trainer))
    assert gap(found[1], found[0]) < 1e-12


@pytest.mark.parametrize("method", ["pcgrad", "gradvac"])
def test_the_projected_gradient_is_that_of_a_loop_over_examples(
    data: Path, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentence by sentence, summed by language, flattened, projected as the papers' algorithms say."""
    orders: list[list[list[int]]] = []
    original = gradient_surgery.draw_orders
    monkeypatch.setattr(gradient_surgery, "draw_orders", lambda *some: (orders.append(original(*some)), orders[-1])[1])
    task, trainer = setup(data, tmp_path, *SURGERY, "--surgery", method, "--surgery-groups", "whole")
    rows = spread(task, 12)
    each = [flat(some) for some in by_example(task, trainer, rows).values()]
    trainer.zero_grad()
    if method == "gradvac":
        run(task, trainer, sample(task, rows))
        trainer.optimizer.targets[:] = 0.9  # above the cosines there are
    run(task, trainer, sample(task, rows[::2]), sample(task, rows[1::2]))
    theta = [p for p in trainer.get_model().parameters() if language_of(p) is None]
    found = flat([torch.zeros_like(p) if p.grad is None else p.grad for p in theta])
    if method == "pcgrad":
        right = pcgrad_of_vectors(each, orders[-1])
    else:
        right = gradvac_of_vectors(each, orders[-1], np.full((3, 3), 0.9), 0.01)
    assert (found - right).norm() < 1e-9 * right.norm()
    assert method == "pcgrad" or (right - sum(each)).norm() > 0.1 * right.norm()


def test_orders_follow_from_the_number_of_the_update(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    original = gradient_surgery.draw_orders
    monkeypatch.setattr(gradient_surgery, "draw_orders", lambda *some: (drawn.append(original(*some)), drawn[-1])[1])
    task, trainer = setup(data, tmp_path, *SURGERY)
    batch = sample(task, spread(task, 6))
    for update in (3, 3, 4, 5, 6):
        run(task, trainer, batch, update=update)
    assert drawn[0] == drawn[1] and len({str(orders) for orders in drawn}) > 1


def opposed(task: Any, trainer: Any) -> dict[str, Any]:
    """A batch whose languages conflict: they want other words in the same places."""
    batch = sample(task, spread(task, 9))
    inputs, words = batch["net_input"], torch.tensor([5, 25, 45])
    inputs["src_tokens"] = inputs["src_tokens"][:1].expand(9, -1).clone()
    inputs["src_lengths"] = inputs["src_lengths"][:1].expand(9).clone()
    batch["target"] = batch["target"][:1].expand(9, -1).clone()
    if not (batch["target"] != 1).any():
        batch["target"][:, 1] = 7
    masked = batch["target"] != 1
    batch["target"] = torch.where(masked, words[inputs["lang_id"]][:, None], batch["target"])
    return batch


def test_conflict_is_taken_away_and_logged(data: Path, tmp_path: Path) -> None:
    from fairseq.logging import metrics

    flags = (*SURGERY, "--surgery-groups", "tensor")
    task, trainer = setup(data, tmp_path, *flags, arch="xlm_joint_tiny")
    batch = opposed(task, trainer)
    with metrics.aggregate(new_root=True) as logged:
        run(task, trainer, batch)
    values = logged.get_smoothed_values()
    names = {f"surgery_{name}" for name in ("conflict", "cosine", "cosine_after", "changed", "norm_ratio")}
    assert names == {name for name in values if name.startswith("surgery_")}
    assert all(type(value) is float for value in values.values())
    assert 0 < values["surgery_changed"] < 1 and values["surgery_norm_ratio"] != 1
    assert values["surgery_cosine_after"] > values["surgery_cosine"]


@pytest.mark.parametrize(("kind", "groups"), [("whole", 1), ("layer", 3), ("tensor", 24)])
def test_groups(data: Path, tmp_path: Path, kind: str, groups: int) -> None:
    task, trainer = setup(data, tmp_path, *SURGERY, "--surgery-groups", kind, arch="xlm_joint_tiny")
    run(task, trainer, sample(task, spread(task, 6)))
    found = trainer.optimizer._groups
    assert len(found) == groups or (kind == "tensor" and len(found) == len(list(trainer.get_model().parameters())))
    places = sorted(place for some in found.values() for place in some)
    assert places == list(range(len(trainer.optimizer._gradients.shared)))
    assert kind != "layer" or list(found) == ["embeddings", "layers.0", "rest"]


def test_language_specific_parameters_keep_their_gradient(data: Path, tmp_path: Path) -> None:
    """And a language that is absent keeps weights and moments, bit for bit."""
    found = []
    for flags in (ADAM, SURGERY):
        task, trainer = setup(data, tmp_path, *flags)
        rows = spread(task, 12)
        run(task, trainer, sample(task, rows[::2]), sample(task, rows[1::2]))
        names = {n for n, p in trainer.get_model().named_parameters() if language_of(p) is not None}
        found.append({name: x for name, x in grads(trainer).items() if name in names})
    assert gap(found[1], found[0]) < 1e-12
    task, trainer = setup(data, tmp_path, *SURGERY, double=False)
    trainer.train_step([sample(task, spread(task, 12))])
    before = snapshot(trainer)
    with_two = [row for row in spread(task, 30) if task.dataset("train").language[row] < 2]
    trainer.train_step([sample(task, with_two)])
    assert moved(before, snapshot(trainer)) == {"None", "aa", "bb"}


def test_rows_without_a_masked_token_cost_no_pass(data: Path, tmp_path: Path) -> None:
    """Their language is not among those projected; the logs count their tokens."""
    task, trainer = setup(data, tmp_path, *SURGERY)
    batch = sample(task, spread(task, 12))
    batch["target"][batch["net_input"]["lang_id"] == 2] = 1
    trainer.zero_grad()
    arguments = batch, trainer.model, trainer.criterion, trainer.optimizer, 0
    _, size, log = task.train_step(*arguments)
    assert sorted(trainer.optimizer._gradients._found) == [0, 1]
    assert int(size) == int((batch["target"] != 1).sum())
    assert int(log["by_language"][2].sum()) == batch["ntokens"] and float(log["by_language"][2, 2]) > 0


# ---------------------------------------------------------------- wherever training runs


def test_one_batch_or_two_micro_batches(data: Path, tmp_path: Path) -> None:
    found = []
    for number in (1, 2):
        task, trainer = setup(data, tmp_path, *SURGERY, "--surgery", "gradvac")
        rows = spread(task, 8)
        run(task, trainer, *(sample(task, rows[part::number]) for part in range(number)))
        found.append(grads(trainer))
    assert gap(found[1], found[0]) < 1e-10


@pytest.mark.slow
def test_two_workers_take_the_step_of_one(data: Path, tmp_path: Path) -> None:
    """1 x (4 x --update-freq 2) and 2 workers x 4, whose languages differ: moments equal to 1e-5."""
    common = [data, *SURGERY, *STILL, "--task", "xlm_masked_lm", "--criterion", "xlm_masked_lm", *NETWORK]
    common += ["--arch", "xlm_adpt_tiny", "--lr", "0.001", "--batch-size", "4", "--disable-validation"]
    common += ["--surgery", "gradvac", "--surgery-groups", "tensor", "--max-update", 3, "--log-format", "json"]
    common += ["--clip-norm", 1, "--log-interval", 1]
    ddp.train(*common, "--update-freq", 2, "--save-dir", tmp_path / "one")
    ddp.train_ranks([*common, "--save-dir", tmp_path / "two"], logs=tmp_path)
    states = [
        read_checkpoint(tmp_path / name / "checkpoint_last.pt")["last_optimizer_state"] for name in ("one", "two")
    ]
    one, two = ([entry["exp_avg"] for _, entry in sorted(state["state"].items())] for state in states)
    assert len(one) == len(two) > 20 and distance(two, one) < 1e-5
    targets = [state["surgery"]["targets"] for state in states]
    assert float((targets[0] - targets[1]).abs().max()) < 1e-5 and targets[0].any()


def _worker(rank: int, port: int, data: str, folder: str, rows: list[list[int]]) -> None:
    """Torch's own data parallelism around the model; the second worker ends with a batch that is none."""
    import fairseq_interference

    fairseq_interference.register()
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    task, trainer = setup(Path(data), Path(folder), *SURGERY)
    wrapped = torch.nn.parallel.DistributedDataParallel(trainer.get_model(), find_unused_parameters=True)
    trainer._wrapped_model = wrapped
    run(task, trainer, *(sample(task, some) for some in (rows[rank], rows[0])), dummy=1)
    torch.save({name: x for name, x in grads(trainer).items() if x is not None}, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_torch_s_data_parallelism_with_a_language_each(data: Path, tmp_path: Path) -> None:
    """No hook reduces behind our back: the average over workers of the projected gradient, on both."""
    task, trainer = setup(data, tmp_path, *SURGERY)
    every = spread(task, 12)
    language = task.dataset("train").language
    rows = [[row for row in every if language[row] == 0], [row for row in every if language[row] == 1]]
    run(task, trainer, sample(task, rows[0]), sample(task, rows[1]))
    right = {name: x / 2 for name, x in grads(trainer).items() if x is not None}
    spawned = (ddp.free_port(), str(data), str(tmp_path), rows)
    torch.multiprocessing.spawn(_worker, spawned, nprocs=2)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found.keys() == right.keys()
        assert distance([found[name] for name in right], list(right.values())) < 1e-10


def test_bf16_takes_the_gradient_of_fp32(data: Path, tmp_path: Path) -> None:
    """The masters get the projected gradient, with the host's clipping on it."""
    found = []
    for flag in ((), ("--bf16",)):
        task, trainer = setup(data, tmp_path, *SURGERY, *flag, "--clip-norm", 0.1, "--lr", 0, double=False)
        for parameter, master in zip(*(getattr(trainer.optimizer, f"fp{n}_params", []) for n in (16, 32))):
            master.data.copy_(parameter.data)
        trainer.train_step([sample(task, spread(task, 8))])
        optimizer = inner_optimizer(trainer.optimizer)
        assert isinstance(optimizer, surgery.Surgery)
        found.append([p.grad for p in optimizer.params if p.grad is not None and p.grad.any()])
    assert len(found[0]) == len(found[1]) and distance(found[1], found[0]) < 0.1
    assert math.sqrt(sum(float(x.square().sum()) for x in found[1])) == pytest.approx(0.1, rel=1e-2)


def half_wrapper(trainer: Any, scale: float) -> Any:
    """The host's unflattened fp16 wrapper on a CPU: the model in half precision, masters, a loss scaler."""
    from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler
    from fairseq.optim.fp16_optimizer import FP16Optimizer

    half = [p for p in trainer.model.parameters() if p.requires_grad]
    masters = FP16Optimizer.build_fp32_params(None, half, flatten=False)
    wrapper = object.__new__(FP16Optimizer)
    wrapper.fp16_params, wrapper.fp32_params, wrapper._multiply_factor = half, masters, 1.0
    wrapper.fp32_optimizer = surgery.Surgery(inner_optimizer(trainer.optimizer).cfg, masters)
    wrapper.scaler = DynamicLossScaler(init_scale=scale)
    wrapper._needs_sync = False
    return wrapper


def test_fp16_with_masters_scales_and_unscales(data: Path, tmp_path: Path) -> None:
    """Unflattened; an overflow leaves the targets as they are, and the next update is sound."""
    found = []
    for number in (0, 1):
        task, trainer = setup(data, tmp_path, *SURGERY, "--surgery", "gradvac", double=False)
        trainer.get_model().to(torch.bfloat16).to(torch.float16 if number else torch.float32)
        if number:
            trainer._optimizer = half_wrapper(trainer, 2.0**20)
            batch = sample(task, spread(task, 8))
            run(task, trainer, batch)
            with pytest.raises(OverflowError):
                trainer.optimizer.clip_grad_norm(0.0)
            inner = trainer.optimizer.fp32_optimizer
            assert not inner.targets.any()
            trainer.optimizer.scaler.loss_scale = 4.0
        size = run(task, trainer, sample(task, spread(task, 8)))
        trainer.optimizer.multiply_grads(1 / size)
        norm = trainer.optimizer.clip_grad_norm(0.0)
        if number:
            trainer.optimizer._unscale_grads()
        found.append(([p.grad for p in inner_optimizer(trainer.optimizer).params if p.grad is not None], float(norm)))
    assert found[1][1] == pytest.approx(found[0][1], rel=0.02)
    some = [x for x in found[1][0] if x.any()]
    assert distance(some, [x for x in found[0][0] if x.any()]) < 0.02
    assert inner.targets.any()


@pytest.mark.filterwarnings("ignore:CUDA is not available or torch_xla:UserWarning")  # the host's autocast
def test_amp_unscales_once(data: Path, tmp_path: Path) -> None:
    """With a scaler that runs on CPU: the moments are those of fp32."""
    from fairseq.optim import AMPOptimizer

    found = []
    for number in (0, 1):
        task, trainer = setup(data, tmp_path, *SURGERY, double=False)
        if number:
            wrapper = object.__new__(AMPOptimizer)
            wrapper.fp32_optimizer = trainer.optimizer
            wrapper._grad_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
            wrapper.min_loss_scale = 1e-4
            trainer._optimizer = wrapper
        size = run(task, trainer, sample(task, spread(task, 8)))
        inner_optimizer(trainer.optimizer).multiply_grads(1 / size)
        trainer.optimizer.clip_grad_norm(0.5)
        task.optimizer_step(trainer.optimizer, trainer.model, 0)
        state = inner_optimizer(trainer.optimizer).optimizer.state
        found.append([entry["exp_avg"] for entry in state.values()])
    assert wrapper.scaler.get_scale() == 2048.0
    assert distance(found[1], found[0]) < 1e-5


# ---------------------------------------------------------------- what goes wrong on the way


def test_an_update_that_was_given_up_leaves_nothing(data: Path, tmp_path: Path) -> None:
    """Overflow: micro-batches that no step followed. Out of memory in the last one: the host forgets all."""
    task, trainer = setup(data, tmp_path, *SURGERY)
    rows = spread(task, 8)
    arguments = trainer.model, trainer.criterion, trainer.optimizer, 0
    trainer.zero_grad()
    task.train_step(sample(task, rows[::2]), *arguments)
    run(task, trainer, sample(task, rows))
    found = grads(trainer)
    run(task, trainer, sample(task, rows))
    assert gap(found, grads(trainer)) == 0
    task.train_step(sample(task, rows[::2]), *arguments)
    trainer.zero_grad()
    trainer.optimizer.all_reduce_grads(trainer.model)
    assert all(x is None for x in grads(trainer).values())


def test_out_of_memory_in_the_middle_of_a_language(data: Path, tmp_path: Path) -> None:
    task, trainer = setup(data, tmp_path, *SURGERY)
    rows = spread(task, 8)
    forward, calls = trainer.criterion.forward, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:  # the second language of the second micro-batch
            raise RuntimeError("CUDA out of memory (made up)")
        return forward(*args, **kwargs)

    trainer.criterion.forward = failing
    assert trainer.train_step([sample(task, rows[::2]), sample(task, rows[1::2])]) is None
    trainer.criterion.forward = forward
    run(task, trainer, sample(task, rows))
    found = grads(trainer)
    run(task, trainer, sample(task, rows))
    assert gap(found, grads(trainer)) == 0


@pytest.mark.parametrize("place", [0, 1])
def test_a_dummy_batch_changes_nothing(data: Path, tmp_path: Path, place: int) -> None:
    task, trainer = setup(data, tmp_path, *SURGERY, arch="xlm_joint_tiny")
    batch, other = sample(task, spread(task, 8)), sample(task, spread(task, 5))
    run(task, trainer, batch)
    found = grads(trainer)
    run(task, trainer, *((other, batch) if place == 0 else (batch, other)), dummy=place)
    assert gap(found, grads(trainer)) == 0


# ---------------------------------------------------------------- saving and resuming


def test_resuming_gives_the_bits_of_the_straight_run(data: Path, tmp_path: Path) -> None:
    """Also in the middle of an epoch, with two micro-batches an update, dropout, and another optimizer than Adam."""
    more = (*SURGERY, "--surgery", "gradvac", "--surgery-inner", "nag", "--momentum", 0.9)
    more = (*more, "--update-freq", 2, "--dropout", 0.1, "--max-epoch", 9, "--seed", 5)
    train_here(data, tmp_path / "straight", *more, "--max-update", 10)
    train_here(data, tmp_path / "halves", *more, "--max-update", 5)
    train_here(data, tmp_path / "halves", *more, "--max-update", 10)
    one, two = (read_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("straight", "halves"))
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])
    states = one["last_optimizer_state"], two["last_optimizer_state"]
    for name, entry in states[0]["state"].items():
        assert all(torch.equal(torch.as_tensor(entry[k]), torch.as_tensor(states[1]["state"][name][k])) for k in entry)
    assert states[0]["surgery"].keys() == states[1]["surgery"].keys()
    assert torch.equal(states[0]["surgery"]["targets"], states[1]["surgery"]["targets"])
    assert states[0]["surgery"]["targets"].any()


def test_a_language_is_appended(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Moments go by name, targets by code; those of the new language begin at 0."""
    flags = ("--optimizer", "surgery", "--surgery", "gradvac")
    train_here(data, tmp_path, *flags, "--langs", "aa,bb", "--max-update", 3)
    old = read_checkpoint(tmp_path / "checkpoint_last.pt")["last_optimizer_state"]["surgery"]
    assert old["codes"] == ["aa", "bb"] and old["groups"] == ["embeddings", "layers.0", "rest"]
    with caplog.at_level(logging.WARNING):
        train_here(data, tmp_path, *flags, "--langs", "aa,bb,cc", "--surgery-beta", 1e-9, "--max-update", 4)
    assert "begins anew" in caplog.text
    new = read_checkpoint(tmp_path / "checkpoint_last.pt")["last_optimizer_state"]["surgery"]
    torch.testing.assert_close(new["targets"][:, :2, :2], old["targets"], rtol=0, atol=1e-8)
    assert float(new["targets"][:, 2].abs().max()) < 1e-8


def test_a_state_that_was_not_used_is_saved_again(data: Path, tmp_path: Path) -> None:
    task, trainer = setup(data, tmp_path, *SURGERY, "--surgery", "gradvac", double=False)
    trainer.train_step([sample(task, spread(task, 8))])
    state = trainer.optimizer.state_dict()
    _, other = setup(data, tmp_path, *SURGERY, "--surgery", "gradvac", double=False)
    other.optimizer.load_state_dict(state)
    assert torch.equal(other.optimizer.state_dict()["surgery"]["targets"], state["surgery"]["targets"])


def test_another_inner_optimizer_is_not_resumed(data: Path, tmp_path: Path) -> None:
    train_here(data, tmp_path, *SURGERY, "--max-update", 1)
    with pytest.raises(ResumeError, match="--reset-optimizer"):
        train_here(data, tmp_path, *SURGERY, "--surgery-inner", "sgd", "--max-update", 2)


# ---------------------------------------------------------------- the optimizer behind it


# lamb and cpu_adam need apex and deepspeed
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) for n in sorted(set(INNER) - {"lamb", "cpu_adam", "sgd"})] + ["sgd"],
)
def test_every_optimizer_of_the_host_steps_as_without(data: Path, tmp_path: Path, name: str) -> None:
    """The control leaves the weights that the optimizer alone leaves: its defaults are its own."""
    found = []
    for flags in (("--optimizer", name), ("--optimizer", "surgery", "--surgery", "none", "--surgery-inner", name)):
        task, trainer = setup(data, tmp_path, "--langs", "aa,bb,cc", *flags, "--lr", 0.01, double=False)
        # keys have a bias that no loss depends on: its gradient is rounding, which some make a step of
        chosen = [p for n, p in trainer.get_model().named_parameters() if not n.endswith("k_proj.bias")]
        before = [p.detach().clone() for p in chosen]
        for _ in range(2):
            trainer.train_step([sample(task, spread(task, 8))])
        assert trainer.optimizer.get_lr() == 0.01
        found.append([p.detach() - x for p, x in zip(chosen, before)])
    assert distance(found[1], found[0]) < 1e-3 and any(x.any() for x in found[0])


def test_what_is_given_reaches_the_inner_optimizer(data: Path, tmp_path: Path) -> None:
    given = ("--adam-betas", "(0.8, 0.9)", "--adam-eps", 1e-3, "--weight-decay", 0.25, "--lr", 0.03)
    optimizer = setup(data, tmp_path, *SURGERY, *given)[1].optimizer
    wanted = {"lr": 0.03, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.25}
    assert optimizer.optimizer_config == wanted
    assert {key: optimizer.param_groups[0][key] for key in wanted} == wanted
    optimizer.set_lr(0.5)
    assert optimizer.get_lr() == optimizer.inner.optimizer.param_groups[0]["lr"] == 0.5


# ---------------------------------------------------------------- fine-tuning


@pytest.mark.parametrize("kind", ["ner", "nli", "qa"])
def test_fine_tuning_in_two_languages(downstream: dict[str, Path], tmp_path: Path, kind: str) -> None:  # noqa: F811
    """The control's gradient and logs are those of the plain step, the head's rate holds, and pcgrad trains."""
    found, logs = [], []
    more = ("--train-langs", "xa,xb", "--best-checkpoint-metric", "loss", *STILL, "--head-lr", "x3")
    for flags in ((), ("--optimizer", "surgery", "--surgery", "none"), ("--optimizer", "surgery")):
        trainer = trainer_of(downstream, kind, tmp_path, *more, *flags)
        task = trainer.task
        task.load_dataset("train")
        dataset = task.dataset("train")
        rows = [0, len(dataset) - 1, 1, len(dataset) - 2, 2]
        batch = dataset.collater([dataset[row] for row in rows])
        trainer.model.train()
        trainer.zero_grad()
        arguments = batch, trainer.model, trainer.criterion, trainer.optimizer, 0
        logs.append(task.train_step(*arguments))
        trainer.optimizer.all_reduce_grads(trainer.model)
        found.append(grads(trainer))
        trainer.train_step([batch])
        groups = trainer.optimizer.param_groups
        assert [group["lr"] for group in groups] == pytest.approx([0.01, 0.03])
    assert gap(found[1], found[0]) < 1e-5
    for mine in logs[1:]:
        assert mine[1] == logs[0][1] and mine[2].keys() == logs[0][2].keys()
        for name, value in logs[0][2].items():
            torch.testing.assert_close(torch.as_tensor(mine[2][name]), torch.as_tensor(value), msg=name)


def test_fine_tuning_in_one_language_is_refused(downstream: dict[str, Path], tmp_path: Path) -> None:  # noqa: F811
    flags = ("--best-checkpoint-metric", "loss", "--optimizer", "surgery")
    trainer = trainer_of(downstream, "nli", tmp_path, *flags)
    trainer.task.load_dataset("train")
    dataset = trainer.task.dataset("train")
    with pytest.raises(UsageError, match="One language"):
        trainer.train_step([dataset.collater([dataset[0], dataset[1]])])


# ---------------------------------------------------------------- what is said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--surgery-beta", 0.1), "--surgery-beta"),
        (("--surgery", "gradvac", "--surgery-beta", 2), "at most 1"),
        (("--surgery", "none", "--surgery-groups", "layer"), "--surgery-groups"),
        (("--momentum", 0.9), "--momentum"),
        (("--surgery-inner", "sgd", "--adam-eps", 0.1), "--adam-eps"),
        (("--batch-composition", "single"), "--batch-composition mixed"),
        (("--langs", "aa", "--allow-single-lang"), "One language"),
        (("--memory-efficient-bf16",), "masters"),
    ],
)
def test_what_cannot_work_is_refused(data: Path, tmp_path: Path, flags: tuple[object, ...], message: str) -> None:
    with pytest.raises(InterferenceError) as caught:
        train_here(data, tmp_path, *SURGERY, *flags, "--max-update", 1)
    assert message in str(caught.value)


def test_flattened_half_precision_is_refused() -> None:
    values = {"surgery": "pcgrad", "surgery_beta": None, "surgery_groups": "auto", "fp16": True}
    values.update(fp16_no_flatten_grads=False, memory_efficient_fp16=False, memory_efficient_bf16=False)
    with pytest.raises(UsageError, match="--fp16-no-flatten-grads"):
        surgery.check_config(SimpleNamespace(**values))


def test_a_model_without_shared_parameters_is_refused(data: Path, tmp_path: Path) -> None:
    task, trainer = setup(data, tmp_path, *SURGERY)
    for parameter in trainer.get_model().parameters():
        parameter.requires_grad_(language_of(parameter) is not None)
    with pytest.raises(UsageError, match="shared"):
        run(task, trainer, sample(task, spread(task, 8)))


def test_sharded_training_is_refused(data: Path, tmp_path: Path) -> None:
    class FullyShardedDataParallel(torch.nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

    task, trainer = setup(data, tmp_path, *SURGERY)
    trainer._wrapped_model = FullyShardedDataParallel(trainer.get_model())
    with pytest.raises(HostError, match="Gradient surgery needs every parameter"):
        run(task, trainer, sample(task, spread(task, 8)))


def test_a_task_that_does_not_part_its_batches_is_refused(data: Path, tmp_path: Path) -> None:
    from fairseq.tasks import FairseqTask

    task, trainer = setup(data, tmp_path, *SURGERY, arch="xlm_joint_tiny", double=False)
    task.train_step = FairseqTask.train_step.__get__(task)  # as a task of the host's
    with pytest.raises(UsageError, match="parted the batches"):
        trainer.train_step([sample(task, spread(task, 8))])
    with pytest.raises(UsageError, match="parted the batches"):
        trainer.optimizer.step()


def test_updates_of_one_language_each_are_pointed_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(surgery, "PATIENCE", 3)
    task, trainer = setup(data, tmp_path, *SURGERY)
    one = [int(row) for row in np.flatnonzero(task.dataset("train").language == 0)][:4]
    for _ in range(5):
        run(task, trainer, sample(task, one))
    assert caplog.text.count("surgery does nothing") == 1


def test_rows_of_a_batch_are_a_batch(data: Path, tmp_path: Path) -> None:
    task, _ = setup(data, tmp_path, *SURGERY)
    chosen = spread(task, 6)
    part = parts.rows_of(sample(task, chosen), torch.tensor([1, 4]))
    right = sample(task, [chosen[1], chosen[4]])
    assert part.keys() == right.keys() and (part["nsentences"], part["ntokens"]) == (2, right["ntokens"])
    width = right["target"].size(1)
    assert torch.equal(part["net_input"]["src_tokens"][:, :width], right["net_input"]["src_tokens"])
    assert torch.equal(part["id"], right["id"])
