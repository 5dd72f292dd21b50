"""Sentence pairs and questions, few shots, frozen parts and the head's rate, in one process on a tiny random model."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("fairseq")
from hypothesis import given
from hypothesis import strategies as st
from tagging_world import PEOPLE, PLACES, WORDS, write_checkpoint, write_prepared

from fairseq_interference.data.readers.questions import Answer, Question
from fairseq_interference.data.sentence_pairs import truncated
from fairseq_interference.errors import DataError, HostError, InterferenceError, UsageError
from fairseq_interference.evaluation.metrics_qa import answer_scores, qa_scores

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    # the host: CUDA's autocast by its old name, its scheduler before the first update
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
]
LABELS = ["contradiction", "entailment", "neutral"]
SIZES = ["--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--encoder-attention-heads", "2"]
QA_SIZES = ["--max-length", "24", "--stride", "9", "--max-query-length", "6", "--max-answer-length", "5"]


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def pair(lang: str, draw: random.Random, label: Any) -> dict[str, Any]:
    texts = [" ".join(draw.choices([*WORDS[lang], *PLACES[lang]], k=draw.randint(1, 40))) for _ in range(2)]
    return {"premise": texts[0], "hypothesis": texts[1], "label": label}


def question(lang: str, draw: random.Random, number: int) -> dict[str, Any]:
    words = draw.choices([*WORDS[lang], *PEOPLE[lang]], k=draw.randint(3, 40))
    context, place = " ".join(words), draw.randrange(len(words))
    start = len(" ".join(words[:place])) + bool(place)
    answers = [{"text": words[place], "answer_start": start}] if number % 5 else []
    return {"id": "same", "context": context, "question": words[place], "answers": answers}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, plugin: Any) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("downstream")
    found = {"adpt": write_checkpoint(folder / "adpt", ("xa", "xb"), "xlm_adpt_tiny")}
    (folder / "nli").mkdir()
    (folder / "nli" / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS), encoding="utf-8")
    for lang in ("xa", "xb"):
        for split, count in (("train", 12), ("dev", 11)):
            draw = random.Random(f"{lang} {split}")
            labels = [None if split == "dev" and n == 3 else draw.choice(LABELS) for n in range(count)]
            write_jsonl(folder / "nli" / lang / f"{split}.jsonl", [pair(lang, draw, label) for label in labels])
            questions = [question(lang, draw, number) for number in range(count)]
            write_jsonl(folder / "qa" / lang / f"{split}.jsonl", questions)
    write_prepared(folder / "ner", {"train": 12, "dev": 9}, ("xa", "xb"))
    return {**found, "nli": folder / "nli", "qa": folder / "qa", "ner": folder / "ner"}


def setup(world: dict[str, Path], kind: str, out: Path, *more: object) -> tuple[Any, Any, Any]:
    """Configuration, task and model, as the host builds them."""
    import fairseq_cli.train as train
    from fairseq import options, tasks, utils

    from fairseq_interference import compat

    compat.install()  # wraps the training command too, now that it is imported
    name = {"nli": "xlm_nli", "qa": "xlm_qa", "ner": "xlm_tagging"}[kind]
    command = [str(world[kind]), "--task", name, "--criterion", name, "--arch", "xlm_adpt_tiny", *SIZES]
    command += ["--finetune-from-model", str(world["adpt"]), "--save-dir", str(out), "--train-langs", "xa"]
    command += [*(QA_SIZES if kind == "qa" else []), *map(str, more)]
    cfg = train.convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    task = tasks.setup_task(cfg.task)
    utils.set_torch_seed(1)
    return cfg, task, task.build_model(cfg.model)


def trainer_of(world: dict[str, Path], kind: str, out: Path, *more: object) -> Any:
    from fairseq.trainer import Trainer

    flags = ("--optimizer", "adam", "--lr", "0.01", "--batch-size", 6, "--cpu", *more)
    cfg, task, model = setup(world, kind, out, *flags)
    return Trainer(cfg, task, model, task.build_criterion(cfg.criterion))


def validated(task: Any, criterion: Any, model: Any, size: int) -> dict[str, Any]:
    """What validation logs, in batches of ``size`` examples."""
    from fairseq.logging import metrics

    model.eval()
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    with torch.no_grad(), metrics.aggregate(new_root=True) as logged:
        for indices in dataset.batch_by_size(dataset.ordered_indices(), max_sentences=size):
            output = criterion(model, dataset.collater([dataset[i] for i in indices]))[2]
            type(criterion).reduce_metrics([output])
    found: dict[str, Any] = logged.get_smoothed_values()
    return found


# --- pairs -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40))
def test_the_longer_sentence_is_cut_piece_by_piece(first: int, second: int, room: int) -> None:
    kept = [first, second]
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    assert truncated(first, second, room) == tuple(kept)


def test_loss_and_accuracy_of_pairs_are_those_of_a_loop(world: dict[str, Path], tmp_path: Path) -> None:
    """Pair by pair without padding; a pair without a majority label counts nowhere."""
    more = ("--eval-langs", "xb", "--selection", "all-dev", "--best-checkpoint-metric", "loss", "--max-length", 30)
    cfg, task, model = setup(world, "nli", tmp_path, *more)
    logged = [validated(task, task.build_criterion(cfg.criterion), model, size) for size in (1, 5)]
    assert logged[0] == pytest.approx(logged[1], abs=2e-3)
    losses, right = {"xa": [], "xb": []}, {"xa": [], "xb": []}
    for number, lang in enumerate(("xa", "xb")):
        for line in (world["nli"] / lang / "dev.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["label"] is None:
                continue
            halves = [task.tokenizer.encode_line(record[key], lang) for key in ("premise", "hypothesis")]
            while sum(map(len, halves)) > 26:
                halves[0 if len(halves[0]) > len(halves[1]) else 1].pop()
            ids = [[task.dictionary.index(piece) for piece in half] for half in halves]
            bos, eos = task.dictionary.bos(), task.dictionary.eos()
            tokens = torch.tensor([[bos, *ids[0], eos, eos, *ids[1], eos]])
            with torch.no_grad():
                scores = model(tokens, None, torch.tensor([number]), classification_head_name="nli")[0][0]
            wanted = LABELS.index(record["label"])
            losses[lang].append(-scores.log_softmax(0)[wanted].item() / math.log(2))
            right[lang].append(100.0 * (int(scores.argmax()) == wanted))
    for lang in ("xa", "xb"):
        assert len(losses[lang]) == 10
        assert logged[0][f"loss_{lang}"] == pytest.approx(sum(losses[lang]) / 10, abs=1e-3)
        assert logged[0][f"accuracy_{lang}"] == pytest.approx(sum(right[lang]) / 10)
    assert float(logged[0]["loss"]) == pytest.approx(sum(losses["xa"] + losses["xb"]) / 20, abs=1e-3)


# --- questions ---------------------------------------------------------------------------------------------------


def test_loss_em_and_f1_of_questions_are_those_of_a_loop(world: dict[str, Path], tmp_path: Path) -> None:
    """Window by window without padding; what validation says is what prediction and the scorer say."""
    from fairseq_interference.data.readers import qa
    from fairseq_interference.evaluation.predict import predict_answers

    more = ("--eval-langs", "xb", "--selection", "all-dev", "--best-checkpoint-metric", "loss")
    cfg, task, model = setup(world, "qa", tmp_path, *more)
    criterion = task.build_criterion(cfg.criterion)
    logged = [validated(task, criterion, model, size) for size in (1, 4)]
    assert logged[0] == pytest.approx(logged[1], abs=2e-3)
    losses: list[float] = []
    for example in task.dataset("valid").examples:
        for row in example.rows:
            with torch.no_grad():
                scores = model(row.tokens[None], None, torch.tensor([example.lang_id]), token_head_name="qa")[0][0]
            logs = scores.log_softmax(0)
            losses.append(-(logs[row.start, 0] + logs[row.end, 1]).item() / 2 / math.log(2))
    assert any(len(example.rows) > 1 for example in task.dataset("valid").examples)
    assert float(logged[0]["loss"]) == pytest.approx(sum(losses) / len(losses), abs=1e-3)
    for lang in ("xa", "xb"):
        questions = qa.read(world["qa"] / lang / "dev.jsonl", "prepared").questions
        answers = predict_answers(model, task, questions, lang, batch_size=3, n_best=2)
        golds = [[answer.text for answer in q.answers or ()] for q in questions]
        wanted = qa_scores(golds, [found[0].text for found in answers], "squad")
        assert logged[0][f"em_{lang}"] == pytest.approx(100 * wanted["em"], abs=1e-3)
        assert logged[0][f"f1_{lang}"] == pytest.approx(100 * wanted["f1"], abs=1e-3)
        for one, found in zip(questions, answers):
            assert all(one.context[a.start : a.end] == a.text for a in found)
            assert len({(a.start, a.end) for a in found}) == len(found)


def test_windows_are_labelled_with_the_answer_that_they_hold(world: dict[str, Path], tmp_path: Path) -> None:
    _, task, _ = setup(world, "qa", tmp_path, "--best-checkpoint-metric", "loss")
    words = WORDS["xa"] * 4
    context = " ".join(words)
    start = context.index("old")
    examples = task.encoder.examples(
        Question("q", context, "old", (Answer("old", start),), 1), None, "xa", 0, 0, training=True
    )
    assert len(examples) > 2 and all(len(example.rows) == 1 for example in examples)
    pieces = task.tokenizer.encode_line(context, "xa")
    held = 0
    for example in examples:
        row = example.rows[0]
        said = "".join(task.dictionary[int(t)].replace("@@", "") for t in row.tokens[row.start : row.end + 1])
        held += row.start > 0
        assert said == "old" if row.start else (row.start, row.end) == (0, 0)
        assert len(row.tokens) <= 24
    assert held >= 1
    covered = {token for example in examples for token in range(example.rows[0].first, example.rows[0].stop)}
    assert covered == set(range(len(pieces)))


def test_unlabelled_questions_are_refused(world: dict[str, Path], tmp_path: Path) -> None:
    record = {"id": "1", "context": "old house", "question": "old", "answers": None}
    write_jsonl(tmp_path / "qa" / "xa" / "dev.jsonl", [record])
    _, task, _ = setup({**world, "qa": tmp_path / "qa"}, "qa", tmp_path, "--best-checkpoint-metric", "loss")
    with pytest.raises(DataError, match="no answers"):
        task.load_dataset("valid")


def test_a_question_without_an_answer_is_right_without_one() -> None:
    assert answer_scores("", [], "squad") == (1.0, 1.0) and answer_scores("a house", [], "squad")[0] == 0.0


# --- few shots, frozen parts, the head's rate --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ner", "nli", "qa"])
def test_few_shots_leave_the_dev_split(world: dict[str, Path], tmp_path: Path, kind: str) -> None:
    more = ("--eval-langs", "xb", "--selection", "all-dev", "--best-checkpoint-metric", "loss")

    def sizes(shots: int, seed: int = 1) -> tuple[Any, list[int], list[int]]:
        _, task, _ = setup(world, kind, tmp_path, *more, "--few-shot", shots, "--seed", seed)
        task.load_dataset("train")
        task.load_dataset("valid")
        of = [[e for e in task.dataset(split).examples if e.group == 1] for split in ("train", "valid")]
        return task, *([hash(tuple(r.tokens.tolist())) for e in part for r in e.rows] for part in of)

    _, none, every = sizes(0)
    assert none == []
    task, few, rest = sizes(4)
    assert len(few) >= 4 and not set(few) & set(rest) and set(few + rest) <= set(every)
    if kind == "ner":  # no sentence is there twice
        assert sorted(few + rest) == sorted(every), "the dev split is parted, nothing is lost"
    recorded = json.loads((tmp_path / "few_shot.json").read_text(encoding="utf-8"))
    assert len(recorded["lines"]["xb"]) == 4 and list(recorded["lines"]) == ["xb"] == task.few_shot_langs
    assert sizes(4)[1] == few and sizes(4, seed=2)[1] != few
    with pytest.raises(DataError, match="--few-shot"):
        sizes(100)
    with pytest.raises(UsageError, match="--few-shot"):
        setup(world, kind, tmp_path, "--few-shot", 3, "--best-checkpoint-metric", "loss")


def test_few_shots_are_labelled_and_take_what_belongs_to_them(world: dict[str, Path], tmp_path: Path) -> None:
    """Pairs without a majority label are no shots; the other pairs of a shot's premise leave the dev split too."""
    draw, rows = random.Random(1), []
    for _ in range(8):
        one = pair("xb", draw, draw.choice(LABELS))
        rows += [
            {**one, "hypothesis": f"{one['hypothesis']} {n}", "label": None if n == 2 else one["label"]}
            for n in range(3)
        ]
    write_jsonl(tmp_path / "nli" / "xb" / "dev.jsonl", rows)
    write_jsonl(tmp_path / "nli" / "xa" / "train.jsonl", rows[:2])
    (tmp_path / "nli" / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS), encoding="utf-8")
    more = ("--eval-langs", "xb", "--selection", "target-dev", "--best-checkpoint-metric", "loss", "--few-shot", 3)
    _, task, _ = setup({**world, "nli": tmp_path / "nli"}, "nli", tmp_path, *more)
    task.load_dataset("train")
    task.load_dataset("valid")
    shots = [example for example in task.dataset("train").examples if example.group == 1]
    lines = json.loads((tmp_path / "few_shot.json").read_text(encoding="utf-8"))["lines"]["xb"]
    assert len(shots) == 3 and all(example.label >= 0 for example in shots)
    premises = {rows[line - 1]["premise"] for line in lines}
    assert len(task.dataset("valid")) == sum(row["premise"] not in premises for row in rows)


@pytest.mark.parametrize("change", [("--freeze", "*layers.1.*"), ("--head-lr", "x3"), ()])
def test_a_state_goes_to_its_parameters_by_name(
    world: dict[str, Path], tmp_path: Path, change: tuple[str, ...], caplog: Any
) -> None:
    """A run that goes on with other frozen parts, or a rate of the head: nothing gets another one's moments."""
    flags = ("--best-checkpoint-metric", "loss", "--dropout", 0)
    trainer = trainer_of(world, "nli", tmp_path, *flags, "--freeze", "*layers.0.*")
    trainer.task.load_dataset("train")
    dataset = trainer.task.dataset("train")
    trainer.train_step([dataset.collater([dataset[i] for i in range(6)])])
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "saved.pt"), {"train_iterator": {"epoch": 1}, "val_loss": None})

    def moments(some: Any) -> dict[str, torch.Tensor]:
        state = some.optimizer.optimizer.state
        return {n: state[p]["exp_avg"] for n, p in some.get_model().named_parameters() if state.get(p)}

    other = trainer_of(world, "nli", tmp_path, *flags, *change)
    caplog.clear()
    other.load_checkpoint(str(tmp_path / "saved.pt"))
    before, after = moments(trainer), moments(other)
    frozen = {n for n in before if change[:1] == ("--freeze",) and "layers.1." in n}
    assert after.keys() == before.keys() - frozen and all(torch.equal(after[n], before[n]) for n in after)
    assert "begins anew" in caplog.text and "layers.0." in caplog.text, "what was frozen has no state"
    assert ("left out" in caplog.text) == bool(frozen)


def test_frozen_parameters_stay(world: dict[str, Path], tmp_path: Path) -> None:
    patterns = "encoder.sentence_encoder.layers.0.*, *embed_*"
    flags = ("--best-checkpoint-metric", "loss", "--weight-decay", "0.5", "--freeze", patterns)
    trainer = trainer_of(world, "nli", tmp_path, *flags)
    trainer.task.load_dataset("train")
    dataset = trainer.task.dataset("train")
    before = {name: value.detach().clone() for name, value in trainer.get_model().named_parameters()}
    for _ in range(3):
        trainer.train_step([dataset.collater([dataset[i] for i in range(6)])])
    still = {n for n, value in trainer.get_model().named_parameters() if torch.equal(value, before[n])}
    frozen = {n for n in before if n.startswith("encoder.sentence_encoder.layers.0.") or "embed_" in n}
    assert frozen <= still and not any(n.startswith("classification_heads.") for n in still)
    assert any(".layers.1." in n and n not in still for n in before)
    with pytest.raises(UsageError, match=r"\*\.layer\.0\.\*"):
        setup(world, "nli", tmp_path, "--best-checkpoint-metric", "loss", "--freeze", "*.layer.0.*")
    with pytest.raises(UsageError, match="Nothing is left"):
        setup(world, "nli", tmp_path, "--best-checkpoint-metric", "loss", "--freeze", "*")


@pytest.mark.parametrize("precision", [(), ("--bf16",)])
@pytest.mark.parametrize(("rate", "factor"), [("x5", 5.0), ("0.002", 0.2)])
def test_the_head_has_a_rate_of_its_own(
    world: dict[str, Path], tmp_path: Path, precision: tuple[str, ...], rate: str, factor: float
) -> None:
    """It follows the scheduler, also after resuming; the first step of Adam moves each weight by its rate."""
    flags = ("--best-checkpoint-metric", "loss", "--head-lr", rate, "--dropout", 0, *precision)
    flags = (*flags, "--lr-scheduler", "inverse_sqrt", "--warmup-updates", 4, "--warmup-init-lr", 0.001)
    trainer = trainer_of(world, "nli", tmp_path, *flags)
    trainer.task.load_dataset("train")
    dataset = trainer.task.dataset("train")
    batch = dataset.collater([dataset[i] for i in range(6)])
    trainer.train_step([batch])
    body, head = trainer.optimizer.param_groups
    names = {p.optim_overrides["interference"]["name"] for p in head["params"]}
    assert names == {
        f"classification_heads.nli.{n}" for n in ("dense.weight", "dense.bias", "out_proj.weight", "out_proj.bias")
    }
    assert head["lr"] == pytest.approx(factor * body["lr"]) and body["lr"] == trainer.get_lr()
    assert len(body["params"]) + len(names) == len(list(trainer.get_model().parameters()))
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(tmp_path / "saved.pt"), {"train_iterator": {"epoch": 1}, "val_loss": None})
    other = trainer_of(world, "nli", tmp_path, *flags)
    other.load_checkpoint(str(tmp_path / "saved.pt"))
    other.lr_step_update()
    other.train_step([batch])
    body, head = other.optimizer.param_groups
    assert head["lr"] == pytest.approx(factor * body["lr"]) and body["lr"] == other.get_lr()
    with pytest.raises(InterferenceError, match="--head-lr"):
        _ = trainer_of(world, "nli", tmp_path, "--best-checkpoint-metric", "loss", "--head-lr", "fast").optimizer


def test_a_flattened_head_has_no_rate_of_its_own(world: dict[str, Path], tmp_path: Path) -> None:
    from types import SimpleNamespace

    from fairseq_interference.optim.head_rate import set_rates

    flat = SimpleNamespace(optimizer_config={"lr": 0.1}, param_groups=[{"params": [torch.zeros(3)], "lr": 0.1}])
    with pytest.raises(HostError, match="--fp16-no-flatten-grads"):
        set_rates(flat, "token_heads.qa", "x2")
    with pytest.raises(HostError, match="--fp16-no-flatten-grads"):
        set_rates(flat, "token_heads.qa", "x1", "*.layers.0.*=x10")
