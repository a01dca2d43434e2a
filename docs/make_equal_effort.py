"""Comparison of methods with equal effort: each is tuned with the same number of trials, then run on fresh seeds.

`python docs/make_equal_effort.py digits --out build/equal-effort` tunes every method on examples held out from the
clients, runs the best settings and the defaults on seeds that the search did not use, and writes the table to page.md
in the folder. Called again it resumes: trials and runs that exist are kept. Tasks are `digits` (every method with a
global model) and `cifar10` (twelve methods).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fedrecall as fr
from fedrecall.config.sources import COMPARE_DEFAULTS
from fedrecall.config.tables import Tables, flatten, merge_tables, read_toml
from fedrecall.methods import METHODS
from fedrecall.reporting.tables import comparison_table
from fedrecall.reporting.tables.render import to_markdown
from fedrecall.studies.results import load_results
from fedrecall.studies.runner import run_study
from fedrecall.studies.store import RunStore
from fedrecall.studies.study import Study
from fedrecall.studies.tuning.space import apply_settings

ROOT = Path(__file__).parent.parent
TUNING_SEED = 1000  # of all searches; the compared runs have the seeds from 0
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


def tuned_settings(name: str, task: Task, out: Path) -> Tables:
    """Search the space of a method, or resume the search; return the best settings as tables."""
    run = task.tables.get("run", {})
    rounds = max(1, round(task.tuning_fraction * run.get("rounds", 20)))
    tables = merge_tables(task.tables, {"run": {"rounds": rounds, "seed": TUNING_SEED, "probes": []}})
    result = fr.tune(method_table(name), tables, trials=task.trials, out=out / "tuning" / name, progress=True)
    return {} if result.best is None else apply_settings({}, result.best.settings)


def make_study(name: str, task: Task, methods: Sequence[str], settings: dict[str, Tables]) -> Study:
    """Return the study of the tuned and the default settings of every method."""
    rows: dict[str, Tables] = {}
    for method in methods:
        default = {"method": method_table(method)}
        rows[method] = merge_tables(default, settings[method])
        rows[f"{method}, default"] = default
    return Study(
        id=f"equal-effort-{name}",
        title=f"{task.title}: {task.trials} trials for each method",
        base=merge_tables(task.tables, {"run": {"probes": PROBES, "local_accuracy": True}}),
        rows=rows,
        columns={name: {}},
        seeds=tuple(range(task.seeds)),
        measure="last10",
    )


def page(name: str, task: Task, folder: Path, settings: dict[str, Tables]) -> str:
    """Return the table of a finished study, and the settings that the searches found."""
    found = [
        f"| `{method}` | {', '.join(f'`{key} = {value}`' for key, value in flatten(tables).items()) or 'default'} |"
        for method, tables in settings.items()
    ]
    table = to_markdown(comparison_table(load_results(folder), name)).strip()
    effort = (
        f"Every method had {task.trials} trials on examples held out from the clients (seed {TUNING_SEED}, "
        f"{100 * task.tuning_fraction:.0f} % of the rounds). The rows are means over the fresh seeds 0 to "
        f"{task.seeds - 1}; rows marked default have the settings before the search."
    )
    return "\n\n".join([effort, table, "| method | settings found |\n|---|---|\n" + "\n".join(found)]) + "\n"


def main() -> None:
    """Run a task, or resume it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=tasks())
    parser.add_argument("--out", type=Path, default=Path("build/equal-effort"))
    parser.add_argument("--methods", help="some of the methods, with commas")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    task = tasks()[given.task]
    task = task._replace(trials=given.trials or task.trials, seeds=given.seeds or task.seeds)
    if given.rounds:
        task = task._replace(tables=merge_tables(task.tables, {"run": {"rounds": given.rounds}}))
    methods = given.methods.split(",") if given.methods else list(task.methods)
    out = given.out / given.task
    settings = {method: tuned_settings(method, task, out) for method in methods}
    study = make_study(given.task, task, methods, settings)
    folder = out / "study"
    for event in run_study(study, folder, store=RunStore(given.out / "store")):
        if event.kind in ("finished", "kept", "rejected"):
            sys.stdout.write(f"{event.kind}: {event.cell.row}, seed {event.cell.seed}\n")
    (out / "page.md").write_text(page(given.task, task, folder, settings))


if __name__ == "__main__":
    main()
