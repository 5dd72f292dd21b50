"""Refusals before anything is trained: what the host would accept and then die of, with a remedy instead."""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import Any

import numpy
import torch

from fairseq_interference.errors import HostError, UsageError

logger = logging.getLogger(__name__)


def check_arguments(args: Namespace) -> None:
    """Check the parsed flags of ``fairseq-train``.

    Raises:
        UsageError: ``--fp16`` without CUDA.
        HostError: ``--store-ema`` in fine-tuning, or ``--sample-break-mode eos`` with a numpy that the host cannot use.
    """
    cpu_only = getattr(args, "cpu", False) or not torch.cuda.is_available()
    if getattr(args, "fp16", False) and cpu_only:
        reason = "--cpu was given" if getattr(args, "cpu", False) else "torch sees no CUDA device"
        raise UsageError(f"--fp16 needs a CUDA device, and {reason}: use --bf16, or train in fp32.")
    if getattr(args, "amp", False) and cpu_only:
        logger.warning("--amp has no effect without a CUDA device: training in fp32")
    if getattr(args, "store_ema", False) and getattr(args, "finetune_from_model", None):
        raise HostError(
            "The host cannot begin an average of the weights with those of another run.",
            where="--store-ema, --finetune-from-model",
            next_step="leave one of them out, or give --restore-file with --reset-optimizer --reset-dataloader",
        )
    if getattr(args, "sample_break_mode", None) == "eos" and not hasattr(numpy, "compat"):
        raise HostError(
            "fairseq cannot cut blocks at sentence ends with this numpy (it needs numpy.compat).",
            where="--sample-break-mode eos",
            value=f"numpy {numpy.__version__}",
            allowed="numpy<2",
            next_step="pip install 'numpy<2'",
        )


def check_best_metric(cfg: Any, trainer: Any) -> None:
    """Refuse an unknown ``--best-checkpoint-metric`` before training.

    A task may name its metrics (``validation_metrics()``); otherwise validation batches are run until the metric
    turns up. The host's default, ``loss``, is not checked. State of the random generators is left as it was.

    Raises:
        UsageError: no such metric; lists those that exist.
    """
    metric = cfg.checkpoint.best_checkpoint_metric
    if metric == "loss" or cfg.dataset.disable_validation:
        return
    task = trainer.task
    names = set(task.validation_metrics()) if hasattr(task, "validation_metrics") else set()
    if metric in names:
        return
    names |= _observed_metrics(cfg, trainer, metric)
    if metric not in names:
        raise UsageError(
            "No such validation metric.",
            where="--best-checkpoint-metric",
            value=metric,
            allowed=", ".join(sorted(names)),
        )


def _observed_metrics(cfg: Any, trainer: Any, wanted: str) -> set[str]:
    """Names that the first valid subset logs; ends early when ``wanted`` is among them."""
    try:
        from fairseq.logging import metrics
    except ImportError:  # pragma: no cover - hosts before 0.12 keep it elsewhere
        from fairseq import metrics
    names: set[str] = set()
    subset = cfg.dataset.valid_subset.split(",")[0]
    batches = trainer.get_valid_iterator(subset).next_epoch_itr(shuffle=False, set_dataset_epoch=False)
    with torch.random.fork_rng(), metrics.aggregate(new_root=True) as logged:
        for sample in batches:
            trainer.valid_step(sample)
            names |= set(logged.get_smoothed_values())
            if wanted in names:
                break
    return names
