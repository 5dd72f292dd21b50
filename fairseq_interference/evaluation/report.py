"""Records -> report.md, report.csv and figures. Every number is derived from a record."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from fairseq_interference.errors import DataError
from fairseq_interference.evaluation.records import Record, read_records
from fairseq_interference.evaluation.report_cells import Table
from fairseq_interference.evaluation.report_data import arch_order, build_tables, check_vocabulary
from fairseq_interference.evaluation.report_markdown import cost_section, in_no_table, section, to_csv, unfinished
from fairseq_interference.evaluation.report_words import title, words
from fairseq_interference.stages import write_text

PathLike = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Report:
    """What :func:`write_report` wrote."""

    markdown: Path
    csv: Path
    figures: tuple[Path, ...]
    sentences: tuple[str, ...]
    note: str = ""


def slug(table: Table) -> str:
    """Part of a file name that tells ``table`` from the others of a report."""
    text = "-".join([table.kind, *table.source, table.benchmark, table.split, table.metric])
    return re.sub(r"[^A-Za-z0-9-]+", "_", text)


def _draw(tables: Sequence[Table], folder: Path) -> tuple[dict[int, list[Path]], str]:
    """Number of the table -> its PNG files; and what to say if nothing can be drawn."""
    from fairseq_interference.analysis import plots

    drawn: dict[int, list[Path]] = {}
    try:
        plots.require()
    except DataError as error:
        return {}, str(error)
    used: set[str] = set()
    for number, table in enumerate(tables):
        name = slug(table)
        name = name if name not in used else f"{name}-{number}"
        used.add(name)
        drawn[number] = plots.draw(table, title(table), folder, name)
    return drawn, ""


def _left_out(records: Sequence[Record]) -> list[str]:
    return [text for text in (unfinished(records), in_no_table(records)) if text]


def render(records: Sequence[Record], tables: Sequence[Table], figures: dict[int, list[str]], note: str = "") -> str:
    """The whole of report.md; ``figures``: number of the table -> paths relative to the report."""
    parts = ["# Report", f"From {len(records)} records. A cell without a record is shown as missing."]
    parts.append("## In words")
    for table in tables:
        parts.append(f"**{title(table)}**\n\n" + "\n".join(f"* {sentence}" for sentence in words(table)))
    parts += [text for text in (*_left_out(records), note) if text]
    parts += [section(table, figures.get(number, ())) for number, table in enumerate(tables)]
    parts.append(cost_section([r for r in records if r["status"] == "done"], arch_order(records)))
    return "\n\n".join(parts) + "\n"


def write_report(results: PathLike, out: PathLike, figures: bool = True, own_vocab: bool = False) -> Report:
    """Write ``report.md``, ``report.csv`` and ``figures/*.png|pdf`` into ``out`` from the records in ``results``.

    Args:
        own_vocab: the runs may have dictionaries of their own; perplexities per token then stand in separate tables.

    Raises:
        DataError: no records, files that are no records, two runs for one cell and seed, or several dictionaries.
    """
    records, out = read_records(results), Path(out)
    if not records:
        raise DataError("There are no records here.", where=results, next_step="run/finetune_ner.sh writes them")
    if not own_vocab:
        check_vocabulary(records)
    tables = build_tables(records)
    drawn, note = _draw(tables, out / "figures") if figures else ({}, "")
    relative = {
        number: [path.relative_to(out).as_posix() for path in paths if path.suffix == ".png"]
        for number, paths in drawn.items()
    }
    write_text(out / "report.csv", to_csv(tables))
    write_text(
        out / "report.md", render(records, tables, relative, "No figures: matplotlib is missing." if note else "")
    )
    sentences = [f"{title(table)}: {sentence}" for table in tables for sentence in words(table)]
    sentences += _left_out(records)
    paths = tuple(path for group in drawn.values() for path in group)
    return Report(out / "report.md", out / "report.csv", paths, tuple(sentences), note)
