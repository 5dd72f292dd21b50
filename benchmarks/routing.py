"""What routing costs: ``xlm_adpt`` against ``xlm_joint``, and many languages against few.

    python benchmarks/routing.py [--runs 5] [--threads 2] [--clock wall|cpu] [--json FILE] [--layers 8 --dim 512 …]

Two ratios, each the median over interleaved runs of forward + backward + optimizer at the same number of tokens:

    routing    xlm_adpt with 4 languages in the batch / xlm_joint
    languages  xlm_adpt with 64 languages in the batch / with 4

The optimizer is the host's ``adam``; its share is printed beside each time, since its work grows with the number
of parameters that an update touches, whatever routes them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MASKED = 0.15
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass
class Case:
    """One model with its optimizer and batch, and the seconds that each run took."""

    name: str
    model: Any
    optimizer: Any
    batch: dict[str, Any]
    target: torch.Tensor
    seconds: list[float] = field(default_factory=list)
    optimizer_seconds: list[float] = field(default_factory=list)

    def update(self, clock: Any) -> None:
        """One update: forward, backward, gradient norm, optimizer."""
        begin = clock()
        scores, _ = self.model(**self.batch)
        torch.nn.functional.cross_entropy(scores, self.target, reduction="sum").backward()
        middle = clock()
        self.optimizer.step()
        self.optimizer.zero_grad()
        end = clock()
        self.seconds.append(end - begin)
        self.optimizer_seconds.append(end - middle)


def codes(number: int) -> list[str]:
    """Made-up language codes."""
    return [f"l{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(number)]


def build(arch: str, languages: int, args: argparse.Namespace) -> Any:
    """A model of ``arch`` for made-up languages and a made-up dictionary."""
    from fairseq.data import Dictionary
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    from fairseq_interference.languages import LanguageList

    options = argparse.Namespace(
        arch=arch,
        encoder_layers=args.layers,
        encoder_embed_dim=args.dim,
        encoder_ffn_embed_dim=4 * args.dim,
        encoder_attention_heads=args.dim // 64,
        max_positions=args.length,
    )
    if arch.startswith("xlm_adpt"):
        options.adapter_dim = args.adapter_dim
    dictionary = Dictionary()
    for number in range(args.vocab_size):
        dictionary.add_symbol(f"piece{number}")
    task = SimpleNamespace(source_dictionary=dictionary, languages=LanguageList(codes(languages)))
    ARCH_CONFIG_REGISTRY[arch](options)
    torch.manual_seed(1)
    return ARCH_MODEL_REGISTRY[arch].build_model(options, task).train()


def make_case(name: str, arch: str, languages: int, args: argparse.Namespace) -> Case:
    """A case whose batch holds ``args.tokens`` tokens, spread evenly over all languages in mixed order."""
    from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
    from omegaconf import OmegaConf

    model = build(arch, languages, args)
    config = OmegaConf.structured(FairseqAdamConfig(lr=[1e-4], weight_decay=0.01, tpu=False))
    optimizer = FairseqAdam(config, list(model.parameters()))
    generator = torch.Generator().manual_seed(2)
    rows = args.tokens // args.length
    tokens = torch.randint(4, args.vocab_size, (rows, args.length), generator=generator)
    masked = torch.rand(tokens.shape, generator=generator) < MASKED
    batch = {"src_tokens": tokens, "lang_id": torch.arange(rows) % languages, "masked_tokens": masked}
    return Case(name, model, optimizer, batch, tokens[masked])


def compare(cases: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Run the cases in turn; medians in seconds and the median of the ratios last / first."""
    for case in cases:
        case.update(CLOCKS[args.clock])  # warm up: the optimizer's state is made here
        case.seconds.clear()
        case.optimizer_seconds.clear()
    for _ in range(args.runs):
        for case in cases:
            case.update(CLOCKS[args.clock])
    first, last = cases[0], cases[-1]
    ratios = [b / a for a, b in zip(first.seconds, last.seconds)]
    report: dict[str, Any] = {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    for case in cases:
        seconds = statistics.median(case.seconds)
        share = statistics.median(case.optimizer_seconds) / seconds
        report[case.name] = {"seconds": seconds, "optimizer_share": share}
        print(f"  {case.name:<22} {seconds:8.3f} s   optimizer {100 * share:4.1f} %")
    print(f"  ratio {report['ratio']:.3f}   [{report['lowest']:.3f}, {report['highest']:.3f}], n = {args.runs}")
    return report


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="cpu on a busy machine, one thread")
    parser.add_argument("--only", choices=("routing", "languages"))
    parser.add_argument("--json", type=Path)
    for name, value in (("layers", 8), ("dim", 512), ("adapter-dim", 128), ("vocab-size", 8000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tokens", type=int, default=4096, help="per update")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--many", type=int, default=64, help="languages of the larger case")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    import fairseq  # noqa: F401  (the registries fill when the host is there)

    import fairseq_interference

    args = parse(argv)
    fairseq_interference.register()
    torch.set_num_threads(args.threads)
    setting = f"{args.layers} x {args.dim} / {args.adapter_dim}, {args.tokens} tokens, {args.threads} threads"
    pairs = {
        "routing": [("xlm_joint", "xlm_joint", 4), ("xlm_adpt, 4", "xlm_adpt", 4)],
        "languages": [("xlm_adpt, 4", "xlm_adpt", 4), (f"xlm_adpt, {args.many}", "xlm_adpt", args.many)],
    }
    result: dict[str, Any] = {"setting": setting, "torch": torch.__version__}
    for name, pair in pairs.items():
        if args.only in (None, name):
            print(f"{name}: {setting}")
            result[name] = compare([make_case(*case, args) for case in pair], args)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
