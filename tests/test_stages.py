"""Stages: written aside and renamed, skipped when done, an error when something changed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import ddp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_interference.errors import StageError
from fairseq_interference.stages import copy_over, file_hash, read_done, stage, write_json, write_text

NAMES = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


def write(out, text, *, inputs=None, settings=None, force=False):
    """Run a stage that writes one file; whether it did anything."""
    with stage(out, inputs=inputs or {}, settings=settings or {}, force=force) as temporary:
        if temporary is None:
            return False
        (temporary / "text").write_text(text)
    return True


def test_done_is_skipped(tmp_path):
    assert write(tmp_path / "s", "one", settings={"a": 1})
    assert not write(tmp_path / "s", "two", settings={"a": 1})
    assert (tmp_path / "s" / "text").read_text() == "one"
    assert read_done(tmp_path / "s")["settings"] == {"a": 1}
    assert not (tmp_path / "s.tmp").exists()


def test_changed_setting_is_named(tmp_path):
    write(tmp_path / "s", "one", settings={"vocab-size": 1, "seed": 1})
    with pytest.raises(StageError, match="setting vocab-size"):
        write(tmp_path / "s", "two", settings={"vocab-size": 2, "seed": 1})
    assert (tmp_path / "s" / "text").read_text() == "one"


def test_changed_input_is_named_and_force_redoes(tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("a")
    write(tmp_path / "s", "one", inputs={"text": source})
    source.write_text("b")
    with pytest.raises(StageError, match="input text"):
        write(tmp_path / "s", "two", inputs={"text": source})
    assert write(tmp_path / "s", "two", inputs={"text": source}, force=True)
    assert (tmp_path / "s" / "text").read_text() == "two"
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == ["in.txt", "s"]


def test_failure_leaves_nothing_that_looks_done(tmp_path):
    with pytest.raises(ZeroDivisionError), stage(tmp_path / "s", inputs={}, settings={}) as temporary:
        (temporary / "half").write_text("x")
        raise ZeroDivisionError
    assert read_done(tmp_path / "s") is None and not (tmp_path / "s").exists()
    assert write(tmp_path / "s", "one")
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == [".done", "text"]


def test_killed_stage_is_done_again(tmp_path):
    code = (
        "import os, sys; from fairseq_interference.stages import stage\n"
        f"with stage({str(tmp_path / 's')!r}, inputs={{}}, settings={{}}) as t:\n"
        " open(t / 'text', 'w').write('half'); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ddp.environment(), check=False)
    assert done.returncode == -9
    assert write(tmp_path / "s", "whole") and (tmp_path / "s" / "text").read_text() == "whole"


def test_second_writer_is_refused(tmp_path):
    with (
        stage(tmp_path / "s", inputs={}, settings={}),
        pytest.raises(StageError, match="Another process"),
        stage(tmp_path / "s", inputs={}, settings={}),
    ):
        pass


@settings(max_examples=25)
@given(st.dictionaries(NAMES, JSON, max_size=4))
def test_equal_settings_are_equal_after_a_round_trip(values):
    """Tuples, float forms and key order must not make a finished stage look changed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "s"
        assert write(out, "x", settings=values)
        assert not write(out, "y", settings=json.loads(json.dumps(values)))


@given(st.dictionaries(NAMES, st.binary(max_size=20), min_size=1, max_size=4))
def test_hash_of_a_folder_depends_on_names_and_bytes(files):
    with tempfile.TemporaryDirectory() as folder:
        for side in ("a", "b"):
            for name, content in files.items():
                path = Path(folder) / side / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
        assert file_hash(Path(folder) / "a") == file_hash(Path(folder) / "b")
        name = sorted(files)[0]
        (Path(folder) / "b" / name).write_bytes(files[name] + b"x")
        assert file_hash(Path(folder) / "a") != file_hash(Path(folder) / "b")


def test_written_text_has_lf_only(tmp_path):
    write_text(tmp_path / "deep" / "t.txt", "a\nb\n")
    assert (tmp_path / "deep" / "t.txt").read_bytes() == b"a\nb\n"
    write_json(tmp_path / "j.json", {"b": "ü", "a": 1})
    assert (tmp_path / "j.json").read_text(encoding="utf-8").startswith('{\n  "a": 1,\n  "b": "ü"')


@pytest.mark.parametrize("force", [False, True])
def test_what_no_stage_has_written_is_not_touched(tmp_path, force):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "file.tsv").write_text("mine")
    for name in ("mine", "file.tsv"):
        with pytest.raises(StageError, match="not touched"):
            write(tmp_path / name, "one", force=force)
    assert (tmp_path / "mine" / "notes.txt").read_text() == (tmp_path / "file.tsv").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert write(tmp_path / "empty", "one")


def test_an_input_is_not_replaced_by_what_is_made_of_it(tmp_path):
    write(tmp_path / "s", "one")
    source = {"text": tmp_path / "s" / "text"}
    with pytest.raises(StageError, match="An input"):
        write(tmp_path / "s", "two", inputs=source, force=True)
    assert source["text"].read_text() == "one"


def test_a_copy_takes_the_whole_place(tmp_path):
    for name, files in (("a", ("x", "y")), ("b", ("x", "z"))):
        for file in files:
            write_text(tmp_path / name / file, name)
    copy_over(tmp_path / "a", tmp_path / "b")
    assert file_hash(tmp_path / "a") == file_hash(tmp_path / "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_a_broken_note_is_named(tmp_path):
    write(tmp_path / "s", "one")
    (tmp_path / "s" / ".done").write_text("{")
    with pytest.raises(StageError, match="broken"):
        write(tmp_path / "s", "two")
