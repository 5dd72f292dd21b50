"""Resuming with languages appended: the optimizer's old state goes to the old parameters, new ones start fresh.

A host checkpoint numbers optimizer state by the position of a parameter. Appending languages puts new parameters
between the old ones, so the state is moved to where each old parameter now stands; shapes must agree.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any, Optional

import torch

from fairseq_interference.errors import ResumeError

logger = logging.getLogger(__name__)


OVERRIDES_KEY = "interference"
NAMES_KEY = "names"  # in the groups of a saved optimizer state


def _ours(parameter: Any) -> dict[str, Any]:
    overrides = getattr(parameter, "optim_overrides", None) or {}
    found: dict[str, Any] = overrides.get(OVERRIDES_KEY, {})
    return found


def language_of(parameter: Any) -> Optional[str]:
    """Code of the language that a parameter (or its fp32 master) belongs to; None for shared ones."""
    return _ours(parameter).get("lang")


def name_of(parameter: Any, number: int) -> str:
    """Dotted name of a parameter of ours (or of its fp32 master)."""
    return str(_ours(parameter).get("name", f"parameter {number}"))


def fit_state(state: dict[str, Any], parameters: Sequence[Any]) -> dict[str, Any]:
    """The state of an optimizer, fitted to parameters of which some belong to appended languages.

    Args:
        state: ``state_dict`` of a torch optimizer with one parameter group.
        parameters: the optimizer's parameters now.

    Returns:
        ``state`` itself if it fits already.

    Raises:
        ResumeError: the parameters differ by more than appended languages.
    """
    groups = state.get("param_groups", [])
    if len(groups) != 1:
        return state
    numbers = list(groups[0]["params"])
    grown = any(_grows(state["state"].get(number, {}), p) for number, p in zip(numbers, parameters))
    if len(numbers) == len(parameters) and not grown:
        return state
    kept = _kept(numbers, state["state"], parameters)
    if kept is None:
        raise ResumeError(
            "The optimizer state is not of these parameters.",
            where="checkpoint",
            value=f"{len(numbers)} parameters",
            allowed=f"{len(parameters)} parameters, or fewer by appended languages",
            next_step="give --reset-optimizer to keep the weights and begin with a fresh optimizer",
        )
    moved = {
        new: _padded(state["state"][old], parameters[new]) for old, new in zip(numbers, kept) if old in state["state"]
    }
    old_names = [name_of(parameters[number], number) for number in kept]
    new_names = [name_of(p, number) for number, p in enumerate(parameters) if number not in set(kept)]
    _list(old_names, new_names)
    return {**state, "state": moved, "param_groups": [{**groups[0], "params": list(range(len(parameters)))}]}


def name_groups(state: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write the names of parameters into the groups of an optimizer's state, which knows their places alone."""
    for saved, group in zip(state.get("param_groups", ()), groups):
        saved[NAMES_KEY] = _names(group)
    return state


def fit_groups(state: dict[str, Any], groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state of an optimizer, fitted by name to the parameters that it moves now.

    Languages may have been appended, other parameters frozen, groups parted otherwise: what is kept, what begins anew
    and what is left out is listed. A state without names (of an older release) is fitted by :func:`fit_state`.

    Args:
        state: ``state_dict`` of a torch optimizer.
        groups: the optimizer's ``param_groups``.

    Raises:
        ResumeError: a parameter has another shape.
    """
    parameters = [parameter for group in groups for parameter in group["params"]]
    saved = state.get("param_groups", [])
    if not saved or any(NAMES_KEY not in group for group in saved):
        return fit_state(state, parameters)
    old = {name: number for group in saved for number, name in zip(group["params"], group[NAMES_KEY])}
    names = [_names(group) for group in groups]
    entries: dict[int, Any] = {}
    for number, (name, parameter) in enumerate(zip(itertools.chain(*names), parameters)):
        entry = state["state"].get(old.get(name))
        if entry is not None and not _fits(entry, parameter):
            raise _other_parameters(name)
        if entry is not None:
            entries[number] = _padded(entry, parameter)
    flat = list(itertools.chain(*names))
    _list([name for name in flat if name in old], [name for name in flat if name not in old])
    gone = [name for name in old if name not in set(flat)]
    if gone:
        logger.warning("optimizer state left out for %d parameters: %s", len(gone), ", ".join(gone))
    settings = saved if len(saved) == len(groups) else groups
    numbers = itertools.count()
    fitted = [{**kept, "params": [next(numbers) for _ in own], NAMES_KEY: own} for kept, own in zip(settings, names)]
    return {**state, "state": entries, "param_groups": fitted}


def _names(group: dict[str, Any]) -> list[str]:
    return [name_of(parameter, number) for number, parameter in enumerate(group["params"])]


def fit_named(state: dict[str, dict[str, Any]], parameters: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """State by the names of parameters, fitted to parameters of which some belong to appended languages.

    Raises:
        ResumeError: a name that is not there, or a shape that does not fit; names them.
    """
    named = {name_of(parameter, number): parameter for number, parameter in enumerate(parameters)}
    wrong = [name for name, entry in state.items() if name not in named or not _fits(entry, named[name])]
    if wrong:
        raise _other_parameters(", ".join(wrong))
    new = [name for name in named if name not in state]
    if state:
        _list(list(state), new)
    return {name: _padded(entry, named[name]) for name, entry in state.items()}


def _other_parameters(names: str) -> ResumeError:
    return ResumeError(
        "The optimizer state is not of these parameters.",
        where="checkpoint",
        value=names,
        next_step="give --reset-optimizer to keep the weights and begin with a fresh optimizer",
    )


def _list(old: Sequence[str], new: Sequence[str]) -> None:
    """Say which parameters keep their state, if others begin anew."""
    if not new:
        return
    logger.warning("optimizer state kept by name for %d parameters: %s", len(old), ", ".join(old))
    logger.warning("optimizer state begins anew for %d parameters: %s", len(new), ", ".join(new))


def _kept(numbers: Sequence[Any], state: dict[Any, Any], parameters: Sequence[Any]) -> Optional[list[int]]:
    """Positions of the old parameters: all but those of the last k languages, for the k that fits."""
    languages = list(dict.fromkeys(code for p in parameters if (code := language_of(p)) is not None))
    for first_new in range(len(languages), -1, -1):
        appended = set(languages[first_new:])
        kept = [number for number, p in enumerate(parameters) if language_of(p) not in appended]
        if len(kept) == len(numbers):
            fits = all(_fits(state.get(old, {}), parameters[new]) for old, new in zip(numbers, kept))
            return kept if fits else None
    return None


def _tensors(entry: dict[str, Any]) -> list[Any]:
    return [value for value in entry.values() if torch.is_tensor(value) and value.dim() > 0]


def _fits(entry: dict[str, Any], parameter: Any) -> bool:
    return all(value.shape == parameter.shape for value in _tensors(entry)) or _grows(entry, parameter)


def _grows(entry: dict[str, Any], parameter: Any) -> bool:
    """Whether the parameter is a table (one row a language) that has got more rows."""
    tensors = _tensors(entry)
    return bool(tensors) and all(
        value.dim() == parameter.dim() and value.shape[1:] == parameter.shape[1:] and len(value) < len(parameter)
        for value in tensors
    )


def _padded(entry: dict[str, Any], parameter: Any) -> dict[str, Any]:
    """State of a parameter with zeros for new rows."""
    if not _grows(entry, parameter):
        return entry
    return {
        name: _with_rows(value, len(parameter)) if torch.is_tensor(value) else value for name, value in entry.items()
    }


def _with_rows(value: Any, rows: int) -> Any:
    if value.dim() == 0:
        return value
    return torch.cat([value, value.new_zeros((rows - len(value), *value.shape[1:]))])
