"""Files of a transformers folder: ``config.json`` and the weights. transformers itself is not needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, Union

import torch
from torch import Tensor

from fairseq_interference.checkpoint_files import READ_ERRORS, explain
from fairseq_interference.errors import CheckpointError
from fairseq_interference.stages import write_json

PathLike = Union[str, Path]
CONFIG, SAFE, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
LIBRARY = "pip install 'fairseq-interference[hf]'"


def read_config(folder: PathLike) -> dict[str, Any]:
    """Content of ``config.json``.

    Raises:
        CheckpointError: missing or not one object.
    """
    path = Path(folder) / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            "There is no config.json.", where=path, allowed="a folder that transformers' save_pretrained wrote"
        ) from None
    except ValueError as error:
        raise CheckpointError("config.json cannot be read.", where=path, value=str(error)) from None
    if not isinstance(found, dict):
        raise CheckpointError("config.json must hold one object.", where=path)
    return found


def weight_files(folder: PathLike) -> list[Path]:
    """Files that hold the weights: one, or the parts that an index names; safetensors first.

    Raises:
        CheckpointError: none is there, or a part is missing.
    """
    folder = Path(folder)
    for name in (SAFE, PICKLED):
        if name == SAFE and not _has_safetensors() and _stems(folder, PICKLED):
            continue
        found = _stems(folder, name)
        if found:
            return found
    raise CheckpointError("There are no weights.", where=folder, allowed=f"{SAFE} or {PICKLED}, or their .index.json")


def _stems(folder: Path, name: str) -> list[Path]:
    if (folder / name).is_file():
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return []
    try:
        parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError("The index of the weights cannot be read.", where=index, value=str(error)) from None
    missing = [part for part in parts if Path(part).name != part or not (folder / part).is_file()]
    if missing or not parts:
        raise CheckpointError("A part of the weights is missing.", where=index, value=", ".join(missing))
    return [folder / part for part in parts]


def _has_safetensors() -> bool:
    try:
        import safetensors  # noqa: F401
    except ImportError:
        return False
    return True


def read_weights(folder: PathLike) -> dict[str, Tensor]:
    """All weights by name; tensors stay on disk until they are used, where the format allows it.

    Raises:
        CheckpointError: missing, damaged, unsafe, or in a format whose library is missing.
    """
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder):
        weights.update(_read_safe(path) if path.suffix == ".safetensors" else _read_pickled(path))
    return weights


def _read_safe(path: Path) -> Mapping[str, Tensor]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise CheckpointError(
            "Reading this file needs the library `safetensors`.", where=path, next_step=LIBRARY
        ) from None
    try:
        with safe_open(str(path), framework="pt", device="cpu") as stream:
            return {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError("The weights cannot be read.", where=path, value=str(error)) from None


def _read_pickled(path: Path) -> Mapping[str, Tensor]:
    load: Callable[..., Any] = torch.load
    try:
        try:
            found = load(path, map_location="cpu", weights_only=True, mmap=True)
        except (TypeError, RuntimeError):  # torch < 2.1, or the legacy format: read it whole
            found = load(path, map_location="cpu", weights_only=True)
    except READ_ERRORS as error:
        raise explain(path, error) or error from None
    if not isinstance(found, Mapping) or not all(torch.is_tensor(value) for value in found.values()):
        raise CheckpointError("These are not weights by name.", where=path)
    return found


def write(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Path:
    """Write ``config.json`` and the weights, as safetensors where its library is there; returns their file."""
    write_json(folder / CONFIG, dict(config))
    tensors = {name: value.detach().contiguous() for name, value in weights.items()}
    try:
        from safetensors.torch import save_file
    except ImportError:
        path = folder / PICKLED
        torch.save(tensors, path)
        return path
    path = folder / SAFE
    save_file(tensors, str(path), metadata={"format": "pt"})
    return path
