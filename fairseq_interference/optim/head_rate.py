"""Which parameters fine-tuning trains, and at which rate: frozen ones by name, the head at a rate of its own."""

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


def rate_of_head(optimizer: Any, head: str, text: str) -> None:
    """Move the head's parameters into a group of their own, whose rate stays a factor of the scheduler's.

    Args:
        optimizer: the host's, perhaps a precision wrapper; it has one group and no state yet.
        head: beginning of the names of the head's parameters.
        text: ``--head-lr``.

    Raises:
        HostError: flattened half precision, where the head is a part of one vector.
        UsageError: no rate, or a frozen head.
    """
    rate = Rate.parse(text, "--head-lr")
    inner = inner_optimizer(optimizer)
    factor = rate.factor(inner.optimizer_config["lr"], "--head-lr")
    if factor == 1.0:
        return
    body, *others = inner.param_groups
    mine = [p for number, p in enumerate(body["params"]) if name_of(p, number).startswith(f"{head}.")]
    frozen = not mine and all(getattr(p, "optim_overrides", None) for p in body["params"])
    if frozen:
        raise UsageError("The head is frozen, so it has no rate.", where="--head-lr, --freeze", value=text)
    if others or not mine:
        raise HostError(
            "This optimizer cannot tell the head from the rest.",
            where="--head-lr",
            value=text,
            next_step="with --fp16 add --fp16-no-flatten-grads; otherwise use --optimizer adam",
        )
    chosen = set(map(id, mine))
    body["params"] = [p for p in body["params"] if id(p) not in chosen]
    inner.param_groups.append({**body, "params": mine})

    def set_lr(lr: float) -> None:
        for group, rate_now in zip(inner.param_groups, (lr, lr * factor)):
            group["lr"] = rate_now
        metrics.log_scalar("lr_head", lr * factor, weight=0, priority=301)

    inner.set_lr = set_lr
    set_lr(body["lr"])
