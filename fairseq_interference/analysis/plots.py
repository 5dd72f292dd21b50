"""All figures: matplotlib without a display, colours that the colour-blind can tell apart, PNG and PDF.

Bars are in the order of the table's languages; a missing value is written as such, never drawn as 0.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from fairseq_interference.errors import DataError
from fairseq_interference.evaluation.report_cells import Table

# Okabe and Ito 2008, without yellow (too light on white); hatches repeat the distinction in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++")

Bar = tuple[Optional[float], Optional[float]]  # height, sd: None where missing


def require() -> None:
    """Raise unless figures can be drawn.

    Raises:
        DataError: matplotlib is missing; says what to install.
    """
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise DataError(
            "Figures need matplotlib, which is not installed.",
            value=str(error),
            next_step="pip install 'fairseq-interference[plot]' (or: pip install matplotlib), then report again",
        ) from error


def _pyplot() -> Any:
    require()
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.pdf`` through temporary names; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind, stamp in (("png", {"Software": None}), ("pdf", {"CreationDate": None, "Producer": None})):
        path = folder / f"{name}.{kind}"
        temporary = folder / f"{name}.{os.getpid()}.tmp"
        figure.savefig(temporary, format=kind, dpi=150, metadata=stamp)
        temporary.replace(path)
        paths.append(path)
    return paths


def bars(
    groups: Sequence[str], series: Mapping[str, Sequence[Bar]], title: str, ylabel: str, folder: Path, name: str
) -> list[Path]:
    """Grouped bars with error bars.

    Args:
        groups: labels on the x axis, in order.
        series: label -> one (height, sd) per group; height None is marked as missing, sd None has no error bar.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(max(4.5, 1.1 * len(groups) + 1.5), 3.6), layout="constrained")
    width = 0.8 / max(1, len(series))
    for number, (label, values) in enumerate(series.items()):
        colour, hatch = COLOURS[number % len(COLOURS)], HATCHES[number % len(HATCHES)]
        places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(groups))]
        shown = [(x, height, sd) for x, (height, sd) in zip(places, values) if height is not None]
        axes.bar(
            [x for x, _, _ in shown],
            [height for _, height, _ in shown],
            width * 0.92,
            label=label,
            color=colour,
            hatch=hatch,
            edgecolor="white",
        )
        for x, height, sd in shown:
            if sd is not None:
                axes.errorbar(x, height, yerr=sd, color="black", capsize=2, linewidth=1)
        for x, value in zip(places, values):
            if value[0] is None:
                axes.annotate("missing", (x, 0), rotation=90, ha="center", va="bottom", fontsize=7, color="grey")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7)
    paths = save(figure, folder, name)
    plt.close(figure)
    return paths


def _scaled(table: Table, value: Optional[float], sd: Optional[float]) -> Bar:
    scale = table.shown.scale
    return (None if value is None else value * scale, None if sd is None else sd * scale)


def _unit(table: Table) -> str:
    return f"{table.shown.label}{f' ({table.shown.unit})' if table.shown.unit else ''}"


def draw(table: Table, title: str, folder: Path, name: str) -> list[Path]:
    """Figures of ``table``: difference to the monolingual model, or the scores with the transfer gap beside them."""
    differences = table.interference()
    if differences:
        series = {
            f"{column} − {table.reference}": [_scaled(table, d.value, d.sd) for d in found]
            for column, found in differences.items()
        }
        better = "up" if table.shown.higher_is_better else "down"
        heading = f"{title}\ndifference to {table.reference}, error bars: pooled sd; {better} is better"
        return bars(table.languages, series, heading, f"difference in {_unit(table)}", folder, f"interference-{name}")
    gaps = table.transfer_gap()
    groups = [*(f"{lang}\n(source)" if lang in table.source else lang for lang in table.languages)]
    series = {
        column: [_scaled(table, c.mean, c.sd) for c in (table.cell(lang, column) for lang in table.languages)]
        for column in table.columns
    }
    if gaps:
        groups.append("transfer\ngap")
        for column, gap in gaps.items():
            series[column].append(_scaled(table, gap.mean, gap.sd))
    return bars(groups, series, f"{title}\nerror bars: sample sd over seeds", _unit(table), folder, f"scores-{name}")
