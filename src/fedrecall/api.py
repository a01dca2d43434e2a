"""The driver of each command, for Python and for the command line."""

import logging
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from rich.console import Console
from torch import nn

from fedrecall.config.experiment import CHOICES, Experiment
from fedrecall.config.overrides import with_overrides
from fedrecall.config.own_code import untrusted
from fedrecall.config.sources import (
    ConfigLike,
    import_own_code,
    own_code,
    require_section_objects,
    with_section_objects,
)
from fedrecall.config.tables import merge_tables
from fedrecall.errors import UserError
from fedrecall.reporting.comparison import Comparison
from fedrecall.runs.directory import CONFIG_FILE, remove_if_unused, require_empty
from fedrecall.runs.keywords import Keywords, MethodLike, ModelLike, NamedMethod, name_method
from fedrecall.runs.notices import warn_of_no_effect
from fedrecall.runs.progress import RunProgress, progress_console
from fedrecall.runs.records import RoundRecord
from fedrecall.runs.result import Result, run_title
from fedrecall.runs.run import Run
from fedrecall.runs.setup import Setup, prepare_run
from fedrecall.studies.compare import DEFAULT_SEEDS, StudyObjects, comparison_study
from fedrecall.studies.cost import describe_cost
from fedrecall.studies.progress import StudyProgress
from fedrecall.studies.reproduce import reproduction_study
from fedrecall.studies.results import StudyResults, load_results
from fedrecall.studies.runner import run_study
from fedrecall.studies.store import RunStore
from fedrecall.studies.study import Study
from fedrecall.studies.tuning.progress import TuningProgress
from fedrecall.studies.tuning.reproduction import tuned_study
from fedrecall.studies.tuning.search import Search, TuningEvent, TuningResult

log = logging.getLogger(__name__)

StudyFolder = str | Path | Callable[[Study], Path] | None

"""A folder, a function that chooses it for a study, or None for a temporary one."""


def run(
    config: ConfigLike | None = None,
    *,
    method: MethodLike | None = None,
    data: object = None,
    model: ModelLike | None = None,
    partition: object = None,
    clients: int | None = None,
    sample: int | None = None,
    alpha: float | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    lr: float | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | Callable[[Experiment], Path] | None = None,
    watch: Callable[[RoundRecord], object] | None = None,
    resume: bool = False,
    force: bool = False,
    trust_code: bool = False,
    progress: bool | Console | None = None,
) -> Result:
    """Run one experiment and return its result.

    `config` is an `Experiment`, its tables, or the path of a TOML file; None is the quickstart on digits: 10 clients
    with a Dirichlet partition, all of them in each of 20 rounds. The keywords change its settings; `compare` and `tune`
    have the same ones.

    `method` is a name, with settings if desired ("fedlmd:tau=3"), a table, or a `Method`. `data` is a name such as
    "cifar10", (x, y), (x, y, clients), a `Dataset`, a torch or Hugging Face dataset, or the path of a folder of images
    or of a table. It is partitioned into `clients` with Dirichlet `alpha`, or by `partition`, a name, a table or an
    object; `sample` clients train in each round. `model` is a name, a table, a module, or a class or function that
    makes one. A name may be that of your own code, "package.module:Class". `lr`, `epochs` and `batch` are those of the
    clients' training. `overrides` such as "server.momentum=0.9" set any other key.

    With `out`, a path or a function that chooses one, the run directory is written there. `watch` is called with the
    record of every round; when it returns True, the run stops and is finished. `progress` shows a progress display, on
    standard error or on a given console; by default in a notebook and on a terminal. `resume` continues the interrupted
    run in `out`, unless settings that change its result differ; `force` continues it in any case. Without `config` it
    has the configuration of `out`, whose own code is imported only with `trust_code`.

    >>> import fedrecall as fr
    >>> result = fr.run({"local": {"epochs": 1}}, method={"name": "fedprox", "mu": 0.1}, rounds=2, progress=False)
    >>> [record["round"] for record in result.rounds]
    [1, 2]
    """
    keywords = Keywords(data, model, partition, clients, sample, alpha, rounds, seed, lr, epochs, batch)
    from_directory = resume and config is None and isinstance(out, str | Path)
    if resume and isinstance(out, str | Path) and not (Path(out) / CONFIG_FILE).exists():
        message = f"cannot resume {out}: not the directory of an interrupted run"
        raise UserError("run.not_a_run", message, str(out), "give the directory of one")
    if from_directory:
        config = Path(str(out)) / CONFIG_FILE
    named = None if method is None else name_method(method)
    if named is None and isinstance(config, Experiment) and CHOICES["method"].dump(config.method)["name"] == "own":
        named = NamedMethod("", {}, config.known_method)  # an object that the tables of the experiment only name
    tables, objects = keywords.apply(config)
    tables = with_overrides(tables if named is None else merge_tables(tables, named.tables), overrides)
    if named is not None and named.method is not None:
        tables["method"] = named.method
    experiment = Experiment(**(with_section_objects(tables, config) if isinstance(config, Experiment) else tables))
    require_section_objects(experiment)
    if from_directory and not trust_code and own_code(experiment):
        raise untrusted(own_code(experiment), str(out))
    experiment = import_own_code(experiment)
    folder = out(experiment) if callable(out) else out
    if folder is not None and not resume:
        require_empty(Path(folder))  # before data is loaded; checked again by the run, which holds the lock then
    setup = prepare_run(experiment, data=objects.data, model=objects.model, partition=objects.partition)
    with (
        RunProgress(setup.schedule.rounds, run_title(setup.experiment), progress_console(progress)) as display,
        Run(setup, folder, resume=resume, force=force) as active,
    ):
        for record in active:
            display.update(record)
            if watch is not None and isinstance(stops := watch(record), bool | np.bool_) and stops:
                active.stop()
    _warn_of_chance(active.result, setup)
    warn_of_no_effect(active.result)
    return active.result


def compare(
    methods: Sequence[MethodLike] | Mapping[str, MethodLike] = (),
    *,
    config: ConfigLike | None = None,
    data: object = None,
    model: ModelLike | None = None,
    partition: object = None,
    clients: int | None = None,
    sample: int | None = None,
    alpha: float | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    seeds: int = DEFAULT_SEEDS,
    lr: float | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    overrides: Sequence[str] = (),
    baselines: Sequence[str] | None = None,
    out: StudyFolder = None,
    progress: bool | Console | None = None,
    partial: bool = False,
) -> Comparison:
    """Compare methods: each runs with the same federation, cohorts and initial weights, seed by seed.

    `methods` are names, with settings if desired ("fedlmd:tau=3"), tables, `Method` objects, or the names of your own
    classes ("package.module:Class:weight=2"); a dictionary names them. The first method is the reference of the others.
    Every method has `seeds` runs, the first of them with `seed`.

    `config` is a file, tables or an `Experiment` with all other settings. Without `config` and `data` the federation
    shows forgetting: 40 clients with two digits each, four of them in each of 30 rounds. The other keywords are those
    of `run`. A module passed as `model` gives all runs its weights; with a class or function each seed has its own
    weights.

    `baselines` are further rows of the same tables and figures: "central" (the same model trained on the pooled data,
    on as many examples as in FedAvg's run), "local" (each client alone) and "majority" (always the most frequent
    class). None: "central" and "majority" for your own data, none for named data sets.

    `out` is the folder of the run directories, in which an interrupted or smaller comparison is resumed. Without it
    the folder is temporary and removed with the returned object. `progress` is True, False or a rich console; None
    displays progress on a terminal and in a notebook. If a run cannot be made, the others are made and its error is
    raised; with `partial` the error is in `Comparison.rejected` instead.

    >>> import fedrecall as fr
    >>> x, y = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 40, ["left", "right", "both"] * 40
    >>> methods = ["fedavg", "fedlmd"]
    >>> comparison = fr.compare(methods, data=(x, y), clients=4, alpha=0.5, rounds=2, seeds=1, progress=False)
    >>> list(comparison.to_dict()["fedlmd"])[:3]
    ['final', 'best', 'last 10']
    """
    keywords = Keywords(data, model, partition, clients, sample, alpha, rounds, seed, lr, epochs, batch)
    study, objects = comparison_study(methods, config, overrides, seeds, keywords, baselines)
    return _run_study(study, objects, out, progress, partial=partial)


def reproduce(
    which: str,
    *,
    fraction: float = 1.0,
    methods: Sequence[str] | str | None = None,
    cells: Sequence[str] | str | None = None,
    seeds: int | None = None,
    overrides: Sequence[str] = (),
    out: StudyFolder = None,
    store: str | Path | None = None,
    tune: bool = False,
    progress: bool | Console | None = None,
    partial: bool = False,
) -> Comparison:
    """Run a paper's table or figure by its ID, or a definition by its path; its tables have the printed values too.

    `fraction` of the rounds are run. `methods` and `cells` select rows and columns. `seeds` is the number of
    repetitions, by default the paper's. `out`, `progress` and `partial` are those of `compare`. `store` is a folder of
    finished runs that all studies share. `tune` first searches the papers' grids on examples held out from the clients,
    for every method and column, in a folder beside `out`.

    >>> import fedrecall as fr
    >>> fr.reproduce("fedlmd-table-9")
    Traceback (most recent call last):
    ...
    fedrecall.errors.UserError: unknown experiment "fedlmd-table-9" (valid: ...): did you mean ...
    """
    rows, columns = (names if isinstance(names, str | None) else ",".join(names) for names in (methods, cells))
    study = reproduction_study(which, fraction=fraction, rows=rows, columns=columns, seeds=seeds, overrides=overrides)
    if tune:
        if out is None:
            raise UserError(
                "run.needs_directory", "tune = True: needs a folder of the study", "tune", "set out (--out)"
            )
        out = out(study) if callable(out) else Path(out)
        study = tuned_study(study, out.with_name(f"{out.name}-tuning"), progress_console(progress))
    kept = None if store is None else RunStore(Path(store))
    return _run_study(study, StudyObjects(), out, progress, partial=partial, estimate=True, store=kept)


def tune(
    method: MethodLike,
    config: ConfigLike | None = None,
    *,
    trials: int = 20,
    over: Sequence[str] = (),
    data: object = None,
    model: ModelLike | None = None,
    partition: object = None,
    clients: int | None = None,
    sample: int | None = None,
    alpha: float | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    lr: float | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    watch: Callable[[TuningEvent], None] | None = None,
    progress: bool | Console | None = None,
) -> TuningResult:
    """Try settings of a method until `out` has `trials` trials, or the complete grid has been tried.

    `method` is a name, a table, or a `Method` of this library. `config` and the other keywords are those of `compare`.
    `over` replaces the method's search space, for example ["local.lr=0.001..0.1"]; your own method has none and needs
    it. Every trial trains on the clients' data without a fraction that is held out for validation; the test set is not
    used. `out` is by default a folder in tuning/, in which an interrupted search is resumed. `watch` is called with
    every event.

    >>> import tempfile
    >>> import fedrecall as fr
    >>> result = fr.tune("fedprox", trials=2, rounds=2, epochs=1, out=tempfile.mkdtemp())
    >>> len(result.trials), result.config.name
    (2, 'best.toml')
    """
    keywords = Keywords(data, model, partition, clients, sample, alpha, rounds, seed, lr, epochs, batch)
    search = Search(method, config, trials=trials, over=over, overrides=overrides, out=out, keywords=keywords)
    with TuningProgress(search, progress_console(progress)) as display, search:
        for event in search:
            display.update(event)
            if watch is not None:
                watch(event)
    return search.result


def report(folders: Sequence[str | Path] | str | Path, out: str | Path | None = None) -> list[Path]:
    """Write an HTML page of studies and runs, and their tables as CSV, LaTeX and Markdown beside it.

    The page is by default report.html in the folder, or in the current one for several folders. Returns the written
    files, the page first.

    >>> import fedrecall as fr
    >>> fr.report("no/such/folder")
    Traceback (most recent call last):
    ...
    fedrecall.errors.UserError: no/such/folder: neither a run directory nor the folder of a study...
    """
    from fedrecall.reporting.html import write_report  # not above: a run does not wait for matplotlib

    paths = [Path(folders)] if isinstance(folders, str | Path) else [Path(folder) for folder in folders]
    return write_report(paths, None if out is None else Path(out))


def load(
    folder: str | Path, *, model: nn.Module | Callable[[], nn.Module] | None = None, trust_code: bool = False
) -> Comparison:
    """Load the results that `run`, `compare` or `reproduce` wrote into a folder, from Python or the command line.

    The global model of a run on your own module needs it as `model`: a module, or a class or function that makes one.
    If the run named its code ("package.module:Class"), `trust_code` imports it instead.

    >>> import fedrecall as fr
    >>> fr.load("no/such/folder")
    Traceback (most recent call last):
    ...
    fedrecall.errors.UserError: no/such/folder: neither a run directory nor the folder of a study...
    """
    return Comparison(load_results(Path(folder)), StudyObjects(model=model), trust_code=trust_code)


def _run_study(
    study: Study,
    objects: StudyObjects,
    out: StudyFolder,
    progress: bool | Console | None,
    *,
    partial: bool,
    estimate: bool = False,
    store: RunStore | None = None,
) -> Comparison:
    """Run a study and load its results; `estimate` adds the expected cost to the progress display."""
    folder = out(study) if callable(out) else None if out is None else Path(out)
    path = folder
    if path is None:  # a temporary folder cannot be resumed: no checkpoints
        rounds = max(experiment.run.rounds for experiment in study.experiments.values())
        study = study.model_copy(update={"base": merge_tables(study.base, {"run": {"checkpoint_every": rounds}})})
        path = Path(mkdtemp(prefix="fedrecall-"))
    console = progress_console(progress)
    # measuring the speed of the machine takes a while
    needed = estimate and not console.quiet and StudyResults(study, path).unfinished
    notes = _estimate(study) if needed else []
    rejected: dict[str, UserError] = {}
    try:
        with (
            StudyProgress(study, console, folder, notes) as display,
            closing(run_study(study, path, objects, store=store)) as events,
        ):
            for event in events:
                display.update(event)
                if event.error is not None:
                    rejected[event.cell.folder] = event.error
        if rejected and not partial:
            raise next(iter(rejected.values()))
    except BaseException:
        if folder is None:
            shutil.rmtree(path, ignore_errors=True)
        elif callable(out):
            remove_if_unused(path)
        raise
    comparison = Comparison(load_results(path), objects, rejected, trust_code=True)
    if folder is None:
        weakref.finalize(comparison, shutil.rmtree, path, ignore_errors=True)
    return comparison


def _estimate(study: Study) -> list[str]:
    """Return the expected cost as one line; none if it is unknown, such as that of own code, which is not imported."""
    with suppress(UserError):  # what is wrong with a run is reported when it is run
        return [describe_cost(study)]
    return []


def _warn_of_chance(result: Result, setup: Setup) -> None:
    """Warn if no evaluation was better than always predicting the most frequent class, within its standard error."""
    y = setup.data.test.y
    if not len(y):
        return
    share = float(y.bincount().max()) / len(y)
    best, error = result.summary.get("best"), (share * (1 - share) / len(y)) ** 0.5
    if best is not None and best <= share + 2 * error:
        log.warning(
            "the accuracy is at chance: at best %.1f %%, and the most frequent class has %.1f %%: check the labels, "
            "train for more rounds, or try another local.lr",
            100 * best,
            100 * share,
        )
