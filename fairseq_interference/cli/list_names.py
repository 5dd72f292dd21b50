"""``list``: names that we register, or the languages of a data folder or checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from fairseq_interference.errors import CheckpointError, DataError, UsageError
from fairseq_interference.languages import FILE_NAME, LanguageList

HELP = "list archs, tasks, criterions, optimizers, or the languages of a data-bin or checkpoint"
KINDS = ("archs", "tasks", "criterions", "optimizers", "languages")
PACKAGE = "fairseq_interference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("path", nargs="?", help="with languages: a data-bin folder or a checkpoint")


def _ours(registry: Iterable[tuple[str, type]]) -> list[str]:
    return sorted(name for name, kind in registry if kind.__module__.split(".")[0] == PACKAGE)


def registered(kind: str) -> list[str]:
    """Names of one kind that classes of ours stand behind. Loads the host."""
    import fairseq_interference

    fairseq_interference.register()
    from fairseq import models, registry, tasks

    if kind == "archs":
        return _ours(models.ARCH_MODEL_REGISTRY.items())
    if kind == "tasks":
        return _ours(tasks.TASK_REGISTRY.items())
    name = {"criterions": "criterion", "optimizers": "optimizer"}[kind]
    return _ours(registry.REGISTRIES[name]["registry"].items())


def languages_of(path: Path) -> LanguageList:
    """Languages of a data-bin folder (``languages.txt``) or of a checkpoint (the file beside it, or inside it).

    Raises:
        DataError: a folder without languages.txt.
        CheckpointError: a file that is no checkpoint with languages.
    """
    if path.is_dir():
        if not (path / FILE_NAME).is_file():
            raise DataError(f"This folder has no {FILE_NAME}.", where=path, allowed="a data-bin or a checkpoint folder")
        return LanguageList.read(path / FILE_NAME)
    if not path.is_file():
        raise UsageError("There is no such file or folder.", where="list languages", value=str(path))
    if (path.parent / FILE_NAME).is_file():
        return LanguageList.read(path.parent / FILE_NAME)
    return _inside(path)


def _inside(path: Path) -> LanguageList:
    """The list in the weights: a uint8 buffer ``…language_codes`` with one code a line."""
    import fairseq_interference

    fairseq_interference.register()
    from fairseq import checkpoint_utils

    weights = checkpoint_utils.load_checkpoint_to_cpu(str(path)).get("model", {})
    for name, tensor in weights.items():
        if name.split(".")[-1] == "language_codes":
            return LanguageList(bytes(tensor.tolist()).decode().split("\n"), where=path)
    raise CheckpointError("This checkpoint names no languages.", where=path)


def run(args: argparse.Namespace) -> int:
    """Print the names of a kind, one a line."""
    if args.kind == "languages":
        if args.path is None:
            raise UsageError("list languages needs a path.", allowed="a data-bin folder or a checkpoint")
        for number, code in enumerate(languages_of(Path(args.path))):
            print(f"{number}\t{code}")
        return 0
    if args.path is not None:
        raise UsageError("A path goes with languages only.", where=f"list {args.kind}", value=args.path)
    print("\n".join(registered(args.kind)))
    return 0
