"""Rows of a batch as a batch of their own, and the results of such parts as those of the whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rows_of(sample: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """A batch of some rows; what is not a tensor of B rows stays as it is.

    Args:
        sample: a task's sample of B rows. rows: their numbers, or a mask (B,), on the sample's device.
    """
    inputs = sample["net_input"]
    count = len(inputs["lang_id"])
    part: dict[str, Any] = {
        key: value[rows]
        for key, value in sample.items()
        if torch.is_tensor(value) and value.dim() and len(value) == count
    }
    part["net_input"] = {key: value[rows] for key, value in inputs.items()}
    part["nsentences"] = len(part["net_input"]["lang_id"])
    part["ntokens"] = int(part["net_input"]["src_lengths"].sum())
    return {**sample, **part}


def summed(results: list[Any]) -> Any:
    """Loss, sample size and logging output of all parts together."""
    return results[0] if len(results) == 1 else tuple(map(_sum, zip(*results)))


def _sum(values: Any) -> Any:
    if isinstance(values[0], dict):
        return {key: sum(value[key] for value in values) for key in values[0]}
    return sum(values)
