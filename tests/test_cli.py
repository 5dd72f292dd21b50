"""Verbs of the console: doctor, where, list; exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ddp
import pytest
import torch

from fairseq_interference import cli
from fairseq_interference.cli import doctor, list_names, where
from fairseq_interference.errors import CheckpointError, DataError, exit_code


def test_where_is_the_imported_package(capsys, plugin):
    assert cli.main(["where"]) == 0
    assert capsys.readouterr().out.strip() == plugin.__path__[0] == str(where.user_dir())


@pytest.mark.parametrize("kind", ["archs", "tasks", "criterions", "optimizers"])
def test_list_prints_registered_names(capsys, kind):
    assert cli.main(["list", kind]) == 0
    assert capsys.readouterr().out.split() == list_names.registered(kind)


def test_list_languages_of_a_data_folder(capsys, tmp_path):
    (tmp_path / "languages.txt").write_text("en\nhi\n")
    assert cli.main(["list", "languages", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0\ten\n1\thi\n"


def test_list_languages_beside_and_inside_a_checkpoint(tmp_path):
    codes = torch.tensor(list(b"sw\nte"), dtype=torch.uint8)
    state = {
        "model": {"language_codes": codes},
        "optimizer_history": [{"optimizer_name": "x", "lr_scheduler_state": {}, "num_updates": 1}],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, tmp_path / "c.pt")
    assert list_names.languages_of(tmp_path / "c.pt").codes == ["sw", "te"]
    (tmp_path / "languages.txt").write_text("en\n")
    assert list_names.languages_of(tmp_path / "c.pt").codes == ["en"]


def test_list_languages_without_any(tmp_path, plugin):
    with pytest.raises(DataError, match=r"languages\.txt"):
        list_names.languages_of(tmp_path)
    state = {"model": {}, "optimizer_history": [{"optimizer_name": "x", "lr_scheduler_state": {}, "num_updates": 1}]}
    torch.save({**state, "extra_state": {"train_iterator": {"epoch": 1}}}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match="names no languages"):
        list_names.languages_of(tmp_path / "c.pt")


MISUSES = [["list", "languages"], ["list", "languages", "/no/such"], ["list", "tasks", "x"]]


@pytest.mark.parametrize("arguments", MISUSES)
def test_usage_errors_are_one_message_and_exit_2(arguments, capsys):
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("fairseq-interference list: ") and "Traceback" not in err


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["list"], ["list", "verbs"]])
def test_argparse_errors_exit_2(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2


def test_interrupt_exits_130(monkeypatch, capsys):
    monkeypatch.setattr(where, "user_dir", lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    assert cli.main(["where"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "taken").write_text("a file where a folder is needed")
    assert exit_code("verb", lambda: len((tmp_path / "taken" / "x").read_text())) == 1
    err = capsys.readouterr().err
    assert f"where:   {tmp_path / 'taken' / 'x'}" in err and "verb: Not a directory" in err and "Traceback" not in err
    with pytest.raises(ConnectionResetError):  # names no file: not the user's doing
        exit_code("verb", lambda: (_ for _ in ()).throw(ConnectionResetError()))


def test_output_that_nobody_reads_to_its_end():
    command = f"{sys.executable} -m fairseq_interference list archs | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=ddp.environment())
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr


def test_a_user_dir_of_another_name_is_refused(tmp_path):
    (tmp_path / "other").symlink_to(ddp.USER_DIR)
    code = "import fairseq, sys; sys.path.insert(0, '.'); import other"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "must end in fairseq_interference" in done.stderr


def test_doctor_names_its_own_copy(tmp_path, monkeypatch):
    (tmp_path / "fairseq_interference").mkdir()
    (tmp_path / "fairseq_interference" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    line = doctor.check_plugin()
    assert line.verdict == doctor.WARNING and str(ddp.USER_DIR) in line.found and str(tmp_path) in line.found


def test_module_form_is_the_same():
    done = ddp.run_command([sys.executable, "-m", "fairseq_interference", "where"])
    assert done.log.strip() == str(ddp.USER_DIR)


# --- doctor ------------------------------------------------------------------------------------------------------


@pytest.fixture
def versions(monkeypatch):
    """Installed distributions as the doctor sees them; the test may change them."""
    found = {"ve-fairseq": "0.12.3", "numpy": "1.26.4"}
    monkeypatch.setattr(doctor, "_version", lambda name: found.get(name, ""))
    return found


def verdicts(lines, topic):
    return [line.verdict for line in lines if line.topic == topic]


@pytest.mark.slow
def test_doctor_passes_here(capsys, tmp_path):
    assert cli.main(["doctor", "--write", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "no problems" in out
    assert all(word in out for word in ("python", "torch", "numpy", "fairseq", "cores", "write"))


def test_numpy_2_is_a_problem_with_its_remedy(versions):
    versions["numpy"] = "2.1.0"
    line = doctor.check_numpy()
    assert line.verdict == doctor.PROBLEM and "2.1.0" in line.found and "numpy<2" in line.remedy


def test_two_hosts_are_a_problem(versions, tmp_path):
    versions["fairseq"] = "0.12.2"
    lines = list(doctor.check_host(tmp_path))
    assert lines[0].verdict == doctor.PROBLEM
    assert "ve-fairseq 0.12.3" in lines[0].found and "fairseq 0.12.2" in lines[0].found


def test_no_host_is_a_problem(versions, tmp_path):
    del versions["ve-fairseq"]
    assert doctor.PROBLEM in verdicts(doctor.check_host(tmp_path), "fairseq")


def test_folder_that_shadows_the_host_is_named(versions, tmp_path):
    """I9: a folder called fairseq in the working directory is imported instead."""
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq" / "__init__.py").write_text("")
    lines = list(doctor.check_host(tmp_path))
    assert [line.verdict for line in lines] == [doctor.WARNING, doctor.PROBLEM]
    assert str(tmp_path / "fairseq") in lines[0].found


def test_host_is_shown_with_its_file(versions, tmp_path):
    (line,) = doctor.check_host(tmp_path)
    assert line.verdict == doctor.OK and str(Path("fairseq", "__init__.py")) in line.found


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(doctor, "REQUIRED", ("sacremoses", "no_such_package"))
    line = next(iter(doctor.check_packages()))
    assert line.verdict == doctor.PROBLEM and "no_such_package" in line.found


def test_folder_without_write_access(tmp_path):
    assert doctor.check_write(tmp_path).verdict in (doctor.OK, doctor.WARNING)
    assert doctor.check_write(tmp_path / "missing").verdict == doctor.PROBLEM


def test_unknown_python_is_a_warning(monkeypatch):
    monkeypatch.setattr(doctor.platform, "python_version_tuple", lambda: ("3", "14", "0"))
    assert doctor.check_python().verdict == doctor.WARNING


def test_problem_makes_exit_1(monkeypatch, capsys):
    bad = doctor.Line("numpy", doctor.PROBLEM, "2.1", "pip install 'numpy<2'")
    monkeypatch.setattr(doctor, "examine", lambda *_: iter([bad]))
    assert cli.main(["doctor"]) == 1
    assert "remedy: pip install 'numpy<2'" in capsys.readouterr().out
