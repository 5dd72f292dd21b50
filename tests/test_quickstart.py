"""The quickstart at a smoke scale: it ends in a whole report, also after an interruption."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairseq_interference.cli import main
from fairseq_interference.cli.status import state_of
from fairseq_interference.evaluation.records import read_records

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(sys.executable).parent.parent

JOBS = """
set -euo pipefail
LOGS={folder} JOBS=2 DRY_RUN=0
source {root}/run/jobs.sh
jobs_total 3
stage "one" {folder}/one sleep 0.2
stage "two" {folder}/two bash -c '{two}'
stage "three" {folder}/three true
barrier
echo all done
"""


def jobs(folder, two="true"):
    return ["bash", "-c", JOBS.format(folder=folder, root=ROOT, two=two)]


def quickstart(out, *arguments):
    return ["bash", str(ROOT / "run" / "quickstart.sh"), "--scale", "smoke", "--out", str(out), *arguments]


def environment():
    return {**os.environ, "INTERFERENCE_VENV": str(VENV)}


def run(command, **more):
    return subprocess.run(command, capture_output=True, text=True, env=environment(), **more)


def test_stages_run_once(tmp_path):
    done = run(jobs(tmp_path))
    assert done.returncode == 0 and "[ 3/3]" in done.stdout and "all done" in done.stdout
    assert json.loads((tmp_path / "two" / ".done").read_text())["seconds"] >= 0
    again = run(jobs(tmp_path, two="exit 3"))
    assert again.returncode == 0 and again.stdout.count("already done") == 3


def test_a_failing_stage_ends_with_its_log(tmp_path):
    done = run(jobs(tmp_path, two="echo what went wrong; exit 3"))
    assert done.returncode == 1
    assert "stage 'two' failed with exit code 3" in done.stderr and "what went wrong" in done.stderr
    assert not (tmp_path / "two").exists()


def test_an_interruption_lets_a_stage_save(tmp_path):
    two = f'trap "sleep 0.3; touch {tmp_path}/saved; exit 75" TERM; touch {tmp_path}/begun; sleep 30 & wait'
    process = start(jobs(tmp_path, two=two))
    wait_for(tmp_path / "begun", process)
    assert state_of(tmp_path / "two", "two").state == "running"
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130 and "to go on" in stderr
    assert (tmp_path / "saved").exists() and not (tmp_path / "two").exists()
    assert state_of(tmp_path / "two", "two").state == "missing"


def start(command):
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )


def wait_for(path, process, seconds=300):
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


def test_dry_run_prints_every_stage_and_writes_nothing(tmp_path):
    done = run(quickstart(tmp_path / "out", "--dry-run"))
    assert done.returncode == 0 and not (tmp_path / "out").exists()
    names = re.findall(r"^# (.*)$", done.stdout, re.MULTILINE)
    assert names[0] == "world" and names[-1] == "report" and len(names) == len(set(names)) == 15


@pytest.mark.parametrize("wrong", [["--scale", "huge"], ["--jobs", "none"], ["--nonsense"]])
def test_usage(tmp_path, wrong):
    assert run(["bash", str(ROOT / "run" / "quickstart.sh"), "--out", str(tmp_path / "out"), *wrong]).returncode == 2


@pytest.mark.slow
def test_interrupted_quickstart_goes_on_to_a_whole_report(tmp_path, capsys):
    out = tmp_path / "out"
    process = start(quickstart(out))
    wait_for(out / "pretrain" / "joint" / "companions.json", process)  # in the middle of pre-training
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stdout + stderr
    assert main(["status", str(out)]) == 0
    states = capsys.readouterr().out
    assert re.search(r"^done +world", states, re.MULTILINE) and re.search(r"^missing +report", states, re.MULTILINE)

    done = run(quickstart(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"world +already done", done.stdout) and str(out / "results" / "report.md") in done.stdout
    report = (out / "results" / "report.md").read_text(encoding="utf-8")
    for part in (
        "perplexity per token",
        "Within-language: ner test, F1",
        "Zero-shot, fine-tuned on xa",
        "transfer gap",
    ):
        assert part in report
    assert "| missing" not in report.split("## Cost")[0]
    found = read_records(out / "results")
    assert len(found) == 6 + 8  # perplexities of two joint models and two mono ones; scores, two of them zero-shot
    for record in found:
        cost = record["cost"]
        assert cost["peak_memory_bytes"] > 10**8 and cost["updates"] > 0 and cost["seconds"] > 0
        assert cost["tokens"] > 50 * cost["updates"]
        assert cost["parameters"]["total"] > cost["parameters"]["shared"] or "adpt" not in record["run"]["arch"]
    assert main(["status", str(out)]) == 0
    assert "missing" not in capsys.readouterr().out

    marks = {path: path.stat().st_mtime_ns for path in out.rglob("checkpoint_best.pt")}
    again = run(quickstart(out))
    assert again.returncode == 0 and again.stdout.count("already done") == 14
    assert marks == {path: path.stat().st_mtime_ns for path in out.rglob("checkpoint_best.pt")}
    assert run(["bash", str(ROOT / "run" / "quickstart.sh"), "--out", str(out)]).returncode == 2  # another scale
