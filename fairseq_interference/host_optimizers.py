"""Wraps of the host's optimizers and trainer: names in saved states, ``--amp``, averages, rates of a task's own."""

from __future__ import annotations

from typing import Any, Callable

from fairseq_interference import appended_state

Function = Callable[..., Any]


def _amp_scaler(optimizer: Any) -> Any:
    """The gradient scaler of the host's ``--amp`` wrapper; None for every other optimizer."""
    scaler = getattr(optimizer, "scaler", None)
    return scaler if hasattr(scaler, "unscale_") else None


def unscale_grads(optimizer: Any) -> None:
    """Bring the gradients that the optimizer will use to their true size, once per update.

    fp16 and bf16: the model's gradients are copied to the fp32 masters and the pending factor (1 / loss scale,
    1 / sample size, clipping) is applied to the masters. ``--amp``: unscaled unless clipping has done so already.
    fp32: nothing to do.
    """
    scaler = _amp_scaler(optimizer)
    if scaler is None:
        unscale = getattr(optimizer, "_unscale_grads", None)
        if unscale is not None:
            unscale()
    elif scaler.is_enabled():
        state = scaler._per_optimizer_states.get(id(optimizer.optimizer))
        if state is None or state["stage"].value == 0:  # READY
            scaler.unscale_(optimizer.optimizer)


def optimizer_step(optimizer: Any) -> None:
    """Step once, with ``--amp`` too: unscaled once, skipped by the scaler when a gradient is not finite."""
    scaler = _amp_scaler(optimizer)
    if scaler is None:
        optimizer.step()
        return
    parameters = [p for group in optimizer.optimizer.param_groups for p in group["params"]]
    if all(parameter.grad is None for parameter in parameters):
        return
    unscale_grads(optimizer)
    scaler.step(optimizer.optimizer)
    scaler.update()


def _load_optimizer(original: Function) -> Function:
    """The host numbers optimizer state by position: with languages appended, or other parameters frozen, it goes to the
    parameters it belongs to."""

    def load_state_dict(self: Any, state_dict: Any, optimizer_overrides: Any = None) -> Any:
        return original(self, appended_state.fit_groups(state_dict, self.param_groups), optimizer_overrides)

    return load_state_dict


def _optimizer_state(original: Function) -> Function:
    """The host does not save which parameter a state is of."""

    def state_dict(self: Any) -> Any:
        return appended_state.name_groups(original(self), self.param_groups)

    return state_dict


def _amp_step(_original: Function) -> Function:
    """The host unscales twice with --amp: once in clip_grad_norm, once in step under another key."""

    def step(self: Any) -> None:
        optimizer_step(self)

    return step


def _ema(original: Function) -> Function:
    """The host multiplies every tensor of the model by the decay, also those of integers (the list of languages)."""

    def init(self: Any, model: Any, config: Any, device: Any = None, skip_keys: Any = None) -> None:
        import torch

        tensors = [(key, value) for key, value in model.state_dict().items() if torch.is_tensor(value)]
        whole = {key for key, value in tensors if not value.is_floating_point()}
        original(self, model, config, device, whole.union(skip_keys or ()))

    return init


def _build_optimizer(original: Function) -> Function:
    """The host has no place where a task could give parameters rates of their own."""

    def build(self: Any) -> None:
        original(self)
        getattr(self.task, "prepare_optimizer", lambda optimizer: None)(self._optimizer)

    return build


# module, attribute, wrap; the reason is the wrap's docstring
WRAPS: list[tuple[str, str, Callable[[Function], Function]]] = [
    ("fairseq.optim.amp_optimizer", "AMPOptimizer.step", _amp_step),
    ("fairseq.trainer", "Trainer._build_optimizer", _build_optimizer),
    ("fairseq.models.ema.ema", "EMA.__init__", _ema),
    ("fairseq.optim.fairseq_optimizer", "FairseqOptimizer.load_state_dict", _load_optimizer),
    ("fairseq.optim.fairseq_optimizer", "FairseqOptimizer.state_dict", _optimizer_state),
]
