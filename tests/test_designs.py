"""Corpus size and similarity: differences, curves, rank correlations; the pipelines at a smoke scale."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_records import example

from fairseq_interference.analysis import corpus_size, designs, similarity
from fairseq_interference.analysis.study import Study, read_study
from fairseq_interference.cli import main
from fairseq_interference.errors import UsageError
from fairseq_interference.evaluation import paired
from fairseq_interference.evaluation.records import write_record

ROOT = Path(__file__).resolve().parent.parent
SIMILARITIES = {"xb": 0.0, "xc": 0.2, "xd": 0.4, "xe": 0.6, "xf": 0.8}
LOST = {"xb": 0.5, "xc": 0.6, "xd": 0.3, "xe": 0.2, "xf": -0.1}  # bits that xa loses in the pair


def record_loss(results: Path, arm: str, language: str, seed: int, bits: float) -> None:
    changes = {"run.setting": "pretrain", "run.id": f"{arm}-{language}-{seed}", "run.config": {"pretrain_seed": seed}}
    changes.update({"run.seed": seed, "evaluation.benchmark": "mlm", "evaluation.language": language})
    write_record(results / arm, example(**changes, **{"evaluation.metrics": {"loss_per_token": bits}}))


def record_f1(results: Path, arm: str, source: str, language: str, seed: int, f1: float) -> None:
    changes = {"run.id": f"{arm}-{source}-{language}-{seed}", "run.config": {"pretrain_seed": seed}, "run.seed": seed}
    setting = "within-language" if language == source else "zero-shot"
    changes.update({"run.train_langs": [source], "run.setting": setting, "evaluation.language": language})
    write_record(results / arm, example(**changes, **{"evaluation.metrics": {"f1": f1}}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """xa alone and with five languages, two seeds."""
    folder = tmp_path / "results"
    for seed in (1, 2):
        record_loss(folder, "mono-xa", "xa", seed, 5.0 + seed)
        record_f1(folder, "mono-xa", "xa", "xa", seed, 0.8)
        for other, lost in LOST.items():
            record_loss(folder, f"pair-{other}", "xa", seed, 5.0 + seed + lost + 0.01 * seed)
            record_loss(folder, f"pair-{other}", other, seed, 6.0)
            record_f1(folder, f"pair-{other}", "xa", "xa", seed, 0.8 - lost / 10)
            record_f1(folder, f"pair-{other}", "xa", other, seed, 0.3 + SIMILARITIES[other] / 2)
    return folder


COMPARE = [f"xa:pair-{other}:mono-xa" for other in LOST]


def test_differences_are_paired_and_signed(results: Path) -> None:
    arms = paired.read_arms(results)
    rows = designs.difference_rows(arms, designs.parse_comparisons(COMPARE, arms))
    assert {row["language"] for row in rows} == {"xa"} and len(rows) == 2 * len(LOST)  # no zero-shot, no other language
    loss, f1 = (next(r for r in rows if r["arm"] == "pair-xc" and r["measure"] == name) for name in ("loss", "F1"))
    assert loss["mean"] == pytest.approx((0.6 + 0.015) * math.log(2)) == loss["interference"] and loss["n"] == 2
    assert f1["mean"] == pytest.approx(-6.0) and f1["interference"] == pytest.approx(6.0)
    assert loss["low"] < loss["mean"] < loss["high"]


@pytest.mark.parametrize("text", ["xa:pair-xb", "xa:pair-xb:nobody", "::", "xa:pair-xb:mono-xa:more"])
def test_a_comparison_that_cannot_be_made_is_refused(results: Path, text: str) -> None:
    with pytest.raises(UsageError):
        designs.parse_comparisons([text], paired.read_arms(results))


def brute_force_spearman(one: list[float], other: list[float]) -> float:
    """1 - 6 sum d^2 / (n (n^2 - 1)), without ties."""
    ranks = [[sorted(values).index(value) for value in values] for values in (one, other)]
    n = len(one)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(*ranks)) / (n * (n * n - 1))


def test_the_rank_correlation_is_spearman_s() -> None:
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=9).tolist(), rng.normal(size=9).tolist()
    rows = [{"x": x, "y": y} for x, y in zip(one, other)] + [{"x": 3.0, "y": None}]
    (found,) = designs.correlation_rows(rows, [("x", "y")])
    assert found["n"] == 9 and found["rho"] == pytest.approx(brute_force_spearman(one, other))


def test_too_few_settings_have_no_rank_correlation() -> None:
    rows = [{"x": float(i), "y": float(i)} for i in range(4)]
    assert designs.correlation_rows(rows, [("x", "y")])[0]["rho"] is None
    same = [{"x": float(i), "y": 1.0} for i in range(6)]
    assert designs.correlation_rows(same, [("x", "y")])[0] == {"of": "x", "with": "y", "n": 6, "rho": None, "p": None}


def test_curves_are_in_nats(results: Path) -> None:
    rows = designs.curve_rows("pair", 1, [{"update": 4, "epoch": 1.0, "loss_xa": 3.0, "loss_xb": None}], ["xa", "xb"])
    assert len(rows) == 1 and rows[0]["loss"] == pytest.approx(3 * math.log(2)) and rows[0]["perplexity"] == 8.0


def test_similarity_against_interference_and_conflict(results: Path, tmp_path: Path) -> None:
    truth = {"pairs": {f"xa:{lang}": {"similarity": {"achieved": value}} for lang, value in SIMILARITIES.items()}}
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    arguments = ["--truth", str(tmp_path / "truth.json"), "--compare", *COMPARE, "--no-figures"]
    out = tmp_path / "out"
    assert main(["diagnose", "similarity", "--results", str(results), "--out", str(out), *arguments]) == 0
    study = read_study(out / "similarity" / "similarity.json")
    settings = {row["language"]: row for row in study.tables["settings"]}
    assert list(settings) == list(LOST)
    assert settings["xd"]["similarity"] == 0.4 and settings["xd"]["conflict"] is None
    assert settings["xd"]["interference"] == pytest.approx((0.3 + 0.015) * math.log(2))
    assert settings["xd"]["zero_shot"] == pytest.approx(50.0)
    found = {(row["of"], row["with"]): row["rho"] for row in study.tables["correlations"]}
    assert found["similarity", "interference"] == pytest.approx(-0.9)  # one pair of neighbours is exchanged
    assert found["similarity", "zero_shot"] == pytest.approx(1.0) and found["similarity", "conflict"] is None
    assert [panel.xlabel for panel in similarity.figures(study)[0].panels] == ["similarity with xa"] * 2


def test_given_similarities_are_read_or_refused(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["diagnose", "similarity", "--results", str(results), "--compare", *COMPARE, "--no-figures"]
    command += ["--out", str(tmp_path / "out"), "--similarity"]
    assert main([*command, "xb=near"]) == 2 and "LANG=S" in capsys.readouterr().err
    assert main([*command, "xb=0.25"]) == 0
    rows = read_study(tmp_path / "out" / "similarity" / "similarity.json").tables["settings"]
    assert [row["similarity"] for row in rows] == [0.25, None, None, None, None]


def test_figures_leave_nothing_out(results: Path) -> None:
    arms = paired.read_arms(results)
    rows = designs.difference_rows(arms, designs.parse_comparisons(COMPARE, arms))
    validations = [{"update": update, "epoch": 1.0, "loss_xa": 9.0 / update} for update in (1, 2, 3)]
    curves = [row for seed in (1, 2) for row in designs.curve_rows("mono-xa", seed, validations, ["xa"])]
    curve, difference = corpus_size.figures(Study("corpus-size", {}, {"curves": curves, "differences": rows}))
    assert curve.panels[0].curves["mono-xa"].x == [1, 2, 3] and "2 seeds" in curve.title
    assert [len(panel.rows) for panel in difference.panels] == [5, 5]


def pipeline(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "INTERFERENCE_VENV": str(Path(sys.executable).parent.parent)}
    command = ["bash", str(ROOT / "run" / "diagnose.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("study", ["corpus-size", "similarity"])
def test_the_pipeline_ends_in_figures(tmp_path: Path, study: str) -> None:
    langs = ["--scale", "smoke", "--out", str(tmp_path), "--seeds", "1", "--jobs", "2"]
    done = pipeline(study, *langs)
    assert done.returncode == 0, done.stderr + done.stdout
    found = read_study(tmp_path / study / f"{study}.json")
    assert (
        found.tables["curves"]
        and found.tables["differences"]
        and f"figures/{study}" in (tmp_path / "index.md").read_text()
    )
    again = pipeline(study, *langs)
    assert again.returncode == 0 and "already done" in again.stdout
