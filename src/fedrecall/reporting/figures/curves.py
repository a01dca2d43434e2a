"""Lines over rounds: accuracy, local accuracy, forgetting, and what a probe says in every round."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from fedrecall.reporting.figures.layout import (
    PERCENT,
    TICK_STEPS,
    add_title_legend_notes,
    bottom_axes,
    panels,
    set_panel_title,
)
from fedrecall.reporting.figures.series import (
    MeanCurve,
    MissingData,
    Selection,
    finished_runs,
    mean_over_seeds,
    probe_curve,
    run_curve,
    runs_to_average,
    scale_note,
    seeds_note,
)
from fedrecall.reporting.figures.style import MUTED_COLOUR, LineStyle, distinct_styles
from fedrecall.studies.results import FinishedRun, StudyResults
from fedrecall.studies.statistics import Curve

MARKERS_PER_LINE = 8  # markers on a line

MEASURE_LABELS = {
    "accuracy": "test accuracy (%)",
    "local_accuracy": "mean local accuracy (%)",
    "forgetting": "forgetting (points)",
    "loss": "test loss",
    "train_loss": "training loss",
}

PERCENT_MEASURES = ("accuracy", "local_accuracy", "forgetting")  # are shown in per cent


def curves(
    results: StudyResults,
    *,
    title: str = "",
    y: str | Sequence[str] = "accuracy",
    rows: Selection = None,
    columns: Selection = None,
) -> Figure:
    """One panel a column, one line a row; of several measures, one line of panels each."""
    keys = [y] if isinstance(y, str) else list(y)
    found = finished_runs(results, rows, columns)

    def reader(key: str) -> Callable[[FinishedRun], Curve]:
        return lambda outcome: run_curve(outcome, key)

    parts = [(MEASURE_LABELS.get(key, key), key in PERCENT_MEASURES, reader(key)) for key in keys]
    return _draw(results, found, parts, title)


def single_curve(curve: Curve, y: str, *, name: str, title: str) -> Figure:
    """The line of a single run; its look is that of the method's name."""
    line = mean_over_seeds([curve])
    if line is None:
        raise MissingData("report.missing_measurement", f"no round has the measurement {MEASURE_LABELS.get(y, y)}", "y")
    figure, (axes,) = panels(1)
    draw_line(axes, line, distinct_styles([name])[name])
    format_axes(axes, share=y in PERCENT_MEASURES, zero=bool((line.mean < 0).any()))
    axes.set_ylabel(MEASURE_LABELS.get(y, y))
    axes.set_xlabel("round")
    return add_title_legend_notes(figure, title=title)


def filter_rate(results: StudyResults, *, title: str = "", rows: Selection = None, columns: Selection = None) -> Figure:
    """The share of the teacher's wrong predictions that the mask keeps from the student, round by round."""
    found = finished_runs(results, rows, columns)
    part = ("teacher's errors filtered (%)", True, lambda outcome: probe_curve(outcome, "distillation", "filter_rate"))
    return _draw(results, found, [part], title)


def _draw(
    results: StudyResults,
    found: dict[tuple[str, str], list[FinishedRun]],
    parts: Sequence[tuple[str, bool, Callable[[FinishedRun], Curve]]],
    title: str,
) -> Figure:
    columns = list(dict.fromkeys(column for _, column in found))
    table: dict[tuple[str, str], dict[str, MeanCurve]] = {}
    for label, _, read in parts:
        for (row, column), outcomes in found.items():
            line = mean_over_seeds([read(o) for o in runs_to_average(outcomes)], any(o.diverged for o in outcomes))
            if line is not None:
                table.setdefault((label, column), {})[row] = line
    if not table:
        labels = " or ".join(label for label, _, _ in parts)
        raise MissingData("report.missing_measurement", f"no run has the measurement {labels}", "y")
    places = [key for label, _, _ in parts for column in columns if (key := (label, column)) in table]
    names = [row for row in results.study.rows if any(row in lines for lines in table.values())]
    style = distinct_styles(names)
    even = len(places) == len(parts) * len(columns) and len(parts) > 1 and 1 < len(columns) <= 4
    figure, axes = panels(len(places), across=len(columns) if even else None)
    shares = {label: share for label, share, _ in parts}
    for place, (at, (label, column)) in zip(axes, enumerate(places), strict=True):
        lines = {row: table[label, column][row] for row in names if row in table[label, column]}
        for row, line in lines.items():
            draw_line(place, line, style[row], offset=names.index(row) / max(1, len(names)))
        format_axes(place, share=shares[label], zero=any((line.mean < 0).any() for line in lines.values()))
        if len(results.study.columns) > 1 and not (even and label != parts[0][0]):
            set_panel_title(place, column)
        if at == 0 or places[at - 1][0] != label or _first_in_line(place):
            place.set_ylabel(label)
    for place in bottom_axes(axes):
        place.set_xlabel("round")
    broke = any(line.diverged for lines in table.values() for line in lines.values())
    notes = [
        seeds_note(map(runs_to_average, found.values())),
        *scale_note(results),
        *(["x: a run diverged"] if broke else []),
    ]
    legend = [(row, legend_handle(style[row])) for row in names] if len(names) > 1 else []
    return add_title_legend_notes(figure, title=title, legend=legend, notes=notes)


def draw_line(axes: Axes, line: MeanCurve, look: LineStyle, *, offset: float = 0.0) -> None:
    """A mean with its band; markers are few, and those of different lines at different rounds."""
    step = max(1, len(line.rounds) // MARKERS_PER_LINE)
    axes.plot(
        line.rounds,
        line.mean,
        color=look.colour,
        linestyle=look.line,
        marker=look.marker,
        markevery=(int(offset * step), step),
        markeredgewidth=0,
    )
    low, high = line.mean - line.deviation, line.mean + line.deviation
    if np.isfinite(low).any():
        axes.fill_between(line.rounds, low, high, color=look.colour, alpha=0.18, linewidth=0)
    if line.diverged:
        axes.plot(line.rounds[-1:], line.mean[-1:], color=look.colour, marker="x", markersize=6, markeredgewidth=1.4)


def legend_handle(look: LineStyle) -> Line2D:
    """A method's entry in a legend."""
    return Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker, markeredgewidth=0)


def format_axes(axes: Axes, *, share: bool, zero: bool) -> None:
    """Whole numbers below, per cent or plain numbers at the side, and a line at zero."""
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=TICK_STEPS, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS, min_n_ticks=3))
    axes.yaxis.set_major_formatter(PERCENT if share else ScalarFormatter())
    axes.margins(x=0.02)
    if zero:
        axes.axhline(0, color=MUTED_COLOUR, linewidth=0.7)


def _first_in_line(axes: Axes) -> bool:
    spec = axes.get_subplotspec()
    return spec is not None and spec.is_first_col()
