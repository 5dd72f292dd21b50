"""``--conflict-every``: the numbers, the file, and that training goes on as without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ddp
import pytest
import torch
import torch.nn.functional as F
from meta_world import STILL, sample, shaken, spread, update
from pretrain_world import NETWORK, RUN, TASK, build, data_folder, make_task, read_checkpoint, train_here

from fairseq_interference.appended_state import language_of
from fairseq_interference.errors import DataError, UsageError
from fairseq_interference.optim.conflict import FILE, read_rows

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
    pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning"),
]
LANGS = ("--langs", "aa,bb,cc")
EVERY = ("--conflict-every", 1)
PAIRS = [("aa", "bb"), ("aa", "cc"), ("bb", "cc")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("data"), {"aa": 150, "bb": 120, "cc": 80})


def cosines_of(folder: Path) -> list[dict[Any, Any]]:
    return [{(one, other): value for one, other, value in row["pairs"]} for row in read_rows(folder / FILE)]


def expected(trainer: Any, batches: list[dict[str, Any]], one: int, other: int) -> float:
    """From gradients that are taken language by language, as vectors."""
    model = trainer.get_model().train()
    theta = [p for p in model.parameters() if language_of(p) is None]
    vectors = []
    for language in (one, other):
        losses = []
        for batch in batches:
            rows = (batch["net_input"]["lang_id"] == language).nonzero()[:, 0]
            part = {"target": batch["target"][rows], "net_input": {k: v[rows] for k, v in batch["net_input"].items()}}
            losses.append(trainer.criterion.losses(model, part)[0])
        found = torch.autograd.grad(torch.cat(losses).mean(), theta, allow_unused=True)
        vectors.append(torch.cat([x.flatten() for x in found if x is not None]))
    return float(F.cosine_similarity(*vectors, dim=0))


@pytest.mark.parametrize(("arch", "parts"), [("xlm_joint_tiny", 1), ("xlm_adpt_tiny", 2), ("xlm_ffn_tiny", 1)])
def test_cosines_are_those_of_the_languages_gradients(data: Path, tmp_path: Path, arch: str, parts: int) -> None:
    """Shared parameters, over all micro-batches of the update, at the weights before it."""
    smooth = ("--activation-fn", "gelu_accurate")  # the host's gelu computes in fp32
    task, trainer = build(data, tmp_path, *LANGS, *STILL, *EVERY, *smooth, arch=arch)
    trainer.get_model().double()
    task.load_dataset("train")
    shaken(trainer)
    rows = spread(task, 12)
    batches = [sample(task, rows[number::parts]) for number in range(parts)]
    right = {(one, other): expected(trainer, batches, one, other) for one, other in ((0, 1), (0, 2), (1, 2))}
    from fairseq.logging import metrics

    with metrics.aggregate(new_root=True) as logged:
        update(task, trainer, *batches)
    (found,), values = cosines_of(tmp_path), logged.get_smoothed_values()
    for (one, other), pair in zip(right, PAIRS):
        assert found[pair] == pytest.approx(right[one, other], abs=1e-9)
        assert values[f"conflict_{pair[0]}_{pair[1]}"] == pytest.approx(right[one, other], abs=1e-4)
    assert values["conflict"] == pytest.approx(sum(right.values()) / 3, abs=1e-4)
    (row,) = read_rows(tmp_path / FILE)
    pad = task.dictionary.pad()
    assert sum(row["predictions"].values()) == sum(int(batch["target"].ne(pad).sum()) for batch in batches)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--optimizer", "meta_adapter", "--update-freq", 2),
        pytest.param(("--bf16",), marks=pytest.mark.slow),
        pytest.param(("--checkpoint-activations",), marks=pytest.mark.slow),
    ],
    ids=["adam", "meta", "bf16", "activations"],
)
def test_training_goes_on_bit_for_bit(data: Path, tmp_path: Path, flags: tuple[Any, ...]) -> None:
    held = ("--meta-heldout-fraction", "0.2", "--dropout", 0.1, "--attention-dropout", 0.1, "--max-update", 4)
    states, losses = [], []
    for name, every in (("with", EVERY), ("without", ())):
        train_here(data, tmp_path / name, *LANGS, *held, *flags, *every)
        states.append(read_checkpoint(tmp_path / name / "checkpoint_last.pt"))
        meters = {entry[1]: entry[3] for entry in states[-1]["extra_state"]["metrics"]["train"]}
        losses.append([meters[key] for key in ("loss", "gnorm", "loss_aa")])
    one, two = states
    assert all(torch.equal(one["model"][key], two["model"][key]) for key in one["model"])
    moments = [state["last_optimizer_state"]["state"] for state in states]
    assert moments[0].keys() == moments[1].keys()
    for key, entry in moments[0].items():
        assert all(torch.equal(torch.as_tensor(entry[k]), torch.as_tensor(moments[1][key][k])) for k in entry)
    assert losses[0] == losses[1]
    assert [row["update"] for row in read_rows(tmp_path / "with" / FILE)] == [0, 1, 2, 3]
    assert all(abs(value) <= 1 for row in cosines_of(tmp_path / "with") for value in row.values())
    assert not (tmp_path / "without" / FILE).exists()


def test_a_resumed_run_has_no_row_twice(data: Path, tmp_path: Path) -> None:
    flags = (*LANGS, "--conflict-every", 2, "--save-interval-updates", 3, "--keep-interval-updates", 9)
    train_here(data, tmp_path / "straight", *flags, "--max-update", 9)
    train_here(data, tmp_path / "halves", *flags, "--max-update", 7)
    folder = tmp_path / "halves"
    last = next(folder.glob("checkpoint_*_3.pt"))
    (folder / "checkpoint_last.pt").write_bytes(last.read_bytes())  # as if it had died behind update 3
    with open(folder / FILE, "a") as stream:
        stream.write('{"update": 8, "confl')
    train_here(data, folder, *flags, "--max-update", 9)
    rows = read_rows(folder / FILE)
    assert [row["update"] for row in rows] == [0, 2, 4, 6, 8]
    assert rows == read_rows(tmp_path / "straight" / FILE)


def test_a_language_that_is_absent_is_in_no_pair(data: Path, tmp_path: Path) -> None:
    task, trainer = build(data, tmp_path, *LANGS, *EVERY)
    task.load_dataset("train")
    language = task.dataset("train").language
    of = [[int(row) for row in (language == number).nonzero()[0][:3]] for number in range(3)]
    trainer.train_step([sample(task, of[0]), sample(task, of[2])])  # two micro-batches of a language each
    trainer.train_step([sample(task, of[1])])  # one language: nothing to tell
    (found,) = cosines_of(tmp_path)
    assert list(found) == [("aa", "cc")] and abs(found["aa", "cc"]) <= 1


def test_batches_of_an_update_that_was_given_up_are_forgotten(data: Path, tmp_path: Path) -> None:
    task, trainer = build(data, tmp_path, *LANGS, *EVERY, *STILL)
    task.load_dataset("train")
    rows = spread(task, 12)
    trainer.zero_grad()
    task.train_step(sample(task, rows[::2]), trainer.model.train(), trainer.criterion, trainer.optimizer, 0)
    right = expected(trainer, [sample(task, rows[1::2])], 0, 1)
    trainer.train_step([sample(task, rows[1::2])])
    assert cosines_of(tmp_path)[0]["aa", "bb"] == pytest.approx(right, abs=1e-5)


def test_a_flag_without_effect_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--conflict-every -1"):
        make_task(data, tmp_path, *LANGS, "--conflict-every", -1)
    with pytest.raises(UsageError, match="every update is of one language"):
        make_task(data, tmp_path, *LANGS, *EVERY, "--batch-composition", "single")
    with pytest.raises(UsageError, match="nothing to be in conflict"):
        build(data, tmp_path, "--langs", "aa", *EVERY, arch="xlm_mono_tiny")


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="measured no conflict"):
        read_rows(tmp_path / FILE)
    (tmp_path / FILE).write_text('{"update": 1}\n')
    with pytest.raises(DataError, match="broken"):
        read_rows(tmp_path / FILE)


@pytest.mark.slow
def test_two_workers_measure_what_one_does(data: Path, tmp_path: Path) -> None:
    """Two workers with a batch each against one with two: the same update, so the same cosines."""
    flags = [str(data), *TASK, "--arch", "xlm_adpt_tiny", *NETWORK, *RUN, *map(str, (*LANGS, *EVERY, *STILL))]
    flags += ["--max-update", "3", "--no-save"]
    ddp.train_ranks([*flags, "--save-dir", tmp_path / "two"], logs=tmp_path / "logs")
    train_here(data, tmp_path / "one", *LANGS, *EVERY, *STILL, "--max-update", 3, "--no-save", "--update-freq", 2)
    one, two = cosines_of(tmp_path / "one"), cosines_of(tmp_path / "two")
    assert len(one) == len(two) == 3
    for first, second in zip(one, two):
        assert first.keys() == second.keys()
        assert all(first[pair] == pytest.approx(second[pair], abs=1e-4) for pair in first)
    rows = [[row["predictions"] for row in read_rows(tmp_path / name / FILE)] for name in ("one", "two")]
    assert rows[0] == rows[1]
