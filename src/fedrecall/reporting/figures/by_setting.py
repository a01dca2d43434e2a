"""Accuracy by setting: against a number, in bars, and on a grid of two settings."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator
from pydantic import Field

from fedrecall.config.section import Section
from fedrecall.errors import UserError
from fedrecall.reporting.figures.curves import legend_handle
from fedrecall.reporting.figures.heatmaps import colour_bar, heatmap
from fedrecall.reporting.figures.layout import (
    PERCENT,
    TICK_STEPS,
    add_title_legend_notes,
    new_figure,
    panels,
    set_panel_title,
    text_width,
    truncate_text,
    wrap_text,
)
from fedrecall.reporting.figures.series import (
    MissingData,
    Selection,
    accuracy_over_seeds,
    column_positions,
    finished_runs,
    seeds_note,
    select,
)
from fedrecall.reporting.figures.style import COLUMN_WIDTH, PAGE_WIDTH, SMALL, TEXT_COLOUR, distinct_styles
from fedrecall.studies.results import StudyResults
from fedrecall.studies.statistics import MeanStd

Accuracy = Literal["final", "best", "last10"]

ACCURACY_LABELS = {
    "final": "final accuracy (%)",
    "best": "best accuracy (%)",
    "last10": "accuracy, last ten evaluations (%)",
}

HATCHES = ("", "//////", "......", "xxxxxx", "\\\\\\\\\\\\")

PRINTED_LABEL = "printed in the paper"


class AccuracyTable:
    """Accuracies of a study by row and column, and those printed in the paper, as shares."""

    def __init__(self, results: StudyResults, measure: Accuracy | None, rows: Selection, columns: Selection) -> None:
        self.measure = measure or results.study.measure
        found = finished_runs(results, rows, columns)
        spreads = {key: accuracy_over_seeds(runs, self.measure) for key, runs in found.items()}
        self.cells: dict[tuple[str, str], MeanStd] = {
            key: spread for key, spread in spreads.items() if spread is not None
        }
        if not self.cells:
            raise MissingData("report.no_finished_run", "no run finished without divergence and was evaluated")
        self.rows = list(dict.fromkeys(row for row, _ in self.cells))
        self.columns = select(results.study.columns, columns, "column")
        diverged = any(run.diverged for runs in found.values() for run in runs)
        self._seeds = [range(spread.seeds) for spread in self.cells.values()]
        self._notes = [*results.study.scale_note(), *(["diverged runs are excluded"] if diverged else [])]
        position = {column: i for i, column in enumerate(results.study.columns)}
        printed = results.study.printed.get(self.measure, {})
        self.printed: dict[tuple[str, str], float] = {
            (row, column): float(value) / 100
            for row, line in printed.items()
            for column in self.columns
            if isinstance(value := line[position[column]], int | float) and row in self.rows
        }

    def notes(self, statistic: str = "mean and standard deviation") -> list[str]:
        """Return the notes below a figure: seeds behind the statistic, scaled rounds, excluded runs."""
        return [seeds_note(self._seeds, statistic), *self._notes]


def accuracy_by_number(
    results: StudyResults,
    *,
    x: Sequence[float],
    title: str = "",
    xlabel: str = "",
    log: bool = False,
    measure: Accuracy | None = None,
    rows: Selection = None,
    columns: Selection = None,
) -> Figure:
    """Draw accuracy against the columns' numbers, one line per row, with bars of one deviation."""
    at = column_positions(results.study.columns, columns, x)
    numbers = AccuracyTable(results, measure, rows, list(at))
    styles = distinct_styles(numbers.rows)
    figure, (axes,) = panels(1, height=2.2)
    for row in numbers.rows:
        points = sorted((at[c], s.mean, s.deviation or 0.0) for (r, c), s in numbers.cells.items() if r == row)
        values, means, deviations = (np.array(part) for part in zip(*points, strict=True))
        style = styles[row]
        axes.plot(values, means, color=style.colour, linestyle=style.line, marker=style.marker, markeredgewidth=0)
        if deviations.any():
            axes.errorbar(values, means, yerr=deviations, fmt="none", ecolor=style.colour, elinewidth=0.8, capsize=1.5)
        printed = [(at[c], value) for (r, c), value in numbers.printed.items() if r == row]
        if printed:
            axes.plot(
                *zip(*printed, strict=True), color=style.colour, marker=style.marker, fillstyle="none", linestyle=""
            )
    ticks = sorted(set(at.values()))
    if log:
        axes.set_xscale(
            "log" if ticks[0] > 0 else "symlog", **({} if ticks[0] > 0 else {"linthresh": _smallest_positive(ticks)})
        )
        axes.xaxis.set_minor_locator(NullLocator())
    if len(ticks) <= 8 and (log or _labels_fit(ticks)):
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS, min_n_ticks=3))
    axes.yaxis.set_major_formatter(PERCENT)
    axes.set(xlabel=xlabel, ylabel=ACCURACY_LABELS[numbers.measure])
    legend: list[tuple[str, Artist]] = [(row, legend_handle(styles[row])) for row in numbers.rows]
    if numbers.printed:
        legend.append((PRINTED_LABEL, Line2D([], [], color=TEXT_COLOUR, marker="o", fillstyle="none", linestyle="")))
    return add_title_legend_notes(figure, title=title, legend=legend, notes=numbers.notes())


def accuracy_bars(
    results: StudyResults,
    *,
    title: str = "",
    measure: Accuracy | None = None,
    rows: Selection = None,
    columns: Selection = None,
) -> Figure:
    """Draw one group of bars per column and one bar per row; a line across a bar is the printed number."""
    numbers = AccuracyTable(results, measure, rows, columns)
    styles = distinct_styles(numbers.rows)
    hatches = _hatches([styles[row].colour for row in numbers.rows])
    narrow = len(numbers.columns) * len(numbers.rows) <= 12
    figure = new_figure(COLUMN_WIDTH if narrow else PAGE_WIDTH, 2.3)
    axes = figure.subplots()
    width = 0.84 / len(numbers.rows)
    legend: list[tuple[str, Artist]] = []
    for i, (row, hatch) in enumerate(zip(numbers.rows, hatches, strict=True)):
        patch: dict[str, Any] = {
            "facecolor": styles[row].colour,
            "hatch": hatch,
            "edgecolor": "white",
            "linewidth": 0.4,
        }
        legend.append((row, Patch(**patch)))
        for group, column in enumerate(numbers.columns):
            position = group + (i + 0.5) * width - 0.42
            if (row, column) in numbers.cells:
                cell = numbers.cells[row, column]
                axes.bar(position, cell.mean, width=0.94 * width, **patch)
                if cell.deviation is not None:
                    axes.errorbar(
                        position, cell.mean, yerr=cell.deviation, ecolor=TEXT_COLOUR, elinewidth=0.7, capsize=1.2
                    )
            if (row, column) in numbers.printed:
                value = numbers.printed[row, column]
                axes.plot(
                    [position - width * 0.47, position + width * 0.47], [value, value], color=TEXT_COLOUR, linewidth=1.1
                )
    group_width = (float(figure.get_size_inches()[0]) - 0.7) / len(numbers.columns)
    names = ["\n".join(wrap_text(column, group_width, SMALL)) for column in numbers.columns]
    crowded = any(text_width(line, SMALL) > group_width for name in names for line in name.split("\n"))
    labels = [truncate_text(column, 1.2, SMALL) for column in numbers.columns] if crowded else names
    axes.set_xticks(range(len(labels)), labels, rotation=40 if crowded else 0, ha="right" if crowded else "center")
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.margins(x=0.01)
    axes.yaxis.set_major_formatter(PERCENT)
    axes.set_ylabel(ACCURACY_LABELS[numbers.measure])
    if numbers.printed:
        legend.append((PRINTED_LABEL, Line2D([], [], color=TEXT_COLOUR, linewidth=1.1)))
    return add_title_legend_notes(figure, title=title, legend=legend, notes=numbers.notes())


def _hatches(colours: Sequence[str]) -> list[str]:
    """Choose patterns for bars that share a colour with an earlier one."""
    return [HATCHES[colours[:i].count(colour) % len(HATCHES)] for i, colour in enumerate(colours)]


def _smallest_positive(ticks: Sequence[float]) -> float:
    """Return the smallest positive tick, below which a logarithmic axis with zero is linear."""
    return min(tick for tick in ticks if tick > 0)


def _labels_fit(ticks: Sequence[float]) -> bool:
    """Return True if labels at these ticks do not touch."""
    gaps = np.diff(ticks)
    return len(ticks) < 2 or bool(gaps.min() > 0.1 * (ticks[-1] - ticks[0]))


class Axis(Section):
    """Setting along one side of a grid, and its values in order."""

    name: str  # key in the tables of the columns, without its section
    values: Annotated[tuple[float, ...], Field(strict=False, min_length=1)]


def accuracy_grid(
    results: StudyResults, *, x: Axis, y: Axis, title: str = "", measure: Accuracy | None = None, rows: Selection = None
) -> Figure:
    """Draw one heat map per row; the values that a column sets determine its cell."""
    numbers = AccuracyTable(results, measure, rows, None)
    positions = {
        column: (_position(tables, x), _position(tables, y)) for column, tables in results.study.columns.items()
    }
    figure, axes = panels(len(numbers.rows), height=2.3)
    low = min(spread.mean for spread in numbers.cells.values())
    high = max(spread.mean for spread in numbers.cells.values())
    width = COLUMN_WIDTH if len(axes) == 1 else PAGE_WIDTH / min(len(axes), 3)
    cell = ((width - 1.0) / len(x.values), 1.6 / len(y.values))
    for panel, row in zip(axes, numbers.rows, strict=True):
        table = np.full((len(y.values), len(x.values)), np.nan)
        for column, (i, j) in positions.items():
            if (row, column) in numbers.cells:
                table[j, i] = numbers.cells[row, column].mean
        image = heatmap(panel, table, limits=(low, high), write=lambda share: f"{100 * share:.1f}", cell=cell)
        panel.invert_yaxis()
        panel.set_xticks(range(len(x.values)), [f"{value:g}" for value in x.values])
        panel.set_yticks(range(len(y.values)), [f"{value:g}" for value in y.values])
        panel.set(xlabel=x.name, ylabel=y.name)
        if len(numbers.rows) > 1:
            set_panel_title(panel, row)
    colour_bar(figure, image, axes, ACCURACY_LABELS[numbers.measure])
    return add_title_legend_notes(figure, title=title, notes=numbers.notes("mean"))


def _position(tables: Mapping[str, Any], axis: Axis) -> int:
    """Return the position on an axis of the value that a column sets."""
    for name, value in _flat_items(tables):
        if name == axis.name and value in axis.values:
            return axis.values.index(value)
    text = f"{axis.name}: a column of the study sets none of the values {', '.join(map(str, axis.values))}"
    raise UserError("report.invalid_option", text, axis.name, "add the value of every column to the axis of the grid")


def _flat_items(tables: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """Return the (key, value) pairs of nested tables at any depth."""
    out: list[tuple[str, Any]] = []
    for name, value in tables.items():
        out += _flat_items(value) if isinstance(value, Mapping) else [(name, value)]
    return out
