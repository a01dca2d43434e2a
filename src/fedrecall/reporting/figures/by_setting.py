"""Accuracy by setting: against a number, and in bars."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator
from pydantic import Field

from fedrecall.config.experiment import Section
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
    scale_note,
    seeds_note,
    select,
)
from fedrecall.reporting.figures.style import COLUMN_WIDTH, PAGE_WIDTH, SMALL, TEXT_COLOUR, distinct_styles
from fedrecall.studies.results import StudyResults
from fedrecall.studies.statistics import MeanStd

Accuracy = Literal["final", "best", "last10"]

LABELS = {"final": "final accuracy (%)", "best": "best accuracy (%)", "last10": "accuracy, last ten evaluations (%)"}

HATCHES = ("", "//////", "......", "xxxxxx", "\\\\\\\\\\\\")

PRINTED = "printed in the paper"


class AccuracyTable:
    """A study's accuracies by row and column, and those that the paper printed, as shares."""

    def __init__(self, results: StudyResults, measure: Accuracy | None, rows: Selection, columns: Selection) -> None:
        self.measure = measure or results.study.measure
        found = finished_runs(results, rows, columns)
        spreads = {place: accuracy_over_seeds(outcomes, self.measure) for place, outcomes in found.items()}
        self.cells: dict[tuple[str, str], MeanStd] = {key: s for key, s in spreads.items() if s is not None}
        if not self.cells:
            raise MissingData("report.no_finished_run", "no run finished without divergence and was evaluated")
        self.rows = list(dict.fromkeys(row for row, _ in self.cells))
        self.columns = select(results.study.columns, columns, "column")
        broke = any(outcome.diverged for outcomes in found.values() for outcome in outcomes)
        self._seeds = [range(s.seeds) for s in self.cells.values()]
        self._about = [*scale_note(results), *(["a run diverged and is left out"] if broke else [])]
        at = {column: i for i, column in enumerate(results.study.columns)}
        printed = results.study.printed.get(self.measure, {})
        self.printed: dict[tuple[str, str], float] = {
            (row, column): float(value) / 100
            for row, line in printed.items()
            for column in self.columns
            if isinstance(value := line[at[column]], int | float) and row in self.rows
        }

    def notes(self, *what: str) -> list[str]:
        """What a mean is over, and what is left out of it."""
        return [seeds_note(self._seeds, *what), *self._about]


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
    """Accuracy against the columns' numbers, one line a row, with a bar of one deviation."""
    at = column_positions(results.study.columns, columns, x)
    numbers = AccuracyTable(results, measure, rows, list(at))
    style = distinct_styles(numbers.rows)
    figure, (axes,) = panels(1, height=2.2)
    for row in numbers.rows:
        points = sorted((at[c], s.mean, s.deviation or 0.0) for (r, c), s in numbers.cells.items() if r == row)
        places, means, deviations = (np.array(part) for part in zip(*points, strict=True))
        look = style[row]
        axes.plot(places, means, color=look.colour, linestyle=look.line, marker=look.marker, markeredgewidth=0)
        if deviations.any():
            axes.errorbar(places, means, yerr=deviations, fmt="none", ecolor=look.colour, elinewidth=0.8, capsize=1.5)
        there = [(at[c], value) for (r, c), value in numbers.printed.items() if r == row]
        if there:
            axes.plot(*zip(*there, strict=True), color=look.colour, marker=look.marker, fillstyle="none", linestyle="")
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
    axes.set(xlabel=xlabel, ylabel=LABELS[numbers.measure])
    legend: list[tuple[str, Artist]] = [(row, legend_handle(style[row])) for row in numbers.rows]
    if numbers.printed:
        legend.append((PRINTED, Line2D([], [], color=TEXT_COLOUR, marker="o", fillstyle="none", linestyle="")))
    return add_title_legend_notes(figure, title=title, legend=legend, notes=numbers.notes())


def accuracy_bars(
    results: StudyResults,
    *,
    title: str = "",
    measure: Accuracy | None = None,
    rows: Selection = None,
    columns: Selection = None,
) -> Figure:
    """Groups of bars, a group for each column, a bar for each row; what the paper printed is a line across a bar."""
    numbers = AccuracyTable(results, measure, rows, columns)
    style = distinct_styles(numbers.rows)
    hatch = _hatches([style[row].colour for row in numbers.rows])
    narrow = len(numbers.columns) * len(numbers.rows) <= 12
    figure = new_figure(COLUMN_WIDTH if narrow else PAGE_WIDTH, 2.3)
    axes = figure.subplots()
    wide = 0.84 / len(numbers.rows)
    legend: list[tuple[str, Artist]] = []
    for i, (row, lines) in enumerate(zip(numbers.rows, hatch, strict=True)):
        look: dict[str, Any] = {
            "facecolor": style[row].colour,
            "hatch": lines,
            "edgecolor": "white",
            "linewidth": 0.4,
        }
        legend.append((row, Patch(**look)))
        for group, column in enumerate(numbers.columns):
            place = group + (i + 0.5) * wide - 0.42
            if (row, column) in numbers.cells:
                cell = numbers.cells[row, column]
                axes.bar(place, cell.mean, width=0.94 * wide, **look)
                if cell.deviation is not None:
                    axes.errorbar(
                        place, cell.mean, yerr=cell.deviation, ecolor=TEXT_COLOUR, elinewidth=0.7, capsize=1.2
                    )
            if (row, column) in numbers.printed:
                value = numbers.printed[row, column]
                axes.plot([place - wide * 0.47, place + wide * 0.47], [value, value], color=TEXT_COLOUR, linewidth=1.1)
    room = (float(figure.get_size_inches()[0]) - 0.7) / len(numbers.columns)
    names = ["\n".join(wrap_text(column, room, SMALL)) for column in numbers.columns]
    crowded = any(text_width(line, SMALL) > room for name in names for line in name.split("\n"))
    shown = [truncate_text(column, 1.2, SMALL) for column in numbers.columns] if crowded else names
    axes.set_xticks(range(len(shown)), shown, rotation=40 if crowded else 0, ha="right" if crowded else "center")
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.margins(x=0.01)
    axes.yaxis.set_major_formatter(PERCENT)
    axes.set_ylabel(LABELS[numbers.measure])
    if numbers.printed:
        legend.append((PRINTED, Line2D([], [], color=TEXT_COLOUR, linewidth=1.1)))
    return add_title_legend_notes(figure, title=title, legend=legend, notes=numbers.notes())


def _hatches(colours: Sequence[str]) -> list[str]:
    """Patterns for bars that share a colour with one before."""
    return [HATCHES[colours[:i].count(colour) % len(HATCHES)] for i, colour in enumerate(colours)]


def _smallest_positive(ticks: Sequence[float]) -> float:
    """The smallest number above zero: below it, a logarithmic axis that shows zero is linear."""
    return min(tick for tick in ticks if tick > 0)


def _labels_fit(ticks: Sequence[float]) -> bool:
    """Whether labels at these places would not touch."""
    gaps = np.diff(ticks)
    return len(ticks) < 2 or bool(gaps.min() > 0.1 * (ticks[-1] - ticks[0]))


class Axis(Section):
    """A setting, and those of its values that the grid has, in order."""

    name: str  # a key of the columns' tables
    values: Annotated[tuple[float, ...], Field(strict=False, min_length=1)]


def accuracy_grid(
    results: StudyResults, *, x: Axis, y: Axis, title: str = "", measure: Accuracy | None = None, rows: Selection = None
) -> Figure:
    """A heat map for each row; a column's place is given by the values that it sets."""
    numbers = AccuracyTable(results, measure, rows, None)
    settings = {column: (_setting(tables, x), _setting(tables, y)) for column, tables in results.study.columns.items()}
    figure, axes = panels(len(numbers.rows), height=2.3)
    low = min(spread.mean for spread in numbers.cells.values())
    high = max(spread.mean for spread in numbers.cells.values())
    width = COLUMN_WIDTH if len(axes) == 1 else PAGE_WIDTH / min(len(axes), 3)
    cell = ((width - 1.0) / len(x.values), 1.6 / len(y.values))
    for place, row in zip(axes, numbers.rows, strict=True):
        table = np.full((len(y.values), len(x.values)), np.nan)
        for column, (i, j) in settings.items():
            if (row, column) in numbers.cells:
                table[j, i] = numbers.cells[row, column].mean
        image = heatmap(place, table, limits=(low, high), write=lambda share: f"{100 * share:.1f}", cell=cell)
        place.invert_yaxis()
        place.set_xticks(range(len(x.values)), [f"{value:g}" for value in x.values])
        place.set_yticks(range(len(y.values)), [f"{value:g}" for value in y.values])
        place.set(xlabel=x.name, ylabel=y.name)
        if len(numbers.rows) > 1:
            set_panel_title(place, row)
    colour_bar(figure, image, axes, LABELS[numbers.measure])
    return add_title_legend_notes(figure, title=title, notes=numbers.notes("mean"))


def _setting(tables: Mapping[str, Any], axis: Axis) -> int:
    """At which value of the axis a column is."""
    for name, value in _flat_items(tables):
        if name == axis.name and value in axis.values:
            return axis.values.index(value)
    text = f"{axis.name}: a column of the study sets none of the values {', '.join(map(str, axis.values))}"
    raise UserError("report.invalid_option", text, axis.name, "add the value of every column to the axis of the grid")


def _flat_items(tables: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """All keys that have a value, with it, at any depth."""
    out: list[tuple[str, Any]] = []
    for name, value in tables.items():
        out += _flat_items(value) if isinstance(value, Mapping) else [(name, value)]
    return out
