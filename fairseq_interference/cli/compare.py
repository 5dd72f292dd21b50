"""``compare``: arms of a study, with differences paired by seed."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_interference.errors import DONE

HELP = "compare the arms of a study (folders of records): means, and differences paired by seed with intervals"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", required=True, type=Path, metavar="DIR", help="folder with a folder of records for each arm"
    )
    parser.add_argument(
        "--baseline", required=True, metavar="ARMS", help="arms that the others are compared with: adpt,joint"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where compare.md and compare.csv go (default: --results)"
    )


def run(args: argparse.Namespace) -> int:
    from fairseq_interference.evaluation import paired
    from fairseq_interference.stages import write_text

    arms, baselines = paired.read_arms(args.results), args.baseline.split(",")
    paired.check_baselines(arms, baselines)
    out = args.out or args.results
    text = paired.to_markdown(arms, baselines)
    write_text(out / "compare.md", text)
    write_text(out / "compare.csv", paired.to_csv(arms, baselines))
    print(f"{text}\ntable:   {out / 'compare.md'}\ntable:   {out / 'compare.csv'}")
    return DONE
