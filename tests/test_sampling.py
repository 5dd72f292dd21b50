"""Sampling: brute-force oracles over drawn sizes, temperatures and seeds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pretrain_world  # noqa: F401 (a profile without deadline)
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_interference.data import sampling
from fairseq_interference.errors import UsageError

SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=6)
TEMPERATURE = st.floats(1.0, 100.0)


@given(SIZES, TEMPERATURE)
def test_probabilities_are_share_to_the_inverse_temperature(sizes: list[int], temperature: float) -> None:
    powers = [(size / sum(sizes)) ** (1 / temperature) for size in sizes]
    expected = [power / sum(powers) for power in powers]
    np.testing.assert_allclose(sampling.probabilities(sizes, temperature), expected, rtol=1e-12)


@given(SIZES, TEMPERATURE)
def test_an_epoch_is_as_long_as_the_corpus(sizes: list[int], temperature: float) -> None:
    counts = sampling.epoch_counts(sizes, temperature)
    exact = sampling.probabilities(sizes, temperature) * sum(sizes)
    assert (np.abs(counts - exact) <= 1 + 1e-9).all()
    assert (counts >= 1).all()
    assert 0 <= counts.sum() - sum(sizes) <= len(sizes)  # a language that would get nothing is still seen once


@given(st.integers(1, 40), st.integers(0, 130), st.integers(1, 5))
def test_up_sampling_is_whole_passes_and_a_remainder_without_replacement(size: int, count: int, seed: int) -> None:
    blocks, passes = sampling.visits(size, 0, count, [seed, 3, 0])
    seen = Counter(blocks.tolist())
    assert all(count // size <= seen[block] <= -(-count // size) for block in range(size))
    for number in range(count // size):
        assert sorted(blocks[passes == number]) == list(range(size))
    again, _ = sampling.visits(size, 0, count, [seed, 3, 0])
    assert (again == blocks).all()


@given(st.integers(1, 30), st.integers(0, 50), st.integers(0, 50))
def test_the_next_visits_go_on_where_the_epoch_ends(size: int, count: int, more: int) -> None:
    whole, _ = sampling.visits(size, 0, count + more, [1])
    first, _ = sampling.visits(size, 0, count, [1])
    rest, _ = sampling.visits(size, count, count + more, [1])
    assert whole.tolist() == [*first.tolist(), *rest.tolist()]


@given(SIZES)
@settings(max_examples=30)
def test_temperature_one_visits_every_block_once(sizes: list[int]) -> None:
    assert sampling.epoch_counts(sizes, 1.0).tolist() == sizes


def test_epochs_differ() -> None:
    assert sampling.visits(50, 0, 50, [1, 1, 0])[0].tolist() != sampling.visits(50, 0, 50, [1, 2, 0])[0].tolist()


@pytest.mark.parametrize("temperature", [0.7, 0.0, -1.0, 101.0, float("nan")])
def test_temperature_is_range_checked(temperature: float) -> None:
    with pytest.raises(UsageError, match="--temperature"):
        sampling.check_temperature(temperature)


def test_an_exponent_is_recognised() -> None:
    with pytest.raises(UsageError, match=r"--temperature 1\.42857"):
        sampling.check_temperature(0.7)


def test_the_table_names_everything() -> None:
    rows = sampling.table(["en", "hi"], [90, 10], [900, 100], 5.0)
    assert [row["id"] for row in rows] == [0, 1]
    assert rows[0]["share"] == 0.9 and rows[1]["tokens"] == 100
    assert rows[1]["probability"] == pytest.approx(0.1**0.2 / (0.9**0.2 + 0.1**0.2), abs=1e-6)
    assert float(str(rows[1]["passes"])) == pytest.approx(100 * float(str(rows[1]["probability"])) / 10, abs=0.1)
    text = sampling.format_table(rows)
    assert "en" in text and "probability" in text
