"""``validation.jsonl`` beside the checkpoints: what every validation of a run has found, language by language.

The first line says what the numbers are, each other one is a validation. Losses are in bits (the host logs base 2) and
named so; scores are in per cent, as the training log shows them.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Union

from fairseq_interference.errors import DataError
from fairseq_interference.stages import write_text

FILE, SCHEMA = "validation.jsonl", 1
PathLike = Union[str, Path]
Line = dict[str, Any]


def named(measure: str) -> str:
    """The name of a measure in the file: losses say their unit."""
    return f"{measure}_bits" if measure.endswith("loss") else measure


def number(value: Any) -> Optional[float]:
    """A Python number, None for what is none (no value, nan, infinite)."""
    return None if value is None or not math.isfinite(float(value)) else float(value)


def line_of(stats: Mapping[str, Any], measures: Sequence[str], languages: Sequence[str]) -> Line:
    """The numbers of a validation.

    Args:
        stats: what the host logs: ``loss``, ``f1_xa`` and so on.
        measures: names without a language.

    Returns:
        ``metrics``: language -> measure -> number, without the languages that were not validated; ``overall``: what
        the host logs without a language.
    """
    overall = {named(name): number(stats[name]) for name in (*measures, "macro_loss", "macro_ppl") if name in stats}
    metrics = {}
    for lang in languages:
        own = {named(name): number(stats[f"{name}_{lang}"]) for name in measures if f"{name}_{lang}" in stats}
        if not own and len(languages) == 1:  # a single language has no suffix
            own = {named(name): overall[named(name)] for name in measures if named(name) in overall}
        if own:
            metrics[lang] = own
    return {"metrics": metrics, "overall": overall}


def _text(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"


def _whole_lines(path: Path) -> list[Line]:
    """Lines of the file; a last one that was cut off is left out."""
    text = path.read_bytes()
    try:
        return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
    except ValueError as error:
        raise DataError("This file is broken.", where=path, value=str(error)) from None


def begin(path: PathLike, header: Mapping[str, Any], update: int) -> Optional[int]:
    """Begin the file, or go on with it: what lies beyond ``update`` is dropped, all of it at update 0.

    Returns:
        The last update that is kept.
    """
    old = _whole_lines(Path(path))[1:] if Path(path).is_file() and update else []
    kept = [line for line in old if line["update"] <= update]
    write_text(path, "".join(_text(line) for line in ({"schema": SCHEMA, **header}, *kept)))
    return int(kept[-1]["update"]) if kept else None


def append(path: PathLike, line: Line) -> None:
    """Add a validation."""
    with open(path, "a", encoding="utf-8", newline="\n") as stream:
        stream.write(_text(line))


def read(folder: PathLike) -> tuple[Line, list[Line]]:
    """First line and validations of a run, by its folder.

    Raises:
        DataError: there is no such file, it is broken, or of another version.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        what, advice = "This folder holds no validations of a run.", "give the --save-dir of a training"
        raise DataError(what, where=path, next_step=advice)
    lines = _whole_lines(path)
    if not lines or lines[0].get("schema") != SCHEMA:
        found = lines[0].get("schema") if lines else None
        raise DataError("These validations were written by another version.", where=path, value=found, allowed=SCHEMA)
    return lines[0], lines[1:]


# -- validations between those of the host ------------------------------------------------------------------------


@contextlib.contextmanager
def same_draws() -> Iterator[None]:
    """Leave every random generator as it was: the update that follows draws what it would have drawn."""
    import numpy as np
    import torch

    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    python, others = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        yield
    random.setstate(python)
    np.random.set_state(others)


def validate_between(
    validate: Callable[..., Any], cfg: Any, trainer: Any, task: Any, epoch_itr: Any, subsets: Sequence[str]
) -> bool:
    """Validate for ``--gap-every`` if it is time and the host has not done so; a collective of all ranks.

    Nothing comes of it but a line in the file: neither the best checkpoint nor patience nor scheduler see it.

    Args:
        validate: the host's function.

    Returns:
        Whether it was done.
    """
    every, update = int(getattr(task.cfg, "gap_every", 0) or 0), trainer.get_num_updates()
    if not every or not update or update % every or task.validated_at == update:
        return False
    with same_draws():
        validate(cfg, trainer, task, epoch_itr, subsets[:1])
    return True


def begin_log(trainer: Any) -> None:
    """Let the task of a run that begins or goes on begin its file."""
    begins = getattr(trainer.task, "begin_log", None)
    if begins is not None and not trainer.cfg.dataset.disable_validation:
        begins(trainer.get_num_updates())
