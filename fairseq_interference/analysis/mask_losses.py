"""Losses of a pretrained model under masks: at several thresholds, and under own and other masks at equal sparsity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairseq_interference.analysis.masks import Mask, Place, Run, keep_best, open_at, sparsity_of
from fairseq_interference.analysis.study import Ledger, Row
from fairseq_interference.errors import CheckpointError
from fairseq_interference.evaluation import mlm
from fairseq_interference.modules.masks import Group, groups_of, masked_in_place

THRESHOLDS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)  # of a gate in evaluation
SPARSITIES = (0.3, 0.5, 0.7)
PREFIX = "encoder.sentence_encoder."
Open = Mapping[Place, NDArray[np.bool_]]


class MaskedModel:
    """A pretrained model that can be scored under any choice of open gates.

    Args:
        loaded: what :func:`fairseq_interference.load` returns.
        granularity: that of the masks.
        texts: language -> its lines.
    """

    def __init__(self, loaded: Any, granularity: Sequence[str], texts: Mapping[str, mlm.Lines]) -> None:
        self.loaded, self.texts = loaded, texts
        groups = groups_of(loaded.model.encoder.sentence_encoder, granularity, PREFIX)
        self.groups: dict[Place, Group] = {(group.layer, group.component, group.kind): group for group in groups}

    def check(self, mask: Mask) -> None:
        """Raise :class:`CheckpointError` unless the mask is of a model of this shape."""
        mine = {place: int(np.prod(group.shape)) for place, group in self.groups.items()}
        if mine != {place: len(values) for place, values in mask.values.items()}:
            what = "These masks are of a model of another shape."
            raise CheckpointError(
                what, where=self.loaded.path, next_step="give the checkpoint that they were learnt on"
            )

    def loss(self, open_: Open, lang: str) -> float:
        """Nats per token of a language's text with closed gates at 0 and open ones at 1."""
        gates = [
            (group, torch.from_numpy(open_[place].astype(np.float32)).view(group.shape))
            for place, group in self.groups.items()
        ]
        with masked_in_place(self.loaded.model, gates):
            nats, count, _ = mlm.score(self.loaded, self.texts[lang], lang)
        return nats / max(count, 1)


def threshold_rows(model: MaskedModel, runs: Sequence[Run], ledger: Ledger, tell: Callable[[str], None]) -> list[Row]:
    """Sparsity and loss of every language's own mask when gates above a threshold are 1 and others 0."""
    rows: list[Row] = []
    for number, run in enumerate(runs):
        for lang, mask in run.items():
            key = f"threshold {number} {lang}"
            found = ledger.get(key)
            if found is None:
                tell(f"seed {number + 1} of {len(runs)}, {lang}: thresholds")
                found = ledger.add(key, [_at(model, mask, lang, number, threshold) for threshold in THRESHOLDS])
            rows += found
    return rows


def _at(model: MaskedModel, mask: Mask, lang: str, number: int, threshold: float) -> Row:
    open_ = open_at(mask, threshold)
    place = {"run": number, "lang": lang, "threshold": threshold}
    return {**place, "sparsity": sparsity_of(mask, open_), "loss": model.loss(open_, lang)}


def cross_rows(model: MaskedModel, runs: Sequence[Run], ledger: Ledger, tell: Callable[[str], None]) -> list[Row]:
    """Loss of every language's text under every language's mask, at equal sparsity."""
    rows: list[Row] = []
    for number, run in enumerate(runs):
        for code, mask in run.items():
            key = f"cross {number} {code}"
            found = ledger.get(key)
            if found is None:
                tell(f"seed {number + 1} of {len(runs)}, mask of {code}")
                found = []
                for sparsity in SPARSITIES:
                    open_ = keep_best(mask, sparsity)
                    place = {"run": number, "sparsity": sparsity, "reached": sparsity_of(mask, open_), "mask": code}
                    found += [{**place, "lang": lang, "loss": model.loss(open_, lang)} for lang in run]
                ledger.add(key, found)
            rows += found
    return rows
