"""status: done, running, interrupted and missing stages of a folder."""

from __future__ import annotations

import json

import pytest

from fairseq_interference.cli import main, status
from fairseq_interference.stages import stage


def states(folder):
    return {state.name: state.state for state in status.collect(folder)}


def finish(path):
    with stage(path, inputs={}, settings={}) as folder:
        (folder / "x").write_text("x")


def test_a_stage_through_its_life(tmp_path):
    out = tmp_path / "data" / "clean"
    assert "data/clean" not in states(tmp_path)
    with stage(out, inputs={}, settings={}):
        assert states(tmp_path)["data/clean"] == "running"
    assert states(tmp_path)["data/clean"] == "done"


def test_lock_can_be_tried_where_locks_are_not_listed(tmp_path):
    lock = tmp_path / ".clean.lock"
    with stage(tmp_path / "clean", inputs={}, settings={}):
        assert status._try_lock(lock)
    assert not status._try_lock(lock)


def test_interrupted_stage(tmp_path):
    with pytest.raises(KeyboardInterrupt), stage(tmp_path / "data" / "clean", inputs={}, settings={}):
        raise KeyboardInterrupt
    assert states(tmp_path)["data/clean"] == "interrupted"


def test_interrupted_training(tmp_path):
    (tmp_path / "joint").mkdir()
    (tmp_path / "joint" / "checkpoint_last.pt").write_bytes(b"")
    (found,) = [s for s in status.collect(tmp_path) if s.name == "joint"]
    assert found.state == "interrupted" and "checkpoint_last.pt" in found.note


def test_plan_names_what_is_missing(tmp_path, capsys):
    plan = [
        {"name": "world", "path": "world"},
        {"name": "joint", "path": "pretrain/joint"},
        {"name": "report", "path": "r.md"},
    ]
    (tmp_path / "plan.json").write_text(json.dumps({"settings": {}, "stages": plan}))
    finish(tmp_path / "world")
    finish(tmp_path / "other")
    assert states(tmp_path) == {"world": "done", "joint": "missing", "report": "missing", "other": "done"}
    assert main(["status", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "missing      joint" in printed and "2 done, 2 missing" in printed
    assert main(["status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1] == {"name": "joint", "state": "missing", "note": ""}


def test_chain_without_plan(tmp_path):
    (tmp_path / "data-bin").mkdir()
    (tmp_path / "data-bin" / "dict.txt").write_text("a 1\n")
    found = states(tmp_path)
    assert found["[prepared text]"] == "done"
    assert [name for name, state in found.items() if state == "missing"] == [
        "[pre-training]",
        "[prepared benchmark]",
        "[records]",
        "[report]",
    ]


def test_bad_folder_and_bad_plan(tmp_path, capsys):
    assert main(["status", str(tmp_path / "absent")]) == 1
    (tmp_path / "plan.json").write_text("{")
    assert main(["status", str(tmp_path)]) == 1
    assert "plan" in capsys.readouterr().err


def test_status_leaves_locks_free(tmp_path):
    finish(tmp_path / "a")
    status.collect(tmp_path)
    with stage(tmp_path / "a", inputs={}, settings={}) as folder:
        assert folder is None
