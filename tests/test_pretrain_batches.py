"""Batches and their order: composition, workers, shards, and the position that a checkpoint keeps."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretrain_world import data_folder, make_task

from fairseq_interference.data.batching import cut, even
from fairseq_interference.errors import DataError, LanguageError, ResumeError, UsageError

pytestmark = pytest.mark.usefixtures("plugin")
LANGS = ("--langs", "aa,bb,cc")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("data"), {"aa": 150, "bb": 60, "cc": 20})


def iterator(task: Any, *, workers: int = 1, worker: int = 0, epoch: int = 1, rows: int = 4) -> Any:
    task.load_dataset("train", epoch=epoch)
    return task.get_batch_iterator(
        task.dataset("train"), max_sentences=rows, num_shards=workers, shard_id=worker, epoch=epoch, seed=1
    )


def languages_of(batch: dict[str, Any]) -> set[int]:
    return set(batch["net_input"]["lang_id"].tolist())


@given(st.lists(st.integers(2, 32), min_size=1, max_size=60), st.integers(1, 9), st.sampled_from([1, 8]))
@settings(max_examples=50)
def test_every_block_lies_in_one_batch(sizes: list[int], workers: int, multiple: int) -> None:
    order = np.argsort(sizes, kind="stable")
    batches = cut(order, np.array(sizes)[order], 64, 10, multiple)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(sizes)))
    assert all(len(batch) <= 10 and len(batch) * max(sizes[i] for i in batch) <= 64 for batch in batches)
    if len(sizes) < workers:
        with pytest.raises(DataError, match="fewer blocks than workers"):
            even(batches, workers)
        return
    shared = even(batches, workers)
    assert len(shared) % workers == 0 and all(len(batch) for batch in shared)
    assert sorted(np.concatenate(shared).tolist()) == list(range(len(sizes)))


def test_a_batch_that_is_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match="--max-tokens"):
        cut(np.arange(2), np.array([5, 30]), 20, None)


def test_d9_temperature_one_shows_each_block_once_on_two_workers(data: Path, tmp_path: Path) -> None:
    task = make_task(data, tmp_path, *LANGS, "--temperature", 1)
    seen: Counter[tuple[int, int]] = Counter()
    for worker in (0, 1):
        batches = iterator(task, workers=2, worker=worker)
        dataset = task.dataset("train")
        for batch in batches.next_epoch_itr():
            seen.update((int(dataset.language[i]), int(dataset.block[i])) for i in batch["id"])
    assert set(seen.values()) == {1} and len(seen) == sum(task.dataset("train").block_counts)


def test_epochs_are_drawn_anew_and_seeds_repeat(data: Path, tmp_path: Path) -> None:
    task = make_task(data, tmp_path, *LANGS)
    first, second = iterator(task), iterator(task)
    one = [batch["net_input"]["src_tokens"].tolist() for batch in first.next_epoch_itr()]
    assert one == [batch["net_input"]["src_tokens"].tolist() for batch in second.next_epoch_itr()]
    assert not task.can_reuse_epoch_itr(task.dataset("train"))
    other = iterator(task, epoch=2)
    assert one != [batch["net_input"]["src_tokens"].tolist() for batch in other.next_epoch_itr()]


@pytest.mark.parametrize(("workers", "update_freq"), [(1, 1), (1, 3), (2, 2)])
def test_single_composition_has_one_language_an_update(
    data: Path, tmp_path: Path, workers: int, update_freq: int
) -> None:
    task = make_task(data, tmp_path, *LANGS, "--batch-composition", "single", "--update-freq", update_freq)
    ranks = []
    for worker in range(workers):
        ranks.append(list(iterator(task, workers=workers, worker=worker).next_epoch_itr()))
    assert len({len(batches) for batches in ranks}) == 1 and len(ranks[0]) % update_freq == 0
    order = []
    for begin in range(0, len(ranks[0]), update_freq):
        update = [batch for batches in ranks for batch in batches[begin : begin + update_freq]]
        assert all(update), "no worker is without a batch"
        found = set.union(*map(languages_of, update))
        assert len(found) == 1
        order += list(found)
    assert set(order) == {0, 1, 2} and order != sorted(order)
    dataset = task.dataset("train")
    visited = Counter(int(dataset.language[i]) for batches in ranks for batch in batches for i in batch["id"])
    size = workers * update_freq * 4
    for language, count in enumerate(dataset.counts):
        assert count <= visited[language] <= count + 2 * size
    ids = [int(i) for batches in ranks for batch in batches for i in batch["id"]]
    assert len(ids) == len(set(ids)), "fillers are further visits, not the same ones again"


def test_mixed_composition_mixes(data: Path, tmp_path: Path) -> None:
    task = make_task(data, tmp_path, *LANGS, "--temperature", 5)
    assert any(len(languages_of(batch)) > 1 for batch in iterator(task).next_epoch_itr())


def test_d13_shards_take_turns(tmp_path: Path) -> None:
    for name, count in (("one", 30), ("two", 50)):
        data_folder(tmp_path / name, {"aa": count, "bb": 10})
    task = make_task(f"{tmp_path / 'one'}:{tmp_path / 'two'}", tmp_path / "save", "--langs", "aa,bb")
    assert task.has_sharded_data("train")
    sentences = []
    for epoch in (1, 2, 3):
        task.load_dataset("train", epoch=epoch)
        sentences.append(task.dataset("train").blocks[0].sentences)
    assert sentences == [30, 50, 30]


def test_d7_a_language_without_valid_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data_folder(tmp_path, {"aa": 20, "bb": 20}, valid={"aa": 5})
    task = make_task(tmp_path, tmp_path / "save", "--langs", "aa,bb")
    with caplog.at_level(logging.WARNING):
        task.load_dataset("valid")
    assert "bb" in caplog.text
    assert "loss_aa" in task.validation_metrics() and "loss_bb" not in task.validation_metrics()
    assert "macro_loss" in task.validation_metrics()


def test_a_language_without_training_data_is_an_error(tmp_path: Path) -> None:
    data_folder(tmp_path, {"aa": 20, "bb": 20})
    (tmp_path / "bb" / "train.idx").unlink()
    task = make_task(tmp_path, tmp_path / "save", "--langs", "aa,bb")
    with pytest.raises(DataError, match="bb"):
        task.load_dataset("train")


def test_d14_token_ids_beyond_the_dictionary(tmp_path: Path) -> None:
    from pretrain_world import write_tokens

    data_folder(tmp_path, {"aa": 20, "bb": 20})
    write_tokens(tmp_path / "bb" / "train", [[4, 5, 200]])
    task = make_task(tmp_path, tmp_path / "save", "--langs", "aa,bb")
    with pytest.raises(Exception, match="another dictionary"):
        task.load_dataset("train")


def test_blocks_longer_than_the_model_are_refused(data: Path, tmp_path: Path) -> None:
    task = make_task(data, tmp_path, *LANGS, "--tokens-per-sample", 40, "--max-positions", 20)
    task.load_dataset("train")
    with pytest.raises(UsageError, match="none is dropped"):
        task.get_batch_iterator(task.dataset("train"), max_sentences=4, max_positions=20)


def test_d2_the_table_is_printed_and_recorded(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import json

    task = make_task(data, tmp_path, *LANGS)
    with caplog.at_level(logging.INFO):
        task.load_dataset("train")
    assert "probability" in caplog.text and "passes" in caplog.text
    recorded = json.loads((tmp_path / "sampling.json").read_text(encoding="utf-8"))
    assert [row["id"] for row in recorded["languages"]] == [0, 1, 2]
    assert (tmp_path / "languages.txt").read_text(encoding="utf-8") == "aa\nbb\ncc\n"
    assert "tokenizer" in caplog.text, "what cannot travel is said"


@pytest.mark.parametrize("flag", ["--mask-prob", "--leave-unmasked-prob"])
def test_options_out_of_range_are_named(data: Path, tmp_path: Path, flag: str) -> None:
    with pytest.raises(UsageError, match=flag):
        make_task(data, tmp_path, *LANGS, flag, 1.5)


# -- position in the epoch ------------------------------------------------------------------------------------------


def position(task: Any, **options: Any) -> dict[str, Any]:
    found = iterator(task, **options)
    batches = found.next_epoch_itr()
    for _ in range(3):
        next(batches)
    state: dict[str, Any] = found.state_dict()
    return state


def test_the_position_is_kept(data: Path, tmp_path: Path) -> None:
    task = make_task(data, tmp_path, *LANGS)
    state = position(task)
    expected = [batch["id"].tolist() for batch in iterator(task).next_epoch_itr()][3:]
    resumed = iterator(task)
    resumed.load_state_dict(state)
    assert [batch["id"].tolist() for batch in resumed.next_epoch_itr()] == expected


@pytest.mark.parametrize(
    "flags", [("--temperature", 3), ("--batch-composition", "single"), ("--tokens-per-sample", 24), ("--seed", 5)]
)
def test_d12_changed_settings_begin_the_epoch_again_and_say_so(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, flags: tuple[Any, ...]
) -> None:
    state = position(make_task(data, tmp_path, *LANGS))
    task = make_task(data, tmp_path, *LANGS, *flags)
    task.load_dataset("train")
    resumed = task.get_batch_iterator(task.dataset("train"), max_sentences=4, seed=task.cfg.seed)
    with caplog.at_level(logging.WARNING):
        resumed.load_state_dict(state)
    assert "begins again" in caplog.text and str(flags[0]) in caplog.text
    resumed.next_epoch_itr()
    assert resumed.iterations_in_epoch == 0


def test_another_number_of_workers_is_announced(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = make_task(data, tmp_path, *LANGS)
    state = position(task)
    with caplog.at_level(logging.WARNING):
        iterator(task, workers=2).load_state_dict(state)
    assert "number of workers 1 -> 2" in caplog.text


def test_d1_renumbered_languages_are_refused(data: Path, tmp_path: Path) -> None:
    state = position(make_task(data, tmp_path, "--langs", "aa,bb"))
    appended = make_task(data, tmp_path / "b", "--langs", "aa,bb,cc")
    iterator(appended).load_state_dict(state)
    renumbered = make_task(data, tmp_path / "c", "--langs", "bb,aa")
    with pytest.raises(LanguageError, match="appended"):
        iterator(renumbered).load_state_dict(state)


def test_another_dictionary_is_refused(data: Path, tmp_path: Path) -> None:
    task = make_task(data, tmp_path, *LANGS)
    state = position(task)
    task.dictionary_digest = "0" * 64
    with pytest.raises(ResumeError, match="dictionary"):
        iterator(task).load_state_dict(state)


def test_a_position_of_another_task_is_refused(data: Path, tmp_path: Path) -> None:
    task = make_task(data, tmp_path, *LANGS)
    with pytest.raises(ResumeError, match="--reset-dataloader"):
        iterator(task).load_state_dict({"version": 2, "epoch": 1, "iterations_in_epoch": 2, "shuffle": True})


def test_the_state_is_plain(data: Path, tmp_path: Path) -> None:
    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(map(plain, value.values()))
        if isinstance(value, list):
            return all(map(plain, value))
        return value is None or type(value) in (int, float, str, bool)

    assert plain(position(make_task(data, tmp_path, *LANGS)))


def test_descriptors_of_fifty_languages(tmp_path: Path) -> None:
    import os

    codes = [f"l{number:02d}" for number in range(50)]
    data_folder(tmp_path, dict.fromkeys(codes, 4))
    task = make_task(tmp_path, tmp_path / "save", "--langs", ",".join(codes))
    before = len(os.listdir("/proc/self/fd"))
    task.load_dataset("train")
    task.load_dataset("valid")
    assert len(os.listdir("/proc/self/fd")) == before
