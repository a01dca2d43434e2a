"""The rows of one column against the first of them: what they reached, how soon, and what it cost."""

from collections.abc import Callable, Container

from fedrecall.reporting.tables import cells
from fedrecall.reporting.tables.cells import RunGroup, reference_row, run_group, target_accuracy, target_rounds
from fedrecall.reporting.tables.render import ReportTable, TableCell
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import Target, slug

MILLION = 1e6


def comparison_table(results: StudyResults, column: str, *, brief: bool = False) -> ReportTable:
    """Accuracies over seeds, paired differences to the first row, rounds to target, speedups, time and traffic.

    A brief one has what fits a terminal: the study's measure, the best, the difference, forgetting and time.
    """
    study, first = results.study, next(iter(results.study.rows))
    samples = {row: run_group(results, row, column) for row in study.rows}
    speeds = {row: target_rounds(results, row, column) for row in study.rows}
    parts: dict[str, Callable[[str, RunGroup], TableCell]] = {
        "final": lambda _, s: cells.accuracy_cell(s, "final"),
        "best": lambda _, s: cells.accuracy_cell(s, "best"),
        "last 10": lambda _, s: cells.accuracy_cell(s, "last10"),
    }
    named = "last 10" if study.measure == "last10" else study.measure
    if len(samples) > 1:
        parts[f"{named} less {first}"] = lambda _, s: cells.difference_cell(s, samples[first], study.measure)
    if target_accuracy(results, column) is not None:
        parts |= {
            "rounds to target": lambda row, s: cells.rounds_to_target_cell(s, speeds[row]),
            "speedup": lambda row, s: cells.speedup_cell(s, speeds[row], "over_all"),
            f"speedup over {reference_row(study)}": lambda row, s: cells.speedup_cell(s, speeds[row], "over_reference"),
        }
    forgets = any(s.forgetting() for s in samples.values())
    if forgets:
        parts["local"] = lambda _, s: cells.spread_cell(list(s.local_accuracy().values()), s)
        parts["forgetting"] = lambda _, s: cells.spread_cell(list(s.forgetting().values()), s)
    parts |= {
        "s/round": lambda _, s: cells.number_cell(s.mean_of("seconds")),
        "MB up": lambda _, s: cells.number_cell(s.mean_of("bytes_up"), MILLION),
        "MB down": lambda _, s: cells.number_cell(s.mean_of("bytes_down"), MILLION),
    }
    if brief:
        shown = {named, "best", f"{named} less {first}", "forgetting", "s/round"}
        parts = {title: entry for title, entry in parts.items() if title in shown}
    return ReportTable(
        name=f"compare-{slug(column)}",
        title=study.title if len(study.columns) == 1 else f"{study.title}: {column}",
        header=("method", *parts),
        rows=tuple((row, tuple(entry(row, s) for entry in parts.values())) for row, s in samples.items()),
        notes=(
            *cells.scope_notes(results),
            *_legend(results, column, set(parts)),
            *cells.failure_notes(results, column),
        ),
        fraction=study.fraction,
    )


def _legend(results: StudyResults, column: str, shown: Container[str]) -> list[str]:
    study, other = results.study, reference_row(results.study)
    target = target_accuracy(results, column) if "speedup" in shown else None
    several = len(study.seeds) > 1
    out = ["accuracies in %" + ("; ± is the sample standard deviation over seeds" if several else "")]
    if several and len(study.rows) > 1:
        out.append("[low, high]: 95 % confidence interval of the mean difference, paired by seed (Student's t)")
    if target is not None:
        whose = f", the {study.target.measure} of {study.target.of}" if isinstance(study.target, Target) else ""
        curve = " by the mean curve" if several else ""
        out.append(f"target: {100 * target:.2f} %{whose}; the first round there{curve}, - if never")
        out.append(f"speedup: all rounds / rounds to target; over {other}: its rounds to target / rounds to target")
        out.append("a method that never gets there has 1, and so has the one that sets the target")
        if len({frozenset(run_group(results, row, column).accuracy("final")) for row in study.rows}) > 1:
            out.append(f"methods that lack a seed are compared with {other} by the mean curves of the seeds of both")
    if "local" in shown:
        out.append("local: mean accuracy of the clients' own models before aggregation, over all rounds")
    if "forgetting" in shown:
        models = "" if "local" in shown else " than that of the clients' own models before aggregation"
        out.append(f"forgetting: by how much the global model's accuracy is higher{models}, mean over rounds")
    return [*out, "MB: for each participating client, a round"] if "MB up" in shown else out
