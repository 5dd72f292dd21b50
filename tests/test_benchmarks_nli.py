"""Official files of sentence pairs to the prepared form, made ones and every real one."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_prep.benchmarks.nli import main
from fairseq_interference.data.prepared import read_labels
from fairseq_interference.data.readers import nli
from fairseq_interference.errors import DataError

FOLDER = Path(os.environ.get("INTERFERENCE_REAL_DATA", "missing")) / "nli"
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*")) or ["no real data"]
CHOICES = "val-sw.jsonl"  # XCOPA: one premise, two alternatives


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def test_prepared_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, dev, test = (tmp_path / name for name in ("train.tsv", "dev.jsonl", "test.tsv"))
    train.write_text("a\tb\tcontradictory\nc\td\t-\ne\tf\tneutral\n", encoding="utf-8")
    records = [
        {"sentence1": "a", "sentence2": "b", "label": "contradiction", "id": 9},
        {"sentence1": "g", "sentence2": "h", "label": "-", "id": 10},
    ]
    dev.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    test.write_text("a\tb\nx\ty\n", encoding="utf-8")
    out = tmp_path / "prepared" / "xnli"
    flags = ["--out", str(out), "--input", f"en:train:{train}", f"en:dev:{dev}", f"sw:test:{test}"]
    assert main([*flags, "--dry-run"]) == 0 and not out.exists()
    capsys.readouterr()
    assert main(flags) == 0
    said = capsys.readouterr().out
    assert read_labels(out / "labels.txt") == ["contradiction", "entailment", "neutral"]
    assert jsonl(out / "en" / "train.jsonl") == [
        {
            "id": "en-train-1",
            "lang": "en",
            "premise": "a",
            "hypothesis": "b",
            "label": "contradiction",
            "source_line": 1,
        },
        {"id": "en-train-2", "lang": "en", "premise": "e", "hypothesis": "f", "label": "neutral", "source_line": 3},
    ]
    assert [(r["id"], r["label"]) for r in jsonl(out / "en" / "dev.jsonl")] == [("9", "contradiction"), ("10", None)]
    assert [r["label"] for r in jsonl(out / "sw" / "test.jsonl")] == [None, None]
    assert (out / "en" / "train.gold").read_text() == "a\tb\tcontradiction\ne\tf\tneutral\n"
    assert (out / "en" / "dev.gold").read_bytes() == dev.read_bytes()
    assert (out / "sw" / "test.gold").read_bytes() == test.read_bytes()
    meta = json.loads((out / "en" / "dev.meta.json").read_text(encoding="utf-8"))
    assert (meta["pairs"], meta["labels"], meta["without_majority"]) == (2, {"contradiction": 1}, 1)
    assert meta["leaks"] == {"also_in_train": 1, "distinct": 2}
    assert "1 pairs have no majority label (`-`): left out" in said
    assert "1 pairs have no majority label (`-`): predicted, not scored" in said
    assert "1 x contradictory" in said and "1 of 2 distinct pairs are also in train" in said
    again = nli.read(out / "en" / "dev.jsonl")  # the prepared form is JSON lines like others
    assert again.labels == ["contradiction", None]
    assert main([*flags, "--label-map", "en:-=neutral"]) == 1
    assert "label_maps" in capsys.readouterr().err


def test_label_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # N3
    pairs, xnli, blind, labels = (tmp_path / name for name in ("pairs", "xnli", "blind", "labels"))
    pairs.write_text("a\tb\tyes\nc\td\tno\n", encoding="utf-8")
    xnli.write_text("a\tb\tneutral\n", encoding="utf-8")
    blind.write_text("a\tb\n", encoding="utf-8")
    labels.write_text("yes\nno\nmaybe\n", encoding="utf-8")
    flags = ["--out", str(tmp_path / "out"), "--dry-run", "--input"]
    assert main([*flags, f"en:test:{pairs}"]) == 1
    assert "--labels" in capsys.readouterr().err
    assert main([*flags, f"en:test:{pairs}", "--labels", str(labels)]) == 0
    assert "labels: yes no maybe" in capsys.readouterr().out
    assert main([*flags, f"en:test:{pairs}", f"fr:test:{xnli}", "--labels", str(labels)]) == 1
    assert f"{xnli}:1" in capsys.readouterr().err
    assert main([*flags, f"en:test:{pairs}", "--label-map", "yes=1,no=0"]) == 0
    assert "labels: 0 1" in capsys.readouterr().out
    assert main([*flags, f"en:test:{pairs}", f"fr:test:{xnli}", "--label-map", "en:yes=1,no=0"]) == 2
    assert main([*flags, f"en:test:{blind}"]) == 2
    assert main([*flags, f"en:test:{blind}", "--labels", "pawsx"]) == 0
    assert main([*flags, f"en:test:{pairs}", "--label-map", "yes"]) == 2
    assert main([*flags, f"en:train:{blind}", "--labels", "nli"]) == 1


def test_drawn_splits_keep_the_pairs_of_a_premise_together(tmp_path: Path) -> None:
    whole = tmp_path / "all.tsv"
    names = nli.LABEL_SETS["nli"]
    lines = [f"p{i}\th{i}{label}\t{label}\n" for i in range(20) for label in names]
    whole.write_text("premise\thypo\tlabel\n" + "".join(lines), encoding="utf-8")
    out = tmp_path / "drawn"
    assert main(["--out", str(out), "--input", f"en:all:{whole}", "--split", "dev=0.2,test=0.1"]) == 0
    files = [nli.read(out / "en" / f"{split}.gold") for split in ("train", "dev", "test")]
    assert [len(file) for file in files] == [42, 12, 6]
    premises = [{pair.premise for pair in file} for file in files]
    assert sum(map(len, premises)) == len(set().union(*premises)) == 20


def by_hand(path: Path) -> list[tuple[str, str, str]]:
    """Sentences and label ("" if none), read as each source documents it and without the readers."""
    lines = [line.rstrip("\r") for line in path.read_bytes().decode("utf-8").split("\n") if line]
    if path.suffix == ".json":
        return [(r["sentence1"], r["sentence2"], r["label"]) for r in map(json.loads, lines)]
    if path.name.startswith("myxnli"):
        return [(a, b, label) for _, label, a, b in (line.split("\t") for line in lines[1:])]
    cells = list(csv.reader(lines, delimiter="\t")) if "paws" in path.name else [line.split("\t") for line in lines]
    return [(a, b, "".join(label)) for a, b, *label in cells]


@pytest.mark.real_data
@pytest.mark.parametrize("name", FILES)
def test_every_real_file(real_data: Path, tmp_path: Path, name: str) -> None:
    path, lang = FOLDER / name, name[:2]
    out = tmp_path / "prepared"
    flags = ["--out", str(out), "--input", f"{lang}:test:{path}", "--labels", "pawsx" if "paws" in name else "nli"]
    if path.name == CHOICES:
        with pytest.raises(DataError, match="COPA"):
            nli.read(path)
        assert main(flags) == 1
        return
    file, expected = nli.read(path), by_hand(path)
    assert [(p.premise, p.hypothesis) for p in file] == [(a, b) for a, b, _ in expected]
    assert [p.label or "-" for p in file] == [label or "-" for _, _, label in expected]
    assert file.labelled is (".test-" not in name)
    assert file.format == ("jsonl" if path.suffix == ".json" else "tsv-quoted" if "paws" in name else "tsv")
    nli.write(tmp_path / "back", file)
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    nli.write(tmp_path / "back", file, file.labels)
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    assert main(flags) == 0
    assert (out / lang / "test.gold").read_bytes() == path.read_bytes()
    records = jsonl(out / lang / "test.jsonl")
    assert [(r["premise"], r["hypothesis"], r["label"]) for r in records] == [
        (p.premise, p.hypothesis, p.label) for p in file
    ]
    assert len({r["id"] for r in records}) == len(records)
    if file.labelled:
        decided = Counter(label for _, _, label in expected if label != "-")
        assert decided == Counter(label for label in file.labels if label is not None)
