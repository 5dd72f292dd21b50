"""Absent languages do not move: weights and moments, in fp32, unflattened half precision, on one worker and two."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pretrain_world import build, data_folder, moved, snapshot

from fairseq_interference.appended_state import language_of
from fairseq_interference.errors import HostError
from fairseq_interference.optim.presence import LanguagePresence

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    # the host asks for CUDA's autocast by its old name
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
]
LANGS = ("--langs", "aa,bb,cc", "--batch-composition", "single", "--dropout", 0, "--attention-dropout", 0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("data"), {"aa": 40, "bb": 40, "cc": 40})


def batches(task: Any, rows: int = 4) -> dict[int, list[dict[str, Any]]]:
    """Language -> batches of that language alone."""
    task.load_dataset("train")
    found: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: []}
    for batch in task.get_batch_iterator(task.dataset("train"), max_sentences=rows).next_epoch_itr():
        found[int(batch["net_input"]["lang_id"][0])].append(batch)
    return found


@pytest.mark.parametrize("precision", [(), ("--bf16",)])
@pytest.mark.parametrize("arch", ["xlm_adpt_tiny", "xlm_ffn_tiny"])
def test_p2_absent_languages_stand_still(data: Path, tmp_path: Path, precision: tuple[str, ...], arch: str) -> None:
    task, trainer = build(data, tmp_path, *LANGS, *precision, arch=arch)
    found = batches(task)
    for language in (0, 1, 2):  # every language has moments now
        trainer.train_step([found[language][0]])
    for update, present in (([0], {"aa"}), ([1, 2], {"bb", "cc"}), ([2, 2], {"cc"})):
        before = snapshot(trainer)
        trainer.train_step([found[language][1] for language in update])
        assert moved(before, snapshot(trainer)) == {"None", *present}


def test_validation_does_not_count(data: Path, tmp_path: Path) -> None:
    task, trainer = build(data, tmp_path, *LANGS)
    found = batches(task)
    for language in (0, 1, 2):
        trainer.train_step([found[language][0]])
    before = snapshot(trainer)
    trainer.valid_step(found[2][0])
    trainer.train_step([found[0][1]])
    assert moved(before, snapshot(trainer)) == {"None", "aa"}


def test_an_update_that_was_given_up_is_forgotten(data: Path, tmp_path: Path) -> None:
    task, trainer = build(data, tmp_path, *LANGS)
    found = batches(task)
    for language in (0, 1, 2):
        trainer.train_step([found[language][0]])
    before = snapshot(trainer)
    trainer.zero_grad()
    task.train_step(
        found[2][1], trainer.model, trainer.criterion, trainer.optimizer, 3
    )  # then: overflow, out of memory
    trainer.train_step([found[0][1]])
    assert moved(before, snapshot(trainer)) == {"None", "aa"}


def test_a_dummy_batch_makes_no_language_present(data: Path, tmp_path: Path) -> None:
    task, trainer = build(data, tmp_path, *LANGS)
    found = batches(task)
    for language in (0, 1, 2):
        trainer.train_step([found[language][0]])
    before = snapshot(trainer)
    trainer.reset_dummy_batch(found[1][0])
    trainer.train_step([{}, found[0][1]])
    assert moved(before, snapshot(trainer)) == {"None", "aa"}


def test_p8_gradients_of_one_batch_equal_those_of_its_halves(data: Path, tmp_path: Path) -> None:
    from fairseq_interference.data.multilingual import MultilingualDataset

    task, trainer = build(data, tmp_path, "--langs", "aa,bb,cc", "--dropout", 0, "--attention-dropout", 0)
    trainer.get_model().double()
    task.load_dataset("train")
    dataset: MultilingualDataset = task.dataset("train")

    def gradients(*parts: range) -> dict[str, torch.Tensor]:
        trainer.zero_grad()
        size = 0
        for part in parts:
            sample = dataset.collater([dataset[number] for number in part])
            _, count, _ = task.train_step(sample, trainer.model, trainer.criterion, trainer.optimizer, 0)
            size += int(count)
        grads = {name: p.grad.clone() / size for name, p in trainer.model.named_parameters() if p.grad is not None}
        trainer.zero_grad()
        return grads

    whole, halves = gradients(range(8)), gradients(range(4), range(4, 8))
    assert whole.keys() == halves.keys() and whole
    for name, gradient in whole.items():
        torch.testing.assert_close(gradient, halves[name], rtol=1e-5, atol=1e-8, msg=name)


@pytest.mark.parametrize(
    ("wrapper", "remedy"),
    [
        (type("MemoryEfficientFP16Optimizer", (), {})(), "--fp16-no-flatten-grads"),
        (SimpleNamespace(has_flat_params=True), "--fp16-no-flatten-grads"),
    ],
)
def test_p5_wrappers_without_groups_are_refused(wrapper: Any, remedy: str) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.optim_overrides = {"interference": {"name": "w", "lang": "aa"}}
    model = SimpleNamespace(parameters=lambda: [weight])
    with pytest.raises(HostError, match=remedy):
        LanguagePresence(["aa"]).mark(model, wrapper, torch.tensor([0]), torch.tensor([1]))


def test_joint_models_take_flattened_gradients() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    model = SimpleNamespace(parameters=lambda: [weight])
    LanguagePresence(["aa"]).mark(model, SimpleNamespace(has_flat_params=True), torch.tensor([0]), torch.tensor([1]))


def _rank(rank: int, port: int, folder: str, results: Any) -> None:
    """Both ranks: own languages, legacy_ddp; sends what moved and the gradient of a language on one rank only."""
    import fairseq_interference

    torch.set_num_threads(1)
    fairseq_interference.register()
    from fairseq.distributed import utils as distributed

    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    world = ("--distributed-world-size", 2, "--distributed-rank", rank, "--ddp-backend", "legacy_ddp")
    task, trainer = build(f"{folder}/data", f"{folder}/save", *LANGS, *world, "--distributed-backend", "gloo")
    assert distributed.get_data_parallel_world_size() == 2
    found = batches(task)
    for language in (0, 1, 2):
        trainer.train_step([found[language][rank]])
    before = snapshot(trainer)
    seen: dict[str, torch.Tensor] = {}
    step = task.optimizer_step

    def watched(optimizer: Any, model: Any, update_num: int) -> None:
        task.presence.silence_absent(optimizer, model)
        seen.update({n: p.grad.clone() for n, p in trainer.get_model().named_parameters() if p.grad is not None})
        task.presence.tokens = torch.ones(3)  # all present: the step itself must not ask again
        optimizer.step()

    task.optimizer_step = watched
    trainer.train_step([found[rank][2]])  # rank 0: aa, rank 1: bb
    task.optimizer_step = step
    results.put(
        (rank, sorted(moved(before, snapshot(trainer))), {n: g.tolist() for n, g in seen.items() if ".adapters." in n})
    )
    torch.distributed.destroy_process_group()


def _meta_rank(rank: int, port: int, folder: str, results: Any) -> None:
    """The same with the bilevel step: sends what moved, and the language-specific weights after the update."""
    import fairseq_interference

    torch.set_num_threads(1)
    fairseq_interference.register()
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    world = ("--distributed-world-size", 2, "--distributed-rank", rank, "--ddp-backend", "legacy_ddp")
    flags = (*LANGS, *world, "--distributed-backend", "gloo", "--optimizer", "meta_adapter")
    task, trainer = build(f"{folder}/data", f"{folder}/save", *flags)
    found = batches(task)
    for language in (0, 1, 2):
        trainer.train_step([found[language][rank]])
    before = snapshot(trainer)
    trainer.train_step([found[rank][2]])  # rank 0: aa, rank 1: bb
    after = {n: p.tolist() for n, p in trainer.get_model().named_parameters() if language_of(p) is not None}
    results.put((rank, sorted(moved(before, snapshot(trainer))), after))
    torch.distributed.destroy_process_group()


def _answers(rank: Any, folder: Path) -> list[Any]:
    """What two processes of ``rank`` send, rank 0 first."""
    import ddp
    import torch.multiprocessing as multiprocessing

    data_folder(folder / "data", {"aa": 60, "bb": 60, "cc": 60})
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    port = ddp.free_port()
    children = [context.Process(target=rank, args=(number, port, str(folder), results)) for number in (0, 1)]
    for child in children:
        child.start()
    answers = sorted((results.get(timeout=120) for _ in children), key=lambda answer: answer[0])
    for child in children:
        child.join(30)
    return answers


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_p2_two_workers_take_the_bilevel_step_for_the_languages_of_both(tmp_path: Path) -> None:
    answers = _answers(_meta_rank, tmp_path)
    assert [changed for _, changed, _ in answers] == [["None", "aa", "bb"]] * 2
    assert answers[0][2] == answers[1][2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_p1_p2_two_workers_with_different_languages(tmp_path: Path) -> None:
    answers = _answers(_rank, tmp_path)
    for _, changed, gradients in answers:
        assert changed == ["None", "aa", "bb"]
        assert gradients.keys() == answers[0][2].keys()
    assert answers[0][2] == answers[1][2], "both ranks step with the same gradient"
    assert any(abs(value) > 0 for row in answers[0][2].values() for value in torch.tensor(row).flatten().tolist())

    # the true gradient: one worker that sees both batches in one update
    task, trainer = build(tmp_path / "data", tmp_path / "one", *LANGS)
    found = batches(task)
    for language in (0, 1, 2):
        trainer.train_step([found[language][0], found[language][1]])
    seen: dict[str, torch.Tensor] = {}

    def watched(optimizer: Any, model: Any, update_num: int) -> None:
        task.presence.silence_absent(optimizer, model)
        seen.update({n: p.grad.clone() for n, p in trainer.get_model().named_parameters() if p.grad is not None})
        optimizer.step()

    task.optimizer_step = watched
    trainer.train_step([found[0][2], found[1][2]])
    for name, gradient in answers[0][2].items():
        torch.testing.assert_close(torch.tensor(gradient), seen[name], rtol=1e-3, atol=1e-6, msg=name)
