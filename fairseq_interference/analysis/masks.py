"""Masks of several languages and seeds compared: whose weights are whose (Wang et al. 2020, section 3.1 and Fig. 4).

A mask is what a language's ``log_alpha`` are, group by group. Two seeds of one language give the within-language
control: what two masks agree on when the language is the same (En-En in the paper).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import torch
from numpy.typing import NDArray

from fairseq_interference.analysis.gradients import interval
from fairseq_interference.analysis.study import Row, number
from fairseq_interference.errors import CheckpointError
from fairseq_interference.modules import hard_concrete
from fairseq_interference.modules.masks import NAME, SIZE

Array = NDArray[np.float64]
Place = tuple[int, str, str]  # layer, component, kind; a kind holds one gate or many
ALL = "all"
SHOWN = 10  # groups of Fig. 4b, of either sort and pair


@dataclass(frozen=True)
class Mask:
    """One language's mask in one run.

    Attributes:
        values: place -> ``log_alpha``, flat.
        sizes: place -> weights behind one gate.
    """

    values: Mapping[Place, Array]
    sizes: Mapping[Place, int]

    def vector(self, places: Sequence[Place]) -> Array:
        """All values of some places, one after the other."""
        return np.concatenate([self.values[place] for place in places])

    def weights(self, places: Sequence[Place]) -> Array:
        """Weights behind each value of :meth:`vector`."""
        return np.concatenate([np.full(len(self.values[place]), float(self.sizes[place])) for place in places])


Run = dict[str, Mask]  # language -> its mask


def read_run(state: Mapping[str, Any], where: object) -> Run:
    """Masks in the model part of a checkpoint.

    Raises:
        CheckpointError: there are none.
    """
    stem, sizes = f"{NAME}.", {}
    values: dict[str, dict[Place, Array]] = {}
    for key, tensor in state.items():
        if not key.startswith(stem):
            continue
        lang, layer, component, kind = key[len(stem) :].split("|")
        place = int(layer), component, kind
        if lang == SIZE:
            sizes[place] = int(tensor)
        else:
            values.setdefault(lang, {})[place] = _cut(tensor)
    if not values:
        advice = "train them with --criterion l0_masked_lm, or give --checkpoint and --data"
        raise CheckpointError("There are no masks in this checkpoint.", where=where, next_step=advice)
    return {lang: Mask(some, sizes) for lang, some in values.items()}


def _cut(log_alpha: torch.Tensor) -> Array:
    cut = log_alpha.detach().double().clamp(hard_concrete.LOWEST, hard_concrete.HIGHEST)
    return np.asarray(cut.cpu().numpy().ravel(), dtype=np.float64)


def cosine(one: Array, other: Array, centred: bool) -> Optional[float]:
    """Of two vectors, or of what is left of them when their means are taken away; None where one of them is 0."""
    if centred:
        one, other = one - one.mean(), other - other.mean()
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return number(float(one @ other) / size) if size > 1e-12 else None


def parts(mask: Mask) -> dict[tuple[Optional[int], str], list[Place]]:
    """(layer, component) -> places: all, each component, each layer, each component of each layer."""
    found: dict[tuple[Optional[int], str], list[Place]] = {}
    for place in sorted(mask.values):
        layer, component, _ = place
        for part in ((None, ALL), (None, component), (layer, ALL), (layer, component)):
            found.setdefault(part, []).append(place)
    return found


def pair_rows(runs: Sequence[Run]) -> list[Row]:
    """Cosines between masks of different runs: within each language and between every two.

    Between languages i and j the value of two runs a, b is the mean of cos(i_a, j_b) and cos(j_a, i_b), so that both
    kinds differ by a seed; with one run, cos(i, j) of that run.
    """
    rows = []
    codes, pairs = list(runs[0]), list(itertools.combinations(range(len(runs)), 2)) or [(0, 0)]
    for (layer, component), places in parts(runs[0][codes[0]]).items():
        for a, b in pairs:
            for i, j in itertools.combinations_with_replacement(codes, 2):
                if a == b and i == j:
                    continue
                row: Row = {"run": a, "other_run": b, "one": i, "other": j, "layer": layer, "component": component}
                for name, centred in (("raw", False), ("centred", True)):
                    values = [
                        cosine(runs[x][i].vector(places), runs[y][j].vector(places), centred)
                        for x, y in ((a, b), (b, a))
                    ]
                    known = [value for value in values if value is not None]
                    row[name] = sum(known) / len(known) if known else None
                rows.append(row)
    return rows


def summary_rows(pairs: Sequence[Row]) -> list[Row]:
    """Mean and 95 % interval over pairs of runs; ``margin`` is within minus between, paired by runs.

    The margin of languages i and j is the mean of cos(i, i) and cos(j, j) minus cos(i, j), in each pair of runs;
    positive where a language's masks agree better with each other than with another language's.
    """
    rows = []
    by: dict[tuple[Any, ...], dict[tuple[int, int], Row]] = {}
    for row in pairs:
        key = row["one"], row["other"], row["layer"], row["component"]
        by.setdefault(key, {})[row["run"], row["other_run"]] = row
    for (one, other, layer, component), found in by.items():
        for name in ("raw", "centred"):
            value = interval(row[name] for row in found.values())
            margin = interval(_margins(by, found, one, other, layer, component, name) if one != other else ())
            place = {"one": one, "other": other, "layer": layer, "component": component, "kind": name}
            ends = {"margin": margin.mean, "margin_low": margin.low, "margin_high": margin.high}
            rows.append({**place, **value._asdict(), **ends})
    return rows


def _margins(by: Any, found: Any, one: str, other: str, layer: Any, component: str, name: str) -> list[Optional[float]]:
    values = []
    for runs, row in found.items():
        own = [by.get((code, code, layer, component), {}).get(runs, {}).get(name) for code in (one, other)]
        known = None not in own and row[name] is not None
        values.append(sum(own) / 2 - row[name] if known else None)
    return values


def mean_mask(runs: Sequence[Run], lang: str) -> Mask:
    """A language's mask, averaged over runs."""
    masks = [run[lang] for run in runs]
    values = {place: np.mean([mask.values[place] for mask in masks], axis=0) for place in masks[0].values}
    return Mask(values, masks[0].sizes)


def group_rows(runs: Sequence[Run]) -> list[Row]:
    """The most language-universal and most language-specific groups of every two languages (Fig. 4b).

    Universal: the smaller of the two values (mean over runs) is large. Specific: they differ most. Single gates are
    groups, but for matrices whose weights are gated one by one: there the matrix is, with its mean.
    """
    rows = []
    masks = {lang: mean_mask(runs, lang) for lang in runs[0]}
    for one, other in itertools.combinations(masks, 2):
        gates = [
            (place, gate, float(a), float(b))
            for place in masks[one].values
            for gate, (a, b) in enumerate(zip(_gates(masks[one], place), _gates(masks[other], place)))
        ]
        specific = sorted(gates, key=lambda g: -abs(g[2] - g[3]))[:SHOWN]
        universal = sorted(gates, key=lambda g: -min(g[2], g[3]))[:SHOWN]
        for sort, chosen in (("specific", specific), ("universal", universal)):
            for (layer, component, kind), gate, a, b in chosen:
                place = {"layer": layer, "component": component, "kind": kind, "gate": gate}
                rows.append({"sort": sort, "one": one, "other": other, **place, "value_one": a, "value_other": b})
    return rows


def _gates(mask: Mask, place: Place) -> Array:
    return mask.values[place] if mask.sizes[place] > 1 else mask.values[place].mean(keepdims=True)


def sign_rows(runs: Sequence[Run]) -> list[Row]:
    """Share of the covered weights whose ``log_alpha`` (mean over runs) have opposite signs in two languages."""
    rows = []
    masks = {lang: mean_mask(runs, lang) for lang in runs[0]}
    for one, other in itertools.combinations(masks, 2):
        for (layer, component), places in parts(masks[one]).items():
            a, b, size = masks[one].vector(places), masks[other].vector(places), masks[one].weights(places)
            share = float(size[a * b < 0].sum() / size.sum())
            rows.append({"one": one, "other": other, "layer": layer, "component": component, "opposite": share})
    return rows


def keep_best(mask: Mask, sparsity: float) -> dict[Place, NDArray[np.bool_]]:
    """Which gates stay open if the lowest are closed until ``sparsity`` of the covered weights are gone.

    The gate that crosses the line stays open if that is nearer.
    """
    places = sorted(mask.values)
    values, sizes = mask.vector(places), mask.weights(places)
    order = np.argsort(values, kind="stable")
    gone = np.cumsum(sizes[order])
    count = int(np.argmin(np.abs(np.concatenate([[0.0], gone]) - sparsity * sizes.sum())))
    open_ = np.ones(len(values), dtype=bool)
    open_[order[:count]] = False
    ends = np.cumsum([len(mask.values[place]) for place in places])[:-1]
    return dict(zip(places, np.split(open_, ends)))


def open_at(mask: Mask, threshold: float) -> dict[Place, NDArray[np.bool_]]:
    """Which gates are above ``threshold`` in evaluation."""
    found = {}
    for place, values in mask.values.items():
        found[place] = np.asarray(hard_concrete.gate(torch.from_numpy(values)).numpy() > threshold)
    return found


def sparsity_of(mask: Mask, open_: Mapping[Place, NDArray[np.bool_]]) -> float:
    """Share of the covered weights behind closed gates."""
    places = sorted(mask.values)
    size = mask.weights(places)
    return float(size[~np.concatenate([open_[place] for place in places])].sum() / size.sum())


def verdict_rows(losses: Sequence[Row]) -> list[Row]:
    """Is a language's own mask the best one? The gap to the best other mask against 2 sd over runs.

    Args:
        losses: ``sparsity``, ``mask`` (language), ``lang``, ``run``, ``loss``.
    """
    rows = []
    for sparsity, lang in dict.fromkeys((row["sparsity"], row["lang"]) for row in losses):
        some = [row for row in losses if (row["sparsity"], row["lang"]) == (sparsity, lang)]
        by = {
            code: [row["loss"] for row in some if row["mask"] == code]
            for code in dict.fromkeys(r["mask"] for r in some)
        }
        others = {code: float(np.mean(values)) for code, values in by.items() if code != lang}
        if not others or lang not in by:
            continue
        best = min(others, key=lambda code: others[code])
        gap = others[best] - float(np.mean(by[lang]))
        sd = float(np.sqrt((np.var(by[lang], ddof=1) + np.var(by[best], ddof=1)) / 2)) if len(by[lang]) > 1 else None
        clear = None if sd is None else gap > 2 * sd
        rows.append(
            {"sparsity": sparsity, "lang": lang, "best_other": best, "gap": gap, "pooled_sd": sd, "clear": clear}
        )
    return rows
