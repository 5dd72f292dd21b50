"""The one place that wraps the host. Each wrap is listed with its reason in :func:`install`."""

from __future__ import annotations

import argparse

import torch


def install() -> None:
    """Allow what fairseq checkpoints hold. Safe to call again."""
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals([argparse.Namespace])
