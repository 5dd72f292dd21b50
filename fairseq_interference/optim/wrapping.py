"""What optimizers share that wrap another registered one: they declare its options, build it and hand everything on."""

# No postponed annotations here: the host's parser needs the fields' real types.

import argparse
from collections.abc import Iterable
from dataclasses import MISSING, field, fields, make_dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY, OPTIMIZER_REGISTRY, FairseqOptimizer
from omegaconf import OmegaConf

from fairseq_interference.errors import ResumeError, UsageError

# composite moves groups by optimizers of its own, and takes its options from hydra
INNER = sorted(
    name for name, made in OPTIMIZER_REGISTRY.items() if made.__module__.startswith("fairseq.") and name != "composite"
)
INNER_CHOICES = ChoiceEnum(INNER)


def _options(name: str) -> dict[str, tuple[Any, Any, str]]:
    """Options of a registered optimizer: name -> type, default, help. Some declare them as flags only."""
    declared = OPTIMIZER_DATACLASS_REGISTRY.get(name)
    if declared is not None:
        return {
            entry.name: (
                entry.type,
                entry.default_factory() if entry.default_factory is not MISSING else entry.default,
                str(dict(entry.metadata or {}).get("help", "")),
            )
            for entry in fields(declared)
            if entry.name != "_name"
        }
    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    OPTIMIZER_REGISTRY[name].add_args(parser)
    return {
        action.dest: (bool if action.nargs == 0 else action.type or str, action.default, action.help or "")
        for action in parser._actions
    }


def _is_shared(default: Any) -> bool:
    """Whether an option is taken from elsewhere in the host's configuration."""
    return isinstance(default, str) and default.startswith("${")


def inner_options() -> type[FairseqDataclass]:
    """A dataclass with the options of all optimizers in :data:`INNER`; None where the user gives none.

    The host's parser and saved configuration take the chosen optimizer's dataclass alone.
    """
    found: dict[str, dict[str, tuple[Any, Any, str]]] = {}
    for name in INNER:
        for option, described in _options(name).items():
            found.setdefault(option, {})[name] = described
    made: list[Any] = []
    for option, by_name in found.items():
        kind, default, text = next(iter(by_name.values()))
        if _is_shared(default):
            made.append((option, kind, default))
        elif kind is bool:
            made.append((option, bool, field(default=False, metadata={"help": _help(text, by_name, False)})))
        else:
            same = {str(some[0]) for some in by_name.values()} == {str(kind)}
            kind = Optional[kind] if same and kind is not Any else Any
            made.append((option, kind, field(default=None, metadata={"help": _help(text, by_name, True)})))
    return make_dataclass("InnerOptions", made, bases=(FairseqDataclass,))


def _help(text: str, by_name: dict[str, tuple[Any, Any, str]], with_defaults: bool) -> str:
    defaults = ", ".join(f"{name} {some[1]}" for name, some in by_name.items())
    return f"{text} ({defaults})" if with_defaults else f"{text} ({', '.join(by_name)})"


def inner_config(cfg: Any, name: str, flag: str) -> Any:
    """The configuration of the inner optimizer: what the user gave, its own defaults elsewhere.

    Args:
        cfg: the wrapping optimizer's. flag: that names the inner optimizer.

    Raises:
        UsageError: no such optimizer, or an option that it does not have.
    """
    if name not in INNER:
        raise UsageError("Not an optimizer that can be wrapped.", where=flag, value=name, allowed=", ".join(INNER))
    mine = _options(name)
    others = {option for other in INNER for option, some in _options(other).items() if not _is_shared(some[1])}
    idle = [option for option in sorted(others - set(mine)) if getattr(cfg, option, None) not in (None, False)]
    if idle:
        flags = ", ".join(f"--{option.replace('_', '-')}" for option in idle)
        raise UsageError(f"{name} has no such option.", where=f"{flag} {name}", value=flags)
    values = {option: _value(cfg, option, default) for option, (_, default, _) in mine.items()}
    return OmegaConf.create({"lr": _value(cfg, "lr", None), **values})


def _value(cfg: Any, option: str, default: Any) -> Any:
    given = getattr(cfg, option, None)
    value = default if given is None else given
    if OmegaConf.is_config(value):
        return OmegaConf.to_container(value, resolve=True)
    return list(value) if isinstance(value, tuple) else value


class WrappingOptimizer(FairseqOptimizer):
    """Holds another registered optimizer, which moves the parameters; schedulers and wrappers see that one's groups.

    Args:
        cfg: a dataclass that extends :func:`inner_options`. params: those to move.
        name: of the inner optimizer. flag: that names it.

    Subclasses add to what is done before the inner optimizer steps, and what of it is saved (:meth:`own_state`).
    """

    def __init__(self, cfg: Any, params: Iterable[Any], name: str, flag: str) -> None:
        super().__init__(cfg)
        self.inner_name, self.inner_flag = name, flag
        self.inner = OPTIMIZER_REGISTRY[name](inner_config(cfg, name, flag), list(params))

    @property
    def optimizer(self) -> Any:
        """The torch optimizer."""
        return self.inner.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self.inner.optimizer = optimizer

    @property
    def optimizer_config(self) -> Any:
        """Settings that hold when a state is loaded."""
        return self.inner.optimizer_config

    def __getstate__(self) -> Any:
        return self.inner.__getstate__()

    def get_lr(self) -> Any:
        return self.inner.get_lr()

    def set_lr(self, lr: float) -> None:
        self.inner.set_lr(lr)

    def step(self, closure: Any = None, scale: float = 1.0, groups: Any = None) -> None:
        self.inner.step(closure, scale=scale, groups=groups)

    def average_params(self) -> None:
        self.inner.average_params()

    @property
    def supports_flat_params(self) -> bool:
        """Never: flat parameters have lost their names and languages."""
        return False

    @property
    def supports_memory_efficient_fp16(self) -> bool:
        """Never: there are no masters."""
        return False

    def own_state(self) -> dict[str, Any]:
        """What is saved beside the inner optimizer's state: tensors and plain containers."""
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Restore :meth:`own_state`."""

    @property
    def _key(self) -> str:
        return type(self).__name__.lower()

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state, by the names of parameters as that of any other, and one's own."""
        return {**self.inner.state_dict(), self._key: {"inner": self.inner_name, **self.own_state()}}

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: Optional[dict[str, Any]] = None) -> None:
        """Restore both.

        Raises:
            ResumeError: the state is of another inner optimizer.
        """
        rest = dict(state_dict)
        own = dict(rest.pop(self._key, {}))
        before = own.pop("inner", self.inner_name)
        if before != self.inner_name:
            raise ResumeError(
                "The optimizer state is of another inner optimizer.",
                where=self.inner_flag,
                value=self.inner_name,
                allowed=str(before),
                next_step="give --reset-optimizer to keep the weights and begin with a fresh optimizer",
            )
        self.inner.load_state_dict(rest, optimizer_overrides)
        self.load_own_state(own)
