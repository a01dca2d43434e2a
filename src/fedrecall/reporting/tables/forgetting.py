"""Table of forgetting: accuracy of the local models before aggregation, beside the global model."""

from collections.abc import Callable, Mapping
from statistics import fmean

from fedrecall.reporting.figures.series import probe_curve, run_curve
from fedrecall.reporting.tables import ReportTable, TableCell, TableNote
from fedrecall.reporting.tables.cells import run_group, spread_cell
from fedrecall.reporting.tables.comparison import FORGOTTEN_NOTE
from fedrecall.studies.results import FinishedRun, StudyResults
from fedrecall.studies.statistics import Curve

FORGETTING_COLUMNS: Mapping[str, Callable[[FinishedRun], Curve]] = {
    "global": FinishedRun.curve,
    "mean local": lambda run: run_curve(run, "local_accuracy"),
    "forgotten": lambda run: run_curve(run, "forgotten"),
    "forgotten, absent": lambda run: run_curve(run, "forgotten_absent"),
    "global - local": lambda run: run_curve(run, "forgetting"),
    "local, own classes": lambda run: probe_curve(run, "local", "in_distribution"),
    "local, other classes": lambda run: probe_curve(run, "local", "out_distribution"),
}


CLASSES_NOTE = "own classes: weighted by a client's label shares; other classes: weighted by their complement"


def forgetting_table(results: StudyResults) -> ReportTable | None:
    """Make the table of forgetting; None if no run measured local accuracy."""
    columns = list(results.study.columns)
    if not any(run_curve(run, "forgetting") for run in results.finished_runs()):
        return None
    titles = [(name, columns[0], name) for name in FORGETTING_COLUMNS]  # title, column of the study, quantity
    if len(columns) > 1:
        measured = any(run_curve(run, "forgotten") for run in results.finished_runs())
        titles = [(column, column, "forgotten" if measured else "global - local") for column in columns]
    lines = {
        row: [_mean_cell(results, row, column, name) for _, column, name in titles] for row in results.study.methods
    }
    shown = [i for i in range(len(titles)) if any(line[i].value is not None for line in lines.values())]
    return ReportTable(
        name="forgetting",
        title="Forgetting",
        header=("method", *(titles[i][0] for i in shown)),
        rows=tuple((row, tuple(line[i] for i in shown)) for row, line in lines.items()),
        notes=(
            TableNote("percent of the test set, means over rounds"),
            TableNote(FORGOTTEN_NOTE),
            TableNote("global - local: accuracy of the global model minus mean accuracy of the local models"),
            TableNote("local models are measured before aggregation"),
            *([TableNote(CLASSES_NOTE)] if any("classes" in titles[i][0] for i in shown) else []),
        ),
        fraction=results.study.fraction,
    )


def _mean_cell(results: StudyResults, row: str, column: str, name: str) -> TableCell:
    """Make a cell of the mean over rounds, with its spread over seeds."""
    runs = run_group(results, row, column)
    curves = [FORGETTING_COLUMNS[name](run) for run in runs.completed]
    return spread_cell([100 * fmean(value for _, value in curve) for curve in curves if curve], runs)
