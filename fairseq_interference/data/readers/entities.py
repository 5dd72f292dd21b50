"""Entities from labels, under the two readings that the field uses; evaluation/metrics.py tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from fairseq_interference.errors import ScoringError

Entity = tuple[str, int, int]
OUTSIDE = "O"


def iob2_entities(labels: Sequence[str]) -> list[Entity]:
    """Entities under strict IOB2.

    Args:
        labels: (T,) of ``O``, ``B-X``, ``I-X``.

    Returns:
        (type, first, last) of each entity in order, both ends inside.

    Raises:
        ScoringError: a label that is none of the three.
    """
    found: list[Entity] = []
    kind: Optional[str] = None
    first = 0
    for place, label in enumerate(labels):
        if kind is not None and label[:1] == "I" and _type(label) == kind:
            continue
        if kind is not None:
            found.append((kind, first, place - 1))
            kind = None
        if label == OUTSIDE:
            continue
        if label[:1] == "B":
            kind, first = _type(label), place
        elif label[:1] != "I":
            raise ScoringError("This is no label of IOB2.", value=label, allowed="O, B-TYPE, I-TYPE")
    if kind is not None:
        found.append((kind, first, len(labels) - 1))
    return found


def conlleval_entities(labels: Sequence[str]) -> list[Entity]:
    """Entities as conlleval reads them; ``E-X`` and ``S-X`` are understood as well.

    Args, Returns: as :func:`iob2_entities`.
    """
    found: list[Entity] = []
    before, before_type, first = OUTSIDE, "_", 0
    for place in range(len(labels) + 1):
        label = labels[place] if place < len(labels) else OUTSIDE
        prefix, kind = label[:1], _type(label)
        if before != OUTSIDE and (before in "ES" or prefix in "BSO" or kind != before_type):
            found.append((before_type, first, place - 1))
        if prefix != OUTSIDE and (prefix in "BS" or before in "OES" or kind != before_type):
            first = place
        before, before_type = prefix, kind
    return found


def _type(label: str) -> str:
    return label[1:].split("-", 1)[-1] or "_"
