"""Words per second of pre-training against the host's own roberta + multilingual_masked_lm.

Equal network, data, batch and number of updates; both sides run through ``fairseq-train``, turn by turn, so that a
busy machine slows both. Reported: median words/s of each, and the ratio of the medians with its range over turns.

    python benchmarks/pretrain_speed.py DATA --langs aa,bb [--arch xlm_joint] [--turns 5] [--updates 100] [--json OUT]
    python benchmarks/pretrain_speed.py DATA --langs aa,bb --profile     # where the time of our side goes instead

DATA holds dict.txt and language folders and nothing else (the host takes any folder for a language).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parent.parent


def common_flags(args: argparse.Namespace, save_dir: str) -> list[str]:
    """Flags that both sides share: network, batch, optimizer, no saving."""
    size = f"--encoder-layers {args.layers} --encoder-embed-dim {args.dim} --encoder-ffn-embed-dim {4 * args.dim}"
    flags = (
        f"{size} --encoder-attention-heads {args.heads} --tokens-per-sample {args.length} --max-positions {args.length}"
    )
    flags += f" --batch-size {args.batch_size} --max-update {args.updates} --optimizer adam --lr 0.0005 --seed 1"
    flags += " --sample-break-mode complete --no-save --disable-validation --log-format json --log-interval 10"
    flags += f" --num-workers {args.num_workers} --save-dir {save_dir}"
    if args.cpu:
        flags += " --cpu"
    return flags.split()


def sides(args: argparse.Namespace) -> dict[str, list[str]]:
    """Name -> flags of each side."""
    ours = f"--user-dir {ROOT / 'fairseq_interference'} --task xlm_masked_lm --criterion xlm_masked_lm"
    ours += f" --arch {args.arch} --langs {args.langs} --temperature 1.43"
    host = "--task multilingual_masked_lm --criterion masked_lm --arch roberta --multilang-sampling-alpha 0.7"
    return {"ours": ours.split() + args.ours, "host": host.split()}


def run(data: str, flags: Sequence[str], args: argparse.Namespace) -> float:
    """Words per second of one run, its first tenth left out."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fairseq_cli.train", data, *flags, *common_flags(args, folder)]
        environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), PYTHONPATH=str(ROOT))
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"failed: {' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return words_per_second(done.stdout)


def words_per_second(log: str) -> float:
    """Words over time in the log's ``train_inner`` lines; the first one (warm-up) is left out."""
    lines = [json.loads(line.split(" | ", 3)[3]) for line in log.splitlines() if "| train_inner |" in line]
    words = seconds = 0.0
    for line in lines[1:]:
        count = float(line["wpb"]) * 10
        words += count
        seconds += count / float(line["wps"])
    return words / seconds


# part of a step -> what its operators are called, first match; the optimizer is told apart by the host's own mark
PARTS = {
    "matrix products": ("mm", "bmm", "linear"),
    "gelu": ("gelu",),
    "dropout": ("random_", "native_dropout", "ge"),
    "softmax, cross-entropy": ("softmax", "nll_loss"),
    "layer norm": ("layer_norm",),
    "embeddings": ("embedding", "index_put", "index_select", "index_add"),
}


def part_of(operator: str) -> str:
    name = operator.replace("aten::", "")
    return next((part for part, names in PARTS.items() if any(some in name for some in names)), "other operators")


def profile(args: argparse.Namespace) -> dict[str, float]:
    """Share of each part in the CPU time of our training, in this process."""
    sys.path.insert(0, str(ROOT))
    import torch
    from fairseq import options
    from fairseq_cli import train

    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        flags = [args.data, *sides(args)["ours"], *common_flags(args, folder), "--cpu"]
        config = train.convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), flags))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            train.main(config)
    times: dict[str, float] = {}
    for event in found.events():
        inside, parent = event.name, event.cpu_parent
        while parent is not None and inside != "optimizer":
            inside, parent = parent.name, parent.cpu_parent
        if event.name.startswith("aten::") or inside == "optimizer":
            part = "optimizer" if inside == "optimizer" else part_of(event.name)
            times[part] = times.get(part, 0.0) + event.self_cpu_time_total
    whole = sum(times.values())
    return {part: time / whole for part, time in sorted(times.items(), key=lambda item: -item[1])}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the turns; medians, ratio and range."""
    found: dict[str, list[float]] = {name: [] for name in sides(args)}
    for turn in range(args.turns):
        for name, flags in sides(args).items():
            found[name].append(run(args.data, flags, args))
            print(f"turn {turn + 1}/{args.turns} {name}: {found[name][-1]:.0f} words/s", flush=True)
    ratios = [ours / host for ours, host in zip(found["ours"], found["host"])]
    return {
        "arch": args.arch,
        "setting": {
            name: getattr(args, name) for name in ("layers", "dim", "length", "batch_size", "updates", "turns")
        },
        "words_per_second": {name: statistics.median(values) for name, values in found.items()},
        "ratio": statistics.median(found["ours"]) / statistics.median(found["host"]),
        "ratio_range": [min(ratios), max(ratios)],
    }


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--langs", required=True)
    parser.add_argument("--arch", default="xlm_joint")
    for name, value in (("layers", 4), ("dim", 128), ("heads", 4), ("length", 128), ("batch-size", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in (("updates", 100), ("turns", 5), ("threads", 1), ("num-workers", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--ours", nargs=argparse.REMAINDER, default=[], help="more flags for our side, last")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--profile", action="store_true", help="shares of our side's time instead of the comparison")
    parser.add_argument("--json", help="write the result here")
    args = parser.parse_args(argv)
    result = profile(args) if args.profile else measure(args)
    print(json.dumps(result, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
