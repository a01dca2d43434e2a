"""What local models know before they are averaged, beside the global one."""

from collections.abc import Callable, Mapping
from statistics import fmean

from fedrecall.reporting.figures.series import probed, values
from fedrecall.reporting.tables import Entry, Table
from fedrecall.reporting.tables.cells import spread
from fedrecall.reporting.tables.samples import sample
from fedrecall.studies.results import Outcome, Results
from fedrecall.studies.statistics import Curve

READERS: Mapping[str, Callable[[Outcome], Curve]] = {
    "global": Outcome.curve,
    "mean local": lambda outcome: values(outcome, "local_accuracy"),
    "forgetting": lambda outcome: values(outcome, "forgetting"),
    "local, own classes": lambda outcome: probed(outcome, "local", "in_distribution"),
    "local, other classes": lambda outcome: probed(outcome, "local", "out_distribution"),
}


def forgetting(results: Results) -> Table | None:
    """How much less local models know than the global one; None if no run looked."""
    columns = list(results.study.columns)
    if not any(values(outcome, "forgetting") for outcome in results.outcomes()):
        return None
    places = [(name, columns[0], name) for name in READERS]
    if len(columns) > 1:
        places = [(column, column, "forgetting") for column in columns]
    lines = {row: [_entry(results, row, *place) for _, *place in places] for row in results.study.rows}
    kept = [i for i in range(len(places)) if any(line[i].value is not None for line in lines.values())]
    return Table(
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


def _entry(results: Results, row: str, column: str, name: str) -> Entry:
    """The mean over rounds, over the seeds."""
    runs = sample(results, row, column)
    curves = [READERS[name](outcome) for outcome in runs.good]
    return spread([100 * fmean(value for _, value in curve) for curve in curves if curve], runs)
