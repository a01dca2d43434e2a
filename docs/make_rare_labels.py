"""Writer of the tables in docs/rare-labels.md, from the records in results/.

`python docs/make_equal_effort.py rare-labels` and then `rare-labels-10` tune the methods, make the runs and keep their
records; `python docs/make_rare_labels.py` writes the tables.
"""

from pathlib import Path
from statistics import fmean, stdev

from fedrecall.studies.results import FinishedRun, StudyResults, load_results, read_json
from fedrecall.studies.statistics import paired_difference

DOCS = Path(__file__).parent
PAGE, RESULTS = DOCS / "rare-labels.md", DOCS.parent / "results"
TASKS = {"rare-labels": "CIFAR-10, ratio 100", "rare-labels-10": "CIFAR-10, ratio 10"}  # of make_equal_effort.py
START, END = "<!-- study -->\n", "<!-- end -->\n"
REFERENCE = "fedavg"
LAST = 10  # rounds at the end whose evaluations are averaged
GROUPS = ("many", "medium", "few")

Values = dict[int, float]  # per cent, by seed


def measure(run: FinishedRun, key: str, group: str | None = None) -> float | None:
    """Return the mean of a value over the last rounds that have it, in per cent; None if no round has it."""
    first = run.summary["rounds"] - LAST
    records = [record for record in run.records if record["round"] > first]
    found = [record.get(key) if group is None else (record.get(key) or {}).get(group) for record in records]
    known = [value for value in found if value is not None]
    return 100 * fmean(known) if known else None


def by_seed(runs: list[FinishedRun], key: str, group: str | None = None) -> Values:
    """Return a value of every run that has it, by seed."""
    values = {run.cell.seed: measure(run, key, group) for run in runs}
    return {seed: value for seed, value in values.items() if value is not None}


def mean_cell(values: Values) -> str:
    """Return mean and standard deviation over the seeds."""
    if not values:
        return ""
    spread = f" ± {stdev(values.values()):.1f}" if len(values) > 1 else ""
    return f"{fmean(values.values()):.1f}{spread}"


def difference_cell(values: Values, reference: Values) -> str:
    """Return the paired difference to the reference with its 95 % interval."""
    found = paired_difference(values, reference)
    if found is None:
        return ""
    interval = "" if found.low is None else f" [{found.low:+.1f}, {found.high:+.1f}]"
    return f"{found.mean:+.1f}{interval}"


def column_table(results: StudyResults, column: str) -> str:
    """Return the table of one column: the methods with a finished run, in the order of their difference to FedAvg."""
    runs = {row: results.finished_runs(row, column) for row in results.study.rows}
    few = {row: by_seed(found, "frequency", "few") for row, found in runs.items() if found}
    head = ("method", "seeds", "accuracy", *GROUPS, "few, difference to FedAvg", *(f"forgotten: {g}" for g in GROUPS))
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    gains = {row: paired_difference(values, few.get(REFERENCE, {})) for row, values in few.items()}
    for row in sorted(few, key=lambda name: -gain.mean if (gain := gains[name]) else 0.0):
        cells = [f"`{row}`", str(len(runs[row])), mean_cell(by_seed(runs[row], "accuracy"))]
        cells += [mean_cell(by_seed(runs[row], "frequency", group)) for group in GROUPS]
        cells.append("" if row == REFERENCE else difference_cell(few[row], few.get(REFERENCE, {})))
        cells += [mean_cell(by_seed(runs[row], "forgotten_frequency", group)) for group in GROUPS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def examples(run: FinishedRun) -> str:
    """Return the number of training examples of each class in one run, and the number of its rounds."""
    counts = read_json(run.path / "partition.json")["counts"]
    totals = [sum(client[label] for client in counts) for label in range(len(counts[0]))]
    shown = ", ".join(map(str, totals))
    return f"{run.summary['rounds']} rounds; training examples of the classes with seed {run.cell.seed}: {shown}."


def verdict(results: StudyResults, column: str) -> str:
    """Return the methods whose few classes differ from FedAvg's by more than the interval over the seeds."""
    reference = by_seed(results.finished_runs(REFERENCE, column), "frequency", "few")
    if len(reference) < 2:
        return "One seed has no interval: no difference is tested."
    better, worse, open_ = list[str](), list[str](), list[str]()
    for row in results.study.rows:
        if row == REFERENCE:
            continue
        found = paired_difference(by_seed(results.finished_runs(row, column), "frequency", "few"), reference)
        if found is not None:
            clear = found.low is not None and found.high is not None and not found.low <= 0 <= found.high
            (open_ if not clear else better if found.mean > 0 else worse).append(f"`{row}`")
    parts = {"keep the few classes better than FedAvg": better, "worse": worse, "no difference shown": open_}
    groups = "; ".join(f"**{what}**: {', '.join(names) or 'none'}" for what, names in parts.items())
    return f"By the intervals over the seeds: {groups}."


def section() -> str:
    """Return a table for every task that was run."""
    parts = []
    for task, title in TASKS.items():
        folder = RESULTS / f"equal-effort-{task}"
        if not any(folder.glob("cells/*/*/*/summary.json")):
            parts.append(f"### {title}\n\nNot run yet.")
            continue
        results = load_results(folder)
        parts.append(
            f"### {title}\n\n{examples(results.finished_runs()[0])}\n\n{column_table(results, task)}\n\n"
            f"{verdict(results, task)}"
        )
    return "\n\n".join(parts)


def main() -> None:
    """Write the tables between their marks in the page."""
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n{section()}\n\n{END}{after}")


if __name__ == "__main__":
    main()
