"""Peak memory of the bilevel step beyond a plain step: at most 2 |theta| + 3 |phi of present languages| + token ids.

    python benchmarks/meta_memory.py [--layers 8 --dim 512] [--languages 2,16] [--updates 14]

Every run is a process of its own; its peak is the kernel's (ru_maxrss). Twelve updates on small batches, so that the
inner rule is Adam's, then two of full size. glibc is told to hand back what is freed (MALLOC_MMAP_THRESHOLD_), so that
the peak is that of the memory in use; with ``--retain`` it keeps and scatters as it likes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import meta_step
import torch

PLAIN, DEFAULT = "plain", "simultaneous + one_sided"
NAMES = (PLAIN, DEFAULT, "paper + one_sided", meta_step.REFERENCE)
MIB = 2**20


def one(name: str, languages: int, args: argparse.Namespace) -> None:
    """Run updates of a setting and print its peak and sizes, in bytes."""
    import fairseq  # noqa: F401  (the registries fill when the host is there)

    import fairseq_interference

    fairseq_interference.register()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        task, trainer = meta_step.make_trainer(
            meta_step.write_data(Path(folder) / "data", languages, args), name, languages, args
        )
        few = argparse.Namespace(**{**vars(args), "tokens": args.length * languages})
        for number in range(args.updates):
            size = few if number < args.updates - 2 else args
            trainer.train_step([meta_step.batch_of(task, 0, languages, size)])
    sizes = {"shared": 0, "specific": 0}
    for parameter in trainer.get_model().parameters():
        shared = parameter.optim_overrides["interference"]["lang"] is None
        sizes["shared" if shared else "specific"] += 4 * parameter.numel()
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, **sizes}))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("threads", 2), ("layers", 8), ("dim", 512), ("adapter-dim", 128), ("updates", 14)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=4096, help="per update")
    parser.add_argument("--length", type=int, default=64, help="tokens of a block")
    parser.add_argument("--languages", default="2,16")
    parser.add_argument("--retain", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        one(args.one, int(args.languages), args)
        return 0
    for languages in args.languages.split(","):
        found = {}
        for name in NAMES:
            again = [sys.executable, __file__, *argv, "--one", name, "--languages", languages]
            environment = dict(os.environ) if args.retain else {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
            done = subprocess.run(
                again, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
            )
            found[name] = json.loads(done.stdout.splitlines()[-1])
        sizes = found[DEFAULT]
        allowed = 2 * sizes["shared"] + 3 * sizes["specific"] + 2 * 4 * 8 * args.tokens
        print(
            f"{args.layers} x {args.dim}, {languages} languages: plain {found[PLAIN]['peak'] / MIB:.0f} MiB", flush=True
        )
        for name in NAMES[1:]:
            beyond = found[name]["peak"] - found[PLAIN]["peak"]
            print(f"  {name:<26} {beyond / MIB:+6.0f} MiB (allowed {allowed / MIB:.0f})", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
