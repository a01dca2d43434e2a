"""Accuracy over a grid of two settings."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from matplotlib.figure import Figure
from pydantic import Field

from fedrecall.config.experiment import Section
from fedrecall.errors import UserError
from fedrecall.reporting.figures.by_setting import LABELS, Accuracy, Numbers
from fedrecall.reporting.figures.heatmaps import colour_bar, heat
from fedrecall.reporting.figures.layout import finish, name_panel, panels
from fedrecall.reporting.figures.series import Names
from fedrecall.reporting.figures.style import COLUMN, PAGE
from fedrecall.studies.results import Results


class Axis(Section):
    """A setting, and those of its values that the grid has, in order."""

    name: str  # a key of the columns' tables
    values: Annotated[tuple[float, ...], Field(strict=False, min_length=1)]


def grid(
    results: Results, *, x: Axis, y: Axis, title: str = "", measure: Accuracy | None = None, rows: Names = None
) -> Figure:
    """A heat map for each row; a column's place is given by the values that it sets."""
    numbers = Numbers(results, measure, rows, None)
    settings = {column: (_setting(tables, x), _setting(tables, y)) for column, tables in results.study.columns.items()}
    figure, axes = panels(len(numbers.rows), height=2.3)
    low = min(spread.mean for spread in numbers.cells.values())
    high = max(spread.mean for spread in numbers.cells.values())
    width = COLUMN if len(axes) == 1 else PAGE / min(len(axes), 3)
    cell = ((width - 1.0) / len(x.values), 1.6 / len(y.values))
    for place, row in zip(axes, numbers.rows, strict=True):
        table = np.full((len(y.values), len(x.values)), np.nan)
        for column, (i, j) in settings.items():
            if (row, column) in numbers.cells:
                table[j, i] = numbers.cells[row, column].mean
        image = heat(place, table, limits=(low, high), write=lambda share: f"{100 * share:.1f}", cell=cell)
        place.invert_yaxis()
        place.set_xticks(range(len(x.values)), [f"{value:g}" for value in x.values])
        place.set_yticks(range(len(y.values)), [f"{value:g}" for value in y.values])
        place.set(xlabel=x.name, ylabel=y.name)
        if len(numbers.rows) > 1:
            name_panel(place, row)
    colour_bar(figure, image, axes, LABELS[numbers.measure])
    return finish(figure, title=title, notes=numbers.notes("mean"))


def _setting(tables: Mapping[str, Any], axis: Axis) -> int:
    """At which value of the axis a column is."""
    for name, value in _leaves(tables):
        if name == axis.name and value in axis.values:
            return axis.values.index(value)
    text = f"{axis.name}: a column of the study sets none of the values {', '.join(map(str, axis.values))}"
    raise UserError("report.invalid_option", text, axis.name, "add the value of every column to the axis of the grid")


def _leaves(tables: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """All keys that have a value, with it, at any depth."""
    out: list[tuple[str, Any]] = []
    for name, value in tables.items():
        out += _leaves(value) if isinstance(value, Mapping) else [(name, value)]
    return out
