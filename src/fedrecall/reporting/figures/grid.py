"""Accuracy over a grid of two settings."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from matplotlib.figure import Figure
from pydantic import Field

from fedrecall.config.experiment import Section
from fedrecall.errors import UserError
from fedrecall.reporting.figures.by_setting import LABELS, Accuracy, AccuracyTable
from fedrecall.reporting.figures.heatmaps import colour_bar, heatmap
from fedrecall.reporting.figures.layout import add_title_legend_notes, panels, set_panel_title
from fedrecall.reporting.figures.series import Selection
from fedrecall.reporting.figures.style import COLUMN_WIDTH, PAGE_WIDTH
from fedrecall.studies.results import StudyResults


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
