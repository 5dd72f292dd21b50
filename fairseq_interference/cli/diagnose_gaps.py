"""``diagnose gaps``: the transfer gap along runs of fine-tuning."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_interference.analysis import gaps
from fairseq_interference.analysis.study import Study

HELP = "the transfer gap along fine-tuning: source score less the mean of the others, over updates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the study."""
    about = "folders of fine-tuning runs with validation.jsonl; folders side by side are seeds of one setting"
    parser.add_argument("--run", nargs="+", type=Path, required=True, metavar="SAVE_DIR", help=about)
    parser.add_argument("--source", metavar="CODE", help="source language (default: the one that was trained on)")


def run(args: argparse.Namespace) -> Study:
    """Read the runs; nothing is computed that would have to resume."""
    return gaps.study(args.run, args.source)
