"""Official files of named entities to the prepared form."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from data_prep.benchmarks import common
from data_prep.benchmarks.ner import MAPS, main
from fairseq_interference.data.readers import ner
from fairseq_interference.data.readers.labels import LabelMap
from fairseq_interference.errors import LanguageError, UsageError
from fairseq_interference.evaluation.score_files import score_ner_files

TRAIN = "నగరం O\nఢిల్లీ -NEL\n2021 B-NEN\n\nరామ B-NEP\nగుహ I-NEP\n\nనగరం O\n".replace(" ", "\t")
DEV = "నగరం O\n\nక -\nఖ B-NEO\n".replace(" ", "\t")
ENGLISH = "0 Ada B-PER\n1 wrote O\n\n0 French I-MISC\n1 . O\n\n0 OK I-ORG\n\n".replace(" ", "\t")


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    found = []
    for lang, split, text in (("te", "train", TRAIN), ("te", "dev", DEV), ("en", "test", ENGLISH)):
        path = tmp_path / f"{lang}.{split}.txt"
        path.write_text(text, encoding="utf-8")
        found.append(f"{lang}:{split}:{path}")
    return found


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def test_prepared_form(tmp_path: Path, inputs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "prepared" / "mine"
    flags = ["--out", str(out), "--input", *inputs, "--label-map", "te:il-ner", "en:PER=PER,ORG=ORG,MISC=O"]
    assert main(flags) == 0
    assert (out / "labels.txt").read_text(encoding="utf-8") == "O\nB-LOC\nB-ORG\nB-PER\nI-LOC\nI-ORG\nI-PER\n"
    assert jsonl(out / "te" / "train.jsonl") == [
        {
            "id": "te-train-1",
            "lang": "te",
            "words": ["నగరం", "ఢిల్లీ", "2021"],
            "labels": ["O", "B-LOC", "O"],
            "source_line": 1,
        },
        {"id": "te-train-2", "lang": "te", "words": ["రామ", "గుహ"], "labels": ["B-PER", "I-PER"], "source_line": 5},
        {"id": "te-train-3", "lang": "te", "words": ["నగరం"], "labels": ["O"], "source_line": 8},
    ]
    meta = json.loads((out / "te" / "dev.meta.json").read_text(encoding="utf-8"))
    assert (meta["format"], meta["path"], meta["repairs"]) == ("conll-tab", "te.dev.txt", {"no-label": 1})
    assert meta["sha256"] == common.sha256(Path(inputs[1].split(":", 2)[2]))
    assert meta["leaks"] == {"also_in_train": 1, "distinct": 2}
    said = capsys.readouterr().out
    assert "1 of 2 distinct sentences are also in train" in said
    assert "1 x bare-type" in said and "1 NEN" in said
    stamp = (out / ".done").stat().st_mtime_ns
    assert main(flags) == 0
    assert (out / ".done").stat().st_mtime_ns == stamp
    assert main([*flags, "--scheme", "iob2"]) == 1
    assert "setting scheme" in capsys.readouterr().err
    assert main([*flags, "--scheme", "iob2", "--force"]) == 0
    assert [record["labels"] for record in jsonl(out / "en" / "test.jsonl")][2] == ["B-ORG"]


def test_gold_has_the_official_layout_and_the_prepared_labels(tmp_path: Path, inputs: list[str]) -> None:
    out = tmp_path / "prepared"
    assert main(["--out", str(out), "--input", *inputs, "--label-map", "te:il-ner"]) == 0
    assert (out / "te" / "dev.gold").read_text(encoding="utf-8") == DEV.replace("\t-\n", "\tO\n").replace("NEO", "ORG")
    assert (out / "en" / "test.gold").read_text(encoding="utf-8") == ENGLISH
    result = score_ner_files(out / "te" / "dev.gold", out / "te" / "dev.jsonl")
    assert (result["metrics"]["f1"], result["n"]) == (1.0, 2)


def test_missing_splits_are_drawn_and_official_ones_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(3)
    sentences = [f"w{draw.randrange(30)} O\nb{draw.randrange(2)} B-X\n\n" for _ in range(200)]
    whole, train, dev = (tmp_path / name for name in ("whole", "train", "dev"))
    whole.write_text("".join(sentences), encoding="utf-8")
    train.write_text("".join(sentences), encoding="utf-8")
    dev.write_text(sentences[0], encoding="utf-8")
    inputs = ["--input", f"aa:all:{whole}", f"bb:train:{train}", f"bb:dev:{dev}"]
    flags = [*inputs, "--split", "dev=0.1,test=0.2", "--seed", "7"]
    assert main(["--out", str(tmp_path / "one"), *flags]) == 0
    assert "aa dev: drawn from all (whole)" in capsys.readouterr().out
    parts = {
        split: [tuple(record["words"]) for record in jsonl(tmp_path / "one" / "aa" / f"{split}.jsonl")]
        for split in common.SPLITS
    }
    assert sum(map(len, parts.values())) == 200
    distinct = {split: set(words) for split, words in parts.items()}
    total = len(set().union(*distinct.values()))
    assert sum(map(len, distinct.values())) == total  # no sentence in two splits
    assert [len(distinct["dev"]), len(distinct["test"])] == [round(0.1 * total), round(0.2 * total)]
    assert [record["words"] for record in jsonl(tmp_path / "one" / "bb" / "dev.jsonl")] == ner.read(dev).words
    for split in common.SPLITS:
        gold = ner.read(tmp_path / "one" / "aa" / f"{split}.gold")
        assert (gold.format, [tuple(words) for words in gold.words]) == ("conll-blank", parts[split])
    # The draw depends on seed and words, not on the order of the file.
    whole.write_text("".join(reversed(sentences)), encoding="utf-8")
    assert main(["--out", str(tmp_path / "two"), *flags]) == 0
    again = {tuple(record["words"]) for record in jsonl(tmp_path / "two" / "aa" / "dev.jsonl")}
    assert again == distinct["dev"]
    assert main(["--out", str(tmp_path / "three"), *inputs, "--split", "dev=0.1", "--seed", "8"]) == 0
    assert {tuple(r["words"]) for r in jsonl(tmp_path / "three" / "aa" / "dev.jsonl")} != distinct["dev"]


def test_fixed_label_file_and_unlabelled_test(
    tmp_path: Path, inputs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    # N3
    labels = tmp_path / "labels"
    labels.write_text("O\nB-PER\nI-PER\nB-ORG\n", encoding="utf-8")
    flags = ["--out", str(tmp_path / "x"), "--input", inputs[2], "--labels", str(labels)]
    assert main(flags) == 1
    assert "en.test.txt:4" in capsys.readouterr().err
    for content in (b"O\nB-PER\nO\n", b"\xff\n", b"O\nB-PER\nI-PER\nB-ORG\nother\n", b"B-PER\nI-PER\n"):
        labels.write_bytes(content)
        assert main(flags) == 1
    words = tmp_path / "words"
    words.write_text("Ada\nwrote\n", encoding="utf-8")
    assert main(["--out", str(tmp_path / "y"), "--input", f"en:test:{words}"]) == 0
    assert jsonl(tmp_path / "y" / "en" / "test.jsonl")[0]["labels"] is None
    assert main(["--out", str(tmp_path / "z"), "--input", f"en:train:{words}"]) == 1


def test_dry_run_writes_nothing(tmp_path: Path, inputs: list[str]) -> None:
    assert main(["--out", str(tmp_path / "none"), "--input", *inputs, "--dry-run"]) == 0
    assert not (tmp_path / "none").exists()
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "mine").touch()
    assert main(["--out", str(tmp_path / "none"), "--input", *inputs, "--dry-run"]) == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--input", "en:train"],
        ["--input", "en:valid:HERE"],
        ["--input", "en:train:missing"],
        ["--input", "en:train:HERE", "en:train:HERE"],
        ["--input", "en:train:HERE", "en:all:HERE"],
        ["--input", "en:all:HERE"],
        ["--input", "en:all:HERE", "--split", "dev=0.5,test=0.5"],
        ["--input", "en:all:HERE", "--split", "train=0.5"],
        ["--input", "en:train:HERE", "--label-map", "hi:il-ner"],
        ["--input", "en:train:HERE", "--label-map", "no-such-map"],
        ["--input", "en:train:HERE", "--format", "conll2003"],
    ],
)
def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    here = tmp_path / "file.txt"
    here.write_text(ENGLISH, encoding="utf-8")
    assert main(["--out", str(tmp_path / "out"), *(flag.replace("HERE", str(here)) for flag in flags)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_bad_language() -> None:
    with pytest.raises(LanguageError):
        common.parse_inputs(["EN!:train:" + __file__])
    with pytest.raises(UsageError):
        common.parse_inputs(["nothing"])


@pytest.mark.parametrize("path", sorted(MAPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_maps_lead_to_one_label_set(path: Path) -> None:
    found = LabelMap.read(path)
    assert set(found.types.values()) <= {"PER", "LOC", "ORG", "O"}
    assert {"PER", "LOC", "ORG"} <= set(found.types.values())


@pytest.mark.real_data
def test_real_corpora_share_one_label_set(real_data: Path, tmp_path: Path) -> None:
    folder = real_data / "ner"
    flags = ["--out", str(tmp_path / "real"), "--split", "dev=0.1,test=0.1", "--input"]
    flags += [f"en:all:{folder / 'en/wikigold.en.test.s1-600.conllu'}", f"hi:all:{folder / 'hi/Hindi-dev.txt'}"]
    flags += [f"te:train:{folder / 'te/Telugu-train.txt'}", f"te:dev:{folder / 'te/Telugu-dev.txt'}"]
    flags += [f"sw:train:{folder / 'sw/masakhaner1.swa.train.txt'}", f"sw:dev:{folder / 'sw/masakhaner1.swa.dev.txt'}"]
    flags += [f"ar:all:{folder / 'ar/NewsFANE_Gold_2014_170K.s1-700.txt'}"]
    flags += [f"mr:all:{folder / 'mr/mahaner.valid_iob.txt'}"]
    flags += ["--label-map", "en:wikigold", "hi:il-ner", "te:il-ner", "sw:masakhaner", "mr:mahaner", "ar:Nation=LOC"]
    assert main(flags) == 0
    for path in sorted((tmp_path / "real").glob("*/*.jsonl")):
        result = score_ner_files(path.with_suffix(".gold"), path)
        assert result["metrics"]["accuracy"] == 1.0
