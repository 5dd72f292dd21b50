"""L0 masks: reference numbers of the distribution, masked weights against a loop, training, what is read off them."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pretrain_world import build, data_folder, train_here

from fairseq_interference.analysis import mask_figures, masks
from fairseq_interference.analysis.study import Study
from fairseq_interference.errors import CheckpointError, InterferenceError, UsageError
from fairseq_interference.modules import hard_concrete
from fairseq_interference.modules.masks import NAME, Masks, groups_of, masked, masked_in_place

# --- the distribution --------------------------------------------------------------------------------------------


def test_reference_numbers() -> None:
    """methods.md 7.1: P(z != 0) at 0, and where the test gate becomes exactly 0 and 1."""
    assert float(hard_concrete.probability(torch.tensor(0.0))) == pytest.approx(0.831822, abs=1e-6)
    ends = torch.tensor([-2.397896, -2.39789, 2.39789, 2.397896], dtype=torch.float64)
    low, above, below, high = hard_concrete.gate(ends).tolist()
    assert low == 0.0 and high == 1.0 and 0 < above < 1e-5 and 1 - 1e-5 < below < 1


@pytest.mark.parametrize("log_alpha", [-3.0, -1.0, 0.0, 2.0])
def test_the_expected_norm_is_that_of_samples(log_alpha: float) -> None:
    generator = torch.Generator().manual_seed(1)
    values = hard_concrete.sample(torch.full((400_000,), log_alpha), generator)
    assert float(values.min()) >= 0 and float(values.max()) <= 1
    expected = float(hard_concrete.probability(torch.tensor(log_alpha)))
    assert float((values != 0).float().mean()) == pytest.approx(expected, abs=0.003)


def test_a_sample_s_gradient_is_that_of_a_difference() -> None:
    log_alpha = torch.tensor([-0.4, 0.1, 0.9], dtype=torch.float64, requires_grad=True)

    def draw(x: torch.Tensor) -> torch.Tensor:
        return hard_concrete.sample(x, torch.Generator().manual_seed(5))

    (found,) = torch.autograd.grad(draw(log_alpha).sum(), log_alpha)
    step = 1e-6
    right = (draw(log_alpha.detach() + step) - draw(log_alpha.detach() - step)) / (2 * step)
    assert torch.allclose(found, right, atol=1e-8) and bool(found.abs().sum() > 0)


def test_log_alpha_is_cut_and_gates_are_wide() -> None:
    low = hard_concrete.probability(torch.tensor([-99.0, math.log(0.01)]))
    assert low[0] == low[1] and hard_concrete.gate(torch.zeros(2, dtype=torch.bfloat16)).dtype == torch.float32
    start = hard_concrete.initial((10_000,), 0.5, torch.Generator().manual_seed(1))
    assert abs(float(start.mean())) < 1e-3 and float(start.std()) == pytest.approx(0.01, abs=1e-3)


# --- masked weights ----------------------------------------------------------------------------------------------

FLAGS = ("--langs", "aa,bb", "--criterion", "l0_masked_lm", "--lr", 0.1, "--weight-decay", 0)


@pytest.fixture(scope="module")
def pretrained(plugin, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data, and a joint model after a few updates."""
    folder = tmp_path_factory.mktemp("masks")
    data = data_folder(folder / "data", {"aa": 40, "bb": 30})
    train_here(data, folder / "joint", "--langs", "aa,bb", "--max-update", 3, arch="xlm_joint_tiny")
    return data, folder / "joint" / "checkpoint_last.pt"


def setup(pretrained: tuple[Path, Path], save: Path, *flags: object, arch: str = "xlm_joint_tiny"):
    data, checkpoint = pretrained
    start = ("--finetune-from-model", checkpoint)
    return build(data, save, *FLAGS, *start, *flags, arch=arch)


def by_hand(model: torch.nn.Module, granularity: str, gates: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Masked weights, one gate at a time."""
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    stem = "encoder.sentence_encoder.layers.0."
    for key, gate in gates.items():
        kind = key.split("|")[-1]
        for place in itertools.product(*map(range, gate.shape)):
            z = gate[place]
            if granularity == "head":
                width = 8  # 16 wide, 2 heads
                values[f"{stem}self_attn.out_proj.weight"][:, place[0] * width : (place[0] + 1) * width] *= z
            elif granularity == "unit":
                values[f"{stem}fc2.weight"][:, place[0]] *= z
            else:
                name = f"{stem}{'' if kind in ('fc1', 'fc2') else 'self_attn.'}{kind}"
                values[f"{name}.weight"][place] *= z
                if granularity == "row":
                    values[f"{name}.bias"][place] *= z
    return values


SIZES = {"head": 4 * 16 * 16 + 3 * 16, "unit": 2 * 16 * 32 + 32, "row": 4 * 16 * 17 + 32 * 17 + 16 * 33}
SIZES["weight"] = 4 * 16 * 16 + 2 * 16 * 32


@pytest.mark.parametrize("granularity", list(SIZES))
def test_masked_weights_are_those_of_a_loop(pretrained, tmp_path: Path, granularity: str) -> None:
    model = setup(pretrained, tmp_path, "--l0-granularity", granularity)[1].get_model()
    for parameter in model.parameters():  # biases are 0 in the beginning
        parameter.data += 0.1
    groups = model.l0_masks.groups
    gates = [(group, torch.rand(group.shape)) for group in groups]
    found, right = masked(model, gates), by_hand(model, granularity, {group.key: gate for group, gate in gates})
    assert found and all(torch.equal(value, right[name]) for name, value in found.items())
    assert {name for name, p in model.named_parameters() if not torch.equal(p, right.get(name, p))} == set(found)
    assert model.l0_masks.total == SIZES[granularity]  # every weight behind a gate is counted once
    before = {name: p.clone() for name, p in model.named_parameters()}
    with masked_in_place(model, gates):
        assert all(torch.equal(model.get_parameter(name), right[name]) for name in found)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_closed_head_and_unit_have_no_effect(pretrained, tmp_path: Path) -> None:
    """With its gate at 0 nothing else of a head or unit matters: |group| may count all its weights."""
    model = setup(pretrained, tmp_path)[1].get_model().eval()
    tokens = torch.randint(4, 60, (3, 7))
    inputs = {"src_tokens": tokens, "lang_id": torch.zeros(3, dtype=torch.long)}
    heads, units = model.l0_masks.groups
    gates = [(heads, torch.tensor([0.0, 1.0])), (units, torch.cat([torch.zeros(5), torch.ones(27)]))]
    layer = model.encoder.sentence_encoder.layers._modules["0"]
    with masked_in_place(model, gates), torch.no_grad():
        before = model(**inputs)[0]
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            projection.weight[:8] += 1.0
        layer.fc1.weight[:5] += 1.0
        after = model(**inputs)[0]
    assert torch.equal(before, after)


# --- training ----------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_each_language_under_its_mask(pretrained, tmp_path: Path) -> None:
    task, trainer = setup(pretrained, tmp_path, "--l0-lambda", 0.7)
    task.load_dataset("train")
    dataset, model, criterion = task.dataset("train"), trainer.get_model(), trainer.get_criterion()
    for parameter in model.l0_masks.parameters():
        parameter.data += torch.randn_like(parameter)
    sample = dataset.collater([dataset[row] for row in (0, 1, 12, 13)])
    languages = sample["net_input"]["lang_id"]
    assert len(languages.unique()) == 2
    model.eval(), criterion.eval()
    loss, size, _ = criterion(model, sample)
    total = 0.0
    for row in range(len(languages)):
        code = ("aa", "bb")[int(languages[row])]
        gates = [(g, hard_concrete.gate(model.l0_masks.log_alpha(code, g))) for g in model.l0_masks.groups]
        with masked_in_place(model, gates):
            logits = model(sample["net_input"]["src_tokens"][row : row + 1], lang_id=languages[row : row + 1])[0]
        target = sample["target"][row]
        some = target.ne(1)
        total += float(torch.nn.functional.cross_entropy(logits[0][some], target[some], reduction="sum").detach())
    assert float(loss.detach()) == pytest.approx(total, rel=1e-5)
    criterion.train()
    torch.manual_seed(1)
    with_penalty = criterion(model, sample)[0]
    criterion.weight = 0.0
    torch.manual_seed(1)
    without = criterion(model, sample)[0]
    expected = 0.0
    for language, code in enumerate(("aa", "bb")):
        count = int(sample["target"][languages == language].ne(1).sum())
        gates = [(g, hard_concrete.probability(model.l0_masks.log_alpha(code, g))) for g in model.l0_masks.groups]
        kept = sum(g.size * float(p.detach()) for g, some in gates for p in some.flatten())
        expected += 0.7 * count * kept / model.l0_masks.total
    assert float((with_penalty - without).detach()) == pytest.approx(expected, rel=1e-4)
    assert int(size) == sample["target"].ne(1).sum()


def train(pretrained, save: Path, *flags: object) -> dict:
    train_here(pretrained[0], save, *FLAGS, "--finetune-from-model", pretrained[1], *flags, arch="xlm_joint_tiny")
    return torch.load(save / "checkpoint_last.pt", weights_only=False)


def test_only_masks_move_and_a_resumed_run_is_the_same(pretrained, tmp_path: Path) -> None:
    whole = train(pretrained, tmp_path / "whole", "--max-update", 4)["model"]
    body = torch.load(pretrained[1], weights_only=False)["model"]
    for name, value in body.items():
        assert torch.equal(value, whole[name]), name
    stem = f"{NAME}."
    moved = [name for name in whole if name.startswith(stem) and "_size" not in name]
    assert len(moved) == 4 and all(float((whole[name] - math.log(9)).abs().max()) > 0.1 for name in moved)
    train(pretrained, tmp_path / "half", "--max-update", 2)
    again = train(pretrained, tmp_path / "half", "--max-update", 4)["model"]
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_a_language_that_is_absent_keeps_its_mask(pretrained, tmp_path: Path) -> None:
    task, trainer = setup(pretrained, tmp_path)
    task.load_dataset("train")
    dataset, model = task.dataset("train"), trainer.get_model()
    only = [row for row in range(len(dataset)) if int(dataset.collater([dataset[row]])["net_input"]["lang_id"][0]) == 0]
    before = {name: p.clone() for name, p in model.l0_masks.named_parameters()}
    for _ in range(2):
        trainer.train_step([dataset.collater([dataset[row] for row in only[:4]])])
    for name, p in model.l0_masks.named_parameters():
        assert torch.equal(p, before[name]) == name.startswith("bb|"), name
    states = trainer.optimizer.optimizer.state
    assert not any(states.get(p) for name, p in model.l0_masks.named_parameters() if name.startswith("bb|"))


def test_the_body_of_a_mask_checkpoint_loads_as_it_was(pretrained, tmp_path: Path) -> None:
    import fairseq_interference

    train(pretrained, tmp_path, "--max-update", 1)
    body, found = (
        fairseq_interference.load(p).model.state_dict() for p in (pretrained[1], tmp_path / "checkpoint_last.pt")
    )
    assert body.keys() == found.keys() and all(torch.equal(body[name], found[name]) for name in body)


def test_masks_stay_in_fp32() -> None:
    layer = torch.nn.Module()
    layer.fc1, layer.fc2 = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)
    encoder = torch.nn.Module()
    encoder.layers = torch.nn.ModuleList([layer])
    made = Masks(groups_of(encoder, ["unit"], ""), ["aa"])
    assert {p.dtype for p in made.bfloat16().parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--l0-lambda", -1), "l0-lambda"),
        (("--l0-granularity", "row,head"), "granularity"),
        (("--l0-granularity", "layer"), "granularity"),
        (("--l0-init-droprate", 1), "droprate"),
        (("--finetune-from-model", ""), "random weights"),
    ],
)
def test_what_makes_no_sense_is_refused(pretrained, tmp_path: Path, flags: tuple, said: str) -> None:
    with pytest.raises(InterferenceError, match="(?s).*" + said):
        setup(pretrained, tmp_path, *flags)


# --- what is read off them ---------------------------------------------------------------------------------------

PLACES = {
    (0, "attention", "head"): (4, 100),
    (0, "feed-forward", "unit"): (8, 10),
    (1, "feed-forward", "unit"): (8, 10),
}


def made_run(seed: int, shift: float = 2.0) -> masks.Run:
    """Two languages that agree but for two units, with noise of their own."""
    rng = np.random.default_rng(7)
    base = {place: rng.normal(size=count) for place, (count, _) in PLACES.items()}
    noise = np.random.default_rng(seed)
    run = {}
    for number, lang in enumerate(("aa", "bb")):
        values = {place: v + 0.05 * noise.normal(size=len(v)) for place, v in base.items()}
        values[1, "feed-forward", "unit"][:2] += shift if number else -shift
        run[lang] = masks.Mask(values, {place: size for place, (_, size) in PLACES.items()})
    return run


def test_cosines_are_those_of_numpy_and_the_margin_is_within_minus_between() -> None:
    runs = [made_run(seed) for seed in (1, 2, 3)]
    pairs = masks.pair_rows(runs)
    vector = [{lang: np.concatenate([run[lang].values[p] for p in sorted(PLACES)]) for lang in run} for run in runs]

    def agree(a: int, one: str, b: int, other: str) -> float:
        return float(np.corrcoef(vector[a][one], vector[b][other])[0, 1])

    def only(rows: list, **wanted: object) -> dict:
        wanted = {"one": "aa", "other": "bb", "layer": None, "component": "all", **wanted}
        (found,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
        return found

    row = only(pairs, run=0, other_run=2)
    assert row["centred"] == pytest.approx(np.mean([agree(0, "aa", 2, "bb"), agree(2, "aa", 0, "bb")]))
    found = only(masks.summary_rows(pairs), kind="centred")
    margins = []
    for a, b in itertools.combinations(range(3), 2):
        own = np.mean([agree(a, lang, b, lang) for lang in ("aa", "bb")])
        margins.append(own - np.mean([agree(a, "aa", b, "bb"), agree(b, "aa", a, "bb")]))
    assert found["margin"] == pytest.approx(np.mean(margins)) and found["margin_low"] > 0 and found["n"] == 3
    one = masks.pair_rows(runs[:1])
    assert {(r["one"], r["other"]) for r in one} == {("aa", "bb")}  # no within-language control from one seed


def test_constant_masks_have_no_centred_cosine() -> None:
    assert masks.cosine(np.ones(3), np.ones(3), centred=True) is None
    assert masks.cosine(np.ones(3), np.ones(3), centred=False) == pytest.approx(1.0)
    assert masks.cosine(np.zeros(3), np.ones(3), centred=False) is None


def test_the_units_that_were_planted_are_the_most_specific() -> None:
    rows = [r for r in masks.group_rows([made_run(1), made_run(2)]) if r["sort"] == "specific"][:2]
    assert {(r["layer"], r["kind"], r["gate"]) for r in rows} == {(1, "unit", 0), (1, "unit", 1)}
    assert all(r["value_other"] - r["value_one"] == pytest.approx(4.0, abs=0.3) for r in rows)
    run = made_run(1, shift=9.0)
    signs = {(r["layer"], r["component"]): r["opposite"] for r in masks.sign_rows([run])}
    for place, (count, _) in PLACES.items():
        opposite = sum(a > 0 > b or a < 0 < b for a, b in zip(run["aa"].values[place], run["bb"].values[place]))
        assert signs[place[:2]] == pytest.approx(opposite / count)
    assert signs[1, "feed-forward"] >= 2 / 8


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_the_lowest_gates_are_closed_up_to_the_asked_sparsity(sparsity: float) -> None:
    mask = made_run(1)["aa"]
    open_ = masks.keep_best(mask, sparsity)
    assert abs(masks.sparsity_of(mask, open_) - sparsity) <= 100 / 560 / 2 + 1e-9  # half of the largest gate
    closed = [v for place in PLACES for v, o in zip(mask.values[place], open_[place]) if not o]
    kept = [v for place in PLACES for v, o in zip(mask.values[place], open_[place]) if o]
    assert not closed or not kept or max(closed) <= min(kept)


def test_the_verdict_needs_two_sd() -> None:
    def rows(own: list[float], other: list[float]) -> list[dict]:
        some = [("aa", own), ("bb", other)]
        return [
            {"sparsity": 0.5, "mask": m, "lang": "aa", "run": i, "loss": v} for m, vs in some for i, v in enumerate(vs)
        ]

    (clear,) = masks.verdict_rows(rows([1.0, 1.1, 0.9], [2.0, 2.1, 1.9]))
    assert clear["clear"] is True and clear["gap"] == pytest.approx(1.0) and clear["pooled_sd"] == pytest.approx(0.1)
    assert masks.verdict_rows(rows([1.0, 1.1, 0.9], [1.1, 1.2, 1.0]))[0]["clear"] is False
    assert masks.verdict_rows(rows([1.0], [2.0]))[0]["clear"] is None


def test_figures_have_no_empty_panel() -> None:
    runs = [made_run(seed) for seed in (1, 2)]
    pairs = masks.pair_rows(runs)
    losses = [
        {"run": 0, "sparsity": 0.5, "reached": 0.5, "mask": m, "lang": k, "loss": 1.0} for m in runs[0] for k in runs[0]
    ]
    tables = {"summary": masks.summary_rows(pairs), "groups": masks.group_rows(runs), "losses": losses}
    found = mask_figures.figures(Study("masks", {"languages": ["aa", "bb"], "runs": 2}, tables))
    assert [len(figure.panels) for figure in found] == [2, 2, 1, 1]


def test_a_checkpoint_without_masks_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no masks"):
        masks.read_run({"encoder.weight": torch.zeros(1)}, "here")
    assert issubclass(UsageError, InterferenceError)
