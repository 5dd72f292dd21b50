"""Start-up of pre-training: seconds, memory and descriptors with train and valid of many languages loaded.

    python benchmarks/startup.py [--languages 50] [--lines 20000] [--folder DIR] [--json OUT]

Writes artificial token files (kept in --folder for the next run), then loads both splits in a fresh process. With
``--lines`` and four times as many, the growth shows what depends on the number of sentences: the index.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def write_data(folder: Path, languages: int, lines: int) -> list[str]:
    """Token files of ``lines`` sentences of 5 to 30 tokens for each language; files that are there stay."""
    import numpy as np
    from pretrain_world import write_dictionary

    codes = [f"l{number:02d}" for number in range(languages)]
    write_dictionary(folder / "dict.txt", [f"w{number}" for number in range(8000)])
    for number, code in enumerate(codes):
        for split, count in (("train", lines), ("valid", max(1, lines // 50))):
            prefix = folder / code / split
            if not Path(f"{prefix}.idx").is_file():
                _write(prefix, np.random.default_rng([number, count]), count)
    return codes


def _write(prefix: Path, rng: Any, count: int) -> None:
    import numpy as np
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    prefix.parent.mkdir(parents=True, exist_ok=True)
    sizes = rng.integers(5, 31, count)
    tokens = rng.integers(4, 8004, sizes.sum()).astype(np.uint16)
    tokens[np.cumsum(sizes) - 1] = 2
    tokens.tofile(f"{prefix}.bin")
    with MMapIndexedDataset.Index.writer(f"{prefix}.idx", np.uint16) as index:
        index.write(sizes.tolist())


def load(folder: Path, codes: Sequence[str]) -> dict[str, Any]:
    """Load both splits and cut the batches of an epoch; what that took beyond the imports."""
    import fairseq_interference

    fairseq_interference.register()
    from pretrain_world import make_task

    with tempfile.TemporaryDirectory() as save_dir:
        before = _memory()
        begin = time.perf_counter()
        task = make_task(folder, save_dir, "--langs", ",".join(codes), "--tokens-per-sample", 256)
        task.load_dataset("valid")
        task.load_dataset("train")
        loaded = time.perf_counter() - begin
        task.get_batch_iterator(task.dataset("train"), max_sentences=32)
    return {
        "seconds_to_load": round(loaded, 3),
        "seconds_to_first_batch": round(time.perf_counter() - begin, 3),
        "megabytes_beyond_imports": round(_memory() - before, 1),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "blocks": len(task.dataset("train")),
    }


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(folder: Path, languages: int, lines: int) -> dict[str, Any]:
    """Write the data here, load it in a fresh process."""
    folder = folder / f"{languages}x{lines}"
    codes = write_data(folder, languages, lines)
    command = [sys.executable, __file__, "--load", str(folder), "--codes", ",".join(codes)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode != 0:
        raise SystemExit(done.stderr[-4000:])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"languages": languages, "lines": lines, **result}


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--languages", type=int, default=50)
    parser.add_argument("--lines", type=int, default=20000)
    parser.add_argument("--growth", type=int, default=4, help="measure this many times the lines too; 1: not")
    parser.add_argument("--folder", help="where the data is kept")
    parser.add_argument("--json", help="write the result here")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--codes", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.load:
        print(json.dumps(load(Path(args.load), args.codes.split(","))))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary)
        factors = [1] if args.growth == 1 else [1, args.growth]
        results = [measure(folder, args.languages, args.lines * factor) for factor in factors]
    print(json.dumps(results, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
