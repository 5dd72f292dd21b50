"""``diagnose``: where interference and the transfer gap come from; one study a call, each into its own folder."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Optional

from fairseq_interference.analysis.index import write_index
from fairseq_interference.analysis.study import Study, write_study
from fairseq_interference.errors import DONE

HELP = "see interference: gradient conflict, masks per language, CKA, layer probes, gap curves (CSV, JSON, figures)"
OUT = "results/diagnose"
#: study -> module of this package with ``HELP``, ``add_arguments(parser)`` and ``run(args) -> Study``
STUDIES: dict[str, str] = {"cka": "diagnose_cka", "gaps": "diagnose_gaps"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One parser a study; ``index`` draws what is there."""
    studies = parser.add_subparsers(dest="study", metavar="STUDY", required=True)
    for study, name in STUDIES.items():
        module = importlib.import_module(f"fairseq_interference.cli.{name}")
        child = studies.add_parser(study, help=module.HELP, description=module.HELP)
        module.add_arguments(child)
        _common(child)
        child.add_argument("--force", action="store_true", help="begin anew where the settings differ")
        child.set_defaults(compute=module.run)
    about = "draw all figures of a folder again from its files, and write its index.md"
    _common(studies.add_parser("index", help=about, description=about))


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path(OUT), metavar="DIR", help="folder of studies [%(default)s]")
    parser.add_argument("--no-figures", action="store_true", help="tables only")


def run(args: argparse.Namespace) -> int:
    """Compute a study, write its files, draw, and say where everything is."""
    compute: Optional[Callable[[argparse.Namespace], Study]] = getattr(args, "compute", None)
    if compute is not None:
        for path in write_study(compute(args), args.out):
            print(f"table:   {path}")
    index = write_index(args.out, figures=not args.no_figures)
    print(f"index:   {index}")
    return DONE
