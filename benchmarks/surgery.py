"""What gradient surgery costs: ``--optimizer surgery`` against Adam alone, with the same arch and tokens.

    python benchmarks/surgery.py [--runs 5] [--layers 4 --dim 128] [--languages 2,8] [--clock wall|cpu] [--json FILE]

Updates run through the host's own trainer, Adam included, all languages in every batch; the settings take turns
within a run, and a figure is the median over runs of (setting / plain in the same run). ``literal`` is the papers'
loop: one pass over the whole batch for each language, of which its rows' loss is taken; it exists here only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from meta_step import CLOCKS, batch_of, codes, write_data

SETTINGS: dict[str, list[str]] = {
    "plain": ["--optimizer", "adam"],
    "none": ["--optimizer", "surgery", "--surgery", "none"],
    "pcgrad": ["--optimizer", "surgery"],
    "gradvac": ["--optimizer", "surgery", "--surgery", "gradvac"],
}


def make_trainer(data: Path, name: str, languages: int, args: argparse.Namespace) -> tuple[Any, Any]:
    """Task and trainer of a setting, its training data loaded."""
    import fairseq_cli.train as train
    from fairseq import options, tasks
    from fairseq.trainer import Trainer

    flags = [str(data), "--task", "xlm_masked_lm", "--criterion", "xlm_masked_lm", "--arch", "xlm_joint", "--cpu"]
    flags += ["--save-dir", str(data / "save"), "--langs", ",".join(codes(languages)), "--lr", "1e-4"]
    flags += ["--tokens-per-sample", str(args.length), "--max-positions", str(args.length)]
    flags += ["--sample-break-mode", "eos", "--weight-decay", "0.01", "--encoder-layers", str(args.layers)]
    flags += ["--encoder-embed-dim", str(args.dim), "--encoder-ffn-embed-dim", str(4 * args.dim)]
    flags += ["--encoder-attention-heads", str(max(1, args.dim // 64)), *SETTINGS[name]]
    parser = options.get_training_parser()
    cfg = train.convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, flags))
    torch.manual_seed(1)
    task = tasks.setup_task(cfg.task)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    task.load_dataset("train")
    return task, trainer


def literal(trainer: Any, batch: dict[str, Any], languages: int) -> None:
    """A pass over the whole batch for every language."""
    trainer.model.train()
    for language in range(languages):
        trainer.zero_grad()
        losses, of = trainer.criterion.losses(trainer.model, batch)
        losses[of == language].sum().backward()
    trainer.optimizer.step()


def measure(languages: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Ratios of every setting for a number of languages."""
    data = write_data(folder / f"{languages}", languages, args)
    made = {name: make_trainer(data, name, languages, args) for name in SETTINGS}
    clock = CLOCKS[args.clock]
    seconds: dict[str, list[float]] = {name: [] for name in [*made, *(["literal"] if args.literal else [])]}
    for run in range(-2, args.runs):  # the first two warm up
        for name, (task, trainer) in made.items():
            batch = batch_of(task, max(run, 0), languages, args)
            begin = clock()
            trainer.train_step([batch])
            if run >= 0:
                seconds[name].append(clock() - begin)
        if args.literal and run >= 0:
            task, trainer = made["plain"]
            batch, begin = batch_of(task, run, languages, args), clock()
            literal(trainer, batch, languages)
            seconds["literal"].append(clock() - begin)
    report: dict[str, Any] = {"plain_seconds": statistics.median(seconds["plain"])}
    for name, values in seconds.items():
        ratios = [value / plain for value, plain in zip(values, seconds["plain"])]
        report[name] = {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
        print(f"  {name:<10} {report[name]['ratio']:6.2f}  [{min(ratios):.2f}, {max(ratios):.2f}]", flush=True)
    return report


def main(argv: list[str]) -> int:
    import fairseq  # noqa: F401  (the registries fill when the host is there)

    import fairseq_interference

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("runs", 5), ("threads", 2), ("layers", 4), ("dim", 128), ("vocab-size", 8000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tokens", type=int, default=4096, help="per update")
    parser.add_argument("--length", type=int, default=64, help="tokens of a block")
    parser.add_argument("--languages", default="2,8")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="cpu on a busy machine, one thread")
    parser.add_argument("--literal", action="store_true", help="a pass over the whole batch for each language as well")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    fairseq_interference.register()
    torch.set_num_threads(args.threads)
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        for languages in map(int, args.languages.split(",")):
            setting = f"{args.layers} x {args.dim}, {args.tokens} tokens, {languages} languages, n = {args.runs}"
            print(setting, flush=True)
            report[str(languages)] = measure(languages, args, Path(folder))
    if args.json:
        args.json.write_text(json.dumps({"settings": vars(args) | {"json": None}, **report}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
