"""Tables of metrics on the clients' own held-out examples: means over clients, and the worst tenth of them."""

from collections.abc import Callable

from fedrecall.reporting.tables.cells import RunGroup, run_group, spread_cell
from fedrecall.reporting.tables.render import ReportTable, TableCell, TableNote
from fedrecall.studies.results import FinishedRun, ModelKind, StudyResults
from fedrecall.studies.study import slug

MODEL_KINDS: tuple[ModelKind, ...] = ("global", "personal")

DIGITS = 4  # metrics have any unit, so they are shown as they are recorded

CLIENT_MEAN_TITLES = {"mean": "mean", "weighted": "weighted mean", "worst_tenth": "worst tenth"}  # key -> title

METRICS_NOTE = "metrics are shown as they are recorded, after the last round"

CLIENTS_NOTE = (
    "of the clients' own held-out examples: mean over clients, mean weighted by examples, and mean of the worst tenth "
    "of the clients; clients for which a metric is not defined are left out; personal: of the clients' own models"
)


def metric_names(groups: list[RunGroup]) -> list[str]:
    """Return the metrics that runs have on the test set, without the accuracy, which has columns of its own."""
    found = (name for group in groups for run in group.completed for name in run.metrics)
    return [name for name in dict.fromkeys(found) if name != "accuracy"]


def metric_cell(runs: RunGroup, value: Callable[[FinishedRun], float | None]) -> TableCell:
    """Make a cell of a metric after the last round, with its deviation over seeds."""
    values = (value(run) for run in runs.completed)
    return spread_cell([found for found in values if found is not None], runs, digits=DIGITS)


def client_tables(results: StudyResults) -> list[ReportTable]:
    """Return one table for each column whose runs have scores on the clients' held-out examples."""
    return [table for column in results.study.columns if (table := _client_table(results, column)) is not None]


def _client_table(results: StudyResults, column: str) -> ReportTable | None:
    study = results.study
    groups = {row: run_group(results, row, column) for row in study.rows}
    runs = [run for group in groups.values() for run in group.completed]
    found = dict.fromkeys((name, model) for run in runs for model in MODEL_KINDS for name in run.client_metrics(model))
    if not found:
        return None

    def make(group: RunGroup, name: str, model: ModelKind, mean: str) -> TableCell:
        return metric_cell(group, lambda run: run.client_metrics(model).get(name, {}).get(mean))

    titles = [f"{name}{', personal' if model == 'personal' else ''}" for name, model in found]
    return ReportTable(
        name=f"clients-{slug(column)}",
        title="Held-out examples of the clients" + ("" if len(study.columns) == 1 else f": {column}"),
        header=("method", *(f"{title}: {mean}" for title in titles for mean in CLIENT_MEAN_TITLES.values())),
        rows=tuple(
            (row, tuple(make(group, *key, mean) for key in found for mean in CLIENT_MEAN_TITLES))
            for row, group in groups.items()
        ),
        notes=(TableNote(CLIENTS_NOTE), TableNote(METRICS_NOTE)),
        fraction=study.fraction,
    )
