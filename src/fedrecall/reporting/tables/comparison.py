"""Table of one column: accuracies, differences to the first row, rounds to target, forgetting and costs."""

from collections.abc import Callable, Container, Mapping
from functools import partial

from fedrecall.reporting.tables import cells
from fedrecall.reporting.tables.cells import MILLION, RunGroup, reference_row, run_group, target_accuracy, target_rounds
from fedrecall.reporting.tables.metrics import METRICS_NOTE, metric_cell, metric_names
from fedrecall.reporting.tables.render import ReportTable, TableCell, TableNote
from fedrecall.studies import statistics
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import Target, slug

ROUND_MEANS = {  # title of a column -> key of a round's record, averaged over rounds
    "local": "local_accuracy",
    "forgotten": "forgotten",
    "forgotten, absent": "forgotten_absent",
    "forgotten, few": "forgotten_frequency.few",
    "pull": "pull",
}

FREQUENCIES = ("many", "medium", "few")  # groups of classes, with data.imbalance

FORGOTTEN_NOTE = (
    "forgotten: share of the test examples that the received model classified correctly and the trained client model "
    "does not, % (mean over clients and rounds); absent: of the classes of which the client has no example"
)


def comparison_table(results: StudyResults, column: str, *, brief: bool = False) -> ReportTable:
    """Make the comparison of one column's rows.

    With `brief` it fits a terminal: the study's measure, best accuracy, difference to the first row, forgotten, time.
    """
    study, first = results.study, next(iter(results.study.rows))
    groups = {row: run_group(results, row, column) for row in study.rows}
    speeds = {row: target_rounds(results, row, column) for row in study.rows}
    makers: dict[str, Callable[[str, RunGroup], TableCell]] = {
        "final": lambda _, g: cells.accuracy_cell(g, "final"),
        "best": lambda _, g: cells.accuracy_cell(g, "best"),
        "last 10": lambda _, g: cells.accuracy_cell(g, "last10"),
    }
    measure = "last 10" if study.measure == "last10" else study.measure
    if len(groups) > 1:
        makers[f"{measure} less {first}"] = lambda _, g: cells.difference_cell(
            g, groups[first], lambda group: group.accuracy(study.measure), study.measure
        )
    for name in FREQUENCIES:
        if any(group.mean_over_rounds(f"frequency.{name}") for group in groups.values()):
            makers[name] = partial(_round_mean_cell, key=f"frequency.{name}", last=10)
    metrics = metric_names(list(groups.values()))
    makers |= {name: partial(_metric_cell, name=name) for name in metrics}
    if target_accuracy(results, column) is not None:
        makers |= {
            "rounds to target": lambda row, g: cells.rounds_to_target_cell(g, speeds[row]),
            "speedup": lambda row, g: cells.speedup_cell(g, speeds[row], "over_all"),
            f"speedup over {reference_row(study)}": lambda row, g: cells.speedup_cell(g, speeds[row], "over_reference"),
        }
    for title, key in ROUND_MEANS.items():
        if any(group.mean_over_rounds(key) for group in groups.values()):
            makers[title] = partial(_round_mean_cell, key=key)
            if key == "forgotten" and len(groups) > 1:
                makers[f"forgotten less {first}"] = lambda _, g: cells.difference_cell(
                    g, groups[first], lambda runs: runs.mean_over_rounds("forgotten")
                )
    if any(group.forgetting() for group in groups.values()):
        makers["global - local"] = lambda _, g: cells.spread_cell(list(g.forgetting().values()), g)
    makers |= {
        "s/round": lambda _, g: cells.number_cell(g.mean_of("seconds")),
        "MB up": lambda _, g: cells.number_cell(g.mean_of("bytes_up"), MILLION),
        "MB down": lambda _, g: cells.number_cell(g.mean_of("bytes_down"), MILLION),
    }
    for title in ("rounds to target", "speedup", f"speedup over {reference_row(study)}", "MB up", "MB down"):
        if title in makers:
            makers[title] = partial(_unless_baseline, makers[title], study.baselines)
    if brief:
        shown = {measure, "best", f"{measure} less {first}", "few", "forgotten", "pull", "s/round", *metrics}
        makers = {title: make for title, make in makers.items() if title in shown}
    rows = tuple((row, tuple(make(row, group) for make in makers.values())) for row, group in groups.items())
    examples = any("examples_low" in cell.numbers for _, line in rows for cell in line)
    return ReportTable(
        name=f"compare-{slug(column)}",
        title=study.title if len(study.columns) == 1 else f"{study.title}: {column}",
        header=("method", *makers),
        rows=rows,
        notes=(
            *cells.scope_notes(results),
            *map(TableNote, _baseline_notes(results, groups)),
            *map(TableNote, _inactive_notes(groups)),
            *map(TableNote, _legend(results, column, set(makers), examples=examples)),
            *([TableNote(METRICS_NOTE)] if metrics else []),
            *cells.failure_notes(results, column),
        ),
        fraction=study.fraction,
    )


def _unless_baseline(
    make: Callable[[str, RunGroup], TableCell], baselines: Container[str], row: str, group: RunGroup
) -> TableCell:
    """Make a cell that has no meaning for a baseline."""
    return TableCell(("-",), {"mean": None}) if row in baselines else make(row, group)


def _metric_cell(_: str, group: RunGroup, *, name: str) -> TableCell:
    return metric_cell(group, lambda run: run.metrics.get(name))


def _round_mean_cell(_: str, group: RunGroup, *, key: str, last: int = 0) -> TableCell:
    return cells.spread_cell(list(group.mean_over_rounds(key, last).values()), group)


BASELINE_NOTES = {
    "central": "row central: the same model trained on the pooled data, on as many examples as in FedAvg's run",
    "local": "row local: each client trains alone; its model classifies the test examples of the client, or all "
    "of them if they have no client",
    "majority": "row majority: always the most frequent class of the training data",
}


def _baseline_notes(results: StudyResults, groups: Mapping[str, RunGroup]) -> list[str]:
    """Return a line for every baseline, and what there is to win for the first method."""
    study = results.study
    out = [BASELINE_NOTES[str(study.rows[row]["baseline"])] for row in study.baselines]
    first = study.methods[0] if study.methods else None
    if "central" in study.baselines and first is not None:
        gap = statistics.paired_difference(
            groups["central"].accuracy(study.measure), groups[first].accuracy(study.measure)
        )
        if gap is not None:
            what = "that a better federated method can win" if gap.mean > 0 else "so there is nothing to win"
            out.append(f"central less {first}: {gap.mean:+.2f} points, {what}")
    return out


def _inactive_notes(groups: Mapping[str, RunGroup]) -> list[str]:
    """Return a line for every row whose method is FedAvg on the data."""
    reasons = {row: [run.summary.get("inactive") for run in group.outcomes] for row, group in groups.items()}
    return [f"{row} is FedAvg on this data: {found[0]}" for row, found in reasons.items() if found and all(found)]


def _legend(results: StudyResults, column: str, shown: Container[str], *, examples: bool) -> list[str]:
    """Return the lines that explain the columns; `examples` if a cell has an interval over test examples."""
    study, reference = results.study, reference_row(results.study)
    target = target_accuracy(results, column) if "speedup" in shown else None
    several = len(study.seeds) > 1
    out = ["accuracies in %" + ("; ± is the sample standard deviation over seeds" if several else "")]
    if several and len(study.rows) > 1:
        out.append("[low, high]: 95 % confidence interval of the mean difference, paired by seed (Student's t)")
    if examples:
        out.append("[low, high]e: 95 % interval over test examples (bootstrap within each seed, mean over seeds)")
    if examples and several:
        out.append("better, worse: both intervals exclude 0; otherwise no difference is shown")
    if "best" in shown:
        out.append("best: the best round is chosen on the test set, so the number is too high")
    evaluated = max((len(run.curve()) for run in results.finished_runs(column=column)), default=0)
    if evaluated < 10 and "last 10" in shown:
        out.append(f"last 10: mean of all {evaluated} evaluations, the runs have no more")
    if target is not None:
        setter = (
            f", the {study.target.measure.replace('last10', 'last 10')} of {study.target.of}"
            if isinstance(study.target, Target)
            else ""
        )
        curve = " of the mean curve" if several else ""
        out.append(f"target: {100 * target:.2f} %{setter}; rounds to target: first round{curve} at it, - if none")
        out.append(f"speedup: all rounds / rounds to target; over {reference}: its rounds to target / rounds to target")
        is_average = isinstance(study.target, Target) and study.target.measure == "last10"
        setting = "" if is_average or not isinstance(study.target, Target) else ", and 1 for the one that sets it"
        out.append(f"speedup is - for a method that never reaches the target{setting}")
        if len({frozenset(run_group(results, row, column).accuracy("final")) for row in study.rows}) > 1:
            out.append(f"methods with missing seeds are compared with {reference} by the mean curves of shared seeds")
    if "few" in shown:
        out.append(
            "many, medium, few: accuracy by the number of a class's training examples, mean of the last ten rounds"
        )
    if "local" in shown:
        out.append("local: mean accuracy of the local models before aggregation, over all rounds")
    if "forgotten" in shown:
        out.append(FORGOTTEN_NOTE)
    if "global - local" in shown:
        out.append("global - local: accuracy of the global model minus local, mean over rounds")
    if "pull" in shown:
        out.append("pull: share of the distillation in the gradient at the logits, % (mean over batches and rounds)")
        groups = {row: run_group(results, row, column) for row in study.rows}
        idle = [row for row, group in groups.items() if group.has_no_effect]
        out += [f"{row} has practically no effect at these settings: pull below 1 % in every round" for row in idle]
    return [*out, "MB: per participating client and round"] if "MB up" in shown else out
