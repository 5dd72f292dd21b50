"""A converted model goes the way of all others: fine-tuned by run/finetune_ner.sh, scored, and out to transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("fairseq")
from convert_world import write_fairseq
from tagging_world import write_prepared
from test_tagging_end_to_end import REPOSITORY, TRAIN, console, run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not TRAIN.is_file(), reason="fairseq-train is not installed")]


@pytest.mark.parametrize("arch", ["xlm_adpt", "xlm_joint"])
@pytest.mark.usefixtures("plugin")
def test_xlm_r_is_fine_tuned_and_taken_out(tmp_path: Path, arch: str) -> None:
    write_fairseq(tmp_path / "xlmr")
    write_prepared(tmp_path / "names", {"train": 12, "dev": 4, "test": 4})
    command = [
        "convert",
        "from-fairseq-xlmr",
        "--input",
        "xlmr",
        "--arch",
        arch,
        "--langs",
        "xa,xb",
        "--output",
        "start",
    ]
    assert "start/checkpoint_best.pt" in console(*command, cwd=tmp_path)
    tune = [
        "bash",
        REPOSITORY / "run" / "finetune_ner.sh",
        "--checkpoint",
        "start/checkpoint_best.pt",
        "--data",
        "names",
    ]
    settings = "max-epoch=1 warmup-updates=1 batch-size=6"
    run(*tune, "--train-lang", "xa", "--eval-langs", "xb", "--splits", "test", "--set", settings, cwd=tmp_path)
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "results").glob("*.json")]
    assert {record["evaluation"]["language"] for record in records} == {"xa", "xb"}
    assert all(record["run"]["arch"] == arch for record in records)
    tuned = "finetune/names/xa/seed1/checkpoint_best.pt"
    out = console("convert", "to-hf", "--checkpoint", tuned, "--output", "hf", cwd=tmp_path, code=arch != "xlm_joint")
    if arch == "xlm_joint":
        assert "XLMRobertaForTokenClassification" in out
        config = json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))
        assert config["id2label"] == {"0": "O", "1": "B-LOC", "2": "B-PER", "3": "I-LOC", "4": "I-PER"}
        assert (tmp_path / "hf" / "sentencepiece.bpe.model").is_file()
    else:
        assert "X-MOD has one a layer" in out
        console("convert", "export-lang", "--checkpoint", tuned, "--lang", "xb", "--output", "xb.pt", cwd=tmp_path)
        merge = ("--checkpoint", "start/checkpoint_best.pt", "--input", "xb.pt", "--output", "merged")
        assert "other shared weights" in console("convert", "import-lang", *merge, cwd=tmp_path, code=1)
