"""What a client forgets: class-wise accuracy of the global model and of the local models made from it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedrecall.errors import UserError
from fedrecall.reporting.figures.before_after import client_rounds
from fedrecall.reporting.figures.heatmaps import colour_bar, heatmap, outline, percent
from fedrecall.reporting.figures.layout import add_title_legend_notes, new_figure, text_width
from fedrecall.reporting.figures.series import MOST_SKEWED, Floats, Selection, scale_note
from fedrecall.reporting.figures.style import DATA_COLOUR, PAGE_WIDTH, SMALL, single_hue_colormap
from fedrecall.studies.results import StudyResults

DATA_SHARE_ROW = "data share"  # a row of what is printed

ROW_HEIGHT = 0.19  # inches: height of a row of the heat map


class _Panel(NamedTuple):
    title: str
    classes: list[int]  # in the order of the client's shares
    shares: Floats  # [C]
    rows: dict[str, Floats]  # accuracies by class [C]


def forgetting(
    results: StudyResults,
    *,
    title: str = "",
    start: str | None = None,
    client: int | str = MOST_SKEWED,
    printed: Mapping[str, Sequence[float]] | None = None,
    rows: Selection = None,
    columns: Selection = None,
) -> Figure:
    """Class-wise accuracy of the global model and of a client's models, below the label shares of that client.

    Classes stand in the order of these shares: what the client lacks is at the left. What the paper printed, by row,
    is drawn below.
    """
    parts, notes = [], []
    found = client_rounds(results, rows=rows, columns=columns, start=start, client=client, matrices=False)
    for column, seen in found.items():
        order = np.argsort(seen.shares, kind="stable")
        recalls = {stage.label: stage.recall[order] for stage in seen.stages}
        parts.append(_Panel(column, order.tolist(), seen.shares[order], recalls))
        notes.append(f"{column}: client {seen.client}, seed {seen.seed}")
    if printed:
        parts.append(_printed(printed))
    figure = new_figure(PAGE_WIDTH, sum(ROW_HEIGHT * (len(part.rows) + 1) + 0.7 for part in parts))
    ratios = [lines for part in parts for lines in (1, len(part.rows))]
    grid = figure.subplots(2 * len(parts), 1, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
    room = PAGE_WIDTH - 1.0 - max(text_width(row, SMALL) for part in parts for row in part.rows)
    for part, top, below in zip(parts, grid[::2], grid[1::2], strict=True):
        cell = (room / len(part.shares), ROW_HEIGHT)
        limits = (0.0, float(part.shares.max()))
        heatmap(
            top, part.shares[None], limits=limits, colours=single_hue_colormap(DATA_COLOUR), write=percent, cell=cell
        )
        outline(top)
        top.set_yticks([0], [f"{DATA_SHARE_ROW} (%)"])
        top.set_xticks([])
        if len(parts) > 1:
            top.set_title(part.title)
        image = heatmap(below, np.stack(list(part.rows.values())), write=percent, cell=cell)
        below.set_yticks(range(len(part.rows)), list(part.rows))
        if cell[0] > text_width(str(len(part.classes)), SMALL) + 0.06:
            below.set_xticks(range(len(part.classes)), [str(k) for k in part.classes])
            below.set_xlabel("class")
        else:
            below.set_xticks([])
            below.set_xlabel(f"{len(part.classes)} classes, in the order of their share")
        colour_bar(figure, image, [top, below], "accuracy (%)")
    return add_title_legend_notes(figure, title=title, notes=[*notes, *scale_note(results)])


def _printed(table: Mapping[str, Sequence[float]]) -> _Panel:
    lines = {row: np.asarray(line, dtype=np.float64) for row, line in table.items()}
    if DATA_SHARE_ROW not in lines or len({len(line) for line in lines.values()}) != 1 or len(lines) < 2:
        rows = ", ".join(f"{row} ({len(line)} classes)" for row, line in lines.items()) or "no rows"
        raise UserError(
            "report.invalid_option",
            f'the figure option "printed" has {rows}',
            "printed",
            f'add a row "{DATA_SHARE_ROW}", and rows of accuracies with the same number of classes',
        )
    shares = lines.pop(DATA_SHARE_ROW)
    named = {row if row.startswith("global") else f"{row} local": line for row, line in lines.items()}
    return _Panel("printed in the paper", list(range(len(shares))), shares, named)
