"""Comparison of methods with equal effort: each is tuned with the same number of trials, then run on fresh seeds.

`python docs/make_equal_effort.py digits --out build/equal-effort` tunes every method on examples held out from the
clients, runs the best settings on seeds that the search did not use, copies the records to results/ and writes
docs/equal-effort.md. Called again it resumes: trials and runs that exist are kept, more trials and more seeds are added
to them. Each process uses one core; several that are started with the same task share its work. Tasks are `digits`
(every method with a global model), `cifar10` (some of them), and `rare-labels` and `rare-labels-10`
(docs/rare-labels.md), which have the settings that were found for `cifar10`. `python docs/make_equal_effort.py` writes
the page from the records in results/.

The space of a method is its own (`fedrecall.methods.search_spaces`) and the clients' learning rate, for all methods in
the same range: a method that is tuned by its weight alone would be compared with a FedAvg whose learning rate is tuned.
The first trial of every search has the defaults.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import fedrecall as fr
from fedrecall.config.experiment import Experiment
from fedrecall.config.overrides import with_overrides
from fedrecall.config.sources import COMPARE_DEFAULTS
from fedrecall.config.tables import Tables, flatten, merge_tables, read_toml
from fedrecall.errors import UserError
from fedrecall.methods import METHOD_GROUPS, METHODS
from fedrecall.methods.search_spaces import SEARCH_SPACES, GridValues
from fedrecall.reporting.tables.cells import (
    MILLION,
    RunGroup,
    accuracy_cell,
    difference_cell,
    number_cell,
    run_group,
    spread_cell,
)
from fedrecall.reporting.tables.render import TableCell
from fedrecall.studies.results import StudyResults, load_results
from fedrecall.studies.runner import run_study
from fedrecall.studies.study import Study
from fedrecall.studies.tuning.search import TuningResult
from fedrecall.studies.tuning.space import apply_settings
from fedrecall.studies.tuning.trials import Trial, best_trial, format_settings, read_trials

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "results"
PAGE = ROOT / "docs" / "equal-effort.md"
RECORD_FILES = (
    *("search.toml", "trials.jsonl", "study.toml"),
    *("config.toml", "summary.json", "rounds.jsonl", "partition.json", "predictions.safetensors"),
)
TUNING_SEED = 1000  # of all searches; the compared runs have the seeds from `Task.first_seed`
LEARNING_RATE = "local.lr"  # of which every method of a task has the same range
CONTROLS = ("fedavg-kd", "fedavg-ls", "grid")
PROBES = ["forgotten", "pull"]
RARE_METHODS = ("fedavg", *METHOD_GROUPS["forget less: distillation"], "fedlmd-tf", "fedlc", "fedrs")
CIFAR_METHODS = (*RARE_METHODS, "fedprox", "scaffold", "feddecorr")
CIFAR_RATES = "0.002..0.05"

INTRODUCTION = f"""# Equal effort for all methods

Which method is best on a federation of skewed labels, if every method is tuned with the same effort? This page is
written by `python docs/make_equal_effort.py` from the records in `results/`.

Every method has the same number of trials, as long as the compared runs: shorter trials prefer settings that learn fast
and are unstable later. A trial trains on the clients' data without a fifth of every client's examples, on which it is
scored; the test set is not used. The first trial has the defaults; [`fedrecall tune`](tuning.md) proposes the others,
from the method's own search space and from one range of the clients' learning rate (`{LEARNING_RATE}`) for all methods
of a task. `fedcsd` starts from the values of its released code. The best settings are then run on seeds that no search
used. All trials are on one federation, that of seed {TUNING_SEED}: a method whose best settings are at the edge of what
is stable does worse on other federations.

The digits have the seeds 10 to 19. Two comparisons on the seeds 0 to 9 came before, and their records are not kept. The
first had trials of 15 rounds, pruned after a quarter: FedNTD (51.2 %), FedLMD (83.6), FedProx, FedDyn and FedAvgM were
below FedAvg (90.2) by both intervals. The second had the trials of this page. The length of the trials was changed
after the first was seen, so the settings were run again on seeds that neither had. Verdicts depend on how a method is
tuned.

- *last 10*: mean accuracy of the last ten rounds, ± its standard deviation over seeds. *less FedAvg*: mean difference
  to FedAvg and its 95 % intervals, first over seeds (paired, Student's t), then, marked e, over test examples
  (bootstrap). *better* and *worse*: both exclude zero.
- *forgotten*: share of the test examples that the received model classified correctly and the client's trained model
  gets wrong, mean over clients and rounds; *absent*: of the classes of which the client has no example.
- *pull*: share of the distillation in the gradient at the logits. Methods that do not distil have none.
- *MB*: sent by and to each participating client in a round."""


class Task(NamedTuple):
    """A federation, the methods to compare on it, and the effort for each of them."""

    title: str
    tables: Tables
    methods: tuple[str, ...]
    trials: int
    seeds: int
    rates: str = "0.01..0.2"  # searched learning rates
    searches: str | None = None  # task whose searches found the settings; None: this one
    first_seed: int = 0


def tasks() -> dict[str, Task]:
    """Return the tasks by name."""
    everything = tuple(n for n, method in METHODS.items() if n not in CONTROLS and not method().traits.personalised)
    serial = {"engine": {"name": "serial"}}  # clients of a round differ in size: runs side by side keep all cores busy
    digits = merge_tables(COMPARE_DEFAULTS, serial)
    cifar10 = merge_tables(read_toml(ROOT / "examples" / "forgetting.toml"), serial)
    cifar10 = merge_tables(cifar10, {"run": {"probe_every": 4}})  # in every round it costs more than the training
    # all clients train in every round: with five of twenty, ratio 100 gave models that predict one class
    everyone = {"federation": {"clients": 10, "sample": 10}}
    rare = {
        ratio: merge_tables(cifar10, everyone, {"data": {"imbalance": {"name": "exponential", "ratio": ratio}}})
        for ratio in (100, 10)
    }
    title = "CIFAR-10 with rare labels, 10 clients, Dirichlet 0.1, ratio"
    return {
        "digits": Task("Digits, 40 clients with two classes each", digits, everything, 20, 10, first_seed=10),
        "cifar10": Task("CIFAR-10, 20 clients, Dirichlet 0.1", cifar10, CIFAR_METHODS, 6, 5, CIFAR_RATES),
        "rare-labels": Task(f"{title} 100", rare[100], RARE_METHODS, 0, 3, searches="cifar10"),
        "rare-labels-10": Task(f"{title} 10", rare[10], RARE_METHODS, 0, 3, searches="cifar10"),
    }


def method_table(name: str) -> dict[str, Any]:
    """Return the starting point of a method: its defaults, FedCSD as released (the text's values have no effect)."""
    return {"name": name, "preset": "fedcsd-code"} if name == "fedcsd" else {"name": name}


def search_texts(name: str, defaults: Tables, rates: str) -> list[str]:
    """Return the space of a method as texts: its own dimensions, with the default among the values, and the rate."""
    texts = []
    for key, values in SEARCH_SPACES[name].dimensions.items():
        if key == LEARNING_RATE:
            continue
        if isinstance(values, GridValues):
            default = flatten(defaults)[key]
            texts.append(f"{key}={','.join(f'{value:g}' for value in sorted({*values.of, default}))}")
        else:
            texts.append(f"{key}={values}")
    return [*texts, f"{LEARNING_RATE}={rates}"]


def search(name: str, task: Task, out: Path) -> TuningResult:
    """Search the space of a method, or resume the search."""
    tables = merge_tables(task.tables, {"run": {"seed": TUNING_SEED, "probes": [], "local_accuracy": False}})
    start = method_table(name)
    defaults = Experiment(**merge_tables(tables, {"method": start})).to_tables()
    over = search_texts(name, defaults, task.rates)
    return fr.tune(start, tables, trials=task.trials, over=over, out=out / "tuning" / name, progress=True)


def make_study(name: str, task: Task, found: dict[str, Trial | None]) -> Study:
    """Return the study of the best settings of every method."""
    rows = {
        method: merge_tables({"method": method_table(method)}, apply_settings({}, best.settings))
        for method, best in found.items()
        if best is not None
    }
    return Study(
        id=f"equal-effort-{name}",
        title=f"{task.title}: {tasks()[task.searches].trials if task.searches else task.trials} trials for each method",
        base=merge_tables(task.tables, {"run": {"probes": PROBES, "local_accuracy": True}}),
        rows=rows,
        columns={name: {}},
        seeds=tuple(range(task.first_seed, task.first_seed + task.seeds)),
        measure="last10",
    )


def keep_records(name: str, out: Path) -> None:
    """Copy the new records of a task to results/: searches, and finished runs without their weights."""
    target = RECORDS / f"equal-effort-{name}"
    finished = [file for done in out.glob("study/cells/*/*/*/summary.json") for file in done.parent.iterdir()]
    for kept in [*out.glob("tuning/*/*"), *finished, out / "study" / "study.toml"]:
        if kept.name not in RECORD_FILES or not kept.exists():
            continue
        path = target / kept.relative_to(out if "tuning" in kept.relative_to(out).parts[:1] else out / "study")
        if not path.exists() or path.stat().st_mtime < kept.stat().st_mtime:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(kept, path)


def restore_records(name: str, out: Path) -> None:
    """Copy the searches and runs in results/ to the folder of a task that does not have them, to be resumed there."""
    records = RECORDS / f"equal-effort-{name}"
    for pattern, parent in (("tuning/*", out), ("cells/*/*/*", out / "study")):
        for kept in records.glob(pattern):
            folder = parent / kept.relative_to(records)
            if not folder.exists():
                shutil.copytree(kept, folder)
    study = out / "study" / "study.toml"  # without it the folder of the runs would be that of something else
    if (records / study.name).exists() and not study.exists():
        study.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(records / study.name, study)


def best_settings(method: str, task: Task, out: Path) -> Trial | None:
    """Return the best trial of a method, by a search or from the records of the task that has searched."""
    if task.searches is not None:
        return best_trial(read_trials(RECORDS / f"equal-effort-{task.searches}" / "tuning" / method))
    return search(method, task, out).best


def search_all(methods: Sequence[str], name: str, task: Task, out: Path) -> dict[str, Trial | None]:
    """Return the best trial of every method; a method that another process searches is waited for."""
    found: dict[str, Trial | None] = {}
    while len(found) < len(methods):
        before = len(found)
        for method in methods:
            if method in found:
                continue
            try:
                found[method] = best_settings(method, task, out)
            except UserError as error:
                if error.code != "run.directory_in_use":
                    raise
            keep_records(name, out)  # an interrupted task is resumed from them
        if len(found) == before:
            time.sleep(1)
    return {method: found[method] for method in methods}


class Row(NamedTuple):
    """A method in the table of a task."""

    method: str
    runs: RunGroup
    accuracy: float


def missing_work(name: str, task: Task) -> str:
    """Return what a task lacks, with the command that does it; an empty string if it is complete."""
    folder = RECORDS / f"equal-effort-{name}"
    trials = 0 if task.searches else sum(len(read_trials(folder / "tuning" / method)) for method in task.methods)
    wanted = 0 if task.searches else task.trials * len(task.methods)
    runs, wanted_runs = len([*folder.glob("cells/*/*/*/summary.json")]), task.seeds * len(task.methods)
    if trials >= wanted and runs >= wanted_runs:
        return ""
    return (
        f"Not finished: {trials} of {wanted} trials and {runs} of {wanted_runs} runs are done. "
        f"`python docs/make_equal_effort.py {name}` resumes. Tables have the methods whose trials or runs are complete."
    )


def section(name: str, task: Task) -> str:
    """Return the section of a task, from its records."""
    folder, missing = RECORDS / f"equal-effort-{name}", missing_work(name, task)
    parts = [f"## {task.title}", *([missing] if missing else [])]
    if not (folder / "study.toml").exists():
        return "\n\n".join(parts)
    compared = comparison(load_results(folder), name, task.seeds if missing else 1)
    if task.searches is not None:
        effort = f"The settings are those that were found for the task `{task.searches}`."
        return "\n\n".join([*parts, effort, *compared])
    found = {method: read_trials(folder / "tuning" / method) for method in task.methods}
    searches = {method: trials for method, trials in found.items() if len(trials) >= task.trials}
    counts = sorted({len(trials) for trials in searches.values()})
    effort = (
        f"{len(searches)} methods with {' or '.join(map(str, counts))} trials each, of "
        f"{task.tables['run']['rounds']} rounds (seed {TUNING_SEED}); `{LEARNING_RATE}` in {task.rates}."
    )
    lines = ["| method | defaults, % | best trial, % | settings of the best trial |", "|---|---:|---:|---|"]
    for method, trials in sorted(searches.items(), key=lambda item: -_value(item[1])):
        best = best_trial(trials)
        settings = "" if best is None else f"`{format_settings(best.settings)}`"
        lines.append(f"| `{method}` | {_score(trials[0])} | {100 * _value(trials):.1f} | {settings} |")
    changed = (
        "What the searches found: accuracy on the clients' held-out examples with the defaults and at best. It is of "
        "one seed, and the best of several trials is too high: it chooses settings and compares no methods."
    )
    return "\n\n".join([*parts, effort, *compared, changed, "\n".join(lines)])


def comparison(results: StudyResults, name: str, seeds_done: int) -> list[str]:
    """Return the paragraphs and the table of the runs on fresh seeds, of methods with at least `seeds_done` runs."""
    groups = {method: run_group(results, method, name) for method in results.study.rows}
    shown = {method: group for method, group in groups.items() if len(group.completed) >= seeds_done}
    rows = [Row(method, g, fmean(g.accuracy("last10").values())) for method, g in shown.items()]
    rows.sort(key=lambda row: -row.accuracy)
    reference, seeds = groups["fedavg"], results.study.seeds
    titles = ("method", "last 10, %", "less FedAvg", "forgotten, %", "less FedAvg", "absent, %", "pull, %")
    lines = [f"| {' | '.join(titles)} | MB up | MB down |", "|---|" + "---:|" * (len(titles) + 1)]
    lines += [f"| {' | '.join(_cells(row, reference))} |" for row in rows]
    diverged = [method for method, group in groups.items() if not group.completed and seeds_done == 1]
    notes = [f"No run of {', '.join(diverged)} was completed."] if diverged else []
    which = f"The best settings were run with the seeds {', '.join(map(str, seeds))}. {verdicts(rows, reference)}"
    return [which, "\n".join(lines), *notes]


def verdicts(rows: Sequence[Row], reference: RunGroup) -> str:
    """State which methods are better and worse than FedAvg by both intervals, and which forget less over seeds."""
    decided: dict[str, list[str]] = {"better": [], "worse": [], "no difference shown": []}
    less = []
    for row in rows:
        if row.method == "fedavg":
            continue
        accuracy = difference_cell(row.runs, reference, lambda group: group.accuracy("last10"), "last10")
        decided.get(accuracy.lines[-1], []).append(f"`{row.method}`")
        high = difference_cell(row.runs, reference, lambda group: group.mean_over_rounds("forgotten")).numbers["high"]
        if high is not None and high < 0:
            less.append(f"`{row.method}`")
    sentences = [
        f"More accurate than FedAvg by both intervals: {', '.join(decided['better']) or 'none'}.",
        f"Less accurate: {', '.join(decided['worse']) or 'none'}.",
        f"Clients forget less, by the interval over seeds: {', '.join(less) or 'none'}.",
    ]
    return " ".join(sentences)


def _cells(row: Row, reference: RunGroup) -> list[str]:
    def text(cell: TableCell) -> str:
        return "<br>".join(cell.lines)

    runs = row.runs
    forgotten = difference_cell(runs, reference, lambda group: group.mean_over_rounds("forgotten"))
    return [
        f"`{row.method}`",
        text(accuracy_cell(runs, "last10")),
        text(difference_cell(runs, reference, lambda group: group.accuracy("last10"), "last10")),
        text(spread_cell(list(runs.mean_over_rounds("forgotten").values()), runs)),
        text(forgotten),
        text(spread_cell(list(runs.mean_over_rounds("forgotten_absent").values()), runs)),
        text(spread_cell(list(runs.mean_over_rounds("pull").values()), runs)),
        text(number_cell(runs.mean_of("bytes_up"), MILLION)),
        text(number_cell(runs.mean_of("bytes_down"), MILLION)),
    ]


def _value(trials: list[Trial]) -> float:
    best = best_trial(trials)
    return 0.0 if best is None or best.value is None else best.value


def _score(trial: Trial) -> str:
    return "diverged" if trial.outcome == "failed" else "pruned" if trial.value is None else f"{100 * trial.value:.1f}"


def page() -> str:
    """Return the page of all tasks that have records."""
    sections = [section(name, task) for name, task in tasks().items() if (RECORDS / f"equal-effort-{name}").exists()]
    return "\n\n".join([INTRODUCTION, *sections]) + "\n"


def main() -> None:
    """Run a task, or resume it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", choices=tasks(), help="none: write the page from the records")
    parser.add_argument("--out", type=Path, default=Path("build/equal-effort"))
    parser.add_argument("--methods", help="some of the methods, with commas")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the federation")
    given = parser.parse_args()
    if given.task is None:
        PAGE.write_text(page())
        return
    task = tasks()[given.task]
    task = task._replace(
        tables=with_overrides(task.tables, given.set),
        trials=given.trials or task.trials,
        seeds=given.seeds or task.seeds,
    )
    methods = given.methods.split(",") if given.methods else list(task.methods)
    out = given.out / given.task
    restore_records(given.task, out)
    found = search_all(methods, given.task, task, out)
    for event in run_study(make_study(given.task, task, found), out / "study"):
        if event.kind in ("finished", "kept", "rejected"):
            sys.stdout.write(f"{event.kind}: {event.cell.row}, seed {event.cell.seed}\n")
            keep_records(given.task, out)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
