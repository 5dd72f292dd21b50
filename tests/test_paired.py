"""Differences paired by seed, against SciPy's paired t-test; and the verb that writes them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from test_records import example

from fairseq_interference.cli import main
from fairseq_interference.errors import DataError
from fairseq_interference.evaluation import paired
from fairseq_interference.evaluation.records import write_record

PAIRS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2, max_size=6)


@given(PAIRS)
def test_the_interval_is_that_of_scipy_s_paired_test(values: list[tuple[float, float]]) -> None:
    arm, baseline = np.array(values).T
    assume(np.std(arm - baseline) > 1e-6)
    one, other = ({(seed, None): float(x) for seed, x in enumerate(side)} for side in (arm, baseline))
    found = paired.paired_difference(one, other)
    low, high = stats.ttest_rel(arm, baseline).confidence_interval(paired.CONFIDENCE)
    assert found is not None and found.n == len(values)
    assert np.allclose([found.mean, found.low, found.high], [np.mean(arm - baseline), low, high], atol=1e-9)


def test_only_seeds_that_both_have_are_paired() -> None:
    found = paired.paired_difference({(1, None): 3.0, (2, None): 9.0}, {(1, None): 1.0, (3, None): 2.0})
    assert found == paired.PairedDifference(2.0, None, None, 1)
    assert paired.paired_difference({(1, None): 3.0}, {(1, 1): 3.0}) is None


def fill(folder: Path, arm: str, values: dict[int, float]) -> None:
    for seed, value in values.items():
        changes = {"run.id": f"{arm}-{seed}", "run.seed": seed, "run.config": {"pretrain_seed": seed}}
        write_record(folder / arm, example(**changes, **{"evaluation.metrics": {"f1": value}}))


def test_compare_writes_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, "adpt", {1: 0.50, 2: 0.60, 3: 0.55})
    fill(tmp_path, "meta", {1: 0.52, 2: 0.63, 3: 0.57, 4: 0.9})
    loss = {"run.setting": "pretrain", "run.id": "p", "evaluation.benchmark": "mlm", "run.train_langs": ["xa", "xb"]}
    write_record(tmp_path / "meta", example(**loss, **{"evaluation.metrics": {"loss_per_token": 2.0}}))
    assert main(["compare", "--results", str(tmp_path), "--baseline", "adpt,meta"]) == 0
    text = capsys.readouterr().out
    assert "+2.333 [+0.899, +3.768]" in text and "| **+2.333" in text  # bold: without 0
    with open(tmp_path / "compare.csv", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if (row["arm"], row["baseline"]) == ("meta", "adpt")]
    f1, other = (next(row for row in rows if row["measure"] == name) for name in ("F1", "loss"))
    assert (f1["n"], f1["trained on"], f1["language"]) == ("4", "xa", "xb")
    assert float(f1["difference"]) == pytest.approx(7 / 3) and float(f1["mean"]) == pytest.approx(65.5)
    assert float(other["mean"]) == pytest.approx(2 * np.log(2)) and other["difference"] == ""


def test_what_cannot_be_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--results", str(tmp_path), "--baseline", "adpt"]) == 1
    assert "there is none here" in capsys.readouterr().err
    fill(tmp_path, "meta", {1: 0.5})
    assert main(["compare", "--results", str(tmp_path), "--baseline", "adpt"]) == 2
    assert "allowed: meta" in capsys.readouterr().err
    write_record(tmp_path / "meta", example(**{"run.id": "again", "run.config": {"pretrain_seed": 1}}))
    with pytest.raises(DataError, match="same seed"):
        paired.read_arms(tmp_path)
