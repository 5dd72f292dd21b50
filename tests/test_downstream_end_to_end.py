"""Tags, pairs and questions through the real commands: official files, preparation, training, prediction, scores."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fairseq")
from tagging_world import PEOPLE, PLACES, WORDS, write_checkpoint, write_prepared

REPOSITORY = Path(__file__).resolve().parent.parent
TRAIN = Path(sys.executable).with_name("fairseq-train")
LANGS = ("xa", "xb")
BY_HEART = "max-epoch=60 lr=5e-3 warmup-updates=5 dropout=0 attention-dropout=0 batch-size=10"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not TRAIN.is_file(), reason="fairseq-train is not installed")]


def run(*command: object, cwd: Path, code: int = 0) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(REPOSITORY)
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def python(*command: object, cwd: Path, code: int = 0) -> str:
    return run(sys.executable, "-m", *command, cwd=cwd, code=code)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("downstream")
    write_checkpoint(folder / "pretrained", LANGS, "xlm_adpt_tiny")
    return folder


def finetuned(world: Path, script: str, data: str, *more: str, settings: str = BY_HEART) -> dict[Any, Any]:
    """Metrics by language and split after fine-tuning on xa."""
    command = ["bash", REPOSITORY / "run" / script, "--checkpoint", "pretrained/checkpoint_last.pt", "--data", data]
    command += ["--train-lang", "xa", "--eval-langs", "xb", "--set", settings, "--results", f"results-{data}", *more]
    said = run(*command, cwd=world)
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (world / f"results-{data}").glob("*.json")]
    found = {(r["evaluation"]["language"], r["evaluation"]["split"]): r for r in records}
    return {"said": said, **found}


def checkpoint(world: Path, data: str) -> Path:
    return world / "finetune" / data / "xa" / "seed1" / "checkpoint_best.pt"


# --- parts of speech ---------------------------------------------------------------------------------------------


def treebank(lang: str, count: int, seed: int) -> str:
    """CoNLL-U with a range, an empty node, a comment and a word without a tag."""
    draw, text = random.Random(f"{lang} {seed}"), ""
    tags = {**dict.fromkeys(PEOPLE[lang] + PLACES[lang], "PROPN"), **dict.fromkeys(WORDS[lang][:3], "VERB")}
    for number in range(count):
        words = draw.choices([*WORDS[lang], *PEOPLE[lang], *PLACES[lang]], k=draw.randint(2, 6))
        text += f"# sent_id = {number}\n1-2\t{words[0]}{words[1]}\t_\t_\t_\t_\t_\t_\t_\t_\n"
        for place, word in enumerate(words, 1):
            tag = "_" if number == 0 and place == 1 else tags.get(word, "NOUN")
            text += f"{place}\t{word}\t_\t{tag}\tfine\t_\t0\troot\t_\tSpaceAfter=No\n"
        text += "2.1\tgone\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
    return text


def test_parts_of_speech(world: Path) -> None:
    for lang in LANGS:
        for split, count in (("train", 20), ("test", 6)):
            (world / f"{lang}-{split}.conllu").write_text(treebank(lang, count, 1), encoding="utf-8")
    inputs = [f"{lang}:{split}:{lang}-train.conllu" for lang in LANGS for split in ("train", "dev")]
    inputs += [f"{lang}:test:{lang}-test.conllu" for lang in LANGS]
    python("data_prep.benchmarks.pos", "--out", "tags", "--input", *inputs, cwd=world)
    found = finetuned(world, "finetune_pos.sh", "tags")
    metrics = found["xa", "dev"]["evaluation"]["metrics"]
    assert metrics["accuracy"] > 0.95 and metrics["per_tag"]["PROPN"]["f1"] > 0.95
    assert found["xb", "test"]["run"]["setting"] == "zero-shot"
    assert "accuracy" in found["said"]
    source, output = world / "xa-test.conllu", world / "predicted.conllu"
    flags = ("--checkpoint", checkpoint(world, "tags"), "--lang", "xa", "--output", output)
    for given in (source, world / "tags" / "xa" / "test.jsonl"):
        python("fairseq_interference", "predict", *flags, "--input", given, cwd=world)
        pairs = [
            (one.split("\t"), other.split("\t"))
            for one, other in zip(source.read_text().split("\n"), output.read_text().split("\n"), strict=True)
        ]
        assert all(one[:3] + one[4:] == other[:3] + other[4:] for one, other in pairs)
        assert {other[3] for one, other in pairs if len(one) == 10 and one[0].isdecimal()} <= {"NOUN", "PROPN", "VERB"}


# --- sentence pairs ----------------------------------------------------------------------------------------------


def pairs_of(lang: str, count: int) -> list[tuple[str, str, str]]:
    draw = random.Random(lang)
    found = []
    for number in range(count):
        premise = draw.choices(WORDS[lang], k=4)
        label = ("entailment", "neutral", "contradiction")[number % 3]
        hypothesis = {"entailment": premise[:2], "neutral": draw.choices(PEOPLE[lang], k=2)}
        found.append((" ".join(premise), " ".join(hypothesis.get(label, draw.choices(PLACES[lang], k=2))), label))
    return found


def test_sentence_pairs(world: Path) -> None:
    for lang in LANGS:
        rows = pairs_of(lang, 30)
        text = "".join("\t".join(row) + "\n" for row in rows)
        (world / f"{lang}.tsv").write_text(text.replace("contradiction", "contradictory"), encoding="utf-8")
        (world / f"{lang}-bare.tsv").write_text("".join(f"{a}\t{b}\n" for a, b, _ in rows), encoding="utf-8")
    inputs = [f"{lang}:{split}:{lang}.tsv" for lang in LANGS for split in ("train", "dev")]
    inputs += ["xa:test:xa.tsv", "xb:test:xb-bare.tsv"]
    python("data_prep.benchmarks.nli", "--out", "pairs", "--input", *inputs, cwd=world)
    found = finetuned(world, "finetune_xnli.sh", "pairs")
    assert found["xa", "dev"]["evaluation"]["metrics"]["accuracy"] > 0.9
    assert ("xb", "test") not in found and "xb test  no labels: predicted, not scored" in found["said"]
    output = world / "predicted.tsv"
    flags = ("--checkpoint", checkpoint(world, "pairs"), "--lang", "xb", "--output", output)
    python("fairseq_interference", "predict", *flags, "--input", world / "xb-bare.tsv", cwd=world)
    lines = output.read_text(encoding="utf-8").splitlines()
    assert [line.rpartition("\t")[0] for line in lines] == (world / "xb-bare.tsv").read_text().splitlines()
    assert {line.rpartition("\t")[2] for line in lines} <= {"entailment", "neutral", "contradiction"}


# --- questions ---------------------------------------------------------------------------------------------------


def squad(lang: str, count: int) -> dict[str, Any]:
    """Contexts of several windows; the question is a name, the answer the two words behind it."""
    draw, paragraphs = random.Random(lang), []
    for number in range(count):
        name = PEOPLE[lang][number % 4]
        words = draw.choices(WORDS[lang], k=20)
        words[2 + number % 15] = name
        context = "  " + " ".join(words) + " "
        start = context.index(name) + len(name) + 1
        text = context[start : context.index(" ", context.index(" ", start) + 1)]
        qas = [{"id": f"{lang}{number}", "question": name, "answers": [{"text": text, "answer_start": start}]}]
        paragraphs.append({"context": context, "qas": qas})
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


def test_questions(world: Path) -> None:
    for lang in LANGS:
        (world / f"{lang}.json").write_text(json.dumps(squad(lang, 20)), encoding="utf-8")
    inputs = [f"{lang}:{split}:{lang}.json" for lang in LANGS for split in ("train", "dev", "test")]
    python("data_prep.benchmarks.qa", "--out", "questions", "--input", *inputs, cwd=world)
    sizes = " max-length=32 stride=10 max-query-length=8 max-answer-length=12"
    found = finetuned(world, "finetune_qa.sh", "questions", settings=BY_HEART + sizes)
    metrics = found["xa", "dev"]["evaluation"]["metrics"]
    assert metrics["f1"] > 0.8 and metrics["em"] > 0.6
    assert found["xb", "test"]["evaluation"]["rules"]["rules"] == "squad"
    output = world / "predicted.json"
    flags = ("--checkpoint", checkpoint(world, "questions"), "--lang", "xa", "--input", world / "xa.json")
    python("fairseq_interference", "predict", *flags, "--output", output, cwd=world)
    score = ("evaluate", "--task", "qa", "--gold", world / "xa.json", "--predictions", output, "--json")
    said = python("fairseq_interference", *score, cwd=world)
    assert json.loads(said.splitlines()[0])["metrics"] == metrics
    python("fairseq_interference", "predict", *flags, "--output", output, "--n-best", "3", cwd=world)
    contexts = [p["context"] for p in squad("xa", 20)["data"][0]["paragraphs"]]
    for context, line in zip(contexts, output.read_text(encoding="utf-8").splitlines()):
        best = json.loads(line)["n_best"]
        assert len(best) == 3 and best[0]["score"] >= best[1]["score"]
        assert all(context[one["start"] : one["end"]] == one["text"] for one in best)


def test_a_grid_is_searched_on_the_dev_split_and_the_best_is_scored(world: Path) -> None:
    """Two rates, two seeds, few shots of the target: the cell with the better mean has the records."""
    write_prepared(world / "names", {"train": 12, "dev": 9, "test": 5})
    settings = "max-epoch=3 warmup-updates=2 dropout=0 batch-size=6"
    more = ("--grid", "lr=1e-6,5e-3 batch-size=6", "--seeds", "1,2", "--few-shot", "2", "--selection", "all-dev")
    found = finetuned(world, "finetune_ner.sh", "names", *more, settings=settings)
    out = world / "finetune" / "names" / "xa"
    grid = json.loads((out / "grid.json").read_text(encoding="utf-8"))
    assert [cell["settings"] for cell in grid["cells"]] == [["lr=1e-6", "batch-size=6"], ["lr=5e-3", "batch-size=6"]]
    best = max(grid["cells"], key=lambda cell: sum(cell["values"]))
    assert grid["chosen"] == best["settings"] and len(best["values"]) == 2
    assert set(found) - {"said"} == {("xa", "dev"), ("xa", "test"), ("xb", "test")}
    assert "xb dev  2 of its sentences were trained on: not scored" in found["said"]
    assert re.search(r"xb test  F1 \d+\.\d\d ± \d+\.\d\d \(2 runs\)", found["said"])
    record = found["xb", "test"]
    assert record["evaluation"]["rules"]["few_shot"] == 2
    assert record["run"]["config"]["optimization"]["lr"] == [float(best["settings"][0][3:])]
    assert (out / "+".join(best["settings"]) / "seed2" / "few_shot.json").is_file()
    for wrong in ("lr=1,", "config"):
        assert "no grid" in run(
            *("bash", REPOSITORY / "run" / "finetune_ner.sh", "--checkpoint", "pretrained/checkpoint_last.pt"),
            *("--data", "names", "--train-lang", "xa", "--grid", wrong),
            cwd=world,
            code=2,
        )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--few-shot", "2"], "Few shots of what?"),
        (["--few-shot", "2", "--eval-langs", "xa"], "Few shots of what?"),
        (["--train-lang", ""], "a language to train on"),
        (["--set", "best-checkpoint-metric=f7"], "accuracy"),
        (["--set", "head-lr=foo"], "--head-lr"),
        (["--grid", "head-lr=x1,foo"], "--head-lr"),
        (["--grid", "train_langs=xa,xb"], "give --train-lang"),
        (["--grid", "lr=1e-3,1e-3"], "no grid"),
        (["--grid", "lr=1e-3 --lr=1e-4"], "no grid"),
        (["--grid", "freeze=a,../../b"], "no grid"),
        (["--seeds", "1,1"], "A seed is named twice"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    from fairseq_interference import finetune

    write_prepared(world / "dry", {"train": 4, "dev": 3})
    monkeypatch.chdir(world)
    command = ["--task", "ner", "--checkpoint", "pretrained/checkpoint_last.pt", "--data", "dry", "--train-lang", "xa"]
    assert finetune.main([*command, "--dry-run"]) == 0
    assert finetune.main([*command, "--dry-run", *flags]) == 2
    assert said in capsys.readouterr().err
    assert not (world / "finetune" / "dry").exists()


@pytest.mark.parametrize("kind", ["nli", "qa"])
def test_two_workers_validate_as_one(world: Path, kind: str) -> None:
    """The same measures of the same weights, whoever had which examples."""
    import ddp

    data, task = world / f"{kind}-workers", f"xlm_{kind}"
    for lang in LANGS:
        (world / f"{lang}.workers.json").write_text(json.dumps(squad(lang, 11)), encoding="utf-8")
        text = "".join("\t".join(row) + "\n" for row in pairs_of(lang, 11))
        (world / f"{lang}.workers.tsv").write_text(text, encoding="utf-8")
    ending = {"nli": "tsv", "qa": "json"}[kind]
    inputs = [f"{lang}:{split}:{lang}.workers.{ending}" for lang in LANGS for split in ("train", "dev")]
    python(f"data_prep.benchmarks.{kind}", "--out", data, "--input", *inputs, cwd=world)
    flags = [data, "--task", task, "--criterion", task, "--arch", "xlm_adpt_tiny", "--encoder-embed-dim", "32"]
    flags += [
        "--encoder-ffn-embed-dim",
        "64",
        "--encoder-attention-heads",
        "2",
        "--train-langs",
        "xa",
        "--eval-langs",
        "xb",
    ]
    flags += ["--selection", "all-dev", "--best-checkpoint-metric", "loss", "--optimizer", "adam", "--lr", "0"]
    flags += ["--batch-size", "3", "--max-epoch", "1", "--no-save", "--log-format", "simple", "--no-progress-bar"]
    flags += ["--finetune-from-model", world / "pretrained" / "checkpoint_last.pt"]
    flags += ["--max-length", "32", "--stride", "10", "--max-query-length", "8"] if kind == "qa" else []
    alone = ddp.train(*flags, "--save-dir", world / f"{kind}-alone").log
    both = ddp.train_ranks([*flags, "--save-dir", world / f"{kind}-both"], logs=world / f"{kind}-logs")[0].log
    found = []
    for log in (alone, both):
        line = next(line for line in log.splitlines() if "valid on" in line)
        parts = (part.strip().split(" ") for part in line.split(" | "))
        found.append(
            {name: float(value) for name, value in (p for p in parts if len(p) == 2) if "_x" in name or name == "loss"}
        )
    assert found[0] == pytest.approx(found[1], abs=2e-3)
    assert {"nli": "accuracy_xb", "qa": "f1_xb"}[kind] in found[0]
