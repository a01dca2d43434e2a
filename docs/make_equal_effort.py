"""Comparison of methods with equal effort: each is tuned with the same number of trials, then run on fresh seeds.

`python docs/make_equal_effort.py digits --out build/equal-effort` tunes every method on examples held out from the
clients, runs the best settings on seeds that the search did not use, and writes the table to page.md in the folder.
Called again it resumes: trials and runs that exist are kept, more trials and more seeds are added to them. Tasks are
`digits` (every method with a global model) and `cifar10` (twelve methods).

The space of a method is its own (`fedrecall.methods.search_spaces`) and the clients' learning rate, for all methods in
the same range: a method that is tuned by its weight alone would be compared with a FedAvg whose learning rate is tuned.
The first trial of every search has the defaults.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import fedrecall as fr
from fedrecall.config.experiment import Experiment
from fedrecall.config.overrides import with_overrides
from fedrecall.config.sources import COMPARE_DEFAULTS
from fedrecall.config.tables import Tables, flatten, merge_tables, read_toml
from fedrecall.methods import METHODS
from fedrecall.methods.search_spaces import SEARCH_SPACES, GridValues
from fedrecall.reporting.tables import comparison_table
from fedrecall.reporting.tables.render import to_markdown
from fedrecall.studies.results import load_results
from fedrecall.studies.runner import run_study
from fedrecall.studies.study import Study
from fedrecall.studies.tuning.progress import format_outcome
from fedrecall.studies.tuning.search import TuningResult
from fedrecall.studies.tuning.space import apply_settings
from fedrecall.studies.tuning.trials import format_settings

ROOT = Path(__file__).parent.parent
TUNING_SEED = 1000  # of all searches; the compared runs have the seeds from 0
LEARNING_RATE = "local.lr=0.01..0.2"  # of every method
CONTROLS = ("fedavg-kd", "fedavg-ls", "grid")
PROBES = ["forgotten", "pull"]
CIFAR_METHODS = (
    "fedavg",
    "fedprox",
    "scaffold",
    "fedgkd",
    "fedntd",
    "fedlmd",
    "fedlmd-tf",
    "fedcad",
    "fedssd",
    "fedcsd",
    "fedlc",
    "feddecorr",
)


class Task(NamedTuple):
    """A federation, the methods to compare on it, and the effort for each of them."""

    title: str
    tables: Tables
    methods: tuple[str, ...]
    trials: int
    tuning_fraction: float  # of the rounds, in the trials
    seeds: int


def tasks() -> dict[str, Task]:
    """Return the tasks by name."""
    everything = tuple(n for n, method in METHODS.items() if n not in CONTROLS and not method().traits.personalised)
    cifar10 = read_toml(ROOT / "examples" / "forgetting.toml")
    return {
        "digits": Task("Digits, 40 clients with two classes each", COMPARE_DEFAULTS, everything, 20, 1.0, 10),
        "cifar10": Task("CIFAR-10, 20 clients, Dirichlet 0.1", cifar10, CIFAR_METHODS, 6, 0.5, 5),
    }


def method_table(name: str) -> dict[str, Any]:
    """Return the starting point of a method: its defaults, FedCSD as released (the text's values have no effect)."""
    return {"name": name, "preset": "fedcsd-code"} if name == "fedcsd" else {"name": name}


def search_texts(name: str, defaults: Tables) -> list[str]:
    """Return the space of a method as texts: its own dimensions, with the default among the values, and the rate."""
    texts = []
    for key, values in SEARCH_SPACES[name].dimensions.items():
        if key == LEARNING_RATE.partition("=")[0]:
            continue
        if isinstance(values, GridValues):
            default = flatten(defaults)[key]
            texts.append(f"{key}={','.join(f'{value:g}' for value in sorted({*values.of, default}))}")
        else:
            texts.append(f"{key}={values}")
    return [*texts, LEARNING_RATE]


def search(name: str, task: Task, out: Path) -> TuningResult:
    """Search the space of a method, or resume the search."""
    rounds = max(1, round(task.tuning_fraction * task.tables["run"]["rounds"]))
    tables = merge_tables(task.tables, {"run": {"rounds": rounds, "seed": TUNING_SEED, "probes": []}})
    start = method_table(name)
    defaults = Experiment(**merge_tables(tables, {"method": start})).to_tables()
    over = search_texts(name, defaults)
    return fr.tune(start, tables, trials=task.trials, over=over, out=out / "tuning" / name, progress=True)


def make_study(name: str, task: Task, found: dict[str, TuningResult]) -> Study:
    """Return the study of the best settings of every method."""
    rows = {
        method: merge_tables({"method": method_table(method)}, apply_settings({}, result.best.settings))
        for method, result in found.items()
        if result.best is not None
    }
    return Study(
        id=f"equal-effort-{name}",
        title=f"{task.title}: {task.trials} trials for each method",
        base=merge_tables(task.tables, {"run": {"probes": PROBES, "local_accuracy": True}}),
        rows=rows,
        columns={name: {}},
        seeds=tuple(range(task.seeds)),
        measure="last10",
    )


def page(name: str, task: Task, folder: Path, found: dict[str, TuningResult]) -> str:
    """Return the table of a finished study, and what the searches found."""
    table = to_markdown(comparison_table(load_results(folder), name)).strip()
    searches = []
    for method, result in found.items():
        first, best = result.trials[0], result.best
        settings = "none: every trial diverged" if best is None else f"`{format_settings(best.settings)}`"
        values = [" " if trial is None else format_outcome(trial) for trial in (first, best)]
        searches.append(f"| `{method}` | {values[0]} | {values[1]} | {settings} |")
    head = "| method | default | best trial | settings of the best trial |\n|---|---:|---:|---|\n"
    return "\n\n".join([table, head + "\n".join(searches)]) + "\n"


def main() -> None:
    """Run a task, or resume it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=tasks())
    parser.add_argument("--out", type=Path, default=Path("build/equal-effort"))
    parser.add_argument("--methods", help="some of the methods, with commas")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--fraction", type=float, help="fraction of the rounds in the trials")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the federation")
    given = parser.parse_args()
    task = tasks()[given.task]
    task = task._replace(
        tables=with_overrides(task.tables, given.set),
        trials=given.trials or task.trials,
        seeds=given.seeds or task.seeds,
        tuning_fraction=given.fraction or task.tuning_fraction,
    )
    methods = given.methods.split(",") if given.methods else list(task.methods)
    out = given.out / given.task
    found = {method: search(method, task, out) for method in methods}
    folder = out / "study"
    for event in run_study(make_study(given.task, task, found), folder):
        if event.kind in ("finished", "kept", "rejected"):
            sys.stdout.write(f"{event.kind}: {event.cell.row}, seed {event.cell.seed}\n")
    (out / "page.md").write_text(page(given.task, task, folder, found))


if __name__ == "__main__":
    main()
