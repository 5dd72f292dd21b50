"""``report``: tables, figures and words from the records of a folder."""

from __future__ import annotations

import argparse
import sys

from fairseq_interference.errors import DONE
from fairseq_interference.evaluation.report import write_report

HELP = "make tables (Markdown, CSV), figures and a text from the records in a folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", required=True, metavar="DIR", help="folder of records (*.json)")
    parser.add_argument("--out", metavar="DIR", help="where report.md goes (default: the folder of records)")
    parser.add_argument(
        "--own-vocab", action="store_true", help="runs may have dictionaries of their own: compared per character"
    )
    parser.add_argument("--no-figures", action="store_true", help="tables and text only")


def run(args: argparse.Namespace) -> int:
    report = write_report(args.results, args.out or args.results, figures=not args.no_figures, own_vocab=args.own_vocab)
    for sentence in report.sentences:
        print(sentence)
    if report.note:
        print(report.note, file=sys.stderr)
    print(f"\nreport:  {report.markdown}\ntable:   {report.csv}")
    for path in report.figures:
        print(f"figure:  {path}")
    return DONE
