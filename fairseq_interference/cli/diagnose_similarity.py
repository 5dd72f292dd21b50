"""``diagnose similarity``: interference and gradient conflict against how alike two languages are."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Optional

from fairseq_interference.analysis import similarity
from fairseq_interference.analysis.gradients import interval
from fairseq_interference.analysis.study import Row, Study, read_study
from fairseq_interference.cli import diagnose_corpus_size as base
from fairseq_interference.errors import DataError, UsageError
from fairseq_interference.evaluation.paired import read_arms

HELP = "one language paired with others, near and far (run/diagnose.sh similarity trains the models)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    base.add_arguments(parser)
    parser.add_argument(
        "--truth", type=Path, metavar="FILE", help="truth.json of an artificial world: the similarities"
    )
    parser.add_argument(
        "--similarity", nargs="+", default=[], metavar="LANG=S", help="similarities of real languages, as you know them"
    )
    parser.add_argument("--conflict", type=Path, metavar="DIR", help="folder of a gradients study for each model")


def run(args: argparse.Namespace) -> Study:
    """Compare the pairs, and set what was found against similarity."""
    arms = read_arms(args.results)
    tables = base.tables(args, arms)
    first = args.compare[0].split(":")[0]
    conflicts = {} if args.conflict is None else {arm: conflict_of(args.conflict / arm) for arm in arms}
    known = similarities(first, args.truth, args.similarity)
    settings = similarity.setting_rows(first, known, tables, {arm: row for arm, row in conflicts.items() if row})
    shown = {
        **base.settings(args),
        "first": first,
        "seeds": max((row["n"] for row in tables["differences"]), default=0),
    }
    return Study(
        "similarity", shown, {"settings": settings, "correlations": similarity.correlations(settings), **tables}
    )


def similarities(first: str, truth: Optional[Path], given: list[str]) -> dict[str, float]:
    """Similarity of ``first`` with other languages: of an artificial world, or given as LANG=S.

    Raises:
        DataError: no truth.json of a world. UsageError: not LANG=S.
    """
    found: dict[str, float] = {}
    if truth is not None:
        try:
            pairs = json.loads(truth.read_text(encoding="utf-8"))["pairs"]
        except (OSError, ValueError, KeyError) as error:
            raise DataError("This is no truth.json of a world.", where=truth, value=str(error)) from None
        for pair, values in pairs.items():
            one, other = pair.split(":")
            if first in (one, other):
                found[other if one == first else one] = values["similarity"]["achieved"]
    for text in given:
        lang, _, value = text.partition("=")
        try:
            found[lang] = float(value)
        except ValueError:
            raise UsageError("This is no similarity.", where="--similarity", value=text, allowed="LANG=S") from None
    return found


def conflict_of(folder: Path) -> Optional[Row]:
    """Cosine between the languages of a model of two, over its seeds, from its gradients study; None without one."""
    path = folder / "gradients" / "gradients.json"
    if not path.is_file():
        return None
    rows = [row for row in read_study(path).tables["summary"] if row["one"] != row["other"]]
    if len({(row["one"], row["other"]) for row in rows}) != 1:
        return None
    return interval(row["mean"] for row in rows)._asdict()
