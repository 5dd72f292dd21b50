"""Records: schema 1, written aside and renamed, read back without loss."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_interference.errors import DataError
from fairseq_interference.evaluation import checkpoint_records, records


def example(**changes):
    """A record; ``changes`` maps dotted keys to values."""
    record = records.make_record(
        run={
            "id": "joint-ner-s1",
            "arch": "xlm_joint_tiny",
            "languages": ["xa", "xb"],
            "config": {"lr": 1e-3},
            "seed": 1,
            "setting": "zero-shot",
            "train_langs": ["xa"],
        },
        evaluation={
            "benchmark": "ner",
            "split": "test",
            "language": "xb",
            "n": 10,
            "metrics": {"f1": 0.5, "per_type": {"LOC": {"f1": 0.5}}, "scheme": "iob2", "em": None},
            "rules": "iob2 strict",
        },
        cost={"parameters": {"shared": 10, "per_language": 2, "total": 14}, "updates": 5},
    )
    for key, value in changes.items():
        set_key(record, key, value)
    return record


def set_key(record, key, value):
    *parents, last = key.split(".")
    for parent in parents:
        record = record[parent]
    record[last] = value


def remove_key(record, key):
    *parents, last = key.split(".")
    for parent in parents:
        record = record[parent]
    del record[last]


def test_round_trip(tmp_path):
    record = example()
    path = records.write_record(tmp_path, record)
    assert path.name == "joint-ner-s1.ner.test.xb.json"
    assert records.read_records(tmp_path) == [record]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    records.write_record(tmp_path, {**record, "status": "failed"})
    assert [r["status"] for r in records.read_records(tmp_path)] == ["failed"]


def test_unknown_cost_is_null():
    assert example()["cost"]["seconds"] is None
    assert example()["cost"]["parameters"]["total"] == 14


@pytest.mark.parametrize("key", sorted(records.FIELDS))
def test_missing_key_is_named(key):
    record = example()
    remove_key(record, key)
    with pytest.raises(DataError) as error:
        records.validate(record)
    assert f"{key}: missing" in str(error.value)


@pytest.mark.parametrize("key", sorted(records.FIELDS))
def test_wrong_value_is_named(key):
    record = example()
    set_key(record, key, [object])
    if key == "run.config":
        set_key(record, key, 3)
    assert [line.split(":")[0] for line in records.problems(record)] == [key]


@given(st.sets(st.sampled_from(sorted(records.FIELDS)), min_size=1))
@settings(max_examples=30, deadline=None)
def test_every_wrong_key_is_named(keys):
    record = copy.deepcopy(example())
    for key in keys:
        remove_key(record, key)
    assert {line.split(":")[0] for line in records.problems(record)} == keys


@pytest.mark.parametrize(
    "key, value",
    [
        ("extra", 1),
        ("cost.gpu", 1),
        ("cost.parameters.frozen", 1),
        ("cost", 7),
        ("evaluation.metrics", {"ppl": float("nan")}),
        ("evaluation.metrics", {"ppl": float("inf")}),
        ("evaluation.metrics", {"f1": "0.5"}),
        ("evaluation.metrics", {"f1": {"LOC": 0.5}}),
        ("evaluation.metrics", {"per_type": {"LOC": {"f1": 70.0}}}),
        ("evaluation.metrics", {"perplexity_per_token": "low"}),
        ("run.seed", True),
        ("cost.updates", -1),
        ("schema", 2),
        ("run.setting", "within-language"),
    ],
)
def test_refused(key, value, tmp_path):
    record = example(**{key: value})
    with pytest.raises(DataError, match=key.replace(".", r"\.")):
        records.write_record(tmp_path, record)
    assert not list(tmp_path.iterdir())


def test_reading_names_every_bad_file(tmp_path):
    records.write_record(tmp_path, example())
    (tmp_path / "half.json").write_text('{"schema": 1')
    (tmp_path / "other.json").write_text(json.dumps({"schema": 1}))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(DataError) as error:
        records.read_records(tmp_path)
    assert all(name in str(error.value) for name in ("half.json", "other.json", "deep.json"))
    with pytest.raises(DataError, match="no folder"):
        records.read_records(tmp_path / "absent")


def test_two_runs_never_share_a_file(tmp_path):
    records.write_record(tmp_path, example(**{"run.id": "a/b"}))
    with pytest.raises(DataError, match="share"):
        records.write_record(tmp_path, example(**{"run.id": "a b"}))


def test_code_version_in_a_checkout():
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=records.PACKAGE, capture_output=True, text=True)
    if head.returncode:
        pytest.skip("not a checkout")
    assert records._git("rev-parse", "HEAD") == head.stdout.strip()
    assert len(records.code_version()["commit"]) == 40


def test_peak_memory_is_this_program_s_own():
    code = "from fairseq_interference.evaluation import records as r; print(r.peak_memory_bytes())"
    ballast = bytearray(os.urandom(1)) * 200_000_000
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(ballast) < records.peak_memory_bytes()
    assert 1_000_000 < int(child.stdout) < len(ballast)


def test_no_host_is_imported():
    code = "import sys, fairseq_interference.evaluation.records; print({'torch', 'fairseq'} & set(sys.modules))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "set()"


def test_checkpoints_of_one_name_do_not_share_records(tmp_path, capsys):
    for run in ("one", "two"):
        (tmp_path / run / "seed1").mkdir(parents=True)
    checkpoints = [str(tmp_path / run / "seed1" / "checkpoint_best.pt") for run in ("one", "two")]
    assert checkpoint_records.main(["--checkpoint", *checkpoints, "--data", str(tmp_path)]) == 2
    assert "seed1" in capsys.readouterr().err
    assert checkpoint_records.main(["--checkpoint", checkpoints[0], "--data", str(tmp_path), "--max-lines", "-3"]) == 2
