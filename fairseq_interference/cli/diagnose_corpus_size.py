"""``diagnose corpus-size``: tables and figures of models with all and with a part of a language's text."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from fairseq_interference import validation_log
from fairseq_interference.analysis import designs
from fairseq_interference.analysis.study import Row, Study
from fairseq_interference.errors import UsageError
from fairseq_interference.evaluation.paired import Arms, read_arms

HELP = "models with all and with a part of a language's text (run/diagnose.sh corpus-size trains them)"
RUN = re.compile(r"(.+)-seed(\d+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", required=True, type=Path, metavar="DIR", help="folder with a folder of records for each model"
    )
    parser.add_argument("--runs", type=Path, metavar="DIR", help="training runs, MODEL-seedN each: adds the curves")
    parser.add_argument(
        "--compare", required=True, nargs="+", metavar="LANG:MODEL:BASELINE", help="what is compared with what"
    )


def run(args: argparse.Namespace) -> Study:
    """Compare the models."""
    return Study("corpus-size", settings(args), tables(args, read_arms(args.results)))


def settings(args: argparse.Namespace) -> dict[str, object]:
    """What a study of this kind depends on."""
    return {"results": str(args.results), "runs": args.runs and str(args.runs), "compare": args.compare}


def tables(args: argparse.Namespace, arms: Arms) -> dict[str, list[Row]]:
    """Scores, differences and curves of the models."""
    comparisons = designs.parse_comparisons(args.compare, arms)
    return {
        "differences": designs.difference_rows(arms, comparisons),
        "scores": designs.score_rows(arms),
        "curves": [] if args.runs is None else curves(args.runs, arms),
    }


def curves(runs: Path, arms: Arms) -> list[Row]:
    """Validations of every run of the models, in the models' order.

    Raises:
        UsageError: no run of a model is there.
    """
    found = []
    for folder in sorted(path for path in runs.glob("*") if path.is_dir()):
        match = RUN.fullmatch(folder.name)
        if match and match[1] in arms:
            found.append((match[1], int(match[2]), folder))
    if not found:
        raise UsageError("There is no run of these models.", where="--runs", value=runs, allowed="MODEL-seedN folders")
    rows = []
    for arm, seed, folder in found:
        languages = sorted({measure.language for measure in arms[arm] if not measure.source})
        rows += designs.curve_rows(arm, seed, _validations(folder), languages)
    return rows


def _validations(folder: Path) -> Iterator[Row]:
    """Losses of every language at every validation of a run, in bits."""
    for line in validation_log.read(folder)[1]:
        losses = {f"loss_{lang}": found.get("loss_bits") for lang, found in line["metrics"].items()}
        yield {"update": line["update"], "epoch": line["epoch"], **losses}
