"""``index.md``: every figure of a folder of studies, each with a sentence on how to read it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Union

from fairseq_interference.analysis import plots
from fairseq_interference.analysis.study import Study, read_study
from fairseq_interference.stages import write_text

#: study -> module of this package with ``TITLE`` and ``figures(study) -> list[plots.Figure]``, in the order shown
STUDIES: dict[str, str] = {"cka": "cka", "gaps": "gaps"}
INDEX, FIGURES = "index.md", "figures"


def module_of(name: str) -> Any:
    """The module that knows a study's figures."""
    return importlib.import_module(f"fairseq_interference.analysis.{STUDIES[name]}")


def write_index(out: Union[str, Path], figures: bool = True) -> Path:
    """Draw the figures of every study in a folder from its files, and write ``index.md``.

    Args:
        figures: False writes tables' names only.
    """
    out = Path(out)
    parts = ["# Diagnosis\n"]
    for name in STUDIES:
        path = out / name / f"{name}.json"
        if path.is_file():
            parts.append(_section(read_study(path), out, figures))
    if len(parts) == 1:
        parts.append("There is no study in this folder yet.\n")
    write_text(out / INDEX, "\n".join(parts))
    return out / INDEX


def _section(study: Study, out: Path, figures: bool) -> str:
    module = module_of(study.name)
    lines = [f"## {module.TITLE}\n", f"{_setting(study)}\n"]
    for figure in module.figures(study) if figures else ():
        try:
            plots.draw_figure(figure, out / FIGURES)
        except plots.NothingToDraw as nothing:
            lines.append(f"{figure.title}: {nothing}\n")
            print(f"no figure {figure.name}: {nothing}", file=sys.stderr)
            continue
        lines.append(f"![{figure.title}]({FIGURES}/{figure.name}.png)\n")
        lines.append(f"{figure.reading}\n")
    tables = ", ".join(f"[{table}]({study.name}/{table}.csv)" for table in study.tables)
    lines.append(f"Tables: {tables}; with the setting: [{study.name}.json]({study.name}/{study.name}.json).\n")
    return "\n".join(lines)


def _setting(study: Study) -> str:
    shown = {name: value for name, value in study.settings.items() if value not in (None, "", [], {})}
    return "Setting: " + "; ".join(f"{name} {_text(value)}" for name, value in shown.items()) + "."


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
