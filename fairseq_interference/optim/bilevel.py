"""The meta gradient of language-specific parameters (Wang, Lipton, Tsvetkov 2020, section 4, Eq. 2 to 4, appendix B).

theta are the shared parameters, phi the language-specific ones, alpha is the inner learning rate, P the inner rule. A
step of theta on the training batch depends on phi; phi is to make the validation loss *after* that step small:

    theta' = theta - alpha P g,    g = d L_train(theta, phi) / d theta                                      (Eq. 3)
    direct = d L_val(theta', phi) / d phi,    v = d L_val(theta', phi) / d theta'
    cross  = -alpha d^2 L_train(theta, phi) / (d phi d theta) w,    w = (d P g / d g)^T v
    total  = direct + cross                                                                                 (Eq. 4)

``cross`` is what brings the other languages to phi. With h(x) = d L_train(x, phi) / d phi it is (appendix B)

    central    -alpha [h(theta + epsilon w) - h(theta - epsilon w)] / (2 epsilon)    error of order epsilon^2
    one_sided  -alpha [h(theta + epsilon w) - h(theta)] / epsilon                    error of order epsilon
    exact      by differentiating twice, with fused attention switched off (it has no second derivative)

with epsilon = radius ||theta|| / ||w||; the paper only says "small". Two forms, told apart by the callables:
* joint: all languages in one training and one validation batch, and phi of all. ``val_loss`` gives each language 1/L
  whatever its number of tokens (Eq. 2), ``train_loss`` weights as the task does. The passes do not depend on L.
* the paper's: ``train_loss`` of one language i, phi = phi_i, ``val_loss`` a sequence of L callables, each L_val^j / L.

The difference needs three things:
* Equal dropout masks in all training passes, or it is noise divided by epsilon: ``rng`` replays the generators, or the
  callables seed themselves. ``radius=0`` checks it.
* No kinks. theta +- epsilon w carries units of a ReLU across zero, and each crossing is divided by epsilon: errors of
  0.1 and more where GELU gives 1e-4. Use smooth activations, or ``exact``.
* Precision. Gradients, norms and theta + epsilon w are float32 or wider here, but the sum is rounded once to the
  parameter's format: in bfloat16 or float16 (autocast and TF32 round alike) most weights stay where they were at 2e-4.
  There use ``central`` with a radius of about 1e-2: h(theta) of another precision would add rounding over epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from fairseq_interference.errors import UsageError

Tensors = list[Tensor]
Closure = Callable[[], Tensor]  # evaluates a scalar loss at the parameters' current values
Closures = list[Closure]
Loss = Union[Closure, Sequence[Closure]]
RngState = Union[Tensor, tuple[Tensor, list[Tensor]]]  # CPU generator, or that and every CUDA generator
RngStates = Optional[Sequence[RngState]]
RULES = ("sgd", "sgd_rms", "adam")
LEAST_RMS = 1e-6  # of the largest tensor's: some gradients are rounding alone, such as those of key biases
ESTIMATORS = ("one_sided", "central", "exact")


@dataclass(frozen=True)
class MetaGradient:
    """Lists aligned with phi, of its shapes, float32 or wider; a tensor that is twice in phi has one result twice."""

    direct: Tensors  # derivative of the validation loss with respect to phi at theta'
    cross: Tensors  # derivative through theta'
    total: Tensors  # their sum
    epsilon: float  # 0 where no difference was taken: ``exact``, w = 0 or not finite
    passes: int  # forward-backward passes over a whole loss; its micro-batches are parts of one pass


def meta_gradient(
    train_loss: Loss,
    val_loss: Loss,
    theta: Sequence[Tensor],
    phi: Sequence[Tensor],
    *,
    inner_lr: float,
    inner_rule: str = "sgd",
    estimator: str = "one_sided",
    radius: float = 2e-4,
    preconditioner: Optional[Sequence[Tensor]] = None,
    train_grads: Optional[tuple[Sequence[Tensor], Sequence[Tensor]]] = None,
    rng: Optional[Sequence[RngState]] = None,
    reduce: Optional[Callable[[Tensors], Any]] = None,
    scale: float = 1.0,
    observe: Optional[Callable[[Tensors, float], Any]] = None,
) -> MetaGradient:
    """Derivative of phi -> L_val(theta'(phi), phi), theta'(phi) = theta - alpha P d L_train(theta, phi) / d theta.

    theta moves meanwhile and is put back by copy, bit by bit, also after an exception; ``.grad`` is left alone and no
    hook of a data-parallel wrapper fires. A tensor that is twice in a list (tied embeddings) is one parameter. One that
    is frozen or not reached by a loss has gradient 0. Where w is 0 or not finite, cross is 0 or nan and takes no pass.

    Args:
        train_loss: callable that returns the loss (a scalar) at the parameters' current values, or a sequence of them:
            micro-batches, whose losses add and are back-propagated one by one. No callable: a loss of 0. Every call
            must see the same batch with the same masked positions.
        val_loss: likewise; called once. Its dropout draws from the generators as they stand.
        theta, phi: leaf tensors of any shapes, none of them in both.
        inner_lr: alpha, absolute.
        inner_rule: P. ``sgd``: identity (the paper). ``sgd_rms``: each tensor of g is divided by its root mean square
            (at least 1e-6 of the largest one), and the derivative goes through that. ``adam``: g times
            ``preconditioner``, which is held constant.
        estimator: ``one_sided`` (3 passes), ``central`` (4), ``exact`` (3; the last is worth two in time and memory),
            ``none`` (2; the cross term is left out and is 0).
        radius: ||epsilon w|| / ||theta||. 0 puts the passes at theta itself and makes cross -alpha times the undivided
            difference: 0 in every bit if and only if the callables repeat themselves.
        preconditioner: shapes of theta; for ``adam`` only. A sequence may make its tensors anew at each look, which
            saves |theta| of memory: every one is looked at twice.
        train_grads: g aligned with theta and h(theta) aligned with phi, unclipped and reduced, if at hand; saves a
            pass. Only read. They must stem from the masks that ``rng`` replays; on an accelerator fused attention has
            others than the unfused one of ``exact``.
        rng: one :func:`rng_state` per training callable, set before each of its calls (a bare ``torch.get_rng_state()``
            replays the CPU only). With or without, generators are left where the validation pass left them.
        reduce: called in place on every finished list of gradients: g (``one_sided``: and h(theta)); v and direct;
            h(theta + epsilon w) and h(theta - epsilon w), or what ``exact`` has for them. It sums over workers: losses
            are to be divided by the tokens of all workers.
        scale: every list of gradients is multiplied by it once, after its micro-batches are added up and before
            ``reduce``: for losses that are sums, as a host back-propagates them that divides afterwards.
        observe: called with w and ||w||, to look at.

    Raises:
        UsageError: an unknown rule or estimator, a negative radius, a list that does not fit.
    """
    train, val = ([loss] if callable(loss) else list(loss) for loss in (train_loss, val_loss))
    _check_choices(inner_rule, estimator, radius, preconditioner)
    _check_lists(theta, phi, preconditioner, train_grads, rng, len(train))
    rows, columns = _places(theta), _places(phi)
    step = _Step(train, _distinct(theta, rows), _distinct(phi, columns), rng, reduce, scale)
    with closing(step), torch.enable_grad(), _unfused_attention() if estimator == "exact" else nullcontext():
        if train_grads is None:
            g, h = step.run(train, step.theta, step.phi if estimator == "one_sided" else [], rng)
        else:
            g, h = _distinct(train_grads[0], rows), _distinct(train_grads[1], columns)
        factors = _factors(inner_rule, g, _Chosen(preconditioner or [], rows))
        step.place(g, -inner_lr, factors)
        v, direct = step.run(val, step.theta, step.phi)
        step.generators = rng_state()
        w = _pulled_back(inner_rule, v, g, factors)
        size = norm(w)
        if observe is not None:
            observe(w, size)
        if estimator == "none":
            epsilon, cross = 0.0, [torch.zeros_like(x) for x in direct]
        elif size == 0.0 or not math.isfinite(size):
            epsilon, cross = 0.0, [torch.full_like(x, 0.0 * size) for x in direct]  # 0 x inf is nan
        else:
            epsilon = 0.0 if estimator == "exact" else radius * (norm(step.start) or 1.0) / size
            cross = step.mixed_derivative(estimator, w, epsilon, h, -inner_lr)
    total = list(torch._foreach_add(direct, cross))
    direct, cross, total = ([values[place] for place in columns] for values in (direct, cross, total))
    return MetaGradient(direct, cross, total, epsilon, step.passes)


def rng_state() -> RngState:
    """State of torch's generators: CPU and, if CUDA is in use, every CUDA device. Take it before a forward pass."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), cuda


def set_rng_state(state: RngState) -> None:
    """Put torch's generators back to what :func:`rng_state` returned."""
    cpu, cuda = (state, []) if isinstance(state, Tensor) else state
    torch.set_rng_state(cpu)
    if cuda:
        torch.cuda.set_rng_state_all(cuda)


@dataclass
class _Step:
    """Passes of one meta gradient over parameters that occur once each."""

    train: Closures
    theta: Tensors
    phi: Tensors
    rng: RngStates
    reduce: Optional[Callable[[Tensors], Any]]
    scale: float
    passes: int = 0

    def __post_init__(self) -> None:
        self.start = [parameter.detach().clone() for parameter in self.theta]
        self.generators = rng_state()

    def close(self) -> None:
        """Put theta back, by copy (adding and subtracting would leave rounding every time), and the generators."""
        self.place()
        set_rng_state(self.generators)

    def place(
        self, direction: Optional[Tensors] = None, scale: float = 0.0, factors: Optional[Iterable[Any]] = None
    ) -> None:
        """theta = start + scale * direction * factors, summed in float32 or wider and rounded once; start without."""
        with torch.no_grad():
            for parameter, start, shift, factor in zip(
                self.theta, self.start, direction or repeat(None), factors or repeat(None)
            ):
                if shift is None:
                    parameter.copy_(start)
                elif parameter.dtype != _wide(parameter):
                    parameter.copy_(torch.add(start, shift if factor is None else shift * factor, alpha=scale))
                elif factor is None:
                    torch.add(start, shift, alpha=scale, out=parameter)
                else:
                    torch.addcmul(start, shift, factor, value=scale, out=parameter)
        torch.clear_autocast_cache()  # under autocast around the call, half copies of the old theta would be used

    def run(self, losses: Closures, theta: Tensors, phi: Tensors, rng: RngStates = None) -> tuple[Tensors, Tensors]:
        """One pass: gradients of the sum of the losses for theta and for phi, reduced."""
        self.passes += 1
        found = gradients(losses, [*theta, *phi], rng, self.scale)
        lists = found[: len(theta)], found[len(theta) :]
        for values in lists:
            if values and self.reduce is not None:
                self.reduce(values)
        return lists

    def mixed_derivative(self, estimator: str, w: Tensors, epsilon: float, h: Tensors, factor: float) -> Tensors:
        """factor d^2 L_train / (d phi d theta) w, aligned with phi; of the undivided difference if epsilon is 0."""
        if estimator == "exact":
            self.place()
            slopes: Closures = [partial(_slope, loss, self.theta, w) for loss in self.train]
            found = self.run(slopes, [], self.phi, self.rng)[1]
            torch._foreach_mul_(found, factor)
            return found
        with _frozen(self.theta):
            self.place(w, epsilon)
            ahead, span = self.run(self.train, [], self.phi, self.rng)[1], epsilon
            if estimator == "central":
                self.place(w, -epsilon)
                h, span = self.run(self.train, [], self.phi, self.rng)[1], 2 * epsilon
        torch._foreach_sub_(ahead, list(h))
        torch._foreach_mul_(ahead, factor / (span or 1.0))
        return ahead


def gradients(losses: Closures, parameters: Tensors, rng: RngStates, scale: float = 1.0) -> Tensors:
    """Scaled gradients of the sum of the losses, in memory of their own, float32 or wider; 0 where no loss reaches.

    Args:
        losses: back-propagated one by one. parameters: leaf tensors.
        rng: state of the generators before each loss, or None.
        scale: multiplies the sum, and not its parts: products of parts do not add up to that of the sum in every bit.
    """
    at_once = scale if len(losses) == 1 else 1.0
    sums: list[Optional[Tensor]] = [None] * len(parameters)
    for number, loss in enumerate(losses):
        if rng is not None:
            set_rng_state(rng[number])
        parts = _derivatives(loss(), parameters)
        while parts:  # taken off the list one by one: |theta| is held once, not twice
            part, place = parts.pop(), len(parts)
            before = sums[place]
            if part is not None:
                sums[place] = part.to(_wide(part)).mul(at_once) if before is None else before.add_(part)
    reached = [x for x in sums if x is not None]
    if reached and at_once != scale:
        torch._foreach_mul_(reached, scale)
    return [torch.zeros_like(x, dtype=_wide(x)) if y is None else y for x, y in zip(parameters, sums)]


def _derivatives(loss: Tensor, parameters: Tensors, create_graph: bool = False) -> list[Optional[Tensor]]:
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    if not wanted or not loss.requires_grad:
        return [None] * len(parameters)
    found = iter(torch.autograd.grad(loss, wanted, create_graph=create_graph, allow_unused=True))
    return [next(found) if parameter.requires_grad else None for parameter in parameters]


@contextmanager
def _frozen(parameters: Tensors) -> Iterator[None]:
    """Parameters whose gradient nobody asks for: what only that would need is not kept."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def _slope(loss: Closure, theta: Tensors, w: Tensors) -> Tensor:
    """The derivative of a loss along w, itself a loss: its gradient for phi is the mixed derivative."""
    parts = _derivatives(loss(), theta, create_graph=True)
    return sum(((part * x).sum() for part, x in zip(parts, w) if part is not None), torch.zeros(()))


class _Chosen(Sequence[Any]):
    """The values at the first place of every distinct tensor, looked up when they are needed."""

    def __init__(self, values: Sequence[Any], places: list[int]) -> None:
        self.values = values
        self.first = [number for number, place in enumerate(places) if place not in places[:number]]

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, number: Any) -> Any:
        return self.values[self.first[number]]


def _factors(inner_rule: str, g: Tensors, preconditioner: Sequence[Tensor]) -> Sequence[Tensor]:
    """Diagonal of P for every tensor of g, or one number for all of it."""
    if inner_rule == "adam":
        return preconditioner
    if inner_rule == "sgd":
        return [x.new_ones(()) for x in g]
    rms = [torch.linalg.vector_norm(x, dtype=_wide(x)) / x.numel() ** 0.5 for x in g]
    floor = LEAST_RMS * torch.stack([x.to(rms[0]) for x in rms]).max()
    return [torch.where(x > 0, 1.0 / torch.maximum(x, floor.to(x)), 0.0 * x) for x in rms]


def _pulled_back(inner_rule: str, v: Tensors, g: Tensors, factors: Sequence[Tensor]) -> Tensors:
    """w = (d P g / d g)^T v, in place of v. With ``sgd_rms`` the part of v along g is lost: no step depends on |g|."""
    for x, y, factor in zip(v, g, factors):
        if inner_rule == "sgd_rms":
            normalised = (y * factor).square().mean() > 0.5  # not so at the floor: there P is constant
            x.sub_(y * ((x * y).sum() * factor**2 / y.numel() * normalised))
        x.mul_(factor)
    return v


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def norm(tensors: Sequence[Tensor]) -> float:
    """Of all elements together; nan or inf if one is."""
    if not tensors:
        return 0.0
    if all(x.dtype == _wide(x) for x in tensors):
        return float(torch.stack(torch._foreach_norm(list(tensors))).norm())
    # in float16 it would overflow at 65,504
    return float(torch.stack([torch.linalg.vector_norm(x, dtype=_wide(x)) for x in tensors]).norm())


def _places(tensors: Sequence[Tensor]) -> list[int]:
    """For every tensor its place among the distinct ones."""
    places: dict[int, int] = {}
    return [places.setdefault(id(tensor), len(places)) for tensor in tensors]


def _distinct(values: Sequence[Tensor], places: list[int]) -> Tensors:
    """One value of every distinct tensor."""
    return list(dict(zip(places, values)).values())


def _unfused_attention() -> AbstractContextManager[Any]:
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:  # torch < 2.3; before 2.0 no attention is fused
        old = getattr(torch.backends.cuda, "sdp_kernel", None)
        return nullcontext() if old is None else old(enable_flash=False, enable_mem_efficient=False)
    return sdpa_kernel(SDPBackend.MATH)


def _check_choices(inner_rule: str, estimator: str, radius: float, preconditioner: Any) -> None:
    for name, value, allowed in (("inner_rule", inner_rule, RULES), ("estimator", estimator, (*ESTIMATORS, "none"))):
        if value not in allowed:
            raise UsageError(f"Unknown {name}.", where=name, value=value, allowed=", ".join(allowed))
    if not 0 <= radius < math.inf:
        raise UsageError("The radius is a length.", where="radius", value=radius, allowed="0 or more, such as 2e-4")
    if (inner_rule == "adam") != (preconditioner is not None):
        advice = "for adam pass 1 / (sqrt(second moment) + eps) of every tensor of theta, for other rules None"
        raise UsageError("Only adam has a preconditioner.", where="preconditioner", value=inner_rule, next_step=advice)


def _check_lists(theta: Any, phi: Any, preconditioner: Any, train_grads: Any, rng: Any, callables: int) -> None:
    if not theta or not phi or set(map(id, theta)) & set(map(id, phi)):
        raise UsageError("theta and phi hold at least one tensor each, and none in common.", where="theta, phi")
    if rng is not None and len(rng) != callables:
        raise UsageError("One state per training callable.", where="rng", value=len(rng), allowed=callables)
    g, h = train_grads or (None, None)
    for name, values, like in (("preconditioner", preconditioner, theta), ("g", g, theta), ("h(theta)", h, phi)):
        kept = isinstance(values, (list, tuple))  # others may compute what they are asked for
        if values is None or (len(values) == len(like) and not kept):
            continue
        if [x.shape for x in values] != [x.shape for x in like]:
            raise UsageError("Not aligned with the parameters: other lengths or shapes.", where=name)
