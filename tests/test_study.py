"""The study of meta-learned adapters at a smoke scale: it ends in a comparison, and every arm's flags are known."""

from __future__ import annotations

import csv
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_interference import launch

ROOT = Path(__file__).resolve().parent.parent


def study(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "run" / "study_meta.sh"), "--scale", "smoke", "--out", str(out), *arguments]
    environment = {**os.environ, "INTERFERENCE_VENV": str(Path(sys.executable).parent.parent)}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_the_study_ends_in_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = study(tmp_path, "--arms", "adpt,meta", "--seeds", "1", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "compare.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    measures = {(row["measure"], row["trained on"], row["language"]) for row in rows}
    assert {("loss", "", "xa"), ("loss", "", "xb"), ("F1", "xa", "xa"), ("F1", "xa", "xb")} <= measures
    assert {row["arm"] for row in rows} == {"adpt", "meta"} == {row["baseline"] for row in rows}
    again = study(tmp_path, "--arms", "adpt,meta", "--seeds", "1")
    assert again.returncode == 0 and again.stdout.count("already done") == 3 + 2 * 4

    (tmp_path / "plan.txt").write_text((tmp_path / "plan.txt").read_text().replace("lr: ", "lr: 2"))
    other = study(tmp_path, "--arms", "adpt,meta", "--seeds", "1")
    assert other.returncode == 2 and "begun with other settings" in other.stderr

    lines = [line for line in study(tmp_path, "--dry-run").stdout.splitlines() if "/run/pretrain.sh" in line]
    assert len(lines) == 3 * 14  # mono is two
    for line in lines[:14]:
        assert launch.main([*shlex.split(line)[2:], "--dry-run"]) == 0
    assert "--meta-terms cross" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--langs", "xa,xb"), "belong together"),
        (("--arms", "nothing"), "there is no nothing"),
        (("--seeds", "a"), "--seeds takes numbers"),
        (("--seeds", "1,1"), "each name once"),
        (("--arms", "adpt,adpt"), "each name once"),
        (("--scale", "big"), "smoke or full"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = study(tmp_path, *arguments, "--dry-run")
    assert done.returncode == 2 and message in done.stderr
