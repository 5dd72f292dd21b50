"""Command line: one file per verb. A verb parses, calls, prints and returns an exit code.

Each file defines ``HELP`` (one line), ``add_arguments(parser)`` and ``run(args) -> int``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Optional

from fairseq_interference import __version__
from fairseq_interference.errors import exit_code

# verb -> module of this package
VERBS = {
    "doctor": "doctor",
    "where": "where",
    "list": "list_names",
    "params": "params",
    "check": "check",
    "status": "status",
    "predict": "predict",
    "evaluate": "evaluate",
    "report": "report",
    "compare": "compare",
    "convert": "convert",
    "diagnose": "diagnose",
}


def build_parser(only: Optional[str] = None) -> argparse.ArgumentParser:
    """The parser; with ``only`` the other verbs are named but not imported."""
    parser = argparse.ArgumentParser(prog="fairseq-interference", description=__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, name in VERBS.items():
        if only is not None and verb != only:
            verbs.add_parser(verb, add_help=False)
            continue
        module = importlib.import_module(f"fairseq_interference.cli.{name}")
        child = verbs.add_parser(verb, help=module.HELP, description=module.HELP)
        module.add_arguments(child)
        child.set_defaults(run=module.run)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one verb. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    only = argv[0] if argv and argv[0] in VERBS else None
    args = build_parser(only).parse_args(argv)
    return exit_code(f"fairseq-interference {args.verb}", lambda: int(args.run(args)))
