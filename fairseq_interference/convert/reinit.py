"""A checkpoint with some weights drawn anew (Guo et al. 2023, section 2.3): a start for fine-tuning."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Union

import torch
from fairseq import utils

from fairseq_interference.convert.checkpoint import FILE, save
from fairseq_interference.data.companions import find_companions, write_companions
from fairseq_interference.errors import CheckpointError
from fairseq_interference.loading import load
from fairseq_interference.stages import stage

PathLike = Union[str, Path]


def reinitialise(
    checkpoint: PathLike, names: Collection[str], seed: int, folder: PathLike, force: bool = False
) -> Path:
    """Write a copy of a checkpoint whose tensors ``names`` are those of a model that was never trained.

    That model is built as pre-training would build it: projections by the host's init, copies of a sub-layer equal for
    all languages, norms and adapters at identity. Its draws are not those of the run with the same ``--seed``, which
    may have begun the pre-training. The companions go along; the optimizer's state does not.

    Args:
        checkpoint: pretrained; it is only read.
        names: of the model's tensors.
        seed: of the draws.
        folder: a stage's; written once.
        force: write again what was made otherwise.

    Returns:
        The new checkpoint.
    """
    folder = Path(folder)
    settings = {"names": sorted(names), "seed": seed}
    with stage(folder, inputs={"checkpoint": checkpoint}, settings=settings, force=force) as temporary:
        if temporary is not None:
            with _one_thread():
                _write(Path(checkpoint), names, seed, temporary, folder)
    return folder / FILE


def _write(checkpoint: Path, names: Collection[str], seed: int, temporary: Path, final: Path) -> None:
    loaded, beside = load(checkpoint), find_companions(checkpoint)
    digest = hashlib.blake2b(f"reinit {seed}".encode(), digest_size=4).digest()
    with torch.random.fork_rng(devices=[]):
        utils.set_torch_seed(int.from_bytes(digest, "big"))
        fresh = loaded.task.build_model(loaded.cfg.model, from_checkpoint=True).state_dict()
    weights = loaded.model.state_dict()
    unknown = sorted(set(names) - (weights.keys() & fresh.keys()))
    if unknown:
        raise CheckpointError("The model has no such tensor.", where=checkpoint, value=", ".join(unknown))
    weights.update({name: fresh[name] for name in names})
    save(temporary / FILE, loaded.cfg, weights, final)
    write_companions(temporary, beside.languages, beside.dict_path, beside.tokenizer_dir)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """No threads are started: a process that has any cannot be forked into a training that wants some."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
