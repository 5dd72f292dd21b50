"""What the bilevel step costs: ``--optimizer meta_adapter`` against the plain step of the same arch and tokens.

    python benchmarks/meta_step.py [--runs 5] [--layers 4 --dim 128] [--languages 2,16] [--clock wall|cpu] [--json FILE]

Updates run through the host's own trainer, Adam included, all languages in every batch; the settings take turns
within a run, and a figure is the median over runs of (setting / plain in the same run). ``literal`` is the paper's
algorithm for one training language (L + 4 passes), as it is written; it exists here only. How near the settings'
gradients are to each other: ``meta_cosine.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
REFERENCE = "paper + central"
SETTINGS: dict[str, list[str]] = {
    "plain": [],
    "simultaneous + one_sided": [],
    "paper + one_sided": ["--meta-order", "paper"],
    REFERENCE: ["--meta-order", "paper", "--meta-estimator", "central"],
    "exact": ["--meta-estimator", "exact"],
    "every 4": ["--meta-every", "4"],
    "half validation": ["--meta-val-batch-fraction", "0.5"],
    "half cross": ["--meta-cross-batch-fraction", "0.5"],
    "half both": ["--meta-val-batch-fraction", "0.5", "--meta-cross-batch-fraction", "0.5"],
}


def codes(number: int) -> list[str]:
    """Made-up language codes."""
    return [f"l{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(number)]


def write_data(folder: Path, languages: int, args: argparse.Namespace) -> Path:
    """A data folder of random tokens whose blocks are all of one length."""
    from fairseq.data import indexed_dataset

    folder.mkdir(parents=True)
    words = args.vocab_size - 5
    (folder / "dict.txt").write_text("".join(f"w{number} 1\n" for number in range(words)))
    rng = np.random.default_rng(1)
    for code in codes(languages):
        (folder / code).mkdir()
        prefix = folder / code / "train"
        builder = indexed_dataset.MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
        for _ in range(6 * args.tokens // args.length):
            chosen = np.minimum(rng.zipf(1.2, args.length - 2), words - 1) + 3
            builder.add_item(torch.tensor([*chosen.tolist(), 2]))
        builder.finalize(f"{prefix}.idx")
    return folder


def make_trainer(data: Path, name: str, languages: int, args: argparse.Namespace) -> tuple[Any, Any]:
    """Task and trainer of a setting, its training data loaded."""
    import fairseq_cli.train as train
    from fairseq import options, tasks
    from fairseq.trainer import Trainer

    optimizer = "adam" if name == "plain" else "meta_adapter"
    flags = [str(data), "--task", "xlm_masked_lm", "--criterion", "xlm_masked_lm", "--arch", "xlm_adpt", "--cpu"]
    flags += ["--save-dir", str(data / "save")]
    flags += ["--langs", ",".join(codes(languages)), "--tokens-per-sample", str(args.length), "--lr", "1e-4"]
    flags += ["--max-positions", str(args.length), "--sample-break-mode", "eos", "--weight-decay", "0.01"]
    flags += ["--encoder-layers", str(args.layers), "--encoder-embed-dim", str(args.dim)]
    flags += ["--encoder-ffn-embed-dim", str(4 * args.dim), "--encoder-attention-heads", str(max(1, args.dim // 64))]
    flags += ["--adapter-dim", str(args.adapter_dim), "--meta-heldout-fraction", "0.3", "--optimizer", optimizer]
    flags += SETTINGS[name] if optimizer == "meta_adapter" else []
    parser = options.get_training_parser()
    cfg = train.convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, flags))
    torch.manual_seed(1)
    task = tasks.setup_task(cfg.task)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    task.load_dataset("train")
    return task, trainer


def batch_of(task: Any, number: int, languages: int, args: argparse.Namespace) -> dict[str, Any]:
    """A batch with the same number of blocks of every language."""
    dataset = task.dataset("train")
    rows = args.tokens // args.length
    chosen = []
    for row in range(rows):
        of = np.flatnonzero(dataset.language == row % languages)
        chosen.append(int(of[(number * rows + row // languages) % len(of)]))
    found: dict[str, Any] = dataset.collater([dataset[index] for index in chosen])
    return found


def literal(task: Any, trainer: Any, batch: dict[str, Any], update: int) -> None:
    """The paper's algorithm for one training language: L validation passes, one by one, and four of training."""
    model, criterion = trainer.get_model(), trainer.criterion
    theta = [p for p in model.parameters() if p.optim_overrides["interference"]["lang"] is None]
    code = task.languages.codes[0]
    phi = [p for p in model.parameters() if p.optim_overrides["interference"]["lang"] == code]
    only = dict(batch, net_input=dict(batch["net_input"]))
    only["net_input"]["lang_id"] = torch.zeros_like(batch["net_input"]["lang_id"])
    size, lr = float(only["target"].ne(1).sum()), trainer.get_lr()

    def train() -> Any:
        return criterion(model, only)[0] / size

    languages = range(len(task.languages))
    validation = [task.meta.validation.batch(update, [j], batch["ntokens"], 0, 1, 10_000, 10**9) for j in languages]

    def val(parts: Any) -> Any:
        return sum(criterion(model, part)[0] for part in parts) / len(validation)

    start = [p.detach().clone() for p in theta]
    state = torch.get_rng_state()

    def place(direction: Any, scale: float) -> None:
        with torch.no_grad():
            for parameter, begin, shift in zip(theta, start, direction):
                parameter.copy_(begin + scale * shift)

    def gradient(loss: Any, parameters: Any) -> list[Any]:
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found)]

    place(gradient(train(), theta), -lr)
    v, direct = [torch.zeros_like(p) for p in theta], [torch.zeros_like(p) for p in phi]
    for part in validation:
        found = gradient(val(part), [*theta, *phi])
        v = [a + b for a, b in zip(v, found)]
        direct = [a + b for a, b in zip(direct, found[len(theta) :])]
    epsilon = 0.01 / math.sqrt(sum(float(x.square().sum()) for x in v))
    ends = []
    for sign in (1.0, -1.0):
        torch.set_rng_state(state)
        place(v, sign * epsilon)
        ends.append(gradient(train(), phi))
    place(v, 0.0)
    trainer.zero_grad()
    for parameter, d, up, down in zip(phi, direct, *ends):
        parameter.grad = d - lr * (up - down) / (2 * epsilon)
    trainer.optimizer.step()
    trainer.zero_grad()
    torch.set_rng_state(state)
    train().backward()
    for parameter in phi:
        parameter.grad = None
    trainer.optimizer.step()


def measure(languages: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Ratios of every setting for a number of languages."""
    data = write_data(folder / f"{languages}", languages, args)
    names = [name for name in SETTINGS if not args.only or name in ("plain", *args.only)]
    made = {name: make_trainer(data, name, languages, args) for name in names}
    clock = CLOCKS[args.clock]
    seconds: dict[str, list[float]] = {name: [] for name in [*names, *(["literal"] if args.literal else [])]}
    for run in range(-12, args.runs):  # the first twelve make Adam's moments, on small batches
        for name, (task, trainer) in made.items():
            few = argparse.Namespace(**{**vars(args), "tokens": args.length * languages}) if run < 0 else args
            repeats = 4 if name == "every 4" and run >= 0 else 1
            batches = [batch_of(task, max(run, 0) * repeats + k, languages, few) for k in range(repeats)]
            begin = clock()
            for batch in batches:
                trainer.train_step([batch])
            if run >= 0:
                seconds[name].append((clock() - begin) / repeats)
        if args.literal and run >= 0:
            task, trainer = made[REFERENCE]
            begin = clock()
            literal(task, trainer, batch_of(task, run, languages, args), run)
            seconds["literal"].append(clock() - begin)
    report: dict[str, Any] = {}
    for name, values in seconds.items():
        ratios = [value / plain for value, plain in zip(values, seconds["plain"])]
        report[name] = {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
        print(f"  {name:<26} {report[name]['ratio']:6.2f}  [{min(ratios):.2f}, {max(ratios):.2f}]", flush=True)
    return report


def main(argv: list[str]) -> int:
    import fairseq  # noqa: F401  (the registries fill when the host is there)

    import fairseq_interference

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("runs", 5), ("threads", 2), ("layers", 4), ("dim", 128), ("adapter-dim", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=4096, help="per update")
    parser.add_argument("--length", type=int, default=64, help="tokens of a block")
    parser.add_argument("--languages", default="2,16")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="cpu on a busy machine, one thread")
    parser.add_argument("--only", nargs="*", default=[], help="settings besides the plain step")
    parser.add_argument("--literal", action="store_true", help="the paper's literal algorithm as well")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    fairseq_interference.register()
    torch.set_num_threads(args.threads)
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        for languages in map(int, args.languages.split(",")):
            print(
                f"{args.layers} x {args.dim}, {args.tokens} tokens, {languages} languages, n = {args.runs}", flush=True
            )
            report[str(languages)] = measure(languages, args, Path(folder))
    if args.json:
        args.json.write_text(json.dumps({"settings": vars(args) | {"json": None}, **report}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
