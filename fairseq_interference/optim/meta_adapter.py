"""``--optimizer meta_adapter``: Adam for shared and for language-specific parameters, each with settings of its own.

The bilevel step itself is the task's (``meta_step.py``), since it needs batches and the model. This optimizer moves
what it is given a gradient for: theta at the scheduler's rate, phi at its own (Wang et al. 2020, Eq. 3).
"""

# No postponed annotations here: the host's parser needs the fields' real types.

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from omegaconf import II

from fairseq_interference.appended_state import fit_named, language_of, name_of
from fairseq_interference.errors import UsageError
from fairseq_interference.optim.rates import Rate

logger = logging.getLogger(__name__)
SHARED, SPECIFIC = "shared", "lang_specific"
CUT = 100.0  # an element of the preconditioner is at most so many times its tensor's median


@dataclass
class MetaAdapterConfig(FairseqAdamConfig):
    """The host's Adam for the shared parameters, and the same for the language-specific ones."""

    meta_lr: str = field(
        default="x1",
        metadata={
            "help": "rate of language-specific parameters: x0.5 is half of --lr, 0.001 itself; both follow the "
            "scheduler"
        },
    )
    meta_betas: Optional[str] = field(default=None, metadata={"help": "their betas (default: --adam-betas)"})
    meta_eps: Optional[float] = field(default=None, metadata={"help": "their epsilon (default: --adam-eps)"})
    meta_weight_decay: Optional[float] = field(
        default=None, metadata={"help": "their decoupled weight decay (default: --weight-decay)"}
    )
    meta_clip_theta: float = field(
        default=0.0, metadata={"help": "largest norm of the shared gradient; 0: any (instead of --clip-norm)"}
    )
    meta_clip_phi: float = field(
        default=0.0, metadata={"help": "largest norm of the meta gradient of the languages present; 0: any"}
    )
    clip_norm: float = II("optimization.clip_norm")
    fp16: bool = II("common.fp16")
    fp16_no_flatten_grads: bool = II("common.fp16_no_flatten_grads")


def check_config(cfg: Any) -> None:
    """Raise :class:`UsageError` for settings out of range."""
    wrong = [
        f"--{name.replace('_', '-')} {getattr(cfg, name)}"
        for name in ("meta_eps", "meta_weight_decay", "meta_clip_theta", "meta_clip_phi")
        if not (getattr(cfg, name) or 0) >= 0
    ]
    wrong += [f"--{name.replace('_', '-')} 0" for name in ("adam_eps", "meta_eps") if getattr(cfg, name) == 0]
    if wrong:
        allowed = ">= 0; over 0 for an epsilon: adapters begin without a gradient"
        raise UsageError("Options are out of range.", where="meta_adapter", value="; ".join(wrong), allowed=allowed)
    if cfg.clip_norm > 0:
        raise UsageError(
            "The host would scale both groups of gradients together, before the meta step.",
            where="--clip-norm",
            value=cfg.clip_norm,
            next_step="leave it out; use --meta-clip-theta and --meta-clip-phi",
        )
    if cfg.fp16 and not cfg.fp16_no_flatten_grads:
        raise UsageError(
            "Flattened half precision melts all parameters into one.",
            where="--fp16",
            next_step="add --fp16-no-flatten-grads (or use --bf16 or --amp)",
        )
    if getattr(cfg, "fp16_adam_stats", False):
        raise UsageError("The inner step reads Adam's moments in fp32.", where="--fp16-adam-stats")


@register_optimizer("meta_adapter", dataclass=MetaAdapterConfig)
class MetaAdapter(FairseqAdam):
    """Adam in two groups, ``shared`` and ``lang_specific``, told apart by what the model wrote on each parameter.

    State is saved by the names of parameters, so that languages can be appended.

    Raises:
        UsageError: settings out of range, or a model without language-specific parts.
    """

    needs_meta_step = True

    def __init__(self, cfg: MetaAdapterConfig, params: Iterable[Any]) -> None:
        check_config(cfg)
        groups: dict[str, list[Any]] = {SHARED: [], SPECIFIC: []}
        for parameter in params:
            groups[SHARED if language_of(parameter) is None else SPECIFIC].append(parameter)
        if not groups[SPECIFIC]:
            raise UsageError(
                "This model has no language-specific parameters: there is nothing to train by the meta step.",
                where="--optimizer meta_adapter",
                allowed="--arch xlm_meta_adpt, xlm_adpt, xlm_ffn, xlm_attn (half precision: --fp16-no-flatten-grads)",
            )
        super().__init__(cfg, [{"params": groups[name], "name": name} for name in groups])
        self._factor = Rate.parse(cfg.meta_lr, "--meta-lr").factor(self.optimizer_config["lr"], "--meta-lr")
        self._own = {"betas": self._betas(cfg), "eps": cfg.meta_eps, "weight_decay": cfg.meta_weight_decay}
        self._own = {name: value for name, value in self._own.items() if value is not None}
        self._apply({})

    @staticmethod
    def _betas(cfg: MetaAdapterConfig) -> Optional[tuple[float, float]]:
        if cfg.meta_betas is None:
            return None
        try:
            one, two = (float(part) for part in str(cfg.meta_betas).strip("()[] ").split(","))
            if not (0 <= one < 1 and 0 <= two < 1):
                raise ValueError
        except ValueError:
            raise UsageError(
                "These are no betas.", where="--meta-betas", value=cfg.meta_betas, allowed="such as '(0.9, 0.98)'"
            ) from None
        return one, two

    def _apply(self, settings: dict[str, Any]) -> None:
        for group in self.param_groups:
            group.update(settings)
            if group["name"] == SPECIFIC:
                group.update(self._own)
        self.set_lr(self.get_lr())

    def set_lr(self, lr: float) -> None:
        """The scheduler's rate for the shared parameters; the others follow it."""
        for group in self.param_groups:
            group["lr"] = lr * (self._factor if group["name"] == SPECIFIC else 1.0)

    @property
    def meta_lr(self) -> float:
        """Rate of the language-specific parameters now."""
        return float(self.get_lr() * self._factor)

    def group(self, name: str) -> list[Any]:
        """Parameters (masters in half precision) of a group."""
        return next(group["params"] for group in self.param_groups if group["name"] == name)

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments by the names of parameters."""
        names = {id(parameter): name_of(parameter, number) for number, parameter in enumerate(self.params)}
        state = {names[id(parameter)]: dict(entry) for parameter, entry in self.optimizer.state.items()}
        settings = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        return {"state": state, "param_groups": settings}

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: Optional[dict[str, Any]] = None) -> None:
        """Restore by name; parameters of appended languages begin anew.

        Raises:
            ResumeError: the state is of other parameters.
        """
        parameters = list(self.params)
        named = fit_named(state_dict["state"], parameters)
        for number, parameter in enumerate(parameters):
            entry = named.get(name_of(parameter, number))
            if entry is not None:
                self.optimizer.state[parameter] = {
                    key: value.to(device=parameter.device, copy=True) if torch.is_tensor(value) else value
                    for key, value in entry.items()
                }
        for group, saved in zip(self.param_groups, state_dict["param_groups"]):
            group.update(saved)
        self._apply(dict(optimizer_overrides or {}))

    def inverse_root(
        self, parameter: Any, gradient: torch.Tensor, known: Optional[dict[int, tuple[float, bool]]] = None
    ) -> torch.Tensor:
        """Adam's diagonal preconditioner in this step: 1 / (sqrt(second moment) + eps), bias-corrected.

        The second moment is the one that this step will have, with ``gradient`` in it: no element of the inner step is
        then beyond 1 / sqrt(1 - beta2) times the rate. With the moment of before, a rare token that now occurs would be
        thrown thousands of times as far. Elements beyond 100 times the tensor's median are cut there, or a few of them
        would make up most of the perturbation; the median is that of at most 4,096 evenly spaced elements, of all
        columns. An element that never had a gradient (a position beyond all sentences so far) has 0.

        Args:
            known: by the parameter's id the median, and whether an element never had a gradient: filled here, for
                another look at the same moment and gradient.
        """
        group, state = self.param_groups[0], self.optimizer.state[parameter]
        decay, step = group["betas"][1], int(state["step"]) + 1
        correction = math.sqrt(1 - decay**step)
        some, noise = gradient.float(), group["eps"] * correction
        root: torch.Tensor = state["exp_avg_sq"].float().mul(decay).addcmul_(some, some, value=1 - decay).sqrt_()
        known = {} if known is None else known
        if id(parameter) not in known:
            has_zeros = bool(root.amin() == 0)
            known[id(parameter)] = _median(root, has_zeros), has_zeros
        median, has_zeros = known[id(parameter)]
        if has_zeros:
            root.masked_fill_(root == 0, math.inf)
        root.add_(noise).clamp_(min=(median + noise) / CUT)
        return torch.div(root.new_tensor(correction), root, out=root)

    def steps(self) -> int:
        """Steps that the shared parameters have taken: the fewest of those that have a state, 0 without."""
        states = [self.optimizer.state.get(parameter) for parameter in self.group(SHARED)]
        return int(min((state["step"] for state in states if state), default=0))


def _median(values: torch.Tensor, has_zeros: bool) -> float:
    """Of those over 0 among at most 4,096 evenly spaced ones; the largest of all if none of them is."""
    flat = values.reshape(-1)
    stride = -(-flat.numel() // 4096)
    while math.gcd(stride, *values.shape[-1:]) > 1:  # or some columns would never be looked at
        stride += 1
    few = flat[::stride]
    if has_zeros:
        few = few[few > 0]
    return float((few if len(few) else flat.max()).median())


class Preconditioner(Sequence[torch.Tensor]):
    """:meth:`MetaAdapter.inverse_root` of some parameters, computed at each look; 0 where Adam has no state."""

    def __init__(self, adam: MetaAdapter, parameters: Sequence[Any], gradients: Sequence[torch.Tensor]) -> None:
        self.adam, self.parameters, self.gradients = adam, parameters, gradients
        self.known: dict[int, tuple[float, bool]] = {}

    def __len__(self) -> int:
        return len(self.parameters)

    def __getitem__(self, number: Any) -> Any:
        parameter = self.parameters[number]
        if not self.adam.optimizer.state.get(parameter):
            return parameter.new_zeros(())
        return self.adam.inverse_root(parameter, self.gradients[number], self.known)
