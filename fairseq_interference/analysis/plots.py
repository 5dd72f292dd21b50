"""All figures: matplotlib without a display, colours that the colour-blind can tell apart, PNG and PDF.

Bars are in the order of the table's languages; a missing value is written as such, never drawn as 0. Studies describe
their figures (:class:`Lines`, :class:`Heat`, :class:`Points`) from their files; a panel is as wide as a paper's column.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from fairseq_interference.errors import DataError
from fairseq_interference.evaluation.report_cells import Table

# Okabe and Ito 2008, without yellow (too light on white); hatches repeat the distinction in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++")

Bar = tuple[Optional[float], Optional[float]]  # height, sd: None where missing
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", ":", "-.")
PANEL = (3.4, 2.6)  # inches: a column of a paper
BIG = 12  # rows or columns of a heat map that has no numbers in its cells any more


class NothingToDraw(Exception):
    """A figure without a single value: says why; an empty panel is never drawn."""


@dataclass(frozen=True)
class Curve:
    """A line: places, heights (None breaks it), and the ends of its interval where there is one."""

    x: Sequence[float]
    y: Sequence[Optional[float]]
    low: Optional[Sequence[Optional[float]]] = None
    high: Optional[Sequence[Optional[float]]] = None


@dataclass(frozen=True)
class Lines:
    """Curves in one panel; ``zero`` marks the height 0, ``integers`` puts ticks at whole numbers only."""

    title: str
    curves: Mapping[str, Curve]
    xlabel: str
    ylabel: str
    zero: bool = False
    integers: bool = False


@dataclass(frozen=True)
class Heat:
    """A matrix in one panel; ``values[row][column]``, None is crossed out.

    ``centre`` is the value of the neutral colour (a diverging scale, symmetric around it); None: light to dark.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[Optional[float]]]
    label: str
    centre: Optional[float] = 0.0
    xlabel: str = ""
    ylabel: str = ""


@dataclass(frozen=True)
class Points:
    """Named points in one panel: name -> (x, y, half-width of y's interval or None)."""

    title: str
    points: Mapping[str, tuple[float, float, Optional[float]]]
    xlabel: str
    ylabel: str
    zero: bool = False


@dataclass(frozen=True)
class Intervals:
    """Rows of differences around 0: name -> (mean, low, high); low and high None without an interval."""

    title: str
    rows: Mapping[str, tuple[float, Optional[float], Optional[float]]]
    xlabel: str
    ylabel: str = ""


Panel = Union[Lines, Heat, Points, Intervals]


@dataclass(frozen=True)
class Figure:
    """What a study wants drawn.

    Attributes:
        name: of the files, without suffix; begins with the study's name.
        title: above the panels; says the sample size.
        reading: a sentence on how to read it.
        panels: side by side; lines of the same names share colours and one legend.
        columns: panels in a row.
    """

    name: str
    title: str
    reading: str
    panels: Sequence[Panel]
    columns: int = 2


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
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # a module of the host turns every logger to DEBUG
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


# -- figures of studies -------------------------------------------------------------------------------------------


def draw_figure(figure: Figure, folder: Path) -> list[Path]:
    """Draw a figure as ``NAME.png`` and ``NAME.pdf``; panels without a value are left out.

    Raises:
        NothingToDraw: no panel has a value.
    """
    panels = [panel for panel in figure.panels if _has_values(panel)]
    if not panels:
        raise NothingToDraw("no value to draw")
    plt = _pyplot()
    columns = min(figure.columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    heights = [max(_height(panel) for panel in panels[row * columns : (row + 1) * columns]) for row in range(rows)]
    names = list(dict.fromkeys(name for panel in panels if isinstance(panel, Lines) for name in panel.curves))
    legend_rows = math.ceil(len(names) / _legend_columns(names, columns)) if len(names) > 1 else 0
    size = (
        PANEL[0] * max(columns, _width(panels)),
        sum(heights) + 0.16 * legend_rows + 0.18 * (figure.title.count("\n") + 1),
    )
    canvas, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, height_ratios=heights)
    for place, panel in zip(axes.flat, panels):
        _DRAW[type(panel)](place, panel, names)
        place.set_title(panel.title, fontsize=8)
        place.tick_params(labelsize=7)
    for place in list(axes.flat)[len(panels) :]:
        place.set_axis_off()
    canvas.suptitle(figure.title, fontsize=8)
    if legend_rows:
        handles = [
            plt.Line2D([], [], color=_colour(number), marker=_marker(number), linestyle=_dash(number), markersize=3)
            for number in range(len(names))
        ]
        canvas.legend(handles, names, loc="outside lower center", ncols=_legend_columns(names, columns), fontsize=7)
    paths = save(canvas, folder, figure.name)
    plt.close(canvas)
    return paths


def _legend_columns(names: Sequence[str], columns: int) -> int:
    widest = max(len(name) for name in names)
    return max(1, min(len(names), int(columns * 52 / (widest + 8))))


def _has_values(panel: Panel) -> bool:
    if isinstance(panel, Lines):
        return any(y is not None for curve in panel.curves.values() for y in curve.y)
    if isinstance(panel, Heat):
        return any(value is not None for row in panel.values for value in row)
    return bool(panel.rows if isinstance(panel, Intervals) else panel.points)


def _height(panel: Panel) -> float:
    if isinstance(panel, Intervals):
        return 0.22 * len(panel.rows) + 0.9
    return max(PANEL[1], 0.2 * len(panel.rows) + 0.9) if isinstance(panel, Heat) else PANEL[1]


def _width(panels: Sequence[Panel]) -> int:
    """Columns of a paper that one panel needs: two where rows have long names."""
    names = [name for panel in panels if isinstance(panel, Intervals) for name in panel.rows]
    return 2 if any(len(name) > 12 for name in names) else 1


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _marker(number: int) -> str:
    return MARKERS[number % len(MARKERS)]


def _dash(number: int) -> str:
    return DASHES[number // len(COLOURS) % len(DASHES)]


def _labels(place: Any, panel: Any) -> None:
    place.set_xlabel(panel.xlabel, fontsize=8)
    place.set_ylabel(panel.ylabel, fontsize=8)


def _numbers(values: Sequence[Optional[float]]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _draw_lines(place: Any, panel: Lines, names: Sequence[str]) -> None:
    for label, curve in panel.curves.items():
        number = names.index(label)
        place.plot(
            curve.x,
            _numbers(curve.y),
            color=_colour(number),
            marker=_marker(number),
            linestyle=_dash(number),
            markersize=3,
            linewidth=1.2,
        )
        if curve.low is not None and curve.high is not None:
            place.fill_between(
                curve.x, _numbers(curve.low), _numbers(curve.high), color=_colour(number), alpha=0.18, linewidth=0
            )
    if panel.zero:
        place.axhline(0, color="black", linewidth=0.8)
    if panel.integers:
        ticker = importlib.import_module("matplotlib.ticker")
        place.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, min_n_ticks=1))
    _labels(place, panel)


def _draw_heat(place: Any, panel: Heat, names: Sequence[str]) -> None:
    values = [_numbers(row) for row in panel.values]
    known = [value for row in values for value in row if not math.isnan(value)]
    if panel.centre is None:
        scale = {"cmap": "cividis", "vmin": min(known), "vmax": max(known)}
    else:
        reach = max(abs(value - panel.centre) for value in known) or 1.0
        scale = {"cmap": "PuOr", "vmin": panel.centre - reach, "vmax": panel.centre + reach}
    image = place.imshow(values, aspect="auto", **scale)
    place.set_xticks(range(len(panel.columns)), list(panel.columns), rotation=45 if _is_wide(panel.columns) else 0)
    place.set_yticks(range(len(panel.rows)), list(panel.rows))
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if math.isnan(value):
                place.text(column, row, "×", ha="center", va="center", fontsize=7, color="grey")
            elif max(len(panel.rows), len(panel.columns)) <= BIG:
                red, green, blue, _ = image.cmap(image.norm(value))
                ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
                place.text(column, row, _short(value), ha="center", va="center", fontsize=6, color=ink)
    bar = place.figure.colorbar(image, ax=place)
    bar.set_label(panel.label, fontsize=7)
    bar.ax.tick_params(labelsize=7)
    _labels(place, panel)


def _is_wide(labels: Sequence[str]) -> bool:
    return sum(len(label) + 1 for label in labels) > 26


def _short(value: float) -> str:
    """Three digits, the sign kept."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"


def _draw_points(place: Any, panel: Points, names: Sequence[str]) -> None:
    for number, (name, (x, y, half)) in enumerate(panel.points.items()):
        place.errorbar(
            x,
            y,
            yerr=half,
            color=_colour(number),
            marker=_marker(number),
            markersize=4,
            capsize=2,
            linewidth=1,
        )
        place.annotate(name, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
    if panel.zero:
        place.axhline(0, color="black", linewidth=0.8)
    place.margins(x=0.15, y=0.15)
    _labels(place, panel)


def _draw_intervals(place: Any, panel: Intervals, names: Sequence[str]) -> None:
    for number, (mean, low, high) in enumerate(panel.rows.values()):
        sure = low is not None and high is not None and low * high > 0
        if low is not None and high is not None:
            place.plot([low, high], [number, number], color=COLOURS[0], linewidth=1.2)
        place.plot(
            [mean], [number], color=COLOURS[0], marker="o", markersize=4, markerfacecolor=None if sure else "white"
        )
    place.axvline(0, color="black", linewidth=0.8)
    place.set_yticks(range(len(panel.rows)), list(panel.rows))
    place.set_ylim(len(panel.rows) - 0.5, -0.5)
    _labels(place, panel)


_DRAW: dict[type, Any] = {Lines: _draw_lines, Heat: _draw_heat, Points: _draw_points, Intervals: _draw_intervals}
