"""Every real file of tags, pairs, entities and questions: prepared, trained on, predicted, written back and scored."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fairseq")
from tagging_world import write_checkpoint

from fairseq_interference.data.prepared import find_split, read_labels
from fairseq_interference.errors import InterferenceError
from fairseq_interference.evaluation.downstream import KINDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_data,
    pytest.mark.usefixtures("plugin"),
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
]
TASKS = {"ner": "xlm_tagging", "pos": "xlm_tagging", "nli": "xlm_nli", "qa": "xlm_qa"}
SIZES = ["--encoder-layers", "1", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64"]
SIZES += ["--encoder-attention-heads", "2"]
FLAGS = {"qa": ["--max-length", "256", "--stride", "180"]}  # long strides: what is tested does not depend on them
MAPS = {  # quirk 23
    "ar-ud-dev.s1-100.conllu": ["--tag-map", "CONJ=CCONJ"],
    "hi-ud-dev.s1-260.conllu": ["--tag-map", "CONJ=CCONJ,adj=ADJ,adv=ADV"],
}
LABEL_KEYS = dict.fromkeys(("label", "spans", "target"))
#: files that hold something else, and what is said of them
REFUSED = {"val-sw.jsonl": "COPA", "sample_prediction.jsonl": "predictions"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, plugin: Any) -> Path:
    folder = tmp_path_factory.mktemp("real") / "joint"
    return write_checkpoint(folder, ("xa", "xb"), "xlm_joint_tiny", "--tokens-per-sample", "256", *SIZES)


def prepared(kind: str, path: Path, out: Path) -> None:
    lang = path.parent.name if path.parent.name != "multi" else "th"
    module = importlib.import_module(f"data_prep.benchmarks.{kind}")
    flags = ["--out", str(out), "--input", f"{lang}:test:{path}", *MAPS.get(path.name, [])]
    if kind == "nli":
        flags += ["--labels", "pawsx" if path.name.startswith("pawsx") else "nli"]
    parser = importlib.import_module("argparse").ArgumentParser()
    module.add_arguments(parser)
    module.prepare(parser.parse_args(flags))


def trained(kind: str, data: Path, lang: str, checkpoint: Path, out: Path) -> Any:
    """Task and model after one update on the first examples."""
    from types import SimpleNamespace

    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.trainer import Trainer

    command = [str(data), "--task", TASKS[kind], "--criterion", TASKS[kind], "--arch", "xlm_joint_tiny", *SIZES]
    command += ["--finetune-from-model", str(checkpoint), "--save-dir", str(out), "--train-langs", lang]
    command += ["--optimizer", "adam", "--lr", "0.001", "--cpu", "--disable-validation", *FLAGS.get(kind, [])]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command))
    task = tasks.setup_task(cfg.task)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    records = task.read_records(find_split(data, lang, "test"))[:8]
    examples = [one for record in records for one in task.encode(record, lang, 0, 0, training=True)]
    logged = trainer.train_step([task.collate(examples, range(len(examples)))])
    assert float(logged["loss"]) > 0
    return SimpleNamespace(task=task, model=trainer.get_model())


@pytest.mark.parametrize("kind", sorted(TASKS))
def test_every_real_file(kind: str, real_data: Path, checkpoint: Path, tmp_path: Path) -> None:
    files = sorted(path for path in (real_data / kind).glob("*/*") if path.is_file())
    assert len(files) > 10
    done = []
    for path in files:
        data = tmp_path / path.name
        try:
            prepared(kind, path, data)
        except InterferenceError as error:
            assert path.name in REFUSED and REFUSED[path.name] in str(error), f"{path}: {error}"
            continue
        (folder,) = (found for found in data.iterdir() if found.is_dir())
        lang = folder.name
        labels = read_labels(data / "labels.txt") if kind != "qa" else []
        labelled = KINDS[kind].read(folder / "test.jsonl", "prepared", lang, labels).labelled
        try:
            loaded = trained(kind, data, lang, checkpoint, tmp_path / f"{path.name}.out")
        except InterferenceError as error:
            assert not labelled, f"{path}: {error}"
            loaded = trained(*done[-1], checkpoint, tmp_path / f"{path.name}.out")  # predicted by another's model
        predictions = tmp_path / f"{path.name}.predicted"
        scores = KINDS[kind].predict_split(loaded, data, lang, "test", predictions)
        assert (scores is None) != labelled, path
        if labelled:
            done.append((kind, data, lang))
            assert 0 <= scores["metrics"][KINDS[kind].main] < 1, path
        same_but_labels(kind, path, folder / "test.gold", predictions)
    assert done


def same_but_labels(kind: str, source: Path, gold: Path, predictions: Path) -> None:
    """The predictions are the official file, line by line, in which only the predicted column differs."""
    one, other = (path.read_text(encoding="utf-8").split("\n") for path in (gold, predictions))
    if kind == "qa":
        found = json.loads(predictions.read_text(encoding="utf-8")) if other[0] == "{" else None
        texts = list(found.values()) if found else [json.loads(line)["prediction_text"] for line in other[:-1]]
        paragraphs = [
            p for article in json.loads(gold.read_text(encoding="utf-8"))["data"] for p in article["paragraphs"]
        ]
        contexts = [paragraph["context"] for paragraph in paragraphs for _ in paragraph["qas"]]
        assert len(texts) == len(contexts) and all(text in context for text, context in zip(texts, contexts)), source
        return
    assert len(one) == len(other), source
    for wanted, given in zip(one, other):
        if wanted.startswith("{"):
            wanted, given = ({**json.loads(line), **LABEL_KEYS} for line in (wanted, given))
            assert wanted == given, source
            continue
        shorter = min(len(wanted), len(given))
        left = next((n for n in range(shorter) if wanted[n] != given[n]), shorter)
        changed = wanted[left:].partition("\t")[0], given[left:].partition("\t")[0]
        assert all(len(part) < 40 for part in changed), f"{source}: {wanted!r} {given!r}"
