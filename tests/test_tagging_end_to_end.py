"""Fine-tuning through the real commands: run/finetune_ner.sh, fairseq-train, predict, evaluate."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fairseq")
from tagging_world import sentence, write_checkpoint, write_prepared, write_split

from fairseq_interference import finetune
from fairseq_interference.data.tokenizer import Tokenizer
from fairseq_interference.evaluation.finetuned import model_flags

REPOSITORY = Path(__file__).resolve().parent.parent
TRAIN = Path(sys.executable).with_name("fairseq-train")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not TRAIN.is_file(), reason="fairseq-train is not installed")]


def run(*command: object, cwd: Path, code: int = 0) -> str:
    """Output of a command that must end with ``code``; its paths do not depend on the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def console(*command: object, cwd: Path, code: int = 0) -> str:
    return run(sys.executable, "-m", "fairseq_interference", *command, cwd=cwd, code=code)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    write_checkpoint(folder / "pretrained", ("xa", "xb"), "xlm_adpt_tiny")
    data = write_prepared(folder / "names", {"train": 20, "dev": 5, "test": 8})
    write_split(data, "xa", "dev", [*twenty("xa")])
    write_split(data, "xa", "train", [*twenty("xa")])
    return folder


def twenty(lang):
    draw = random.Random(7)
    return [sentence(lang, draw) for _ in range(20)]


FINETUNE = ("bash", REPOSITORY / "run" / "finetune_ner.sh", "--checkpoint", "pretrained/checkpoint_last.pt")


@pytest.fixture(scope="module")
def tuned(world):
    """A run that knows twenty sentences by heart; relative paths, default places."""
    settings = "max-epoch=40 lr=5e-3 warmup-updates=5 dropout=0 attention-dropout=0 batch-size=10"
    command = (*FINETUNE, "--data", "names", "--train-lang", "xa", "--eval-langs", "xb", "--set", settings)
    said = run(*command, cwd=world)
    return world / "finetune" / "names" / "xa" / "seed1", command, said


def test_twenty_sentences_are_learnt_by_heart(tuned, world):
    """The dev split of xa is its training split: F1 of more than 0.9, and a record for every language and split."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (world / "results").glob("*.json")]
    found = {(r["evaluation"]["language"], r["evaluation"]["split"]): r for r in records}
    assert set(found) == {(lang, split) for lang in ("xa", "xb") for split in ("dev", "test")}
    assert found["xa", "dev"]["evaluation"]["metrics"]["f1"] > 0.9
    assert {found["xa", "test"]["run"]["setting"], found["xb", "test"]["run"]["setting"]} == {
        "within-language",
        "zero-shot",
    }
    tokenizer = Tokenizer.load(str(world / "pretrained" / "tokenizer"))
    tokens = sum(2 + sum(map(len, tokenizer.encode_words(words, "xa"))) for words, _ in twenty("xa"))
    for record in records:  # two updates an epoch; the checkpoint that it started from has cost 1000 seconds before
        assert record["cost"]["tokens"] * 2 == tokens * record["cost"]["updates"]
        assert 0 < record["cost"]["seconds"] < 300
    config = found["xb", "test"]["run"]["config"]
    assert config["task"]["selection"] == "source-dev" and config["pretrain_seed"] == 1
    assert f"--finetune-from-model {world}/pretrained/checkpoint_last.pt" in tuned[2]


def test_cost_survives_emptied_meters_and_a_lost_start(tuned, monkeypatch):
    """The host empties its meters at a restart between epochs; a start that is gone leaves the seconds unknown."""
    import torch

    from fairseq_interference.evaluation.checkpoint_records import Scored

    monkeypatch.chdir(tuned[0].parents[2])
    path = tuned[0] / "checkpoint_best.pt"
    whole, state = Scored(path).cost, torch.load(path, weights_only=False)
    for _, name, _, meter in state["extra_state"]["metrics"]["default"]:
        if name == "wpb":
            meter.update(sum=torch.tensor(meter["sum"] / 2), count=meter["count"] / 2)  # several workers: a tensor
    state["cfg"]["checkpoint"]["finetune_from_model"] = "gone.pt"
    shutil.copytree(tuned[0], tuned[0].parent / "restarted")
    torch.save(state, tuned[0].parent / "restarted" / path.name)
    cost = Scored(tuned[0].parent / "restarted" / path.name).cost
    assert cost == {**whole, "seconds": None}


def test_run_again_does_nothing_and_other_settings_are_refused(tuned, world):
    folder, command, _ = tuned
    before = (folder / "checkpoint_best.pt").read_bytes()
    said = run(*command, cwd=world)
    assert "trained already" in said and "fairseq-train" not in said
    assert (folder / "checkpoint_best.pt").read_bytes() == before
    assert "--force" in run(*command[:-1], "max-epoch=2", cwd=world, code=1)


def test_predictions_are_the_official_file_with_other_labels(tuned, world, tmp_path):
    """The checkpoint is used from another folder, its data gone; the field's own scorer reads what is written."""
    seqeval = pytest.importorskip("seqeval.metrics")
    from fairseq_interference.data.readers import ner

    moved = shutil.copytree(tuned[0], tmp_path / "moved")
    gold = tmp_path / "gold.tsv"
    lines = [f"xa:{word}\t{label}" for words, labels in twenty("xa") for word, label in [*zip(words, labels), ("", "")]]
    text = "\n".join("" if line == "xa:\t" else line for line in lines) + "\n"
    text += "xa:hello\tO\nxa:\u200b\tO\nxa:Delhi\tB-LOC\n\n"  # T1
    text += (
        "".join(f"xa:{'Delhi' if n == 290 else 'the'}\t{'B-LOC' if n == 290 else 'O'}\n" for n in range(300)) + "\n"
    )  # T3
    gold.write_text(text, encoding="utf-8")
    predictions = tmp_path / "predictions.tsv"
    flags = ("--lang", "xa", "--output", predictions, "--batch-size", "4")
    console("predict", "--checkpoint", moved / "checkpoint_best.pt", "--input", gold, *flags, cwd=tmp_path)
    wanted, given = ner.read(gold), ner.read(predictions)
    assert wanted.words == given.words and wanted.format == given.format == "panx"
    cut = [line.split("\t")[0] for line in text.split("\n")]
    assert [line.split("\t")[0] for line in predictions.read_text(encoding="utf-8").split("\n")] == cut
    score = ("evaluate", "--task", "ner", "--gold", gold, "--predictions", predictions, "--lang", "xa", "--json")
    said = console(*score, "--scheme", "conlleval", cwd=tmp_path)
    result = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert result["metrics"]["f1"] == pytest.approx(seqeval.f1_score(wanted.labels, given.labels))
    assert result["metrics"]["f1"] > 0.8
    unknown = ("--input", gold, "--lang", "zz", "--output", predictions)
    said = console("predict", "--checkpoint", moved / "checkpoint_best.pt", *unknown, cwd=tmp_path, code=2)
    assert "xa,xb" in said and "Traceback" not in said


def test_a_pretrained_checkpoint_does_not_predict(world, tmp_path):
    gold = world / "names" / "xa" / "test.jsonl"
    command = ("--checkpoint", world / "pretrained" / "checkpoint_last.pt", "--input", gold, "--lang", "xa")
    said = console("predict", *command, "--output", tmp_path / "out", cwd=tmp_path, code=1)
    assert "finetune_ner.sh" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("more", "said", "code"),
    [
        (("--force", "--set", "max-epochh=1"), "max-epochh", 2),
        (("--seeds", "010"), "are not seeds", 2),
        (("--splits", "test,dve"), "train,dev,test", 2),
        (("--eval-langs", "zz"), "none of these splits", 1),
        (("--checkpoint", str(REPOSITORY / "README.md")), "cut short or damaged", 1),
        (("--config", str(REPOSITORY)), "Is a directory", 1),
    ],
)
def test_mistakes_are_found_before_anything_is_touched(tuned, world, more, said, code):
    folder, command, _ = tuned
    before = (folder / "checkpoint_best.pt").stat().st_mtime_ns
    found = run(*command, *more, cwd=world, code=code)
    assert said in found and "Traceback" not in found
    assert (folder / "checkpoint_best.pt").stat().st_mtime_ns == before
    found = run(*command, "--out", "elsewhere", *more, cwd=world, code=code)
    assert not (world / "elsewhere").exists()


def test_a_training_that_is_never_validated_is_an_error(world):
    settings = ("--set", "max-epoch=1 validate-interval=2", "--out", "unvalidated")
    for _ in range(2):
        said = run(*FINETUNE, "--data", "names", "--train-lang", "xa", *settings, cwd=world, code=1)
        assert "validate-interval" in said and "Traceback" not in said


def test_other_dev_sentences_are_another_run(tuned, world):
    _, command, _ = tuned
    path = world / "names" / "xa" / "dev.jsonl"
    before = path.read_text(encoding="utf-8")
    path.write_text("".join(before.splitlines(keepends=True)[1:]), encoding="utf-8")
    try:
        assert "other settings" in run(*command, cwd=world, code=1)
    finally:
        path.write_text(before, encoding="utf-8")


def test_target_dev_selects_on_the_target_alone(world, plugin):
    args = finetune.build_parser("ner").parse_args(
        f"--checkpoint {world}/pretrained/checkpoint_last.pt --data {world}/names --train-lang xa --eval-langs xb "
        "--selection target-dev".split()
    )
    assert "eval-langs=xb" in finetune.settings_of(args)


def test_a_checkpoint_without_dropout_stays_without(tmp_path):
    """0.0 is a value; the arch presets 0.1."""
    path = write_checkpoint(tmp_path, ("xa", "xb"), "xlm_joint_tiny", "--dropout", "0.0", "--attention-dropout", "0.0")
    assert {"dropout=0.0", "attention-dropout=0.0"} <= set(model_flags(path))


def literal(world: Path, save_dir: object, *more: object) -> tuple[object, ...]:
    """The command of the README, typed by hand."""
    sizes = "--encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 2 --max-positions 64"
    command = f"names --user-dir {REPOSITORY / 'fairseq_interference'} --task xlm_tagging --criterion xlm_tagging --cpu"
    command += f" --arch xlm_adpt_tiny {sizes} --source-lang xa --optimizer adam --lr 0.001 --batch-size 4 --seed 3"
    command += f" --save-dir {save_dir} --no-epoch-checkpoints --log-format none"
    return (str(TRAIN), *command.split(), *more)


def state_of(world: Path, save_dir: str):
    import torch

    import fairseq_interference

    fairseq_interference.register()
    return torch.load(world / save_dir / "checkpoint_last.pt", weights_only=True)


def test_stopped_and_resumed_equals_straight(world):
    """Also by --restore-file with the resets (C9), and in the middle of an epoch (5 updates each)."""
    import torch

    start = ("--finetune-from-model", "pretrained/checkpoint_last.pt")
    run(*literal(world, "straight", *start, "--max-update", "8"), cwd=world)
    run(*literal(world, "halted", *start, "--max-update", "3"), cwd=world)
    run(*literal(world, "halted", *start, "--max-update", "8"), cwd=world)
    straight, halted = state_of(world, "straight"), state_of(world, "halted")
    assert straight["optimizer_history"][-1]["num_updates"] == halted["optimizer_history"][-1]["num_updates"] == 8
    assert all(torch.equal(straight["model"][name], halted["model"][name]) for name in straight["model"])
    resets = "--reset-optimizer --reset-dataloader --reset-meters --reset-lr-scheduler"
    restored = ("--restore-file", "pretrained/checkpoint_last.pt", *resets.split(), "--max-update", "8")
    run(*literal(world, "restored", *restored), cwd=world)
    third = state_of(world, "restored")
    assert all(torch.equal(straight["model"][name], third["model"][name]) for name in straight["model"])
    pretrained = state_of(world, "pretrained")["model"]
    for name, weight in third["model"].items():  # a language that was not trained on has not moved
        if ".xb." in name:
            assert torch.equal(weight, pretrained[name])


def validation(log: str) -> dict[str, str]:
    """What the last validation measured."""
    lines = [line for line in log.splitlines() if "| INFO | valid |" in line]
    logged = json.loads(lines[-1].split("| INFO | valid |")[1])
    kinds = ("valid_loss", "valid_macro_loss", "valid_accuracy", "valid_f1")
    return {name: value for name, value in logged.items() if name.startswith(kinds)}


def test_two_workers_validate_as_one(world, tmp_path):
    """Both train on two languages; with a learning rate of 0 they must measure what one worker measures."""
    from ddp import train_ranks

    start = ("--finetune-from-model", world / "pretrained" / "checkpoint_last.pt")
    more = ("--source-lang", "xa,xb", "--lr", "0", "--max-update", "2", "--log-format", "json", "--no-save")
    more = (*more, *start, "--best-checkpoint-metric", "f1_xb", "--maximize-best-checkpoint-metric")
    one = validation(run(*literal(world, "one", *more), cwd=world))
    arguments = [world / "names", *literal(world, tmp_path / "two", *more)[2:]]
    place = arguments.index("--user-dir")
    arguments[place : place + 2] = []
    arguments.remove("--cpu")
    finished = train_ranks(arguments, logs=tmp_path)
    assert validation(finished[0].log) == one
    assert {"valid_f1", "valid_f1_xa", "valid_f1_xb", "valid_macro_loss", "valid_loss_xb"} <= set(one)
