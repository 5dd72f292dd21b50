"""Which parameters fine-tuning trains, and at which rate: frozen and scaled ones by name, the head by itself."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import Any, Optional

from fairseq.logging import metrics

from fairseq_interference.appended_state import name_of
from fairseq_interference.errors import HostError, UsageError
from fairseq_interference.optim.presence import inner_optimizer
from fairseq_interference.optim.rates import Rate

logger = logging.getLogger(__name__)


def freeze(model: Any, patterns: Optional[str]) -> None:
    """Take gradients from the parameters whose names fit one of the patterns.

    Args:
        patterns: with ``*``, ``?`` and ``[0-3]``, separated by commas; None freezes none.

    Raises:
        UsageError: a pattern that fits no parameter, or patterns that leave none to train.
    """
    if patterns is None:
        return
    wanted = [pattern.strip() for pattern in patterns.split(",")]
    named = dict(model.named_parameters())
    idle = [pattern for pattern in wanted if not any(fnmatchcase(name, pattern) for name in named)]
    if idle:
        raise UsageError(
            "No parameter has such a name.",
            where="--freeze",
            value=", ".join(idle),
            allowed=", ".join(list(named)[:3]) + ", … (fairseq-interference params lists them)",
        )
    frozen = [name for name in named if any(fnmatchcase(name, pattern) for pattern in wanted)]
    for name in frozen:
        named[name].requires_grad_(False)
    rest = sum(parameter.numel() for parameter in named.values() if parameter.requires_grad)
    if not rest:
        raise UsageError("Nothing is left to train.", where="--freeze", value=patterns)
    count = sum(named[name].numel() for name in frozen)
    logger.info("frozen: %d parameters in %d tensors; trained: %d parameters", count, len(frozen), rest)


def scales_of(text: Optional[str]) -> dict[str, float]:
    """Pattern -> factor, of ``--lr-scale "PATTERN=x10,PATTERN=x0.1"``; empty for None.

    Raises:
        UsageError: not of this form, a pattern twice, or a factor that changes nothing.
    """
    found: dict[str, float] = {}
    for entry in [] if text is None else text.split(","):
        pattern, _, value = entry.strip().rpartition("=")
        rate = Rate.parse(value, "--lr-scale")
        if not pattern or pattern in found or not rate.relative or rate.value == 1.0:
            allowed = "PATTERN=x10,PATTERN=x0.1, each pattern once, factors other than x1"
            raise UsageError("This scales no rate.", where="--lr-scale", value=entry, allowed=allowed)
        found[pattern] = rate.value
    return found


def set_rates(optimizer: Any, head: str, head_lr: str, lr_scale: Optional[str] = None) -> None:
    """Part the parameters into groups whose rates stay factors of the scheduler's.

    The first group is what no flag names; the head and each factor of ``--lr-scale`` have one each.

    Args:
        optimizer: the host's, perhaps a precision wrapper; it has one group and no state yet.
        head: beginning of the names of the head's parameters.
        head_lr: ``--head-lr``.
        lr_scale: ``--lr-scale``.

    Raises:
        HostError: flattened half precision, where all parameters are one vector.
        UsageError: no rate, a pattern that fits no trained parameter (a frozen head), or two that fit the same one.
    """
    inner = inner_optimizer(optimizer)
    factor = Rate.parse(head_lr, "--head-lr").factor(inner.optimizer_config["lr"], "--head-lr")
    wanted = [] if factor == 1.0 else [(f"{head}.*", "lr_head", factor)]
    wanted += [(pattern, f"lr_x{scale:g}", scale) for pattern, scale in scales_of(lr_scale).items()]
    if not wanted:
        return
    body, *others = inner.param_groups
    named = {name_of(parameter, number): parameter for number, parameter in enumerate(body["params"])}
    fitting = {name: [entry for entry in wanted if fnmatchcase(name, entry[0])] for name in named}
    idle = [entry[0] for entry in wanted if not any(entry in found for found in fitting.values())]
    if others or (idle and not all(getattr(p, "optim_overrides", None) for p in body["params"])):
        raise HostError(
            "This optimizer cannot tell parameters apart.",
            where="--head-lr, --lr-scale",
            value=", ".join(pattern for pattern, _, _ in wanted),
            next_step="with --fp16 add --fp16-no-flatten-grads; otherwise use --optimizer adam",
        )
    if idle:
        raise _idle(idle, f"{head}.*", named)
    twice = [name for name, found in fitting.items() if len(found) > 1]
    if twice:
        what, where = "A parameter has two rates.", "--lr-scale, --head-lr"
        raise UsageError(what, where=where, value=", ".join(twice[:3]), allowed="one pattern that fits it")
    _group(inner, body, named, fitting)


def _group(inner: Any, body: dict[str, Any], named: dict[str, Any], fitting: dict[str, Any]) -> None:
    """A group for each label; ``set_lr``, by which schedulers set rates, knows their factors from now on."""
    groups: dict[tuple[str, float], list[Any]] = {}
    for name, found in fitting.items():
        for _, label, factor in found:
            groups.setdefault((label, factor), []).append(named[name])
    body["params"] = [named[name] for name, found in fitting.items() if not found]
    inner.param_groups.extend({**body, "params": mine} for mine in groups.values())

    def set_lr(lr: float) -> None:
        body_now, *scaled = inner.param_groups
        body_now["lr"] = lr
        for (label, times), group in zip(groups, scaled):
            group["lr"] = lr * times
            metrics.log_scalar(label, lr * times, weight=0, priority=301)

    inner.set_lr = set_lr
    set_lr(body["lr"])


def _idle(patterns: list[str], head: str, named: Any) -> UsageError:
    if head in patterns:
        return UsageError("The head is frozen, so it has no rate.", where="--head-lr, --freeze", value=head)
    return UsageError(
        "No trained parameter has such a name.",
        where="--lr-scale",
        value=", ".join(patterns),
        allowed=", ".join(list(named)[:3]) + ", … (fairseq-interference params lists them; not frozen ones)",
    )
