"""Gradient surgery: PCGrad and GradVac, as sums of the languages' gradients with weights. No host here.

Every projected gradient is a linear combination of the L given ones, so all that the methods compute follows from
their L x L dot products. These are accumulated in float64, tensor by tensor; gradients are neither flattened nor
copied per pair. Notation: g_i gradient of language i, ``gram[i, j]`` = g_i . g_j, ``own[i, k]`` = coefficient of g_k in
the projected g_i'; the step goes along sum_i g_i' = sum_k (sum_i own[i, k]) g_k.

PCGrad: Yu et al. 2020, "Gradient Surgery for Multi-Task Learning", Algorithm 1.
GradVac: Wang et al. 2021, "Gradient Vaccine", Algorithm 1 and Eq. 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Matrix = NDArray[np.float64]
Orders = Sequence[Sequence[int]]  # for each i the others, in the order in which g_i' is compared with them
METHODS = ("pcgrad", "gradvac", "none")
CHUNK = 1 << 20  # elements of a tensor that are looked at in float64 at once
NOTHING = 1e-12  # a projected gradient whose squared norm is below this share of the given one's is 0


def gram(gradients: Sequence[Sequence[Optional[Tensor]]], groups: Sequence[Sequence[int]]) -> Matrix:
    """Dot products of every two languages' gradients, by group of tensors: (G, L, L).

    Args:
        gradients: L lists of P tensors; None where a language has no gradient.
        groups: positions of the tensors of each group.
    """
    count, device = len(gradients), next((x.device for some in gradients for x in some if x is not None), None)
    found = torch.zeros(len(groups), count, count, dtype=torch.float64, device=device)
    for number, places in enumerate(groups):
        for place in places:
            having = [lang for lang in range(count) if gradients[lang][place] is not None]
            rows = torch.tensor(having, device=device)
            for part in _parts([gradients[lang][place] for lang in having]):
                found[number].index_put_((rows[:, None], rows[None, :]), part @ part.T, accumulate=True)
    return found.cpu().numpy()


def _parts(tensors: Sequence[Any]) -> Iterator[Tensor]:
    """(k, n) in float64: a stretch of k tensors of one shape."""
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    for first in range(0, len(flat[0]) if flat else 0, CHUNK):
        yield torch.stack([x[first : first + CHUNK].double() for x in flat])


def draw_orders(count: int, generator: np.random.Generator) -> list[list[int]]:
    """For each language all the others, in random order."""
    return [[int(j) for j in generator.permutation(count) if j != i] for i in range(count)]


def pcgrad(products: Matrix, orders: Orders) -> Matrix:
    """``own`` (L, L): where g_i' . g_j < 0, g_i' loses its part along g_j.

    Args:
        products: ``gram`` of one group, (L, L).
    """
    own = np.eye(len(products))
    for i, order in enumerate(orders):
        dots = products[i].copy()  # of g_i' with every g_j
        for j in order:
            if dots[j] < 0 and products[j, j] > 0:
                factor = -dots[j] / products[j, j]
                own[i, j] += factor
                dots += factor * products[j]
    return own


def gradvac(products: Matrix, orders: Orders, targets: Matrix, beta: float) -> Matrix:
    """``own`` (L, L): where cos(g_i', g_j) is below its target, g_j is added to g_i' until it is the target.

    Args:
        products: ``gram`` of one group, (L, L).
        targets: (L, L), moved in place towards the cosines by the rate ``beta``; pairs without a gradient keep theirs.
    """
    own, sizes = np.eye(len(products)), np.sqrt(np.diag(products))
    for i, order in enumerate(orders):
        dots = products[i].copy()
        for j in order:
            square = float(own[i] @ dots)
            if sizes[j] == 0 or square <= NOTHING * products[i, i]:
                continue
            size, target = math.sqrt(square), float(targets[i, j])
            cosine = min(1.0, max(-1.0, dots[j] / (size * sizes[j])))
            if cosine < target < 1:
                away, wanted = math.sqrt(1 - cosine**2), math.sqrt(1 - target**2)
                factor = size * (target * away - cosine * wanted) / (sizes[j] * wanted)
                own[i, j] += factor
                dots += factor * products[j]
            targets[i, j] += beta * (cosine - target)
    return own


@dataclass
class Projection:
    """What surgery makes of an update.

    Attributes:
        weights: (G, L), of every language's gradient in the sum, by group.
        changed: share of pairs (i, j) and groups with a gradient where g_i' took something of g_j.
        before, after: cosines of pairs of languages over all groups, given and projected; without those of 0.
        norm_ratio: norm of the projected sum, of the plain one's; None if that is 0.
    """

    weights: Matrix
    changed: float
    before: list[float]
    after: list[float]
    norm_ratio: Optional[float]


def project(
    products: Matrix,
    method: str,
    generator: np.random.Generator,
    targets: Optional[Matrix] = None,
    beta: float = 0.01,
) -> Optional[Projection]:
    """Weights of the languages' gradients; None if one of them is not finite.

    Args:
        products: :func:`gram`, (G, L, L).
        method: one of :data:`METHODS`.
        generator: draws the orders.
        targets: (G, L, L), of ``gradvac``; moved in place.
    """
    if not np.isfinite(products).all():
        return None
    own = np.empty_like(products)
    for number, some in enumerate(products):
        if method == "none":
            own[number] = np.eye(len(some))
            continue
        orders = draw_orders(len(some), generator)
        if method == "pcgrad":
            own[number] = pcgrad(some, orders)
        else:
            assert targets is not None
            own[number] = gradvac(some, orders, targets[number], beta)
    given, projected = products.sum(0), (own @ products @ own.transpose(0, 2, 1)).sum(0)
    plain = float(given.sum()) if given.sum() > NOTHING * given.trace() else 0.0
    return Projection(
        weights=own.sum(1),
        changed=_changed(own, products),
        before=cosines(given),
        after=cosines(projected),
        norm_ratio=math.sqrt(max(0.0, projected.sum()) / plain) if plain else None,
    )


def _changed(own: Matrix, products: Matrix) -> float:
    has = np.einsum("gll->gl", products) > 0
    pairs = has[:, :, None] & has[:, None, :] & ~np.eye(products.shape[1], dtype=bool)
    return float(((own != 0) & pairs).sum() / pairs.sum()) if pairs.any() else 0.0


def cosines(products: Matrix) -> list[float]:
    """Between every two gradients that are not 0."""
    sizes = np.sqrt(np.maximum(np.diag(products), 0))
    count = len(sizes)
    pairs = [(i, j) for i in range(count) for j in range(i) if sizes[i] > 0 and sizes[j] > 0]
    return [float(np.clip(products[i, j] / (sizes[i] * sizes[j]), -1, 1)) for i, j in pairs]


def combine(tensors: Sequence[Optional[Tensor]], weights: Sequence[float]) -> Optional[Tensor]:
    """The sum of one tensor over languages, accumulated in fp32 or wider, in the dtype given; None if all are.

    With weights of 1 it is the plain sum, bit for bit.
    """
    total, dtype = None, torch.float32
    for tensor, weight in zip(tensors, weights):
        if tensor is None:
            continue
        if total is None:
            dtype = tensor.dtype
            total = tensor.detach().to(torch.promote_types(dtype, torch.float32), copy=True)
            if weight != 1:
                total.mul_(weight)
        else:
            total.add_(tensor, alpha=weight)
    return None if total is None else total.to(dtype)
