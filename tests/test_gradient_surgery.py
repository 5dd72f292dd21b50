"""The mathematics of PCGrad and GradVac, against the papers' algorithms on vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairseq_interference.optim import gradient_surgery as surgery

SHAPES = ((3, 2), (5,), (1, 4, 2))


def gradients(count: int, seed: int, lean: float = 0.0, dtype: Any = torch.float64) -> list[list[Tensor]]:
    """``count`` lists of tensors; ``lean`` pulls every other one against the first."""
    generator = torch.Generator().manual_seed(seed)
    common = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    found = []
    for number in range(count):
        sign = -1 if number % 2 else 1
        some = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
        found.append([(x + sign * lean * c).to(dtype) for x, c in zip(some, common)])
    return found


def vector(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.flatten().double() for x in tensors])


def pcgrad_of_vectors(given: list[Tensor], orders: surgery.Orders) -> Tensor:
    """Yu et al. 2020, Algorithm 1, line by line."""
    projected = [g.clone() for g in given]
    for i, order in enumerate(orders):
        for j in order:
            if projected[i] @ given[j] < 0:
                projected[i] -= (projected[i] @ given[j]) / (given[j] @ given[j]) * given[j]
    return sum(projected, torch.zeros_like(given[0]))


def gradvac_of_vectors(given: list[Tensor], orders: surgery.Orders, targets: Any, beta: float) -> Tensor:
    """Wang et al. 2021, Algorithm 1, line by line."""
    projected = [g.clone() for g in given]
    for i, order in enumerate(orders):
        for j in order:
            one, other = projected[i].norm(), given[j].norm()
            cosine = projected[i] @ given[j] / (one * other)
            target = torch.tensor(targets[i, j])
            if cosine < target:
                away = target * (1 - cosine**2).sqrt() - cosine * (1 - target**2).sqrt()
                projected[i] = projected[i] + one * away / (other * (1 - target**2).sqrt()) * given[j]
            targets[i, j] = (1 - beta) * targets[i, j] + beta * float(cosine)
    return sum(projected, torch.zeros_like(given[0]))


def summed(given: list[list[Tensor]], own: surgery.Matrix) -> Tensor:
    weights = own.sum(0).tolist()
    found = [surgery.combine([some[place] for some in given], weights) for place in range(len(SHAPES))]
    return vector([x for x in found if x is not None])


def whole(given: Sequence[Sequence[Optional[Tensor]]]) -> surgery.Matrix:
    found: surgery.Matrix = surgery.gram(given, [range(len(given[0]))])[0]
    return found


def test_dot_products_are_those_of_flat_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """By group, in pieces of a tensor, and with tensors that one language has no gradient for."""
    monkeypatch.setattr(surgery, "CHUNK", 3)
    given: list[list[Optional[Tensor]]] = [[*some] for some in gradients(3, 1, dtype=torch.float32)]
    given[1][0] = None
    found = surgery.gram(given, [[0, 2], [1]])
    for number, places in enumerate(([0, 2], [1])):
        flat = [
            vector([torch.zeros(SHAPES[p]) if some[p] is None else some[p] for p in places])  # type: ignore[misc]
            for some in given
        ]
        right = torch.stack(flat) @ torch.stack(flat).T
        np.testing.assert_allclose(found[number], right.numpy(), rtol=1e-12)


def test_two_vectors_by_hand() -> None:
    """g1 = (1, 0), g2 = (-1, 1): g1' = g1 + g2 / 2 = (0.5, 0.5), g2' = g2 + g1 = (0, 1)."""
    given = [[torch.tensor([1.0, 0.0])], [torch.tensor([-1.0, 1.0])]]
    own = surgery.pcgrad(whole(given), [[1], [0]])
    np.testing.assert_allclose(own, [[1, 0.5], [1, 1]])
    found = surgery.combine([some[0] for some in given], own.sum(0).tolist())
    torch.testing.assert_close(found, torch.tensor([0.5, 1.5]))


ORDERS = st.permutations(range(4)).flatmap(lambda _: st.tuples(*[st.permutations(range(4)) for _ in range(4)]))


@given(st.integers(0, 10_000), st.floats(0, 3), ORDERS)
def test_pcgrad_is_the_algorithm_of_the_paper(seed: int, lean: float, drawn: Any) -> None:
    given = gradients(4, seed, lean)
    orders = [[j for j in order if j != i] for i, order in enumerate(drawn)]
    right = pcgrad_of_vectors([vector(some) for some in given], orders)
    found = summed(given, surgery.pcgrad(whole(given), orders))
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


def test_the_order_matters_and_is_taken() -> None:
    given = gradients(3, 4, 2.0)
    vectors = [vector(some) for some in given]
    found = []
    for orders in ([[1, 2], [0, 2], [0, 1]], [[2, 1], [2, 0], [1, 0]]):
        found.append(summed(given, surgery.pcgrad(whole(given), orders)))
        torch.testing.assert_close(found[-1], pcgrad_of_vectors(vectors, orders), rtol=1e-10, atol=1e-10)
    assert (found[0] - found[1]).norm() > 1e-3 * found[0].norm()


@given(st.integers(0, 10_000), st.floats(0.5, 3))
def test_two_languages_do_not_conflict_afterwards(seed: int, lean: float) -> None:
    given = gradients(2, seed, lean)
    products = whole(given)
    own = surgery.pcgrad(products, [[1], [0]])
    left = own @ products  # of g_i' with g_j
    assert left[0, 1] >= -1e-9 and left[1, 0] >= -1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_conflict_pcgrad_is_the_sum_bit_for_bit(dtype: torch.dtype) -> None:
    given = [[x.abs() for x in some] for some in gradients(3, 7, dtype=dtype)]
    own = surgery.pcgrad(whole(given), surgery.draw_orders(3, np.random.default_rng(1)))
    for place in range(len(SHAPES)):
        found = surgery.combine([some[place] for some in given], own.sum(0).tolist())
        assert found is not None and torch.equal(found, given[0][place] + given[1][place] + given[2][place])


@given(st.integers(0, 10_000), st.floats(-0.9, 0.95))
def test_gradvac_raises_a_cosine_to_its_target(seed: int, target: float) -> None:
    given = gradients(2, seed)
    products = whole(given)
    targets = np.full((2, 2), target)
    own = surgery.gradvac(products, [[1], [0]], targets, 0.01)
    cosine = surgery.cosines(products)[0]
    first = own[0] @ products
    after = first[1] / np.sqrt((own[0] @ first) * products[1, 1])
    assert after == pytest.approx(max(cosine, target), abs=1e-9)
    assert targets[0, 1] == pytest.approx(0.99 * target + 0.01 * cosine)
    assert targets[0, 0] == target


@given(st.integers(0, 10_000), st.floats(0, 2), ORDERS)
def test_gradvac_is_the_algorithm_of_the_paper(seed: int, lean: float, drawn: Any) -> None:
    """Also over several updates, whose targets follow."""
    orders = [[j for j in order if j != i] for i, order in enumerate(drawn)]
    mine, right = np.zeros((4, 4)), np.zeros((4, 4))
    for update in range(3):
        given = gradients(4, seed + update, lean)
        expected = gradvac_of_vectors([vector(some) for some in given], orders, right, 0.3)
        found = summed(given, surgery.gradvac(whole(given), orders, mine, 0.3))
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(mine, right, atol=1e-9)


def test_a_target_of_one_is_left_alone() -> None:
    given = gradients(2, 3)
    own = surgery.gradvac(whole(given), [[1], [0]], np.ones((2, 2)), 0.01)
    np.testing.assert_array_equal(own, np.eye(2))


@pytest.mark.parametrize("method", ["pcgrad", "gradvac"])
def test_no_gradient_is_no_conflict(method: str) -> None:
    """A language whose gradient is 0 changes nothing, and is in no mean."""
    given = gradients(2, 5, 2.0)
    zeros = [torch.zeros_like(x) for x in given[0]]
    with_zeros = surgery.gram([*given, zeros], [range(3)])
    targets = np.zeros((1, 3, 3))
    found = surgery.project(with_zeros, method, np.random.default_rng(1), targets)
    right = surgery.project(whole(given)[None], method, np.random.default_rng(1), np.zeros((1, 2, 2)))
    assert found is not None and right is not None
    np.testing.assert_allclose(found.weights[0, :2], right.weights[0], rtol=1e-12)
    assert found.before == right.before and len(found.before) == 1 and found.changed == right.changed == 1
    assert not targets[0, 2].any() and not targets[0, :, 2].any()


@pytest.mark.parametrize("method", ["pcgrad", "gradvac"])
def test_opposite_gradients_leave_nothing(method: str) -> None:
    one = [torch.randn(SHAPES[0])]
    products = surgery.gram([one, [-one[0]]], [[0]])
    found = surgery.project(products, method, np.random.default_rng(1), np.zeros((1, 2, 2)))
    assert found is not None and found.norm_ratio is None and found.before == pytest.approx([-1.0])
    total = surgery.combine([one[0], -one[0]], found.weights[0].tolist())
    assert total is not None and float(total.abs().max()) < 1e-6


def test_groups_are_projected_each_alone() -> None:
    given = gradients(3, 9, 1.5)
    groups = [[0], [1, 2]]
    generator = np.random.default_rng(3)
    found = surgery.project(surgery.gram(given, groups), "pcgrad", np.random.default_rng(3))
    assert found is not None
    for number, places in enumerate(groups):
        orders = surgery.draw_orders(3, generator)
        right = pcgrad_of_vectors([vector([some[p] for p in places]) for some in given], orders)
        mine = [surgery.combine([some[p] for some in given], found.weights[number].tolist()) for p in places]
        torch.testing.assert_close(vector([x for x in mine if x is not None]), right, rtol=1e-9, atol=1e-9)
    total = [surgery.combine([s[p] for s in given], found.weights[int(p > 0)].tolist()) for p in range(3)]
    plain = [sum((some[p] for some in given), torch.zeros_like(given[0][p])) for p in range(3)]
    ratio = vector([x for x in total if x is not None]).norm() / vector(plain).norm()
    # norms of sums over groups: each group's projected gradients are its own
    assert found.norm_ratio == pytest.approx(float(ratio), rel=1e-9)


def test_what_is_not_finite_is_not_projected() -> None:
    given = gradients(2, 2)
    given[0][0][0, 0] = float("inf")
    assert surgery.project(surgery.gram(given, [range(3)]), "pcgrad", np.random.default_rng(1)) is None


def test_half_precision_is_summed_in_single() -> None:
    given = [torch.tensor([1.0, 2048.0]).half(), torch.tensor([0.0, 1.0]).half(), torch.tensor([0.0, 1.0]).half()]
    found = surgery.combine(given, [1.0, 1.0, 1.0])
    assert found is not None and found.dtype == torch.float16 and found.tolist() == [1.0, 2050.0]


def test_orders_are_all_of_the_others() -> None:
    drawn = {tuple(map(tuple, surgery.draw_orders(3, np.random.default_rng(seed)))) for seed in range(200)}
    assert len(drawn) == 8
    assert all(sorted([i, *order]) == [0, 1, 2] for some in drawn for i, order in enumerate(some))
