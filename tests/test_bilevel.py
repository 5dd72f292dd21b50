"""The meta gradient against brute force: the whole of phi -> L_val(theta'(phi), phi) differentiated, in float64."""

from __future__ import annotations

import copy
import functools
import threading
from typing import Any, Callable, NamedTuple, Optional

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from fairseq_interference.errors import UsageError
from fairseq_interference.modules.adapter import Adapter, AdapterSlot
from fairseq_interference.modules.dropout import dropout
from fairseq_interference.modules.encoder_layer import SelfAttention, self_attention
from fairseq_interference.modules.language_switch import LanguageModules, SortPlan, sort_plan
from fairseq_interference.optim import bilevel
from fairseq_interference.optim.bilevel import ESTIMATORS, MetaGradient, meta_gradient, rng_state, set_rng_state

CODES = ["en", "te", "hi", "sw", "ar", "fr", "ru", "mr"]
WORDS, DIM, HEADS = 13, 8, 2
LR = {"sgd": 1.0, "sgd_rms": 0.1, "adam": 0.5}  # large enough that the cross term is no small part of the total
TOLERANCE = {"exact": 1e-6, "central": 1e-4, "one_sided": 3e-2}


class Layer(nn.Module):
    """Post-norm layer of real attention with an adapter per language after both sub-layers."""

    def __init__(self, codes: list[str], activation: str) -> None:
        super().__init__()
        self.attention = SelfAttention(*(nn.Linear(DIM, DIM) for _ in range(4)))
        self.fc1, self.fc2 = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.activation = getattr(F, activation)
        self.adapter1, self.adapter2 = (
            AdapterSlot(LanguageModules((code, Adapter(DIM, 3, activation)) for code in codes)) for _ in range(2)
        )

    def forward(self, x: Tensor, plan: SortPlan, probability: float) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        y = self_attention(x, self.attention, HEADS, None, probability)
        x = self.norm1(x + dropout(self.adapter1(y, plan), probability))
        y = self.fc2(self.activation(self.fc1(x)))
        return self.norm2(x + dropout(self.adapter2(y, plan), probability))


class Net(nn.Module):
    """Two layers under an embedding that is also the output projection."""

    def __init__(self, languages: int = 2, probability: float = 0.0, activation: str = "gelu") -> None:
        super().__init__()
        self.codes, self.probability, self.checkpoint = CODES[:languages], probability, False
        self.embed = nn.Embedding(WORDS, DIM)
        self.layers = nn.ModuleList(Layer(self.codes, activation) for _ in range(2))
        for parameter in self.parameters():
            if parameter.dim() > 1:  # about DIM^-0.5; a network drawn larger is rougher than a trained one
                nn.init.normal_(parameter, std=0.3)
        self.double()

    def forward(self, tokens: Tensor, lang_id: Tensor) -> Tensor:
        """(B, T), (B,) -> logits (B, T, V)."""
        plan = sort_plan(lang_id, self.codes, len(lang_id))
        x = plan.sort(dropout(self.embed(tokens), self.probability))
        for layer in self.layers:
            if self.checkpoint:
                x = checkpoint(layer, x, plan, self.probability, use_reentrant=False)
            else:
                x = layer(x, plan, self.probability)
        return F.linear(plan.unsort(x), self.embed.weight)

    def split(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """theta and phi by name."""
        named = dict(self.named_parameters())
        phi = {name: x for name, x in named.items() if ".adapter" in name}
        return {name: x for name, x in named.items() if name not in phi}, phi


class Batch(NamedTuple):
    tokens: Tensor  # (B, T)
    target: Tensor  # (B, T)
    lang_id: Tensor  # (B,)
    weight: Tensor  # (B,), of a sequence's mean loss

    def rows(self, rows: Any) -> Batch:
        return Batch(*(x[rows] for x in self))

    def float(self) -> Batch:
        return self._replace(weight=self.weight.float())

    def cuda(self) -> Batch:
        return Batch(*(x.cuda() for x in self))


def batch(seed: int, lang_id: list[int]) -> Batch:
    """Every language has weight 1/L, whatever its number of sequences."""
    generator = torch.Generator().manual_seed(seed)
    tokens, target = torch.randint(WORDS, (2, len(lang_id), 5), generator=generator)
    ids = torch.tensor(lang_id)
    return Batch(tokens, target, ids, 1.0 / (len(set(lang_id)) * ids.bincount()[ids].double()))


def loss(net: Net, data: Batch, parameters: Optional[dict[str, Tensor]] = None) -> Tensor:
    call = net if parameters is None else functools.partial(functional_call, net, parameters)
    logits = call(data.tokens, data.lang_id) if parameters is None else call((data.tokens, data.lang_id))
    return (F.cross_entropy(logits.transpose(1, 2), data.target, reduction="none").mean(1) * data.weight).sum()


class Problem:
    """A network with a joint or a sequential pair of losses, and brute force for it."""

    def __init__(self, form: str = "joint", languages: int = 2, **options: Any) -> None:
        torch.manual_seed(5)
        self.net = Net(languages, **options)
        every = list(range(languages))
        self.train = batch(1, [1] * 4 if form == "sequential" else [*every, 0, 0])
        whole = batch(2, [*every, 1, 1])
        self.val = [whole] if form == "joint" else [whole.rows(whole.lang_id == j) for j in every]
        self.theta, self.phi = self.net.split()
        if form == "sequential":
            self.phi = {name: x for name, x in self.phi.items() if f".{CODES[1]}." in name}
        self.preconditioner = [0.2 + torch.rand_like(x) for x in self.theta.values()]
        self.state = rng_state()

    def train_loss(self) -> Tensor:
        return loss(self.net, self.train)

    def val_loss(
        self, data: Batch, net: Optional[Net] = None, parameters: Optional[dict[str, Tensor]] = None
    ) -> Tensor:
        torch.manual_seed(8)
        return loss(net or self.net, data, parameters)

    def meta(self, inner_rule: str = "sgd", **options: Any) -> MetaGradient:
        arguments = {
            "train_loss": self.train_loss,
            "val_loss": [functools.partial(self.val_loss, data) for data in self.val],
            "theta": list(self.theta.values()),
            "phi": list(self.phi.values()),
            "inner_lr": LR[inner_rule],
            "inner_rule": inner_rule,
            "preconditioner": self.preconditioner if inner_rule == "adam" else None,
            "rng": [self.state],
        }
        return meta_gradient(**{**arguments, **options})

    def inner_step(self, rule: str, g: Any) -> list[Tensor]:
        if rule == "adam":
            return [p * x for p, x in zip(self.preconditioner, g)]
        return [x / x.pow(2).mean().sqrt() if rule == "sgd_rms" else x for x in g]

    def brute(self, rule: str = "sgd") -> tuple[list[Tensor], list[Tensor]]:
        """Total and direct derivative: autograd through the inner step as one function, fused attention off."""
        theta, phi = list(self.theta.values()), list(self.phi.values())
        with sdpa_kernel(SDPBackend.MATH):
            set_rng_state(self.state)
            g = torch.autograd.grad(self.train_loss(), theta, create_graph=True)
            moved = [x - LR[rule] * step for x, step in zip(theta, self.inner_step(rule, g))]
            found = []
            for values in (moved, [x.detach() for x in moved]):
                value = sum(self.val_loss(data, parameters=dict(zip(self.theta, values))) for data in self.val)
                found.append(torch.autograd.grad(value, phi, retain_graph=True))
        return list(found[0]), list(found[1])

    def value(self, rule: str, shift: list[Tensor]) -> float:
        """L_val(theta'(phi + shift), phi + shift): forward passes and one gradient, nothing differentiated twice."""
        net = copy.deepcopy(self.net)
        named = dict(net.named_parameters())
        with torch.no_grad():
            for name, x in zip(self.phi, shift):
                named[name].add_(x)
        set_rng_state(self.state)
        g = torch.autograd.grad(loss(net, self.train), [named[name] for name in self.theta])
        with torch.no_grad():
            for name, step in zip(self.theta, self.inner_step(rule, g)):
                named[name].sub_(LR[rule] * step)
            return sum(float(self.val_loss(data, net)) for data in self.val)


def flat(tensors: Any) -> Tensor:
    return torch.cat([x.detach().double().flatten() for x in tensors])


def error(found: Any, wanted: Any) -> float:
    return float((flat(found) - flat(wanted)).norm() / flat(wanted).norm())


def cross_of(total: list[Tensor], direct: list[Tensor]) -> Tensor:
    return flat(total) - flat(direct)


class Recorder:
    """In the place of ``reduce``: copies of the lists of gradients in the order in which they came."""

    def __init__(self) -> None:
        self.lists: list[list[Tensor]] = []

    def __call__(self, gradients: list[Tensor]) -> None:
        self.lists.append([x.clone() for x in gradients])


def same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(torch.equal(x, y) for x, y in zip(one, other))


# --- against brute force ---------------------------------------------------------------------------------------------

SETTINGS = [(form, rule, p) for form in ("joint", "sequential") for rule in bilevel.RULES for p in (0.0, 0.1)]


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda setting: "-".join(map(str, setting)))
def solved(request: pytest.FixtureRequest) -> tuple[Problem, str, list[Tensor], list[Tensor]]:
    """A problem, its inner rule, and the total and the direct derivative by brute force."""
    form, rule, probability = request.param
    problem = Problem(form, probability=probability)
    return problem, rule, *problem.brute(rule)


def test_brute_force_against_values(solved: Any) -> None:
    """The oracle itself, and with it ``exact``: slopes of phi -> L_val(theta'(phi), phi) along random directions."""
    problem, rule, total, _ = solved
    exact = problem.meta(rule, estimator="exact").total
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        along = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in total]
        length = 1e-5
        ahead, behind = (problem.value(rule, [sign * length * x for x in along]) for sign in (1, -1))
        slope = (ahead - behind) / (2 * length)
        assert slope == pytest.approx(float(flat(total) @ flat(along)), rel=1e-6)
        assert slope == pytest.approx(float(flat(exact) @ flat(along)), rel=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_against_brute_force(solved: Any, estimator: str) -> None:
    problem, rule, total, direct = solved
    cross = flat(total) - flat(direct)
    assert cross.norm() > 0.05 * flat(direct).norm(), "the cross term is too small for the test to see an error in it"
    found = problem.meta(rule, estimator=estimator)
    assert error(found.direct, direct) < 1e-9
    assert error(found.total, total) < TOLERANCE[estimator]
    assert error(found.cross, [cross]) < TOLERANCE[estimator]
    assert same(found.total, [x + y for x, y in zip(found.direct, found.cross)])


@pytest.mark.parametrize(("estimator", "order"), [("one_sided", 1), ("central", 2)])
def test_error_falls_with_the_radius(solved: Any, estimator: str, order: int) -> None:
    """Halving the radius halves the error of the one-sided difference and quarters that of the central one."""
    problem, rule, total, _ = solved
    errors = [error(problem.meta(rule, estimator=estimator, radius=r).total, total) for r in (2e-4, 1e-4)]
    assert errors[0] / errors[1] == pytest.approx(2**order, rel=0.1)


@pytest.mark.parametrize("estimator", ["one_sided", "central"])
def test_other_dropout_masks_are_noise(estimator: str) -> None:
    """The test above without the replay: it would fail by far."""
    problem = Problem(probability=0.1)
    total, _ = problem.brute()
    replayed = problem.meta(estimator=estimator)
    set_rng_state(problem.state)
    other = problem.meta(estimator=estimator, rng=None)
    assert error(replayed.total, total) < TOLERANCE[estimator]
    assert error(other.total, total) > 10
    assert error(other.direct, replayed.direct) < 1e-9  # the first pass still had the right masks


def test_a_kink_spoils_the_difference() -> None:
    """With ReLU the passes differ by units that cross zero; differentiating twice does not mind."""
    problem = Problem(activation="relu")
    total, _ = problem.brute()
    assert error(problem.meta(estimator="exact").total, total) < 1e-6
    assert error(problem.meta(estimator="central", radius=2e-3).total, total) > 100 * TOLERANCE["central"]


def test_epsilon_and_the_direction(solved: Any) -> None:
    """epsilon ||w|| = radius ||theta||, and theta moves by epsilon w: seen by a training loss that looks."""
    problem, rule, _, _ = solved
    seen = []

    def watched() -> Tensor:
        seen.append(flat(problem.theta.values()))
        return problem.train_loss()

    found = problem.meta(rule, train_loss=watched, estimator="central", radius=1e-3)
    start, ahead, behind = seen
    length = 1e-3 * float(start.norm())
    assert float((ahead - start).norm()) == pytest.approx(length, rel=1e-9)
    assert float((behind - start).norm()) == pytest.approx(length, rel=1e-9)
    if rule == "sgd":
        recorder = Recorder()
        problem.meta(rule, reduce=recorder, estimator="central")
        v = flat(recorder.lists[1])
        assert found.epsilon == pytest.approx(length / float(v.norm()), rel=1e-9)
        torch.testing.assert_close(ahead - start, found.epsilon * v, rtol=1e-6, atol=1e-12)


def test_fused_attention_cannot_be_differentiated_twice() -> None:
    """Why ``exact`` switches it off; after the call it is on again."""
    problem = Problem()
    problem.meta(estimator="exact")
    g = torch.autograd.grad(problem.train_loss(), list(problem.theta.values()), create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.autograd.grad(flat_with_graph(g), list(problem.phi.values()))


def flat_with_graph(tensors: Any) -> Tensor:
    return torch.cat([x.flatten() for x in tensors]).pow(2).sum()


# --- passes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("languages", [2, 8])
@pytest.mark.parametrize(
    ("estimator", "passes", "update"), [("one_sided", 3, (3, 4)), ("central", 4, (4, 5)), ("exact", 3, (3, 4))]
)
def test_passes_are_counted_and_few(languages: int, estimator: str, passes: int, update: tuple[int, int]) -> None:
    """Of the call alone, and of a whole update whose S1 and S5 the caller runs (simultaneous: no S5)."""
    problem = Problem(languages=languages)
    counts = {"forward": 0, "backward": 0}

    def forward(module: nn.Module, inputs: Any, logits: Tensor) -> None:
        counts["forward"] += 1
        logits.register_hook(backward)

    def backward(gradient: Tensor) -> None:
        counts["backward"] += 1

    problem.net.register_forward_hook(forward)
    found = problem.meta(estimator=estimator)
    assert found.passes == passes == counts["forward"]
    assert counts["backward"] == passes + (estimator == "exact")  # which goes back through its last pass twice
    assert all(x.any() for x in found.cross)  # all languages at once

    counts["forward"] = 0
    parameters = [*problem.theta.values(), *problem.phi.values()]
    grads = torch.autograd.grad(problem.train_loss(), parameters)
    train_grads = grads[: len(problem.theta)], grads[len(problem.theta) :]
    assert problem.meta(estimator=estimator, train_grads=train_grads).passes == passes - 1
    assert counts["forward"] == update[0]
    torch.autograd.grad(problem.train_loss(), list(problem.theta.values()))
    assert counts["forward"] == update[1]


class Products(TorchDispatchMode):
    """Counts the products of matrices inside."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def test_the_difference_skips_the_weights_of_theta() -> None:
    """A pass of the difference costs 2 products per matrix, not 3: one forward, one for the activations."""
    x, theta, phi = torch.randn(6, 3), nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))

    def value() -> Tensor:
        return torch.mm(x * phi, theta).tanh().pow(2).mean()

    counted = {}
    for passes, estimator in ((3, "one_sided"), (4, "central")):
        with Products() as products:
            assert meta_gradient(value, value, [theta], [phi], inner_lr=0.1, estimator=estimator).passes == passes
        counted[estimator] = products.count
    assert counted == {"one_sided": 3 + 3 + 2, "central": 2 + 3 + 2 + 2}  # g alone needs no activations' gradient


def test_zero_radius_repeats_every_bit() -> None:
    """Dropout, two micro-batches, two languages, layers run again in backward: h(theta + 0 w) is h(theta)."""
    problem = Problem(probability=0.1)
    problem.net.checkpoint = True
    parts = [problem.train.rows(slice(0, 2)), problem.train.rows(slice(2, 4))]
    closures = [functools.partial(loss, problem.net, part) for part in parts]
    states, kept = [], []
    parameters = [*problem.theta.values(), *problem.phi.values()]
    for closure in closures:
        states.append(rng_state())
        kept.append(torch.autograd.grad(closure(), parameters, allow_unused=True))
    grads = [sum(y for y in xs if y is not None) for xs in zip(*kept)]
    train_grads = grads[: len(problem.theta)], grads[len(problem.theta) :]
    assert not torch.equal(states[0][0], states[1][0])
    for estimator in ("one_sided", "central"):
        for given in (None, train_grads):
            recorder = Recorder()
            options = {"train_loss": closures, "estimator": estimator, "radius": 0.0, "train_grads": given}
            found = problem.meta(**options, rng=states, reduce=recorder)
            assert not flat(found.cross).any() and flat(found.direct).all() and found.epsilon == 0
            assert same(recorder.lists[-1], train_grads[1])
            torch.manual_seed(0)
            assert flat(problem.meta(**options, rng=None).cross).any()  # masks that go on


def test_generators_are_left_where_the_validation_pass_left_them() -> None:
    problem = Problem(probability=0.1)
    data = problem.val[0]
    set_rng_state(problem.state)
    problem.train_loss()
    loss(problem.net, data)
    wanted = torch.get_rng_state()
    for estimator in ESTIMATORS:
        torch.manual_seed(99)
        problem.meta(estimator=estimator, val_loss=lambda: loss(problem.net, data))
        assert torch.equal(torch.get_rng_state(), wanted)


def test_a_bare_cpu_state_is_a_state() -> None:
    problem = Problem(probability=0.1)
    assert same(problem.meta().total, problem.meta(rng=[problem.state[0]]).total)


def test_generators_of_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA by a stand-in; the next test has the real one where there is one."""
    devices = [torch.tensor([1]), torch.tensor([2])]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [x.clone() for x in devices])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: devices.__setitem__(slice(None), states))
    state, wanted = rng_state(), torch.rand(3)
    devices[1] = torch.tensor([7])
    set_rng_state(state)
    assert torch.equal(torch.rand(3), wanted)
    assert [int(x) for x in devices] == [1, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_dropout_is_replayed_on_a_gpu() -> None:
    problem = Problem(probability=0.1)
    problem.net.cuda()
    problem.train, problem.val = problem.train.cuda(), [data.cuda() for data in problem.val]
    torch.zeros(1, device="cuda")
    assert not flat(problem.meta(radius=0.0, rng=[rng_state()]).cross).any()
    assert flat(problem.meta(radius=0.0, rng=None).cross).any()


# --- what is left as it was ------------------------------------------------------------------------------------------


class Broken(Exception):
    pass


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_theta_is_restored(estimator: str, call: int) -> None:
    """Bit by bit, whichever call raises; ``.grad`` and ``requires_grad`` too."""
    problem = Problem(probability=0.1)
    calls = []

    def counted(evaluate: Callable[[], Tensor]) -> Tensor:
        calls.append([x.detach().clone() for x in problem.theta.values()])
        if len(calls) == call:
            raise Broken
        return evaluate()

    before = copy.deepcopy(problem.net.state_dict())
    for parameter in problem.net.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    grads = [parameter.grad for parameter in problem.net.parameters()]
    losses = {
        "train_loss": lambda: counted(problem.train_loss),
        "val_loss": lambda: counted(lambda: problem.val_loss(problem.val[0])),
    }
    if call <= (4 if estimator == "central" else 3):
        with pytest.raises(Broken):
            problem.meta(estimator=estimator, **losses)
    else:
        problem.meta(estimator=estimator, **losses)
    moved = [not same(theta, problem.theta.values()) for theta in calls]
    assert moved == [False, True, estimator != "exact", True][: len(calls)]
    assert all(torch.equal(x, before[name]) for name, x in problem.net.state_dict().items())
    for parameter, grad in zip(problem.net.parameters(), grads):
        assert parameter.requires_grad and parameter.grad is grad and bool(grad.eq(3.0).all())


def test_runs_where_gradients_are_switched_off() -> None:
    problem = Problem()
    wanted = problem.meta()
    with torch.no_grad():
        found = problem.meta()
    assert same(found.total, wanted.total)
    assert not any(x.requires_grad for x in (*found.direct, *found.cross, *found.total))


# --- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_validation_that_ignores_theta(estimator: str) -> None:
    """v = 0: cross is 0 and the difference is left out."""
    problem = Problem()
    found = problem.meta(estimator=estimator, val_loss=lambda: sum(x.pow(2).sum() for x in problem.phi.values()))
    assert not flat(found.cross).any()
    assert (found.epsilon, found.passes) == (0.0, 2)
    assert same(found.direct, [2 * x for x in problem.phi.values()]) and same(found.total, found.direct)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_validation_that_is_not_finite(estimator: str) -> None:
    """An overflow is seen in the result, and theta is whole."""
    problem = Problem()
    before = flat(problem.theta.values())
    found = problem.meta(estimator=estimator, val_loss=lambda: problem.val_loss(problem.val[0]) * float("inf"))
    assert flat(found.cross).isnan().all() and found.passes == 2
    assert torch.equal(flat(problem.theta.values()), before)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("rule", bilevel.RULES)
def test_parameters_that_no_loss_reaches(estimator: str, rule: str) -> None:
    """An unused and a frozen parameter in either list, a language that is absent: 0, and the rest as without them."""
    problem = Problem()
    absent = {name: x for name, x in Net(3).double().split()[1].items() if ".hi." in name}
    wanted = problem.meta(rule, estimator=estimator)
    unused, frozen = nn.Parameter(torch.zeros(3).double()), torch.zeros(2).double()
    problem.preconditioner += [torch.ones_like(unused), torch.ones_like(frozen)]
    found = problem.meta(
        rule,
        estimator=estimator,
        theta=[*problem.theta.values(), unused, frozen],
        phi=[*problem.phi.values(), *absent.values(), frozen.clone()],
    )
    count = len(problem.phi)
    assert same(found.total[:count], wanted.total)
    for values in (found.direct, found.cross, found.total):
        assert [x.shape for x in values[count:]] == [x.shape for x in (*absent.values(), frozen)]
        assert not flat(values[count:]).any()
    assert not unused.any() and not frozen.any()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_worker_without_data(estimator: str) -> None:
    """No callable is a loss of 0, and a loss that needs no gradient is a constant."""
    problem = Problem()
    for nothing, rng in (([], []), (lambda: torch.zeros(()), None)):
        found = problem.meta(estimator=estimator, train_loss=nothing, rng=rng)
        assert not flat(found.cross).any() and flat(found.direct).any()
        found = problem.meta(estimator=estimator, val_loss=nothing)
        assert not flat(found.total).any()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("rule", bilevel.RULES)
def test_tied_parameters_are_one(estimator: str, rule: str) -> None:
    """The embedding is input and output; listed twice it still moves once and counts once in the norms."""
    problem = Problem()
    wanted, name = problem.meta(rule, estimator=estimator), "embed.weight"
    place = list(problem.theta).index(name)
    tied = next(iter(problem.phi.values()))
    parameters = [*problem.theta.values(), *problem.phi.values()]
    grads = torch.autograd.grad(problem.train_loss(), parameters)
    g, h = grads[: len(problem.theta)], grads[len(problem.theta) :]
    problem.preconditioner.insert(0, problem.preconditioner[place])
    lists = {"theta": [problem.theta[name], *problem.theta.values()], "phi": [*problem.phi.values(), tied]}
    for given in (None, ([g[place], *g], [*h, h[0]])):
        found = problem.meta(rule, estimator=estimator, train_grads=given, **lists)
        assert error(found.total[:-1], wanted.total) < 1e-9
        assert found.epsilon == pytest.approx(wanted.epsilon, rel=1e-12)
        for values in (found.direct, found.cross, found.total):
            assert len(values) == len(problem.phi) + 1 and values[-1] is values[0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("rule", bilevel.RULES)
def test_micro_batches_are_one_batch(estimator: str, rule: str) -> None:
    problem = Problem()
    wanted = problem.meta(rule, estimator=estimator)
    train, val = (
        [functools.partial(loss, problem.net, data.rows(rows)) for rows in ([0, 3], [1], [2])]
        for data in (problem.train, problem.val[0])
    )
    found = problem.meta(rule, estimator=estimator, train_loss=train, val_loss=val, rng=None)
    assert error(found.total, wanted.total) < 1e-6  # rounding, divided by epsilon
    assert found.passes == wanted.passes


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("rule", bilevel.RULES)
def test_gradients_that_the_caller_has(estimator: str, rule: str) -> None:
    problem = Problem(probability=0.1)
    wanted = problem.meta(rule, estimator=estimator)
    set_rng_state(problem.state)
    problem.train_loss().backward()
    g, h = ([x.grad for x in part.values()] for part in (problem.theta, problem.phi))
    before = [x.clone() for x in (*g, *h)]
    found = problem.meta(rule, estimator=estimator, train_grads=(g, h))
    assert same(found.total, wanted.total) and found.epsilon == wanted.epsilon
    assert found.passes == wanted.passes - 1
    assert same((*g, *h), before)


# --- workers ---------------------------------------------------------------------------------------------------------


class Worker(threading.Thread):
    """One of two workers that add their gradients up in step."""

    def __init__(
        self, number: int, problem: Problem, shared: tuple[threading.Barrier, list[Any]], **options: Any
    ) -> None:
        super().__init__()
        self.number, self.problem, self.options = number, copy.deepcopy(problem), options
        self.barrier, self.slots = shared
        self.sizes: list[int] = []

    def reduce(self, gradients: list[Tensor]) -> None:
        self.sizes.append(len(gradients))
        self.slots[self.number] = gradients
        self.barrier.wait()
        sums = [x + y for x, y in zip(*self.slots)]
        self.barrier.wait()
        for x, y in zip(gradients, sums):
            x.copy_(y)

    def run(self) -> None:
        net, rows = self.problem.net, [[0, 3], [1, 2]][self.number]
        train, val = (functools.partial(loss, net, d.rows(rows)) for d in (self.problem.train, self.problem.val[0]))
        lists = {"theta": [*net.split()[0].values()], "phi": [*net.split()[1].values()]}
        self.found = self.problem.meta(
            **self.options, **lists, train_loss=train, val_loss=val, rng=None, reduce=self.reduce
        )


@pytest.mark.parametrize("rule", bilevel.RULES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_two_workers_are_one(rule: str, estimator: str) -> None:
    """Every worker steps theta with the gradient of both, and the direct and cross terms are of both."""
    problem = Problem()
    options = {"inner_rule": rule, "estimator": estimator}
    with sdpa_kernel(SDPBackend.MATH):  # a switch of the process, not of a thread
        wanted = problem.meta(**options)
        shared: tuple[threading.Barrier, list[Any]] = (threading.Barrier(2, timeout=60), [None, None])
        workers = [Worker(number, problem, shared, **options) for number in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    theta, phi = len(problem.theta), len(problem.phi)
    lists = {"one_sided": [theta, phi, theta, phi, phi], "central": [theta, theta, phi, phi, phi]}
    for worker in workers:
        assert worker.sizes == lists.get(estimator, [theta, theta, phi, phi])
        assert error(worker.found.total, wanted.total) < 1e-6
        assert error(worker.found.direct, wanted.direct) < 1e-9
    assert same(workers[0].found.total, workers[1].found.total)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_share_no_memory(estimator: str) -> None:
    """autograd gives a + b one gradient for both, with all elements in one place; ``reduce`` must not hit it twice."""
    theta, phi = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    found = meta_gradient(
        lambda: (theta * phi).sum(),
        lambda: (theta + phi).sum(),
        [theta],
        [phi],
        inner_lr=1.0,
        estimator=estimator,
        reduce=lambda gradients: [x.mul_(2) for x in gradients],  # another worker with the same batch
    )
    assert torch.equal(found.direct[0], torch.full((3,), 2.0))
    torch.testing.assert_close(found.cross[0], torch.full((3,), -4.0), rtol=1e-2, atol=0.0)


# --- low precision ---------------------------------------------------------------------------------------------------


def linear_in_theta(theta: Tensor, phi: Tensor, v: Tensor) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """L_train = sum theta phi, so the mixed derivative along w is w; L_val = sum v theta."""
    return lambda: (theta * phi).sum(), lambda: (v * theta).sum()


def test_half_norms_do_not_overflow() -> None:
    """||theta|| is 1e5, and float16 ends at 65,504."""
    theta = nn.Parameter(torch.full((100,), 1e4, dtype=torch.float16))
    phi, v = nn.Parameter(torch.zeros(100, dtype=torch.float16)), torch.arange(100.0).half()
    train, val = linear_in_theta(theta, phi, v)
    found = meta_gradient(train, val, [theta], [phi], inner_lr=1.0, estimator="central", radius=1e-2)
    assert found.epsilon == pytest.approx(1e-2 * 1e5 / float(v.double().norm()), rel=1e-5)
    assert theta.eq(1e4).all() and theta.dtype == torch.float16
    assert all(x.dtype == torch.float32 for x in (*found.direct, *found.cross, *found.total))


def test_bfloat16_rounds_the_perturbed_weight_once() -> None:
    """theta + epsilon w is summed in float32, as is theta - alpha g."""
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(50, generator=generator).bfloat16()
    theta, phi = nn.Parameter(start.clone()), nn.Parameter(torch.randn(50, generator=generator).bfloat16())
    v = torch.randn(50, generator=generator)
    train, val = linear_in_theta(theta, phi, v)
    seen: list[Tensor] = []

    def look(value: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return lambda: (seen.append(theta.detach().clone()), value())[1]

    found = meta_gradient(look(train), look(val), [theta], [phi], inner_lr=0.3, estimator="central", radius=1.0)
    v = v.bfloat16().float()  # what autograd hands to a bfloat16 parameter
    for found_theta, scale, direction in zip(
        seen, (0.0, -0.3, found.epsilon, -found.epsilon), (v, phi.detach().float(), v, v)
    ):
        assert torch.equal(found_theta, (start.float() + scale * direction).bfloat16())
    assert not torch.equal(seen[2], start + (found.epsilon * v).bfloat16())  # rounded twice it would be this
    assert torch.equal(theta, start)


def test_autocast_around_the_call() -> None:
    """Its cached half copies of theta must not outlive a move of theta: else the passes would not differ."""
    torch.manual_seed(0)
    net, phi, x = nn.Linear(6, 6), nn.Parameter(torch.randn(6)), torch.randn(9, 6)

    def value() -> Tensor:
        return net(x * phi).float().tanh().pow(2).mean()

    def inside() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return value()

    options = {"inner_lr": 0.5, "estimator": "central", "radius": 1e-2}
    wanted = meta_gradient(inside, inside, list(net.parameters()), [phi], **options)
    with torch.autocast("cpu", torch.bfloat16):
        found = meta_gradient(value, value, list(net.parameters()), [phi], **options)
    assert same(found.total, wanted.total) and flat(found.cross).any()


def test_float32_at_the_default_radius() -> None:
    """Rounding over epsilon stays below the tolerances at the default radius."""
    problem = Problem()
    total, _ = problem.brute()
    problem.net.float()
    problem.train, problem.val = problem.train.float(), [data.float() for data in problem.val]
    for estimator, tolerance in (("exact", 1e-5), ("central", 1e-3), ("one_sided", 3e-2)):
        assert error(problem.meta(estimator=estimator).total, total) < tolerance


# --- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "rule": ({"inner_rule": "adamw"}, "inner_rule"),
    "estimator": ({"estimator": "darts"}, "estimator"),
    "radius": ({"radius": -1e-4}, "radius"),
    "radius nan": ({"radius": float("nan")}, "radius"),
    "adam alone": ({"inner_rule": "adam", "inner_lr": 1.0, "preconditioner": None}, "preconditioner"),
    "preconditioner without adam": ({"preconditioner": [torch.ones(2)]}, "preconditioner"),
    "preconditioner of another shape": ({"inner_rule": "adam", "preconditioner": [torch.ones(3)]}, "preconditioner"),
    "preconditioner too short": ({"inner_rule": "adam", "preconditioner": []}, "preconditioner"),
    "no theta": ({"theta": []}, "theta, phi"),
    "no phi": ({"phi": []}, "theta, phi"),
    "states": ({"rng": []}, "rng"),
    "g": ({"train_grads": ([], [torch.ones(2)])}, "g"),
    "h": ({"train_grads": ([torch.ones(2)], [torch.ones(3)])}, "h(theta)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_have_names(mistake: str) -> None:
    options, where = MISTAKES[mistake]
    theta, phi = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    train, val = linear_in_theta(theta, phi, torch.ones(2))
    good: dict[str, Any] = {"theta": [theta], "phi": [phi], "inner_lr": 1.0}
    meta_gradient(train, val, **good)
    with pytest.raises(UsageError) as caught:
        meta_gradient(train, val, **{**good, **options})
    assert caught.value.where == where


def test_a_parameter_is_shared_or_specific() -> None:
    theta, phi = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    train, val = linear_in_theta(theta, phi, torch.ones(2))
    with pytest.raises(UsageError, match="in common"):
        meta_gradient(train, val, [theta, phi], [phi], inner_lr=1.0)
