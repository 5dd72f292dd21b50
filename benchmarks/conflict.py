"""What ``--conflict-every 1`` costs: an update that is measured against the plain one of the same arch and tokens.

    python benchmarks/conflict.py [--runs 5] [--layers 4 --dim 128] [--languages 2,8] [--clock wall|cpu] [--json FILE]

Updates run through the host's own trainer, Adam included, all languages in every batch; the two take turns within a
run, and a figure is the median over runs of (measured / plain in the same run). ``--conflict-every N`` costs the N-th
part of what is beyond 1.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.meta_step import CLOCKS, batch_of, codes, write_data

WARM_UP = 2


def make_trainer(data: Path, every: int, languages: int, args: argparse.Namespace) -> tuple[Any, Any]:
    """Task and trainer, its training data loaded."""
    import fairseq_cli.train as train
    from fairseq import options, tasks
    from fairseq.trainer import Trainer

    flags = [str(data), "--task", "xlm_masked_lm", "--criterion", "xlm_masked_lm", "--arch", args.arch, "--cpu"]
    flags += ["--save-dir", str(data / f"save{every}"), "--optimizer", "adam", "--lr", "1e-4"]
    flags += ["--langs", ",".join(codes(languages)), "--tokens-per-sample", str(args.length)]
    flags += ["--max-positions", str(args.length), "--sample-break-mode", "eos", "--conflict-every", str(every)]
    flags += ["--encoder-layers", str(args.layers), "--encoder-embed-dim", str(args.dim)]
    flags += ["--encoder-ffn-embed-dim", str(4 * args.dim), "--encoder-attention-heads", str(max(1, args.dim // 64))]
    cfg = train.convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), flags))
    torch.manual_seed(1)
    task = tasks.setup_task(cfg.task)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    task.load_dataset("train")
    return task, trainer


def measure(languages: int, args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Ratio for a number of languages."""
    data = write_data(folder / f"{languages}", languages, args)
    made = [make_trainer(data, every, languages, args) for every in (0, 1)]
    clock, seconds = CLOCKS[args.clock], ([], [])  # type: ignore[var-annotated]
    for run in range(-WARM_UP, args.runs):
        for (task, trainer), taken in zip(made, seconds):
            batch = batch_of(task, max(run, 0), languages, args)
            begin = clock()
            trainer.train_step([batch])
            if run >= 0:
                taken.append(clock() - begin)
    ratios = [measured / plain for plain, measured in zip(*seconds)]
    report = {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    print(f"  {languages:>3} languages {report['ratio']:6.2f}  [{min(ratios):.2f}, {max(ratios):.2f}]", flush=True)
    return report


def main(argv: list[str]) -> int:
    import fairseq  # noqa: F401  (the registries fill when the host is there)

    import fairseq_interference

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("runs", 7), ("threads", 1), ("layers", 4), ("dim", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--arch", default="xlm_joint")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=4096, help="per update")
    parser.add_argument("--length", type=int, default=64, help="tokens of a block")
    parser.add_argument("--languages", default="2,8")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="cpu on a busy machine, one thread")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    fairseq_interference.register()
    torch.set_num_threads(args.threads)
    print(f"{args.arch}, {args.layers} x {args.dim}, {args.tokens} tokens, n = {args.runs}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = {count: measure(int(count), args, Path(folder)) for count in args.languages.split(",")}
    if args.json:
        args.json.write_text(json.dumps({"settings": vars(args) | {"json": None}, **report}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
