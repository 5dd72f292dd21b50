"""Task, criterion and prediction of tagging, in one process on a tiny random model."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq")
from tagging_world import LABELS, sentence, write_checkpoint, write_prepared, write_split

from fairseq_interference.data.tagging import IGNORE
from fairseq_interference.errors import CheckpointError, DataError, LanguageError, UsageError
from fairseq_interference.evaluation.metrics import ner_scores
from fairseq_interference.languages import LanguageList


def parse(arguments):
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))


def flags(checkpoint: Path, data: Path, arch: str, *more: str) -> list[str]:
    sizes = ["--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64", "--encoder-attention-heads", "2"]
    command = [str(data), "--task", "xlm_tagging", "--criterion", "xlm_tagging", "--arch", arch, *sizes]
    return [*command, "--finetune-from-model", str(checkpoint), "--save-dir", str(data.parent / "out"), *more]


def setup(arguments):
    """Task and model, as the host builds them."""
    from fairseq import tasks, utils

    cfg = parse(arguments)
    task = tasks.setup_task(cfg.task)
    utils.set_torch_seed(1)
    return cfg, task, task.build_model(cfg.model)


@pytest.fixture(scope="module")
def world(tmp_path_factory, plugin):
    folder = tmp_path_factory.mktemp("tagging")
    joint = write_checkpoint(folder / "joint", ("xa", "xb"), "xlm_joint_tiny")
    adapters = write_checkpoint(folder / "adpt", ("xa", "xb"), "xlm_adpt_tiny")
    data = write_prepared(folder / "ner", {"train": 12, "dev": 9, "test": 5}, ("xa", "xb"))
    write_split(data, "xc", "dev", [sentence("xb", random.Random(5))])
    return {"joint": joint, "adpt": adapters, "data": data}


def batch_of(task, split="valid"):
    task.load_dataset(split)
    dataset = task.dataset(split)
    return dataset.collater([dataset[i] for i in range(len(dataset))])


def reduce(criterion, outputs):
    from fairseq.logging import metrics

    with metrics.aggregate(new_root=True) as logged:
        for output in outputs:
            type(criterion).reduce_metrics(output)
    return logged.get_smoothed_values()


def test_names_are_ours(plugin):
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    assert TASK_REGISTRY["xlm_tagging"].__module__.startswith("fairseq_interference.")
    assert CRITERION_REGISTRY["xlm_tagging"].__module__.startswith("fairseq_interference.")


def test_every_field_of_the_task_is_a_flag(plugin):
    from fairseq import options

    from fairseq_interference.tasks.xlm_tagging import TaggingConfig

    args = options.parse_args_and_arch(
        options.get_training_parser(), ["d", "--task", "xlm_tagging", "--arch", "xlm_joint_tiny", "--source-lang", "xa"]
    )
    assert args.train_langs == "xa"
    missing = [name for name in TaggingConfig.__dataclass_fields__ if name != "_name" and not hasattr(args, name)]
    assert missing == []


def test_loss_accuracy_and_f1_are_those_of_plain_loops(world):
    """Per language and pooled, from batches of any size, against loops and the scorer."""
    more = ["--train-langs", "xa", "--eval-langs", "xb", "--selection", "all-dev", "--tokens-per-window", "9"]
    cfg, task, model = setup(flags(world["joint"], world["data"], "xlm_joint_tiny", *more))
    criterion = task.build_criterion(cfg.criterion)
    model.eval()
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    assert len(dataset) == 18 and any(len(example.rows) > 1 for example in dataset.examples)
    outputs, gold, predicted, losses = [], {0: [], 1: []}, {0: [], 1: []}, {0: [], 1: []}
    with torch.no_grad():
        for indices in dataset.batch_by_size(dataset.ordered_indices(), max_sentences=4):
            sample = dataset.collater([dataset[i] for i in indices])
            _, size, output = criterion(model, sample)
            assert size == sample["sample_size"] == int((sample["target"] != -100).sum())
            outputs.append([output])
        for example in dataset.examples:  # one sentence, one window at a time
            labels, guesses = {}, {}
            for row in example.rows:
                tokens = row.tokens[None]
                scores = model(tokens, torch.tensor([tokens.size(1)]), torch.tensor([0]), token_head_name="tagging")[0][
                    0
                ]
                for word, column in zip(row.words.tolist(), row.columns.tolist()):
                    label = int(example.labels[torch.cat([r.words for r in example.rows]).tolist().index(word)])
                    losses[example.group].append(-scores[column].log_softmax(0)[label].item())
                    labels[word], guesses[word] = LABELS[label], LABELS[int(scores[column].argmax())]
            gold[example.group].append([labels[word] for word in sorted(labels)])
            predicted[example.group].append([guesses[word] for word in sorted(guesses)])
    logged = reduce(criterion, outputs)
    f1 = []
    for group, lang in enumerate(["xa", "xb"]):
        scores = ner_scores(gold[group], predicted[group])
        f1.append(100 * scores["f1"])
        assert logged[f"f1_{lang}"] == pytest.approx(f1[-1], abs=1e-3)
        assert logged[f"accuracy_{lang}"] == pytest.approx(100 * scores["accuracy"], abs=1e-3)
        mean = sum(losses[group]) / len(losses[group]) / 0.6931471805599453
        assert logged[f"loss_{lang}"] == pytest.approx(mean, abs=1e-3)
    assert logged["f1"] == pytest.approx(sum(f1) / 2, abs=1e-3)
    every = losses[0] + losses[1]
    assert float(logged["loss"]) == pytest.approx(sum(every) / len(every) / 0.6931471805599453, abs=2e-3)
    assert set(task.validation_metrics()) <= set(logged)


def test_selection_decides_what_the_headline_means(world):
    found = {}
    for selection in ("source-dev", "target-dev", "all-dev"):
        more = ["--train-langs", "xa", "--eval-langs", "xb", "--selection", selection]
        cfg, task, model = setup(flags(world["joint"], world["data"], "xlm_joint_tiny", *more))
        criterion = task.build_criterion(cfg.criterion)
        with torch.no_grad():
            found[selection] = reduce(criterion, [[criterion(model.eval(), batch_of(task))[2]]])
    assert found["source-dev"]["f1"] == found["all-dev"]["f1_xa"]
    assert found["target-dev"]["f1"] == found["all-dev"]["f1_xb"]
    assert found["source-dev"]["loss"] != found["target-dev"]["loss"]


def test_training_logs_the_same_keys_without_f1(world):
    cfg, task, model = setup(flags(world["joint"], world["data"], "xlm_joint_tiny", "--train-langs", "xa"))
    criterion = task.build_criterion(cfg.criterion)
    trained = criterion(model.train(), batch_of(task, "train"))[2]
    with torch.no_grad():
        validated = criterion(model.eval(), batch_of(task))[2]
    assert list(trained) == list(validated)
    assert type(criterion).logging_outputs_can_be_summed()
    assert "f1" not in reduce(criterion, [[trained]]) and "f1" in reduce(criterion, [[validated]])


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ([], UsageError, "--train-langs"),
        (["--train-langs", "xa", "--langs", "xb,xa"], LanguageError, "xa,xb"),
        (["--train-langs", "xa", "--fallback-lang", "zz"], LanguageError, "zz"),
        (["--train-langs", "xa", "--selection", "target-dev"], UsageError, "--eval-langs"),
        (["--train-langs", "xd"], DataError, "xd/dev.jsonl"),
        (["--train-langs", "xa", "--best-checkpoint-metric", "bleu"], UsageError, "macro_loss, loss, accuracy, f1"),
        (["--train-langs", "xa", "--best-checkpoint-metric", "f1"], UsageError, "--maximize-best-checkpoint-metric"),
        (
            ["--train-langs", "xa", "--best-checkpoint-metric", "f1_xb", "--maximize-best-checkpoint-metric"],
            UsageError,
            "macro_loss",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_a_model_is_built(world, more, error, message):
    from fairseq import tasks

    with pytest.raises(error) as caught:
        tasks.setup_task(parse(flags(world["joint"], world["data"], "xlm_joint_tiny", *more)).task)
    assert message in str(caught.value)


def test_f1_needs_entity_labels(world, tmp_path):
    """N8: parts of speech have no F1."""
    from fairseq import tasks

    data = shutil.copytree(world["data"], tmp_path / "pos")
    (data / "labels.txt").write_text("NOUN\nVERB\n", encoding="utf-8")
    more = ["--train-langs", "xa", "--best-checkpoint-metric", "f1", "--maximize-best-checkpoint-metric"]
    with pytest.raises(UsageError, match="macro_loss, loss, accuracy"):
        tasks.setup_task(parse(flags(world["joint"], data, "xlm_joint_tiny", *more)).task)


def test_an_unknown_language_needs_a_fallback_or_a_shared_model(world, caplog):
    """A3."""
    more = ["--train-langs", "xa", "--eval-langs", "xc", "--selection", "all-dev"]
    _, task, _ = setup(flags(world["adpt"], world["data"], "xlm_adpt_tiny", *more))
    with pytest.raises(LanguageError) as caught:
        task.load_dataset("valid")
    assert "xa,xb" in str(caught.value) and "--fallback-lang" in str(caught.value)
    _, task, _ = setup(flags(world["adpt"], world["data"], "xlm_adpt_tiny", *more, "--fallback-lang", "xb"))
    batch = batch_of(task)
    unknown = batch["words"]["group"] == 1
    assert set(batch["net_input"]["lang_id"][batch["words"]["row"][unknown]].tolist()) == {1}
    _, task, _ = setup(flags(world["joint"], world["data"], "xlm_joint_tiny", *more))
    caplog.clear()
    batch_of(task)
    assert any("xc" in record.getMessage() for record in caplog.records)


def test_a_checkpoint_without_tokenizer_is_refused(world, tmp_path):
    from fairseq import tasks

    folder = shutil.copytree(world["joint"].parent, tmp_path / "bare")
    shutil.rmtree(folder / "tokenizer")
    (folder / "companions.json").unlink()
    with pytest.raises(CheckpointError, match="tokenizer"):
        tasks.setup_task(
            parse(flags(folder / "checkpoint_last.pt", world["data"], "xlm_joint_tiny", "--train-langs", "xa")).task
        )


def test_words_without_a_tag_are_neither_trained_on_nor_scored(world, tmp_path):
    """T8: ``_`` in CoNLL-U."""
    data = tmp_path / "pos"
    tagged = (["walks", "sees", "the"], ["NOUN", "_", "VERB"])
    write_split(data, "xa", "dev", [tagged, (["old"], ["_"])])
    (data / "labels.txt").write_text("NOUN\nVERB\n", encoding="utf-8")
    _, task, _ = setup(flags(world["joint"], data, "xlm_joint_tiny", "--train-langs", "xa"))
    sample = batch_of(task)
    assert sorted(sample["words"]["label"].tolist()) == [IGNORE, IGNORE, 0, 1]
    assert sample["sample_size"] == 2


def test_windows_are_as_long_as_the_pretrained_positions(world):
    _, task, model = setup(flags(world["joint"], world["data"], "xlm_joint_tiny", "--train-langs", "xa"))
    assert model.max_positions() == 64 == task.max_positions() == task.encoder.limit
    assert task.languages == LanguageList(["xa", "xb"])


def test_prediction_gives_one_label_per_word(world):
    """T1, T3 and empty sentences, in batches of any size."""
    from fairseq_interference.evaluation.predict import predict_labels

    _, task, model = setup(flags(world["adpt"], world["data"], "xlm_adpt_tiny", "--train-langs", "xa"))
    draw = random.Random(3)
    sentences = [sentence("xa", draw)[0] for _ in range(30)]
    sentences += [[], ["hello", "\u200b", "Delhi"], ["the"] * 290 + ["Delhi"] * 10, ["\u200b"], ["x" * 500, "a"]]
    draw.shuffle(sentences)
    one = predict_labels(model, task, sentences, "xa", batch_size=1)
    many = predict_labels(model, task, sentences, "xa", batch_size=7)
    by_tokens = predict_labels(model, task, sentences, "xa", max_tokens=100)
    assert [len(labels) for labels in one] == [len(words) for words in sentences]
    assert one == many == by_tokens
    assert {label for labels in one for label in labels} <= set(LABELS)
    with pytest.raises(LanguageError):
        predict_labels(model, task, sentences, "zz")


def test_absent_languages_do_not_move(world):
    """Weights and moments of xb stay bit-identical when xa alone is fine-tuned, with weight decay."""
    from fairseq import optim

    more = ["--train-langs", "xa", "--optimizer", "adam", "--lr", "0.01", "--weight-decay", "0.1"]
    cfg, task, model = setup(flags(world["adpt"], world["data"], "xlm_adpt_tiny", *more))
    criterion = task.build_criterion(cfg.criterion)
    cfg.optimizer.lr = [0.01]
    optimizer = optim.build_optimizer(cfg.optimizer, [p for p in model.parameters() if p.requires_grad])
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    sample = batch_of(task, "train")
    for update in range(3):
        optimizer.zero_grad()
        for parameter in model.parameters():  # what legacy_ddp leaves behind
            parameter.grad = torch.zeros_like(parameter)
        task.train_step(sample, model, criterion, optimizer, update)
        task.optimizer_step(optimizer, model, update)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    own = {name for name in before if ".xb." in name}
    assert own and not own & moved
    assert any(".xa." in name for name in moved) and "token_heads.tagging.out_proj.weight" in moved
