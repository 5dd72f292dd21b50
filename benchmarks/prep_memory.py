"""Peak memory of prepare.sh at several multiples of a corpus: it must not grow with the corpus.

    python benchmarks/prep_memory.py --megabytes 50 --multiples 1,4,16 --bpe subword-nmt
    python benchmarks/prep_memory.py --megabytes 50 --multiples 1,4,16 --bpe sentencepiece

Peak RSS is summed over the whole tree of processes (pages that they share count several times, so this is an
upper bound), sampled ten times a second. Allowed: 1 GB plus 16 bytes per distinct line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import prep_text

ROOT = Path(__file__).resolve().parent.parent
PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_memory(root: int) -> dict[int, int]:
    """Process -> resident bytes, for a process and all that descend from it."""
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        resident[int(entry.name)] = int(fields[21]) * PAGE
    wanted = {root}
    growing = True
    while growing:
        more = {process for process, parent in parents.items() if parent in wanted} - wanted
        wanted |= more
        growing = bool(more)
    return {process: resident[process] for process in wanted if process in resident}


def run(command: list[str], log: Path) -> tuple[int, int, float]:
    """Peak of the tree, peak of one process (both bytes), seconds."""
    begin = time.monotonic()
    peak = single = 0
    with open(log, "w") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
        )
        while process.poll() is None:
            found = tree_memory(process.pid)
            peak = max(peak, sum(found.values()))
            single = max([single, *found.values()])
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit(log.read_text()[-3000:])
    return peak, single, time.monotonic() - begin


def main() -> None:
    """Command line; prints one JSON object a multiple."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--megabytes", type=float, default=50.0, help="of the corpus at multiple 1, all languages together"
    )
    parser.add_argument("--multiples", default="1,4,16")
    parser.add_argument("--langs", default="en,hi")
    parser.add_argument("--bpe", default="subword-nmt")
    parser.add_argument("--tokenizer", default="none")
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the corpora go (default: a temporary folder)")
    args = parser.parse_args()
    langs = args.langs.split(",")
    for multiple in map(int, args.multiples.split(",")):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            place = Path(folder)
            size = int(args.megabytes * multiple * 1e6 / len(langs))
            lines = sum(prep_text.write(place / "raw" / f"{lang}.txt", lang, size) for lang in langs)
            command = [
                "bash",
                str(ROOT / "data_prep" / "prepare.sh"),
                "--langs",
                args.langs,
                "--raw",
                str(place / "raw"),
            ]
            command += ["--out", str(place / "bin"), "--bpe", args.bpe, "--tokenizer", args.tokenizer]
            command += ["--vocab-size", str(args.vocab_size), "--workers", str(args.workers)]
            peak, single, seconds = run(command, place / "log")
            report = json.loads((place / "bin" / "report.json").read_text())
            kept = [found["splits"] for found in report["languages"].values()]
            distinct = sum(part["lines"] for splits in kept for part in splits.values())
            result = {
                "multiple": multiple,
                "bytes": size * len(langs),
                "lines": lines,
                "distinct_lines": distinct,
                "peak_tree_megabytes": round(peak / 1e6),
                "peak_process_megabytes": round(single / 1e6),
                "allowed_megabytes": round((1e9 + 16 * distinct) / 1e6),
                "seconds": round(seconds, 1),
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
