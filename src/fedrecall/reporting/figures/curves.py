"""Curves over rounds: accuracy, local accuracy, forgetting, losses, and the filter rate of a probe."""

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
    baseline_line,
    finished_runs,
    mean_over_seeds,
    probe_curve,
    run_curve,
    runs_to_average,
    seeds_note,
)
from fedrecall.reporting.figures.style import MUTED_COLOUR, LineStyle, distinct_styles
from fedrecall.studies.results import FinishedRun, StudyResults
from fedrecall.studies.statistics import Curve

MARKERS_PER_LINE = 8

MIN_SPAN = 0.1  # smallest range of an axis of shares: ten points

MEASURE_LABELS = {
    "accuracy": "test accuracy (%)",
    "local_accuracy": "mean local accuracy (%)",
    "forgotten": "forgotten by clients (%)",
    "forgotten_absent": "forgotten, absent classes (%)",
    "forgetting": "global minus local (points)",
    "pull": "pull of the distillation (%)",
    "loss": "test loss",
    "train_loss": "training loss",
}

MEASURE_NAMES = {"final": "final accuracy", "best": "best accuracy", "last10": "mean of the last ten accuracies"}

AXIS_NOTE = "the vertical axis does not start at 0"

# recorded as shares, displayed in percent
PERCENT_MEASURES = ("accuracy", "local_accuracy", "forgotten", "forgotten_absent", "forgetting", "pull")


def curves(
    results: StudyResults,
    *,
    title: str = "",
    y: str | Sequence[str] = "accuracy",
    rows: Selection = None,
    columns: Selection = None,
) -> Figure:
    """Draw one panel per column with one line per row; several measures are several rows of panels."""
    keys = [y] if isinstance(y, str) else list(y)
    found = finished_runs(results, rows, columns)

    def reader(key: str) -> Callable[[FinishedRun], Curve]:
        return lambda run: run_curve(run, key)

    measures = [(MEASURE_LABELS.get(key, key), key in PERCENT_MEASURES, reader(key)) for key in keys]
    return _draw(results, found, measures, title)


def single_curve(curve: Curve, y: str, *, name: str, title: str) -> Figure:
    """Draw the curve of a single run in the style of its method."""
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
    """Draw the share of the teacher's wrong predictions that the mask removes, by round."""
    found = finished_runs(results, rows, columns)
    measure = ("teacher's errors filtered (%)", True, lambda run: probe_curve(run, "distillation", "filter_rate"))
    return _draw(results, found, [measure], title)


def _draw(
    results: StudyResults,
    found: dict[tuple[str, str], list[FinishedRun]],
    measures: Sequence[tuple[str, bool, Callable[[FinishedRun], Curve]]],
    title: str,
) -> Figure:
    columns = list(dict.fromkeys(column for _, column in found))
    table: dict[tuple[str, str], dict[str, MeanCurve]] = {}
    for label, _, read in measures:
        for (row, column), runs in found.items():
            if row in results.study.baselines:
                continue
            line = mean_over_seeds([read(o) for o in runs_to_average(runs)], any(o.diverged for o in runs))
            if line is not None:
                table.setdefault((label, column), {})[row] = line
    _add_baselines(results, found, table)
    if not table:
        labels = " or ".join(label for label, _, _ in measures)
        raise MissingData("report.missing_measurement", f"no run has the measurement {labels}", "y")
    keys = [key for label, _, _ in measures for column in columns if (key := (label, column)) in table]
    names = [row for row in results.study.rows if any(row in lines for lines in table.values())]
    styles = distinct_styles(names)
    is_grid = len(keys) == len(measures) * len(columns) and len(measures) > 1 and 1 < len(columns) <= 4
    figure, axes = panels(len(keys), across=len(columns) if is_grid else None)
    shares = {label: share for label, share, _ in measures}
    for panel, (position, (label, column)) in zip(axes, enumerate(keys), strict=True):
        lines = {row: table[label, column][row] for row in names if row in table[label, column]}
        for row, line in lines.items():
            draw_line(panel, line, styles[row], offset=names.index(row) / max(1, len(names)))
        format_axes(panel, share=shares[label], zero=any((line.mean < 0).any() for line in lines.values()))
        if len(results.study.columns) > 1 and not (is_grid and label != measures[0][0]):
            set_panel_title(panel, column)
        if position == 0 or keys[position - 1][0] != label or _is_leftmost(panel):
            panel.set_ylabel(label)
    for panel in bottom_axes(axes):
        panel.set_xlabel("round")
    levels = [row for row in names if row in results.study.baselines]
    diverged = any(line.diverged for lines in table.values() for line in lines.values())
    notes = [
        seeds_note(map(runs_to_average, found.values())),
        *results.study.scale_note(),
        *([AXIS_NOTE] if any(panel.get_ylim()[0] > 0 for panel in axes) else []),
        *([f"horizontal: {MEASURE_NAMES[results.study.measure]} of {', '.join(levels)}"] if levels else []),
        *(["x: a run diverged"] if diverged else []),
    ]
    legend = [(row, legend_handle(styles[row])) for row in names] if len(names) > 1 else []
    return add_title_legend_notes(figure, title=title, legend=legend, notes=notes)


def _add_baselines(
    results: StudyResults,
    found: dict[tuple[str, str], list[FinishedRun]],
    table: dict[tuple[str, str], dict[str, MeanCurve]],
) -> None:
    """Add the horizontal lines of the baselines to the panels of the accuracy."""
    for (row, column), runs in found.items():
        lines = table.get((MEASURE_LABELS["accuracy"], column))
        if lines and row in results.study.baselines:
            rounds = (number for line in lines.values() for number in line.rounds.tolist())
            level = baseline_line(runs, results.study.measure, rounds)
            if level is not None:
                lines[row] = level


def draw_line(axes: Axes, line: MeanCurve, style: LineStyle, *, offset: float = 0.0) -> None:
    """Draw a mean with its band of one deviation; `offset` in [0, 1) shifts the markers against other lines."""
    step = max(1, len(line.rounds) // MARKERS_PER_LINE)
    axes.plot(
        line.rounds,
        line.mean,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markevery=(int(offset * step), step),
        markeredgewidth=0,
    )
    low, high = line.mean - line.deviation, line.mean + line.deviation
    if np.isfinite(low).any():
        axes.fill_between(line.rounds, low, high, color=style.colour, alpha=0.18, linewidth=0)
    if line.diverged:
        axes.plot(line.rounds[-1:], line.mean[-1:], color=style.colour, marker="x", markersize=6, markeredgewidth=1.4)


def legend_handle(style: LineStyle) -> Line2D:
    """Make the legend entry of a method."""
    return Line2D([], [], color=style.colour, linestyle=style.line, marker=style.marker, markeredgewidth=0)


def format_axes(axes: Axes, *, share: bool, zero: bool) -> None:
    """Format axes of curves: whole rounds, percent or plain values, and with `zero` a line at zero."""
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=TICK_STEPS, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS, min_n_ticks=3))
    axes.yaxis.set_major_formatter(PERCENT if share else ScalarFormatter())
    axes.margins(x=0.02)
    low, high = axes.get_ylim()
    if share and high - low < MIN_SPAN:  # a narrower axis would make noise look like a difference
        middle = (low + high) / 2
        low = max(0.0, middle - MIN_SPAN / 2) if low >= 0 else middle - MIN_SPAN / 2
        axes.set_ylim(low, low + MIN_SPAN)
    if zero:
        axes.axhline(0, color=MUTED_COLOUR, linewidth=0.7)


def _is_leftmost(axes: Axes) -> bool:
    spec = axes.get_subplotspec()
    return spec is not None and spec.is_first_col()
