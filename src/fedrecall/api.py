"""The driver of each command, for Python and for the command line."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedrecall.config.experiment import Experiment
from fedrecall.core.method import Method
from fedrecall.data.catalog import DATASETS
from fedrecall.reporting.comparison import Comparison
from fedrecall.runs.directory import require_empty
from fedrecall.runs.progress import RunProgress, progress_console
from fedrecall.runs.records import RoundRecord
from fedrecall.runs.result import Result, run_title
from fedrecall.runs.run import Run
from fedrecall.runs.setup import UserModel, prepare_run
from fedrecall.studies.results import load_results


def run(
    experiment: Experiment | Mapping[str, Any] | str | Path | None = None,
    *,
    method: Method | Mapping[str, Any] | str | None = None,
    data: object = None,
    model: UserModel | None = None,
    partition: object = None,
    rounds: int | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    watch: Callable[[RoundRecord], None] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool | Console | None = None,
) -> Result:
    """Run one experiment and return its result.

    `experiment` is an `Experiment`, its tables, or the path of a TOML file; None is the quickstart on digits.
    `overrides` such as "local.lr=0.1" change its settings, and so do `method` (a name, a table or a `Method`), `data`
    (a name, arrays, a `Dataset`, a torch or Hugging Face dataset, or a folder of images) and `rounds`. `model` is a
    torch module, or a class or function that makes one; `partition` is a partitioner of this library or of
    flwr-datasets.

    With `out` the run directory is written there. `watch` is called with the record of every round. `progress` shows
    a progress display, on standard error or on a given console; by default in a notebook and on a terminal. `resume`
    continues the interrupted run in `out`, unless settings that change its result differ; `force` continues it in any
    case.

    >>> import fedrecall as fr
    >>> result = fr.run({"local": {"epochs": 1}}, method={"name": "fedprox", "mu": 0.1}, rounds=2, progress=False)
    >>> [record["round"] for record in result.rounds]
    [1, 2]
    """
    if isinstance(experiment, Mapping):
        experiment = Experiment(**experiment)
    elif not isinstance(experiment, Experiment):
        experiment = Experiment.load(experiment, overrides)
    changes: dict[str, object] = {} if method is None else {"method": method}
    if rounds is not None:
        changes["run"] = dict(experiment.run) | {"rounds": rounds}
    if isinstance(data, str) and data in DATASETS:
        data, changes["data"] = None, dict(experiment.data) | {"name": data}
    experiment = Experiment(**dict(experiment) | changes)
    if out is not None and not resume:
        require_empty(Path(out))  # before data is loaded; checked again by the run, which holds the lock then
    setup = prepare_run(experiment, data=data, model=model, partition=partition)
    with (
        RunProgress(setup.schedule.rounds, run_title(setup.experiment), progress_console(progress)) as display,
        Run(setup, out, resume=resume, force=force) as active,
    ):
        for record in active:
            display.update(record)
            if watch is not None:
                watch(record)
    return active.result


def load(folder: str | Path) -> Comparison:
    """Load the results that `run`, `compare` or `reproduce` wrote into a folder, from Python or the command line.

    >>> import fedrecall as fr
    >>> fr.load("no/such/folder")
    Traceback (most recent call last):
    ...
    fedrecall.errors.UserError: no/such/folder: neither a run directory nor the folder of a study...
    """
    return Comparison(load_results(Path(folder)))
