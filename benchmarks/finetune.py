"""Examples per second of fine-tuning and prediction against the transformers library's own Trainer.

    python benchmarks/finetune.py --file te.train.txt [--task tagging|qa] [--turns 5] [--layers 4 --dim 256]

Same network (XLM-R's, random weights), threads, precision, batch size, optimizer and token ids on both sides; the peer
has dynamic padding, ``group_by_length`` and SDPA. Lengths are those of a real file: named entities for ``tagging``,
questions for ``qa`` (one piece a word, long ones a piece every four characters). Training is an epoch over the
examples; prediction is from token ids to labels or answers' scores, against the peer in order of length and in the
order of the file. The sides take turns; a figure is the median over turns of (ours / peer in the same turn), over 1 is
faster. Needs the extra ``hf`` and ``accelerate``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
LABELS, VOCABULARY = 5, 8000  # labels of two kinds of names


def piece_counts(args: argparse.Namespace) -> list[list[int]]:
    """Of each example, the pieces of each of its words."""
    if args.task == "tagging":
        from fairseq_interference.data.readers import ner

        texts = [sentence.words for sentence in ner.read(args.file)]
    else:
        from fairseq_interference.data.readers import qa

        texts = [f"{question.question} {question.context}".split() for question in qa.read(args.file)]
    counts = [[1 + len(word) // 5 for word in words] for words in texts if words]
    kept: list[list[int]] = []
    for words in counts[: args.examples]:
        ends = np.cumsum(words)
        kept.append(words[: max(1, int(np.searchsorted(ends, args.length - 2)))])
    return kept


def make_examples(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Token ids with <s> and </s>, first pieces of words and their labels; for ``qa`` first and last column."""
    rng = np.random.default_rng(1)
    found = []
    for words in piece_counts(args):
        ids = [0, *rng.integers(5, VOCABULARY, sum(words)).tolist(), 2]
        firsts = (np.cumsum(words) - words + 1).tolist()
        found.append({"ids": ids, "firsts": firsts, "labels": rng.integers(0, LABELS, len(words)).tolist()})
    return found


def our_side(args: argparse.Namespace, examples: list[dict[str, Any]], folder: Path) -> SimpleNamespace:
    """The host's trainer with our task, its data set already encoded."""
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.trainer import Trainer
    from tagging_world import write_prepared, write_tokenizer

    from fairseq_interference.data.companions import write_companions
    from fairseq_interference.data.examples import ExampleDataset
    from fairseq_interference.languages import LanguageList

    sizes = f"--encoder-layers {args.layers} --encoder-embed-dim {args.dim} --encoder-ffn-embed-dim {4 * args.dim}"
    sizes += f" --encoder-attention-heads {args.dim // 64}"
    tokenizer = write_tokenizer(folder / "data" / "tokenizer")
    words = "".join(f"w{number} 1\n" for number in range(VOCABULARY - 5))
    (folder / "data" / "dict.txt").write_text(words, encoding="utf-8")
    write_companions(folder, LanguageList(["xa", "xb"]), folder / "data" / "dict.txt", tokenizer.folder)
    data = write_prepared(folder / "ner", {"train": 1})
    task_name = f"xlm_{args.task}"
    flags = f"{data} --task {task_name} --criterion {task_name} --arch xlm_joint_tiny {sizes} --cpu --train-langs xa"
    flags += (
        f" --companions {folder} --save-dir {folder} --disable-validation --optimizer adam --lr 1e-5 --clip-norm 1.0"
    )
    flags += " --max-length 384" if args.task == "qa" else ""
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, flags.split()))
    cfg.model.max_positions = args.length
    task = tasks.setup_task(cfg.task)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    made = [_example(args.task, example) for example in examples]
    return SimpleNamespace(task=task, trainer=trainer, made=made, dataset=ExampleDataset(made, task.collate, True))


def _example(task: str, example: dict[str, Any]) -> Any:
    from fairseq_interference.data import qa_examples, tagging

    ids, firsts = torch.tensor(example["ids"]), example["firsts"]
    if task == "tagging":
        row = tagging.Row(ids, torch.arange(len(firsts)), torch.tensor(firsts))
        return tagging.make_examples([row], example["labels"], 0, 0, separate=True)[0]
    row = qa_examples.QaRow(ids, 0, len(ids) - 4, 3, firsts[0], firsts[-1])
    return qa_examples.QaExample([row], None, None, 0, 0)


def train_ours(side: SimpleNamespace, args: argparse.Namespace, epoch: int) -> float:
    iterator = side.task.get_batch_iterator(side.dataset, max_sentences=args.batch_size, epoch=epoch)
    begin = time.perf_counter()
    for batch in iterator.next_epoch_itr(shuffle=True):
        side.trainer.train_step([batch])
    return time.perf_counter() - begin


@torch.no_grad()
def predict_ours(side: SimpleNamespace, args: argparse.Namespace) -> float:
    from fairseq_interference.criterions import xlm_qa
    from fairseq_interference.evaluation.predict import _samples

    model, begin = side.trainer.get_model(), time.perf_counter()
    for _, sample in _samples(model, side.task, side.made, None, args.eval_batch_size):
        if args.task == "tagging":
            words = sample["words"]
            logits = model(**sample["net_input"], token_head_name="tagging")[0]
            logits[words["row"], words["column"]].argmax(dim=-1).tolist()
        else:
            xlm_qa.answer_scores(model, sample["net_input"], side.task.dictionary.pad()).numpy()
    return time.perf_counter() - begin


class Peer:
    """The Trainer of the transformers library."""

    def __init__(self, args: argparse.Namespace, examples: list[dict[str, Any]], folder: Path) -> None:
        import transformers

        self.args, self.folder, self.library = args, folder, transformers
        config = transformers.XLMRobertaConfig(
            vocab_size=VOCABULARY,
            hidden_size=args.dim,
            num_hidden_layers=args.layers,
            num_attention_heads=args.dim // 64,
            intermediate_size=4 * args.dim,
            max_position_embeddings=args.length + 2,
            type_vocab_size=1,
            num_labels=LABELS if args.task == "tagging" else 2,
            pad_token_id=1,
        )
        name = "TokenClassification" if args.task == "tagging" else "QuestionAnswering"
        model = getattr(transformers, f"XLMRobertaFor{name}")
        self.model = model._from_config(config, attn_implementation="sdpa")
        self.data = [self._features(example) for example in examples]

    def _features(self, example: dict[str, Any]) -> dict[str, Any]:
        ids = example["ids"]
        if self.args.task == "qa":
            return {"input_ids": ids, "start_positions": example["firsts"][0], "end_positions": example["firsts"][-1]}
        labels = [-100] * len(ids)
        for column, label in zip(example["firsts"], example["labels"]):
            labels[column] = label
        return {"input_ids": ids, "labels": labels}

    def _collate(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        width = max(len(one["input_ids"]) for one in features)

        def padded(name: str, value: int) -> Any:
            return torch.tensor([one[name] + [value] * (width - len(one[name])) for one in features])

        batch = {"input_ids": padded("input_ids", 1)}
        batch["attention_mask"] = batch["input_ids"].ne(1).long()
        if self.args.task == "tagging":
            return {**batch, "labels": padded("labels", -100)}
        ends = ("start_positions", "end_positions")
        return {**batch, **{name: torch.tensor([one[name] for one in features]) for name in ends}}

    def _trainer(self, seed: int) -> Any:
        settings = self.library.TrainingArguments(
            str(self.folder),
            num_train_epochs=1,
            per_device_train_batch_size=self.args.batch_size,
            per_device_eval_batch_size=self.args.eval_batch_size,
            group_by_length=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            seed=seed,
            learning_rate=1e-5,
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        return self.library.Trainer(self.model, settings, data_collator=self._collate, train_dataset=self.data)

    def train(self, seed: int) -> float:
        trainer, begin = self._trainer(seed), time.perf_counter()
        trainer.train()
        return time.perf_counter() - begin

    def predict(self, by_length: bool) -> float:
        trainer = self._trainer(1)
        data = sorted(self.data, key=lambda one: len(one["input_ids"])) if by_length else self.data
        begin = time.perf_counter()
        assert trainer.predict(data).predictions is not None
        return time.perf_counter() - begin


def measure(args: argparse.Namespace) -> dict[str, Any]:
    examples = make_examples(args)
    lengths = [len(example["ids"]) for example in examples]
    print(f"{len(examples)} examples of {min(lengths)}-{max(lengths)} tokens, median {statistics.median(lengths)}")
    ratios: dict[str, list[float]] = {"training": [], "prediction, by length": [], "prediction, file order": []}
    with tempfile.TemporaryDirectory() as folder:
        ours, peer = our_side(args, examples, Path(folder)), Peer(args, examples, Path(folder) / "peer")
        sizes = [sum(p.numel() for p in model.parameters()) for model in (ours.trainer.get_model(), peer.model)]
        print(f"parameters: {sizes[0]} (with a masked-LM head), peer {sizes[1]}")
        for turn in range(args.turns + 1):
            seconds = train_ours(ours, args, turn + 1)
            pairs = [(seconds, peer.train(turn)), (predict_ours(ours, args), peer.predict(True))]
            pairs.append((pairs[1][0], peer.predict(False)))
            for name, (mine, theirs) in zip(ratios, pairs):
                if turn:  # the first one warms up
                    ratios[name].append(theirs / mine)
    report = {}
    for name, values in ratios.items():
        report[name] = {"ratio": statistics.median(values), "lowest": min(values), "highest": max(values)}
        print(f"  {name:<24} {report[name]['ratio']:5.2f}  [{min(values):.2f}, {max(values):.2f}]")
    return report


def main(argv: list[str]) -> int:
    import fairseq  # noqa: F401  (the registries fill when the host is there)

    import fairseq_interference

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", required=True, help="official file whose lengths are taken")
    parser.add_argument("--task", choices=("tagging", "qa"), default="tagging")
    for name, value in (("turns", 5), ("threads", 2), ("layers", 4), ("dim", 256), ("examples", 600)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in (("length", 256), ("batch-size", 32), ("eval-batch-size", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    fairseq_interference.register()
    torch.set_num_threads(args.threads)
    report = measure(args)
    if args.json:
        Path(args.json).write_text(json.dumps({"settings": vars(args), "ratios": report}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
