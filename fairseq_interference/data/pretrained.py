"""What fine-tuning takes over from a pretrained checkpoint: the files beside it and the length of its inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import torch
from fairseq import checkpoint_utils

from fairseq_interference.data.companions import LAST, Companions, find_companions


def companions_of(cfg: Any) -> Companions:
    """Companions of the first place that is given; see --companions."""
    given = cfg.companions
    if given and Path(given).is_dir():
        given = str(Path(given) / LAST)
    beside = str(Path(cfg.data) / LAST) if (Path(cfg.data) / "dict.txt").is_file() else None
    resumed = str(Path(cfg.save_dir or "checkpoints") / LAST)
    return find_companions(given or beside or starting_checkpoint(cfg) or resumed)


def starting_checkpoint(cfg: Any) -> Optional[str]:
    """Checkpoint that fine-tuning starts from."""
    return cfg.finetune_from_model or (cfg.restore_file if cfg.restore_file != LAST else None)


def pretrained_positions(checkpoint: Optional[str]) -> Optional[int]:
    """Positions that a checkpoint's model was built with; its tensors stay on disk."""
    if not checkpoint or not Path(checkpoint).is_file():
        return None
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except (TypeError, RuntimeError):  # torch < 2.1, or the legacy format: read it whole
        state = checkpoint_utils.load_checkpoint_to_cpu(checkpoint)
    model = (state.get("cfg") or {}).get("model") or state.get("args")
    found = model.get("max_positions") if hasattr(model, "get") else getattr(model, "max_positions", None)
    return None if found is None else int(found)
