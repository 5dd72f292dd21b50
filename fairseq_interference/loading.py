"""``load(path)``: a checkpoint in a fresh Python, from any folder, with its dictionary, languages and tokenizer."""

from __future__ import annotations

import logging
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Optional, Union

from fairseq_interference import register
from fairseq_interference.errors import CheckpointError, UsageError
from fairseq_interference.evaluation.notebook import Methods
from fairseq_interference.languages import LanguageList

logger = logging.getLogger(__name__)

PACKAGE = "fairseq_interference"
# prefixes of options that belong to us wherever they stand (architecture: flags are prefixed by owner)
OUR_PREFIXES = ("adapter_", "meta_", "l0_", "slow_fast_", "surgery_")


@dataclass(frozen=True)
class Loaded(Methods):
    """A checkpoint, ready to use: ``encode``, ``fill_mask``, ``tag``, ``answer`` and ``classify`` ask it.

    Attributes:
        model: on the CPU, in eval mode.
        task: the task that it was trained with.
        cfg: its configuration (omegaconf), overrides applied.
        languages: ids that ``lang_id`` means; empty for a checkpoint of the host without languages.
        tokenizer_dir: folder that encodes new text, or None if none travels with the checkpoint.
        dictionary: the host's Dictionary (sub-word piece to id).
        notes: options of ours that were missing or unknown in the configuration, one sentence each.
        path: its file.
    """

    model: Any
    task: Any
    cfg: Any
    languages: LanguageList
    tokenizer_dir: Optional[Path]
    dictionary: Any
    notes: tuple[str, ...] = ()
    path: Optional[Path] = None


@dataclass(frozen=True)
class _Beside:
    """What lies beside a checkpoint: the folder to read as data, languages, tokenizer."""

    data: Optional[Path]
    languages: Optional[LanguageList]
    tokenizer_dir: Optional[Path]


def load(path: Union[str, Path], **overrides: Any) -> Loaded:
    """Load a checkpoint of ours or of the host, on the CPU, in eval mode.

    Args:
        path: checkpoint file. Dictionary, languages and tokenizer are taken from beside it; where they are
            missing, from the data folder that the checkpoint names.
        overrides: configuration values by name, e.g. ``data="/other/data-bin"``.

    Raises:
        CheckpointError: missing, damaged or unsafe file; weights that do not fit; no dictionary to be found.
        UsageError: an override that names no option of the checkpoint.
        LanguageError: languages beside the checkpoint that are not those inside.
    """
    register()
    from fairseq import checkpoint_utils

    path = Path(path).absolute()  # what is read later is found from any folder
    if not path.is_file():
        raise CheckpointError("There is no such checkpoint.", where=path, next_step=_others(path.parent))
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    cfg = state.get("cfg")
    if cfg is None:
        raise CheckpointError("The checkpoint holds no configuration.", where=path)
    _refuse_unknown_overrides(cfg, overrides)
    beside = _look_beside(path)
    data = overrides.pop("data", None) or _data_folder(path, cfg, beside)
    notes = tuple(_check_options(cfg))
    for note in notes:
        logger.warning(f"{path}: {note}")
    state = _with_configuration(state, {"companions": None, **overrides, "data": str(data)})  # they lie in data
    models, cfg, task = _build(path, state)
    languages = _languages(path, task, beside)
    return Loaded(
        model=models[0].eval(),
        task=task,
        cfg=cfg,
        languages=languages,
        tokenizer_dir=_tokenizer(data, beside),
        dictionary=task.source_dictionary,
        notes=notes,
        path=path,
    )


def _others(folder: Path) -> str:
    found = sorted(p.name for p in folder.glob("*.pt")) if folder.is_dir() else []
    return f"checkpoints in {folder}: {', '.join(found) or 'none'}"


def _look_beside(path: Path) -> _Beside:
    """Companions of our own runs, or the loose dict.txt of public checkpoints (XLM-R)."""
    from fairseq_interference.data.companions import find_companions

    if (path.parent / "languages.txt").is_file():
        found = find_companions(path)
        return _Beside(Path(found.dict_path).parent, found.languages, found.tokenizer_dir)
    if (path.parent / "dict.txt").is_file():
        return _Beside(path.parent, None, _folder(path.parent / "tokenizer"))
    return _Beside(None, None, None)


def _folder(path: Path) -> Optional[Path]:
    return path if path.is_dir() else None


def _data_folder(path: Path, cfg: Any, beside: _Beside) -> Path:
    """Beside the checkpoint first: a relative data path may mean another folder today."""
    if beside.data is not None:
        return beside.data
    recorded = str(_get(cfg.get("task"), "data") or "").split(os.pathsep)[0]
    if recorded and (Path(recorded) / "dict.txt").is_file():
        return Path(recorded).absolute()
    raise CheckpointError(
        "The dictionary of this checkpoint cannot be found.",
        where=path,
        value=f"recorded data folder {recorded or '(none)'}",
        allowed=f"dict.txt in {path.parent}, or in the recorded data folder",
        next_step='copy dict.txt (and languages.txt, tokenizer/) beside the checkpoint, or load(path, data="FOLDER")',
    )


def _tokenizer(data: Union[str, Path], beside: _Beside) -> Optional[Path]:
    if beside.tokenizer_dir is not None:
        return Path(beside.tokenizer_dir)
    return _folder(Path(str(data).split(os.pathsep)[0]).absolute() / "tokenizer")


def _with_configuration(state: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    from fairseq.dataclass.utils import overwrite_args_by_name

    overwrite_args_by_name(state["cfg"], dict(values))
    return {**state, "args": None}  # the host has turned an old Namespace into cfg already


def _build(path: Path, state: dict[str, Any]) -> tuple[list[Any], Any, Any]:
    from fairseq import checkpoint_utils

    try:
        found: tuple[list[Any], Any, Any] = checkpoint_utils.load_model_ensemble_and_task([str(path)], state=state)
    except RuntimeError as error:
        if "state_dict" not in str(error):
            raise
        raise CheckpointError("The weights do not fit the model.", where=path, value=str(error)) from error
    except AssertionError as error:
        if "Could not infer" not in str(error):
            raise
        name = _get(state["cfg"].get("task"), "_name") or _get(state["cfg"].get("task"), "task")
        raise CheckpointError(
            "The checkpoint needs a task or model that is not registered here.",
            where=path,
            value=name,
            next_step="import the plug-in that registers it first",
        ) from error
    return found


def _languages(path: Path, task: Any, beside: _Beside) -> LanguageList:
    inside = getattr(task, "languages", None)
    if not isinstance(inside, LanguageList):
        return beside.languages or LanguageList()
    if beside.languages is not None:
        beside.languages.check_extends(inside, where=path.parent / "languages.txt")
    return inside


# --- options -----------------------------------------------------------------------------------------------------


def _get(section: Any, name: str) -> Any:
    if section is None:
        return None
    return getattr(section, name, None) if isinstance(section, Namespace) else section.get(name)


def _names(section: Any) -> set[str]:
    if section is None:
        return set()
    if isinstance(section, Namespace):
        return set(vars(section))
    return {str(name) for name in section} if hasattr(section, "keys") else set()


def _refuse_unknown_overrides(cfg: Any, overrides: Mapping[str, Any]) -> None:
    known = set(cfg).union(*(_names(cfg[section]) for section in cfg))
    unknown = sorted(set(overrides) - known - {"data"})
    if unknown:
        raise UsageError(
            "The checkpoint has no such option.",
            where="load(path, **overrides)",
            value=", ".join(unknown),
            allowed=", ".join(sorted(_closest(unknown, known))) or "a name in its configuration",
        )


def _closest(unknown: Iterable[str], known: Iterable[str]) -> list[str]:
    import difflib

    names = [str(name) for name in known]
    return [match for name in unknown for match in difflib.get_close_matches(name, names, n=3)]


def declared_options(kind: type, declared: Optional[type] = None) -> dict[str, Any]:
    """Options that a registered class of ours adds to the host's, with defaults.

    Args:
        kind: the registered class.
        declared: its dataclass; without one the options come from ``add_args``.
    """
    if declared is not None:
        bases = [base for base in declared.__mro__ if is_dataclass(base) and not _is_ours(base)]
        hosts = {field.name for base in bases for field in fields(base)}
        return {field.name: field.default for field in fields(declared) if field.name not in hosts}
    host = next((base for base in kind.__mro__ if not _is_ours(base) and hasattr(base, "add_args")), None)
    hosts = set(_arguments(host)) if host is not None else set()
    return {name: default for name, default in _arguments(kind).items() if name not in hosts}


def _arguments(kind: type) -> dict[str, Any]:
    parser = ArgumentParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    kind.add_args(parser)  # type: ignore[attr-defined]
    return {action.dest: action.default for action in parser._actions}


def _is_ours(kind: Optional[type]) -> bool:
    return kind is not None and kind.__module__.split(".")[0] == PACKAGE


def _sections(cfg: Any) -> Iterable[tuple[str, Any, type, Optional[type]]]:
    """Sections of a configuration that a class of ours reads: name, values, class, its dataclass."""
    from fairseq import models, tasks

    task = cfg.get("task")
    name = _get(task, "_name") or _get(task, "task")
    if _is_ours(tasks.TASK_REGISTRY.get(name)):
        yield f"task {name}", task, tasks.TASK_REGISTRY[name], tasks.TASK_DATACLASS_REGISTRY.get(name)
    model = cfg.get("model")
    arch = _get(model, "_name") or _get(model, "arch")
    if _is_ours(models.ARCH_MODEL_REGISTRY.get(arch)):
        registered = models.ARCH_MODEL_NAME_REGISTRY.get(arch)
        yield f"arch {arch}", model, models.ARCH_MODEL_REGISTRY[arch], models.MODEL_DATACLASS_REGISTRY.get(registered)


def _host_names(declared: Optional[type]) -> set[str]:
    """Fields that a dataclass of ours inherits from the host."""
    return {field.name for field in fields(declared)} if declared is not None else set()


def _check_options(cfg: Any) -> Iterable[str]:
    """Options of ours that the configuration lacks (an older release) or that nobody declares (a newer one)."""
    from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY as OPTIMIZERS
    from omegaconf import II

    # a model's options are a namespace of all flags, those of our optimizers among them
    declared = {name for kind in OPTIMIZERS.values() if _is_ours(kind) for name in _host_names(kind)}
    sections = list(_sections(cfg))
    for _, _, kind, options in sections:
        declared |= set(declared_options(kind, options))
    for name, values, kind, options in sections:
        there = _names(values)
        for option, default in sorted(declared_options(kind, options).items()):
            interpolated = isinstance(default, str) and default.startswith(II("")[:2])
            if option not in there and not interpolated:
                yield f"{name} has no option {option} in this checkpoint: {default!r} is used"
        own = there if not isinstance(values, Namespace) else {n for n in there if n.startswith(OUR_PREFIXES)}
        for option in sorted(own - declared - {"_name", "task", "arch"} - _host_names(options)):
            yield f"{name}: option {option} of this checkpoint is unknown here and has no effect"
