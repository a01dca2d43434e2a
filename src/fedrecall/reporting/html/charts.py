"""The learning curves as data for the page's script: one panel a column, one line a row, mean and spread over seeds."""

from typing import Any, NamedTuple

import numpy as np

from fedrecall.reporting.figures.series import mean_over_seeds, run_curve, runs_to_average
from fedrecall.reporting.figures.style import distinct_styles
from fedrecall.studies.results import StudyResults

MAX_POINTS = 200  # a line has no more: a screen shows no more

LINE_WIDTH = 2  # of a line, in pixels; matplotlib's dashes are in widths of a line


class ChartMeasure(NamedTuple):
    """Something that is drawn by round."""

    key: str
    name: str
    unit: str = " %"
    digits: int = 2
    scale: float = 100.0


MEASURES = (
    ChartMeasure("accuracy", "test accuracy"),
    ChartMeasure("local_accuracy", "mean local accuracy"),
    ChartMeasure("forgetting", "forgetting", unit=" points"),
    ChartMeasure("loss", "test loss", unit="", digits=4, scale=1.0),
    ChartMeasure("train_loss", "training loss", unit="", digits=4, scale=1.0),
)


def chart_data(results: StudyResults) -> dict[str, Any]:
    """What the script draws: how rows look, the measures that there are, and each column's lines of each of them."""
    panels, rounds = [], dict[tuple[int, ...], int]()  # most lines have the same rounds: each list of them is kept once
    for column, settings in results.study.columns.items():
        # A column about a group of the test set has an accuracy only: the rest is of all of it.
        measures = MEASURES[:1] if "group" in settings else MEASURES
        lines = {measure.key: _lines(results, column, measure, rounds) for measure in measures}
        panels.append({"name": column, "lines": {key: found for key, found in lines.items() if found}})
    there = {key for panel in panels for key in panel["lines"]}
    return {
        "rows": [
            {"name": row, "colour": look.colour, "dash": " ".join(f"{LINE_WIDTH * part:g}" for part in look.line[1])}
            for row, look in distinct_styles(results.study.rows).items()
        ],
        "measures": [m._asdict() for m in MEASURES if m.key in there],
        "rounds": list(rounds),
        "panels": panels,
    }


def _lines(
    results: StudyResults, column: str, measure: ChartMeasure, rounds: dict[tuple[int, ...], int]
) -> list[dict[str, Any]]:
    """Mean and sample deviation of each row that has the measure, at no more rounds than can be seen."""
    out = []
    for at, row in enumerate(results.study.rows):
        line = mean_over_seeds(
            [run_curve(outcome, measure.key) for outcome in runs_to_average(results.finished_runs(row, column))]
        )
        if line is None:
            continue
        finite = np.flatnonzero(np.isfinite(line.mean))  # a loss may be infinite
        shown = finite[subsample(len(finite))]
        if len(shown):
            mean, deviation = line.mean[shown] * measure.scale, np.nan_to_num(line.deviation[shown]) * measure.scale
            out.append(
                {
                    "row": at,
                    "x": rounds.setdefault(tuple(line.rounds[shown].tolist()), len(rounds)),
                    "y": mean.round(measure.digits).tolist(),
                    "spread": deviation.round(measure.digits).tolist(),
                }
            )
    return out


def subsample(count: int) -> list[int]:
    """Which of so many points are kept: no more than POINTS, evenly spaced, with the first and the last.

    >>> len(subsample(1000)), subsample(1000)[:3], subsample(1000)[-1]
    (200, [0, 5, 10], 999)
    """
    if count <= MAX_POINTS:
        return list(range(count))
    step = (count - 1) / (MAX_POINTS - 1)
    return [round(i * step) for i in range(MAX_POINTS)]
