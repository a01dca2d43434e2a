"""The rows of one column against the first of them: what they reached, how soon, and what it cost."""

from collections.abc import Callable, Container

from fedrecall.reporting.tables import cells
from fedrecall.reporting.tables.render import Entry, Table
from fedrecall.reporting.tables.samples import Sample, goal, reference, sample, speed
from fedrecall.studies.results import Results
from fedrecall.studies.study import Target, slug

MEGA = 1e6


def comparison(results: Results, column: str, *, brief: bool = False) -> Table:
    """Accuracies over seeds, paired differences to the first row, rounds to target, speedups, time and traffic.

    A brief one has what fits a terminal: the study's measure, the best, the difference, forgetting and time.
    """
    study, first = results.study, next(iter(results.study.rows))
    samples = {row: sample(results, row, column) for row in study.rows}
    speeds = {row: speed(results, row, column) for row in study.rows}
    parts: dict[str, Callable[[str, Sample], Entry]] = {
        "final": lambda _, s: cells.accuracy(s, "final"),
        "best": lambda _, s: cells.accuracy(s, "best"),
        "last 10": lambda _, s: cells.accuracy(s, "last10"),
    }
    named = "last 10" if study.measure == "last10" else study.measure
    if len(samples) > 1:
        parts[f"{named} less {first}"] = lambda _, s: cells.difference(s, samples[first], study.measure)
    if goal(results, column) is not None:
        parts |= {
            "rounds to target": lambda row, s: cells.rounds_to_target(s, speeds[row]),
            "speedup": lambda row, s: cells.speedup(s, speeds[row], "over_all"),
            f"speedup over {reference(study)}": lambda row, s: cells.speedup(s, speeds[row], "over_reference"),
        }
    forgets = any(s.forgetting() for s in samples.values())
    if forgets:
        parts["local"] = lambda _, s: cells.spread(list(s.local().values()), s)
        parts["forgetting"] = lambda _, s: cells.spread(list(s.forgetting().values()), s)
    parts |= {
        "s/round": lambda _, s: cells.number(s.mean_of("seconds")),
        "MB up": lambda _, s: cells.number(s.mean_of("bytes_up"), MEGA),
        "MB down": lambda _, s: cells.number(s.mean_of("bytes_down"), MEGA),
    }
    if brief:
        shown = {named, "best", f"{named} less {first}", "forgetting", "s/round"}
        parts = {title: entry for title, entry in parts.items() if title in shown}
    return Table(
        name=f"compare-{slug(column)}",
        title=study.title if len(study.columns) == 1 else f"{study.title}: {column}",
        header=("method", *parts),
        rows=tuple((row, tuple(entry(row, s) for entry in parts.values())) for row, s in samples.items()),
        notes=(*cells.about(results), *_legend(results, column, set(parts)), *cells.failures(results, column)),
        fraction=study.fraction,
    )


def _legend(results: Results, column: str, shown: Container[str]) -> list[str]:
    study, other = results.study, reference(results.study)
    target = goal(results, column) if "speedup" in shown else None
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
        if len({frozenset(sample(results, row, column).accuracy("final")) for row in study.rows}) > 1:
            out.append(f"methods that lack a seed are compared with {other} by the mean curves of the seeds of both")
    if "local" in shown:
        out.append("local: mean accuracy of the clients' own models before aggregation, over all rounds")
    if "forgetting" in shown:
        models = "" if "local" in shown else " than that of the clients' own models before aggregation"
        out.append(f"forgetting: by how much the global model's accuracy is higher{models}, mean over rounds")
    return [*out, "MB: for each participating client, a round"] if "MB up" in shown else out
