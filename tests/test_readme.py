"""The README is true: its files, flags and verbs exist, its commands run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_interference.cli import VERBS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = "fairseq_interference", "data_prep", "run"
RUNNABLE = re.compile(r"<!-- runnable: own-text -->\n```bash\n(.*?)```", re.DOTALL)

NOTEBOOK = re.compile(r"<!-- runnable: notebook -->\n```python\n(.*?)```", re.DOTALL)


def words_of_code(suffixes):
    files = [path for folder in CODE for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links and all((ROOT / link).exists() for link in links), [x for x in links if not (ROOT / x).exists()]


def test_files_exist():
    named = set(re.findall(r"\b(?:run|data_prep|docs|fairseq_interference)/[\w./-]+\.\w+", README))
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / name).exists()]


def test_modules_exist():
    for name in re.findall(r"python -m ([\w.]+)", README):
        path = ROOT.joinpath(*name.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


def test_verbs_exist_and_all_are_named():
    assert set(re.findall(r"fairseq-interference ([a-z]+)\b", README)) | {"evaluate", "report"} == set(VERBS)


def test_registered_names_exist(plugin):
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    named = set(re.findall(r"\bxlm_[a-z_]+\b", README)) - {"xlm_components"}
    assert named <= set(ARCH_MODEL_REGISTRY) | set(TASK_REGISTRY)


def host_flags():
    """Flags that fairseq-train takes for our tasks and archs, with their defaults."""
    from fairseq import options

    found = {"--source-lang": None}  # an alias of --train-langs
    tasks = (("xlm_masked_lm", "xlm_adpt"), *((name, "xlm_joint") for name in ("xlm_tagging", "xlm_nli", "xlm_qa")))
    for task, arch in tasks:
        given = ["data", "--task", task, "--arch", arch, "--criterion", task, "--optimizer", "adam"]
        given += ["--lr-scheduler", "inverse_sqrt"]
        args = options.parse_args_and_arch(options.get_training_parser(), given)
        found.update({f"--{name.replace('_', '-')}": value for name, value in vars(args).items()})
    given[given.index("adam")] = "surgery"
    args = options.parse_args_and_arch(options.get_training_parser(), [*given, "--surgery-inner", "adam"])
    found.update({f"--{name.replace('_', '-')}": value for name, value in vars(args).items() if "surgery" in name})
    return found


def test_flags_exist(plugin):
    known = set(host_flags()) | set(re.findall(r"--[a-z][\w-]+", words_of_code({".py", ".sh"})))
    assert not set(re.findall(r"(?<![\w-])--[a-z][\w-]+", README)) - known - {"--all"}


def test_flags_of_the_table_have_the_defaults_that_it_says(plugin):
    rows = [[cell.strip() for cell in line.split("|")[1:]] for line in flag_table()]
    found, checked = host_flags(), 0
    for row in rows:
        flags, defaults = re.findall(r"--[a-z][\w-]+", row[0]), re.split(r", ", row[1])
        assert all(flag in found for flag in flags), flags
        for flag, default in zip(flags, defaults):
            if default in ("", "those of the data"):
                continue
            value = found[flag]
            shown = {"off": False, "none": None}.get(default, default)
            assert value == shown or str(value) == default or float(value) == float(default), (flag, default, value)
            checked += 1
    assert checked > 10


def flag_table():
    section = README.split("## Flags")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


def test_notebook_lines_run(tmp_path, monkeypatch, plugin):
    """The six lines as they stand, on random checkpoints under the names that the commands before them write."""
    import tagging_world as world

    [code] = NOTEBOOK.findall(README)
    assert len(code.splitlines()) == 6
    for table in (world.WORDS, world.PEOPLE, world.PLACES):
        for ours, theirs in (("en", "xa"), ("hi", "xb")):
            monkeypatch.setitem(table, ours, table[theirs])
    start = world.write_checkpoint(tmp_path / "checkpoints" / "adpt", ("en", "hi"), "xlm_adpt_tiny")
    start.rename(start.with_name("checkpoint_best.pt"))
    start = start.with_name("checkpoint_best.pt")
    world.write_finetuned(tmp_path / "finetune" / "ner" / "en" / "seed1", start, "xlm_tagging", tuple(world.LABELS))
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(code, found)
    assert found["vectors"].shape == (2, 32) and len(found["guesses"]) == 5 and len(found["labels"]) == 4


@pytest.fixture()
def checkout(tmp_path):
    """A copy of the checkout with a little text and labels in it, and the console on PATH."""
    for folder in CODE:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bin").mkdir()
    console = tmp_path / "bin" / "fairseq-interference"
    console.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fairseq_interference "$@"\n')
    console.chmod(0o755)
    world = [sys.executable, "-m", "data_prep.synthetic", "--out", "world", "--langs", "en,hi", "--concepts", "400"]
    world += ["--sentences", "300", "--labelled-of", "ner=60,20,30"]
    subprocess.run(world, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "world" / "raw").rename(tmp_path / "raw")
    (tmp_path / "world" / "ner").rename(tmp_path / "ner")
    return tmp_path


@pytest.mark.slow
def test_commands_for_own_text_run(checkout):
    blocks = RUNNABLE.findall(README)
    assert len(blocks) == 3
    settings = {"UPDATES": "6", "ARCH": "xlm_adpt_tiny", "LANGS": "en,hi", "PYTHON": sys.executable}
    settings["PATH"] = f"{checkout / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings["PYTHONPATH"] = str(checkout)
    script = "set -euo pipefail\n" + "".join(blocks).replace("--seeds 1,2,3", "--seeds 1")
    done = subprocess.run(
        ["bash", "-c", script], cwd=checkout, env={**os.environ, **settings}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "report:  results/report.md" in done.stdout and "nothing is in the way" in done.stdout
    report = (checkout / "results" / "report.md").read_text(encoding="utf-8")
    assert "Zero-shot, fine-tuned on en" in report and "perplexity per character" in report
    gold, predicted = (checkout / name for name in ("ner/hi/test.tsv", "hi.predicted.tsv"))
    [notebook] = NOTEBOOK.findall(README)
    subprocess.run([sys.executable, "-c", notebook], cwd=checkout, env={**os.environ, **settings}, check=True)
    words = [
        [line.split("\t")[0] for line in path.read_text(encoding="utf-8").splitlines()] for path in (gold, predicted)
    ]
    assert words[0] == words[1]
