"""What local models know before they are averaged, beside the global one."""

from collections.abc import Callable, Mapping
from statistics import fmean

from fedrecall.reporting.figures.series import probe_curve, run_curve
from fedrecall.reporting.tables import ReportTable, TableCell
from fedrecall.reporting.tables.cells import run_group, spread_cell
from fedrecall.studies.results import FinishedRun, StudyResults
from fedrecall.studies.statistics import Curve

FORGETTING_COLUMNS: Mapping[str, Callable[[FinishedRun], Curve]] = {
    "global": FinishedRun.curve,
    "mean local": lambda outcome: run_curve(outcome, "local_accuracy"),
    "forgetting": lambda outcome: run_curve(outcome, "forgetting"),
    "local, own classes": lambda outcome: probe_curve(outcome, "local", "in_distribution"),
    "local, other classes": lambda outcome: probe_curve(outcome, "local", "out_distribution"),
}


def forgetting_table(results: StudyResults) -> ReportTable | None:
    """How much less local models know than the global one; None if no run looked."""
    columns = list(results.study.columns)
    if not any(run_curve(outcome, "forgetting") for outcome in results.finished_runs()):
        return None
    places = [(name, columns[0], name) for name in FORGETTING_COLUMNS]
    if len(columns) > 1:
        places = [(column, column, "forgetting") for column in columns]
    lines = {row: [_entry(results, row, *place) for _, *place in places] for row in results.study.rows}
    kept = [i for i in range(len(places)) if any(line[i].value is not None for line in lines.values())]
    return ReportTable(
        name="forgetting",
        title="Forgetting",
        header=("method", *(places[i][0] for i in kept)),
        rows=tuple((row, tuple(line[i] for i in kept)) for row, line in lines.items()),
        notes=(
            "per cent of the test set, means over rounds",
            "forgetting: accuracy of the global model less the mean accuracy of the local ones, before aggregation",
            *(["own and other classes: weighted by what a client has, and by what it lacks"] if len(kept) > 3 else []),
        ),
        fraction=results.study.fraction,
    )


def _entry(results: StudyResults, row: str, column: str, name: str) -> TableCell:
    """The mean over rounds, over the seeds."""
    runs = run_group(results, row, column)
    curves = [FORGETTING_COLUMNS[name](outcome) for outcome in runs.completed]
    return spread_cell([100 * fmean(value for _, value in curve) for curve in curves if curve], runs)
