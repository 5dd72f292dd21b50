"""What the tests of the bilevel step share: a task and a trainer with it, and what they took as meta gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from pretrain_world import build
from torch import Tensor

from fairseq_interference.optim import bilevel

META = ("--langs", "aa,bb,cc", "--optimizer", "meta_adapter", "--meta-heldout-fraction", "0.2")
STILL = ("--dropout", 0, "--attention-dropout", 0, "--activation-dropout", 0)


def setup(data: Path, folder: Path, *flags: object, arch: str = "xlm_adpt_tiny", double: bool = False) -> Any:
    smooth = ("--activation-fn", "gelu_accurate") if double else ()  # the host's gelu computes in fp32
    task, trainer = build(data, folder, *META, *smooth, *flags, arch=arch)
    if double:
        trainer.get_model().double()
    task.load_dataset("train")
    return task, trainer


def shaken(trainer: Any, seed: int = 3, size: float = 0.2) -> None:
    """Move the adapters away from identity, or their down projections have no gradient."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in trainer.get_model().parameters():
        noise = torch.randn(parameter.shape, generator=generator) * size * (0.1 if parameter.dim() > 1 else 0.01)
        parameter.data.add_(noise.to(parameter))


def sample(task: Any, rows: list[int]) -> dict[str, Any]:
    dataset = task.dataset("train")
    batch: dict[str, Any] = dataset.collater([dataset[row] for row in rows])
    return batch


def update(task: Any, trainer: Any, *batches: dict[str, Any]) -> None:
    """The host's update without its clipping, which cannot take float64."""
    trainer._set_seed()
    trainer.model.train()
    trainer.zero_grad()
    size = sum(task.train_step(b, trainer.model, trainer.criterion, trainer.optimizer, 0)[1] for b in batches)
    trainer.optimizer.multiply_grads(1.0 / size)
    task.optimizer_step(trainer.optimizer, trainer.model, 0)


def spread(task: Any, count: int) -> list[int]:
    """Rows of all languages."""
    return [int(row) for row in np.linspace(0, len(task.dataset("train")) - 1, count)]


def distance(found: list[Tensor], right: list[Tensor]) -> float:
    gap = bilevel.norm([x.double() - y.double() for x, y in zip(found, right)])
    return gap / bilevel.norm(right)
