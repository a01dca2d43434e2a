"""Learning curves as data for the page's script: one panel per column, one line per row, mean and deviation."""

from typing import Any, NamedTuple

import numpy as np

from fedrecall.reporting.figures.series import baseline_line, mean_over_seeds, run_curve, runs_to_average
from fedrecall.reporting.figures.style import distinct_styles
from fedrecall.studies.results import StudyResults

MAX_POINTS = 200  # points per line: a panel is not wide enough to distinguish more

LINE_WIDTH = 2  # pixels; matplotlib's dashes are multiples of the line width


class ChartMeasure(NamedTuple):
    """Quantity that can be drawn by round; `scale` converts the recorded value to the unit."""

    key: str
    name: str
    unit: str = " %"
    digits: int = 2
    scale: float = 100.0


CHART_MEASURES = (
    ChartMeasure("accuracy", "test accuracy"),
    ChartMeasure("local_accuracy", "mean local accuracy"),
    ChartMeasure("forgotten", "forgotten by clients"),
    ChartMeasure("forgotten_absent", "forgotten, absent classes"),
    ChartMeasure("forgetting", "global minus local accuracy", unit=" points"),
    ChartMeasure("pull", "pull of the distillation"),
    ChartMeasure("loss", "test loss", unit="", digits=4, scale=1.0),
    ChartMeasure("train_loss", "training loss", unit="", digits=4, scale=1.0),
)


def chart_data(results: StudyResults) -> dict[str, Any]:
    """Return line styles, the recorded measures, and for each column and measure the lines, ready for JSON."""
    recorded_metrics = dict.fromkeys(name for run in results.finished_runs() for name in run.metrics)
    all_measures = CHART_MEASURES + tuple(
        ChartMeasure(name, name, unit="", digits=4, scale=1.0) for name in recorded_metrics if name != "accuracy"
    )
    panels, rounds = [], dict[tuple[int, ...], int]()  # lines refer to a shared list of rounds: most have the same
    for column, settings in results.study.columns.items():
        # Only the accuracy is recorded for a group of the test set; the other measures cover all of it.
        measures = CHART_MEASURES[:1] if "group" in settings else all_measures
        lines = {measure.key: _lines(results, column, measure, rounds) for measure in measures}
        panels.append({"name": column, "lines": {key: found for key, found in lines.items() if found}})
    recorded = {key for panel in panels for key in panel["lines"]}
    return {
        "rows": [
            {"name": row, "colour": style.colour, "dash": " ".join(f"{LINE_WIDTH * part:g}" for part in style.line[1])}
            for row, style in distinct_styles(results.study.rows).items()
        ],
        "measures": [measure._asdict() for measure in all_measures if measure.key in recorded],
        "rounds": list(rounds),
        "panels": panels,
    }


def _lines(
    results: StudyResults, column: str, measure: ChartMeasure, rounds: dict[tuple[int, ...], int]
) -> list[dict[str, Any]]:
    """Return mean and sample deviation of each row that has the measure."""
    out = []
    numbers = set[int]()  # rounds of the methods
    for position, row in enumerate(results.study.rows):  # baselines are the last ones
        runs = runs_to_average(results.finished_runs(row, column))
        if row in results.study.baselines:
            is_drawn = measure.key == "accuracy" and runs
            line = baseline_line(runs, results.study.measure, numbers) if is_drawn else None
        else:
            line = mean_over_seeds([run_curve(run, measure.key) for run in runs])
            numbers |= set() if line is None else set(line.rounds.tolist())
        if line is None:
            continue
        finite = np.flatnonzero(np.isfinite(line.mean))  # a loss may be infinite
        shown = finite[subsample(len(finite))]
        if len(shown):
            mean, deviation = line.mean[shown] * measure.scale, np.nan_to_num(line.deviation[shown]) * measure.scale
            out.append(
                {
                    "row": position,
                    "x": rounds.setdefault(tuple(line.rounds[shown].tolist()), len(rounds)),
                    "y": mean.round(measure.digits).tolist(),
                    "spread": deviation.round(measure.digits).tolist(),
                }
            )
    return out


def subsample(count: int) -> list[int]:
    """Choose at most MAX_POINTS of `count` positions, evenly spaced, with the first and the last.

    >>> len(subsample(1000)), subsample(1000)[:3], subsample(1000)[-1]
    (200, [0, 5, 10], 999)
    """
    if count <= MAX_POINTS:
        return list(range(count))
    step = (count - 1) / (MAX_POINTS - 1)
    return [round(i * step) for i in range(MAX_POINTS)]
