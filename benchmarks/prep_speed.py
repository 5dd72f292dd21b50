"""Seconds of prepare.sh against the libraries' own commands run by hand on the same text.

    python benchmarks/prep_speed.py --megabytes 4 --langs en,ru,hi,sw --repeat 5 --workers 1
    python benchmarks/prep_speed.py --raw FOLDER --langs en,hi          # LANG.txt of your own

By hand means: ``sacremoses tokenize``, ``subword-nmt learn-bpe`` and ``apply-bpe``, ``subword-nmt get-vocab`` as
dictionary, one ``fairseq-preprocess`` a language; text is cut into splits with ``head`` and ``tail``. It cleans
nothing, drops no duplicates, and keeps no report. Runs are interleaved; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import prep_text

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def by_hand(raw: Path, langs: list[str], out: Path, vocab: int, workers: int, held: int) -> str:
    """A shell script of the libraries' own commands."""
    tool = {name: shlex.quote(str(BIN / name)) for name in ("sacremoses", "subword-nmt", "fairseq-preprocess")}
    lines = ["set -euo pipefail", f"mkdir -p {out}"]
    for lang in langs:
        text = f"{out}/{lang}"
        lines.append(f"{tool['sacremoses']} -q -l {lang} -j {workers} tokenize < {raw}/{lang}.txt > {text}.tok")
        lines.append(f"head -n {held} {text}.tok > {text}.valid; tail -n {held} {text}.tok > {text}.test")
        lines.append(f"tail -n +{held + 1} {text}.tok | head -n -{held} > {text}.train")
    every = " ".join(f"{out}/{lang}.train" for lang in langs)
    lines.append(f"cat {every} > {out}/all.train")
    learn = f"learn-bpe --num-workers {workers} -t -s {vocab} -i {out}/all.train -o {out}/codes"
    lines.append(f"{tool['subword-nmt']} {learn} 2> /dev/null")
    for lang in langs:
        for split in ("train", "valid", "test"):
            name = f"{out}/{lang}.{split}"
            apply = f"apply-bpe --num-workers {workers} -c {out}/codes -i {name} -o {name}.bpe"
            lines.append(f"{tool['subword-nmt']} {apply} 2> /dev/null")
    pieces = " ".join(f"{out}/{lang}.train.bpe" for lang in langs)
    lines.append(f"cat {pieces} | {tool['subword-nmt']} get-vocab > {out}/dict.txt")
    for lang in langs:
        prefixes = " ".join(f"--{split}pref {out}/{lang}.{split}.bpe" for split in ("train", "valid", "test"))
        options = f"--only-source --srcdict {out}/dict.txt {prefixes} --destdir {out}/bin/{lang} --workers {workers}"
        lines.append(f"{tool['fairseq-preprocess']} {options} > /dev/null 2>&1")
    return "\n".join(lines)


def timed(command: list[str]) -> float:
    """Seconds of a command that must succeed."""
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable})
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)[:300]}\n{done.stderr[-2000:]}")
    return time.monotonic() - begin


def main() -> None:
    """Command line; prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--langs", default="en,ru,hi,sw")
    parser.add_argument("--megabytes", type=float, default=1.0, help="of generated text per language")
    parser.add_argument("--raw", type=Path, help="folder with LANG.txt instead of generated text")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    langs = args.langs.split(",")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        raw = args.raw or place / "raw"
        if args.raw is None:
            for lang in langs:
                prep_text.write(raw / f"{lang}.txt", lang, int(args.megabytes * 1e6))
        size = sum((raw / f"{lang}.txt").stat().st_size for lang in langs)
        seconds: dict[str, list[float]] = {"prepare.sh": [], "by hand": []}
        options = ["--vocab-size", str(args.vocab_size), "--temperature", "1", "--workers", str(args.workers)]
        options += ["--valid-lines", "500", "--test-lines", "500", "--bpe-sample", "100000000"]
        for number in range(args.repeat):
            ours, theirs = place / "ours", place / "theirs"
            command = ["bash", str(ROOT / "data_prep" / "prepare.sh"), "--langs", args.langs, "--raw", str(raw)]
            runs = {
                "prepare.sh": [*command, "--out", str(ours), *options],
                "by hand": ["bash", "-c", by_hand(raw, langs, theirs, args.vocab_size, args.workers, 500)],
            }
            for name in sorted(runs, reverse=bool(number % 2)):
                seconds[name].append(round(timed(runs[name]), 2))
                print(f"run {number + 1}: {name}: {seconds[name][-1]} s", file=sys.stderr, flush=True)
            for path in (ours, theirs, ours.with_name("ours.work")):
                shutil.rmtree(path, ignore_errors=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "bytes": size,
        "languages": len(langs),
        "workers": args.workers,
        "seconds": seconds,
        "medians": medians,
        "ratio": round(medians["prepare.sh"] / medians["by hand"], 3),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
