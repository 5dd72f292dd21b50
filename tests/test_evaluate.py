"""The verb `evaluate`: two files in, one score out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_interference.cli import main
from fairseq_interference.errors import ScoringError
from fairseq_interference.evaluation.metrics import ner_scores
from fairseq_interference.evaluation.score_files import score_ner_files

REPOSITORY = Path(__file__).resolve().parent.parent
GOLD = "en:Ada\tB-PER\nen:Lovelace\tI-PER\nen:wrote\tO\n\nen:London\tB-LOC\nen:calls\tO\n\n"
PREDICTED = "Ada I-PER\nLovelace I-PER\nwrote O\n\nLondon B-LOC\ncalls B-MISC\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "gold.tsv", tmp_path / "predictions.txt"
    for path, text in zip(paths, (GOLD, PREDICTED)):
        path.write_text(text, encoding="utf-8")
    return paths


def evaluate(gold: Path, predictions: Path, *flags: str) -> int:
    return main(["evaluate", "--task", "ner", "--gold", str(gold), "--predictions", str(predictions), *flags])


@pytest.mark.parametrize("flag", ["--rules", "--scheme"])
@pytest.mark.parametrize("scheme", ["iob2", "conlleval"])
def test_json(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], scheme: str, flag: str) -> None:
    assert evaluate(*files, "--json", flag, scheme, "--lang", "en") == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    result = json.loads(out)
    gold = [["B-PER", "I-PER", "O"], ["B-LOC", "O"]]
    scores = ner_scores(gold, [["I-PER", "I-PER", "O"], ["B-LOC", "B-MISC"]], scheme)
    assert (result["task"], result["lang"], result["n"], result["rules"]["scheme"]) == ("ner", "en", 2, scheme)
    assert {name: result["metrics"][name] for name in ("f1", "precision", "recall", "accuracy", "per_type")} == {
        name: scores[name] for name in ("f1", "precision", "recall", "accuracy", "per_type")
    }
    assert result["rules"]["i_without_b"] == {"gold": 0, "predictions": 1}
    assert all(0 <= result["metrics"][name] <= 1 for name in ("f1", "precision", "recall", "accuracy"))


def test_table_and_notes(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*files) == 0
    captured = capsys.readouterr()
    assert "PER" in captured.out and "scheme iob2, language en" in captured.out
    assert "1 in predictions" in captured.err and "MISC" in captured.err


def test_label_map_on_both_files(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*files, "--json", "--label-map", "PER=O,MISC=O,LOC=GPE") == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["metrics"]["per_type"]) == ["GPE"]
    assert result["metrics"]["f1"] == 1.0
    assert result["rules"]["label_map"]["types"] == {"PER": "O", "MISC": "O", "LOC": "GPE"}


@pytest.mark.parametrize(
    ("predicted", "said"),
    [
        (PREDICTED.replace("wrote", "writes"), ["sentence 1", "word 3", "'wrote'", "'writes'", "gold.tsv:3"]),
        (PREDICTED.replace("Lovelace I-PER\n", ""), ["sentence 1", "word 2", "'Lovelace'", "'wrote'"]),
        (PREDICTED.replace("calls B-MISC\n", ""), ["sentence 2", "word 2", "'calls'", "nothing"]),
        (PREDICTED.split("\n\n")[0] + "\n", ["before sentence 2", "London calls", "2 gold sentences, 1 predicted"]),
        (PREDICTED + "\nmore O\n", ["before sentence 3", "more", "2 gold sentences, 3 predicted"]),
        (PREDICTED.replace("\n\n", "\n"), ["sentence 1", "word 4", "nothing", "'London'"]),
        ("Ada\nLovelace\nwrote\n\nLondon\ncalls\n", ["no labels"]),
    ],
)
def test_words_that_differ_are_shown(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], predicted: str, said: list[str]
) -> None:
    # T1, T7
    files[1].write_text(predicted, encoding="utf-8")
    assert evaluate(*files) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    for part in said:
        assert part in captured.err
    with pytest.raises(ScoringError):
        score_ner_files(*files)


@pytest.mark.parametrize(
    "flags", [["--task", "ner", "--gold", "x"], ["--task", "ner", "--lang", "EN!", "--gold", "x", "--predictions", "y"]]
)
def test_usage_errors(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["evaluate", *flags])
    assert code in (1, 2)
    assert "Traceback" not in capsys.readouterr().err
    with pytest.raises(SystemExit) as error:
        main(["evaluate", "--task", "ner", "--scheme", "iobes"])
    assert error.value.code == 2


def test_missing_file_and_pointer(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files[1].write_text("version https://git-lfs.github.com/spec/v1\n", encoding="utf-8")
    assert evaluate(*files) == 1
    assert "Git LFS" in capsys.readouterr().err
    assert evaluate(files[0], files[0].with_name("missing")) == 1
    assert "missing" in capsys.readouterr().err


def test_no_entities_is_said(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files[0].write_text("a\tO\n", encoding="utf-8")
    files[1].write_text("a\tO\n", encoding="utf-8")
    assert evaluate(*files, "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["metrics"]["per_type"] == {}
    assert "no entities" in captured.err


def test_scoring_loads_no_host_and_no_tensors(files: tuple[Path, Path]) -> None:
    code = (
        "import sys; from fairseq_interference.cli import main\n"
        f"main(['evaluate', '--task', 'ner', '--gold', {str(files[0])!r}, '--predictions', {str(files[1])!r}])\n"
        "print(sorted({'torch', 'fairseq', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.strip().endswith("[]")


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["te/Telugu-dev.txt", "sw/masakhaner1.swa.dev.txt", "mr/mahaner.valid_iob.txt"])
def test_real_gold_against_itself(real_data: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = real_data / "ner" / name
    assert evaluate(path, path, "--json") == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert {metrics[key] for key in ("f1", "precision", "recall", "accuracy")} == {1.0}
