"""Linear CKA between two models' representations of the same text (Kornblith et al. 2019; Guo et al. 2023, Figure 6).

Everything is in float64. With K = X X' and L = Y Y' for centred X and Y, all sums of the definitions come from the
inner product of K and L, their diagonals and their row sums: no matrix is larger than n x n or p x q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from fairseq_interference.analysis.plots import Curve, Figure, Lines
from fairseq_interference.analysis.study import Row, Study
from fairseq_interference.errors import DataError

TITLE = "How far fine-tuning moved the representation (CKA)"
LEAST = 4  # samples: HSIC_1 divides by n - 3
NOTHING = 1e-12  # share of what rounding leaves of a constant
POOLS = {
    "mean": "mean over a sentence's pieces",
    "tokens": "every piece is a sample",
    "first": "<s>",
}
Matrix = NDArray[np.float64]


def centred(x: Any) -> Optional[Matrix]:
    """Features (n, p) less their means; None if nothing but rounding is left."""
    given = np.asarray(x, dtype=np.float64)
    found: Matrix = given - given.mean(axis=0)
    return found if np.abs(found).max(initial=0.0) > NOTHING * np.abs(given).max(initial=0.0) else None


def _inner(x: Matrix, y: Matrix) -> float:
    """Sum of the products of X X' and Y Y', in feature form or in Gram form, whichever is cheaper."""
    (n, p), q = x.shape, y.shape[1]
    if p * q <= n * (p + q):
        return float(np.square(y.T @ x).sum())
    return float(((x @ x.T) * (y @ y.T)).sum())


def hsic(x: Matrix, y: Matrix, biased: bool = False) -> float:
    """HSIC of centred features (n, p) and (n, q) with linear kernels.

    Args:
        biased: the sum of the products of the centred Gram matrices (without its factor, which CKA cancels);
            else HSIC_1, the unbiased estimator (Song et al. 2012; methods.md 7.3).
    """
    if biased:
        return _inner(x, y)
    n = len(x)
    k, m = np.square(x).sum(axis=1), np.square(y).sum(axis=1)  # diagonals of the Gram matrices
    # X is centred: the rows of X X' sum to 0, and to -k without the diagonal
    trace, both, sums = _inner(x, y) - float(k @ m), float(k.sum() * m.sum()), float(k @ m)
    return (trace + both / ((n - 1) * (n - 2)) - 2 / (n - 2) * sums) / (n * (n - 3))


def cka(x: Any, y: Any, biased: bool = False) -> Optional[float]:
    """Linear CKA of features (n, p) and (n, q) of the same n samples; None where a side is constant.

    Args:
        biased: too high where n is not far above the widths. The unbiased one may fall below 0 by chance.

    Raises:
        DataError: fewer than 4 samples, or different numbers of them.
    """
    if len(x) != len(y):
        raise DataError("CKA compares the same samples.", where="cka", value=f"{len(x)} and {len(y)}")
    if len(x) < LEAST:
        raise DataError("Too few samples for CKA.", where="cka", value=len(x), allowed=f"at least {LEAST}")
    left, right = centred(x), centred(y)
    if left is None or right is None:
        return None
    left, right = left / np.abs(left).max(), right / np.abs(right).max()  # far from overflow and underflow
    own = hsic(left, left, biased), hsic(right, right, biased)
    size = _inner(left, left), _inner(right, right)
    # HSIC_1 of features that differ in one sample only is 0
    if any(value <= NOTHING * whole / len(x) ** 2 for value, whole in zip(own, size)):
        return None
    return hsic(left, right, biased) / math.sqrt(own[0] * own[1])


# -- figures ------------------------------------------------------------------------------------------------------


def _pick(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _values(rows: Sequence[Row], name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def _setting(study: Study) -> str:
    settings, counts = study.settings, [row["samples"] for row in study.tables["cka"]]
    least, most = min(counts), max(counts)
    of = f"{least}" if least == most else f"{least} to {most}"
    kind = "biased" if settings["estimator"] == "biased" else "unbiased"
    return f"{kind}; n = {of} samples a language ({POOLS[settings['pool']]})"


def figures(study: Study) -> list[Figure]:
    """Curves over updates per language, a line a layer; and the profile over layers at the last checkpoint."""
    rows = study.tables["cka"]
    langs, layers, updates = _values(rows, "lang"), _values(rows, "layer"), _values(rows, "update")
    found, note = [], _setting(study)
    if len(updates) > 1:
        panels = [
            Lines(
                lang,
                {
                    "embeddings" if layer == 0 else f"layer {layer}": Curve(
                        updates, [row["cka"] for row in _pick(rows, lang=lang, layer=layer)]
                    )
                    for layer in layers
                },
                "update of fine-tuning",
                "CKA to the pre-trained model",
                integers=True,
            )
            for lang in langs
        ]
        reading = (
            "1: the layer still says what it said before fine-tuning, up to rotation and scale; a curve that still "
            "falls at the end belongs to a layer that is still moving (Guo et al. 2023, Figure 6)."
        )
        found.append(Figure("cka-curves", f"CKA to the pre-trained model, layer by layer\n{note}", reading, panels))
    last = rows[-1]["checkpoint"]
    curves = {lang: [row for row in _pick(rows, lang=lang) if row["checkpoint"] == last] for lang in langs}
    profile = Lines(
        "",
        {lang: Curve([row["layer"] for row in own], [row["cka"] for row in own]) for lang, own in curves.items()},
        "layer (0: embeddings)",
        "CKA to the pre-trained model",
        integers=True,
    )
    when = "" if updates[-1] is None else f" after {updates[-1]} updates"
    reading = "The lower a layer, the more fine-tuning has changed it; a language that lies lower has moved further."
    found.append(Figure("cka-profile", f"CKA to the pre-trained model{when}\n{note}", reading, [profile]))
    return found
