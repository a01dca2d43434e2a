"""Tables that break the accuracy down: by class, by client, by metric, and the means of what probes recorded."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedrecall.reporting.tables.cells import run_group, spread_cell
from fedrecall.reporting.tables.render import ReportTable, TableCell, TableNote
from fedrecall.runs.predictions import load_predictions
from fedrecall.studies.results import FinishedRun, StudyResults

MAX_COLUMNS = 30  # classes or clients in a table; more are counted in a note

METRIC_SCALES = {"log_loss": 1.0, "matthews": 1.0}  # metrics that are no shares; the others are shown in percent

# Numbers of a probe that have a mean; None: all of them. Probes that are not here have figures.
PROBE_KEYS: Mapping[str, tuple[str, ...] | None] = {
    "local": ("mean_accuracy", "in_distribution", "out_distribution", "forgetting"),
    "forgotten": ("forgotten", "forgotten_absent"),
    "pull": ("pull",),
    "own_data": ("global", "local"),
    "distillation": None,
    "shift": None,
}


def breakdown_tables(results: StudyResults, column: str) -> list[ReportTable]:
    """Return the tables of a column's runs that their records allow: metrics, accuracy by class and by client."""
    makers = (
        ("metrics", "Metrics on the test set", _metrics, ("of the final global model; shares in %",)),
        ("classes", "Recall by class", _recall_by_class, ("share of the test examples of a class, %, final model",)),
        (
            "accuracy-by-client",
            "Accuracy by client",
            _accuracy_by_client,
            ("of the client's examples in the test set, %",),
        ),
        (
            "held-out",
            "Accuracy by client, on examples held out from it",
            _accuracy_on_held_out,
            ("final global model, or the client's own model where there is no global one; %",),
        ),
    )
    suffix = f": {column}" if len(results.study.columns) > 1 else ""
    tables = (_table(results, column, name, title + suffix, read, notes) for name, title, read, notes in makers)
    return [table for table in tables if table is not None]


def probe_table(results: StudyResults, column: str, probe: str) -> ReportTable | None:
    """Return the means over rounds and clients of every number that a probe recorded; None if it has none."""
    if probe not in PROBE_KEYS:
        return None
    title = f"Probe {probe}" + (f": {column}" if len(results.study.columns) > 1 else "")
    notes = ["means over rounds, and over clients or classes where the probe records several"]
    notes += ["in %"] if PROBE_KEYS[probe] is not None else []
    return _table(results, column, f"probe-{probe}", title, lambda run: _probe_means(run, probe), notes)


def _table(
    results: StudyResults,
    column: str,
    name: str,
    title: str,
    read: Callable[[FinishedRun], Mapping[str, float]],
    notes: Sequence[str],
) -> ReportTable | None:
    """Make a table with one line per row of the study; `read` returns the numbers of a run by column of the table."""
    values = {
        row: [read(run) for run in run_group(results, row, column).completed if run.cell.group is None]
        for row in results.study.rows
    }
    titles = list(dict.fromkeys(title for found in values.values() for numbers in found for title in numbers))
    if not titles:
        return None
    shown = titles[:MAX_COLUMNS]
    rows = []
    for row, found in values.items():
        runs = run_group(results, row, column)
        line = [spread_cell([numbers[key] for numbers in found if key in numbers], runs) for key in shown]
        if any(cell.value is not None for cell in line):
            rows.append((row, tuple(cell if cell.value is not None else TableCell(("-",)) for cell in line)))
    more = [f"{len(titles) - len(shown)} more are not listed"] if len(titles) > len(shown) else []
    return ReportTable(
        name=f"{name}-{column}" if len(results.study.columns) > 1 else name,
        title=title,
        header=("method", *shown),
        rows=tuple(rows),
        notes=tuple(map(TableNote, (*notes, *more))),
        fraction=results.study.fraction,
    )


def _metrics(run: FinishedRun) -> dict[str, float]:
    found = run.summary.get("metrics", {})
    finals = {name: values.get("final") for name, values in found.items()}
    return {name: METRIC_SCALES.get(name, 100.0) * value for name, value in finals.items() if value is not None}


def _recall_by_class(run: FinishedRun) -> dict[str, float]:
    kept = load_predictions(run.path)
    if kept is None:
        return {}
    right, y = (kept.predicted == kept.y).double(), kept.y.long()
    labelled = ((name, right[y == label]) for label, name in enumerate(run.class_names))
    return {name: 100 * float(hits.mean()) for name, hits in labelled if len(hits)}


def _accuracy_by_client(run: FinishedRun) -> dict[str, float]:
    evaluated = [record["groups"] for record in run.records if "groups" in record]
    return {name: 100 * value for name, value in evaluated[-1].items()} if evaluated else {}


def _accuracy_on_held_out(run: FinishedRun) -> dict[str, float]:
    found = run.summary.get("client_test")
    if not found or "accuracy" not in found:
        return {}
    names = run.client_names
    values = zip(found["clients"], found["accuracy"]["by_client"], strict=True)
    return {names[c] if c < len(names) else str(c): 100 * value for c, value in values if value is not None}


def _probe_means(run: FinishedRun, probe: str) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    wanted = PROBE_KEYS[probe]
    for record in run.probe_records(probe):
        for key, value in record.items():
            if (
                (wanted is None or key in wanted)
                and key not in ("round", "clients")
                and (number := _mean(value)) is not None
            ):
                found.setdefault(key, []).append(number)
    scale = 1.0 if wanted is None else 100.0  # the named keys are shares
    return {key: scale * fmean(values) for key, values in found.items()}


def _mean(value: Any) -> float | None:
    """Return a number, or the mean of a list of numbers of any depth; None if there is none."""
    if isinstance(value, list):
        known = [number for number in map(_mean, value) if number is not None]
        return fmean(known) if known else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
