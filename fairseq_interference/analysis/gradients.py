"""Gradient conflict: cosines between languages' gradients, overall and by place in the network, and their intervals.

Wang, Lipton, Tsvetkov 2020, section 2.2 and Fig. 3. Gradients are lists of tensors aligned with the names of the shared
parameters; nothing is flattened: three dot products a pair, tensor by tensor (``optim/cosines.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from fairseq_interference.analysis.study import Row
from fairseq_interference.optim.cosines import Gradient, cosine_of, dots

ALL = "all"
COMPONENTS = ("attention", "feed-forward", "embeddings", "norms", "other")
LEVEL = 0.95


class Group(NamedTuple):
    """A part of the network.

    Attributes:
        layer: number as in the names of parameters, 0 is the lowest; None: of the whole network.
        component: one of :data:`COMPONENTS`, or :data:`ALL`.
    """

    layer: Optional[int]
    component: str


def place_of(name: str) -> Group:
    """Where a parameter stands: its layer (None outside of them) and its component.

    ``embeddings``: of pieces and positions, and the output's (tied or not) with its bias. ``norms``: every layer norm.
    ``other``: what is left, such as adapters that all languages share and the dense layer of the masked-LM head.
    """
    parts = name.split(".")
    layer = int(parts[parts.index("layers") + 1]) if "layers" in parts[:-1] else None
    if any(part.replace("_", "").startswith("layernorm") or part.endswith("layer_norm") for part in parts):
        return Group(layer, "norms")
    if "adapters" in parts or "adapter" in parts:
        return Group(layer, "other")
    if "self_attn" in parts:
        return Group(layer, "attention")
    if "fc1" in parts or "fc2" in parts:
        return Group(layer, "feed-forward")
    output = "lm_head" in parts and parts[-1] in ("weight", "bias") and parts[-2] == "lm_head"
    embeds = output or any(part.startswith("embed_") for part in parts)
    return Group(layer, "embeddings" if embeds else "other")


def groups_of(names: Iterable[str]) -> dict[Group, list[int]]:
    """Group -> numbers of its parameters: all, each component, each layer, each component of each layer."""
    found: dict[Group, list[int]] = {}
    for number, name in enumerate(names):
        layer, component = place_of(name)
        own = [Group(None, ALL), Group(None, component)]
        own += [] if layer is None else [Group(layer, ALL), Group(layer, component)]
        for group in own:
            found.setdefault(group, []).append(number)

    def order(group: Group) -> tuple[int, int]:
        return -1 if group.layer is None else group.layer, (ALL, *COMPONENTS).index(group.component)

    return {group: found[group] for group in sorted(found, key=order)}


@dataclass(frozen=True)
class Measured:
    """A gradient with its squares, which every pair needs again."""

    gradient: Gradient
    squares: Sequence[float]


def measured(gradient: Gradient) -> Measured:
    """Take the squares of a gradient."""
    return Measured(gradient, dots(gradient, gradient))


def cosines(one: Measured, other: Measured, groups: Mapping[Group, Sequence[int]]) -> dict[Group, Optional[float]]:
    """Cosine in every group; None where one of the two has no gradient."""
    product = dots(one.gradient, other.gradient)
    return {group: cosine_of(product, one.squares, other.squares, members) for group, members in groups.items()}


class Interval(NamedTuple):
    """Mean of n values and the 95 % interval of Student's t; no interval for fewer than two values."""

    mean: Optional[float]
    low: Optional[float]
    high: Optional[float]
    n: int


def interval(values: Iterable[Optional[float]]) -> Interval:
    """Mean and interval of the values that are numbers."""
    known = [value for value in values if value is not None]
    if not known:
        return Interval(None, None, None, 0)
    mean = sum(known) / len(known)
    if len(known) == 1:
        return Interval(mean, None, None, 1)
    from scipy import stats

    sd = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(known) - 1)) * sd / math.sqrt(len(known))
    return Interval(mean, mean - half, mean + half, len(known))


KEYS = ("checkpoint", "update", "one", "other", "layer", "component")


def summary(rows: Iterable[Row]) -> list[Row]:
    """Rows of ``pairs`` over draws: mean, interval, n, and the share of draws in conflict (cosine < 0)."""
    found: dict[tuple[Any, ...], list[Optional[float]]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in KEYS), []).append(row["cosine"])
    return [{**dict(zip(KEYS, key)), **statistics(values)} for key, values in found.items()]


def statistics(values: Sequence[Optional[float]]) -> Row:
    """Columns of a summary."""
    found = interval(values)
    negative = [value < 0 for value in values if value is not None]
    share = sum(negative) / len(negative) if negative else None
    return {**found._asdict(), "conflict": share}
