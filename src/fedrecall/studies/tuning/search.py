"""Search a method's settings by validation accuracy.

A proposal depends on the seed, the trial's number and the trials before it, on nothing else: a search that was
interrupted goes on as if it had not been.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedrecall.config.experiment import COMPARE_DEFAULTS, Experiment
from fedrecall.config.tables import Tables, merge_tables, read_toml, with_overrides
from fedrecall.core import seeds
from fedrecall.core.exchange import Diverged
from fedrecall.errors import UserError, missing_extra, unknown_name
from fedrecall.methods import METHODS
from fedrecall.methods.search_spaces import GridValues, SearchSpace
from fedrecall.runs.directory import locked
from fedrecall.runs.records import RoundRecord
from fedrecall.runs.run import Run
from fedrecall.runs.setup import FederatedData, UserModel, build_setup, load_and_partition, with_resolved_choices
from fedrecall.studies.tuning import space as spaces
from fedrecall.studies.tuning.space import Settings
from fedrecall.studies.tuning.trials import Journal, Trial, best_trial

if TYPE_CHECKING:
    import optuna
from dataclasses import replace

import numpy as np
import torch

from fedrecall.config.experiment import RunSection
from fedrecall.data.examples import Examples
from fedrecall.data.splits import split_validation

STARTUP_TRIALS = 8  # trials before the sampler learns from them

PRUNER_STARTUP_TRIALS = 4  # complete trials, and a quarter of the rounds

MAX_PROPOSALS = 10  # proposals that may be refused because they were tried before, or are not valid

IGNORED_RUN_KEYS = ("probes", "targets", "local_accuracy", "track")  # of a run: they cost time, and nobody looks


class Watch:
    """Hears how a search goes on."""

    def began(self, number: int, settings: Settings, rounds: int) -> None:
        """A trial starts."""

    def round(self, line: RoundRecord) -> None:
        """It has made another round."""

    def ended(self, trial: Trial) -> None:
        """It is finished."""


class TuningResult(NamedTuple):
    """What a search found."""

    folder: Path
    space: SearchSpace
    trials: list[Trial]
    best: Trial | None
    config: Path | None  # the configuration with the best settings


def tune(
    method: str,
    config: str | Path | None = None,
    *,
    trials: int = 20,
    over: Sequence[str] = (),
    overrides: Sequence[str] = (),
    out: str | Path,
    watch: Watch | None = None,
    data: object = None,
    model: UserModel | None = None,
    partition: object = None,
) -> TuningResult:
    """Try settings of a method until there have been `trials` trials in `out`, or its whole grid has been tried.

    The configuration says all else. `over` is another space than the method's own, e.g. ["local.lr=0.001..0.1"]. Every
    trial trains on the clients' data without a share that is held out for validation; the test set is not looked at.

    >>> import tempfile
    >>> import fedrecall as fr
    >>> short = ["run.rounds=2", "local.epochs=1"]
    >>> found = fr.tune("fedprox", trials=2, overrides=short, out=tempfile.mkdtemp())
    >>> len(found.trials), found.config.name
    (2, 'best.toml')
    """
    library = import_optuna()
    base, space = resolve_search(method, config, over, overrides)
    if trials < 1:
        raise UserError(
            "config.invalid_value", f"trials = {trials}: must be at least 1", "trials", "set it to 1 or more"
        )
    dealt = load_and_partition(Experiment(**base), data=data, partition=partition)
    experiment = with_resolved_choices(Experiment(**base), dealt, data, model, partition)
    closed = with_validation_split(dealt, experiment.run)
    folder = Path(out)
    with _quiet(library), locked(folder):
        journal = Journal(folder)
        done = journal.begin(_search_fingerprint(experiment, space, closed))
        search = _Search(library, experiment, space, closed, model, watch or Watch())
        try:
            while len(done) < trials and (settings := search.suggest(done, trials)) is not None:
                done = [*done, search.run_trial(done, settings)]
                journal.add(done)
                search.watch.ended(done[-1])
        finally:  # so that Ctrl-C keeps what was done
            best = journal.write_best(experiment, done)
    return TuningResult(folder, space, done, best_trial(done), best)


def resolve_search(
    method: str, config: str | Path | None, over: Sequence[str], overrides: Sequence[str]
) -> tuple[Tables, SearchSpace]:
    """What is searched: a complete configuration, and the space; both have been checked."""
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if any(text.replace(" ", "").startswith(("method.name=", "method=")) for text in overrides):
        text = f"--set method.name conflicts with the argument {method}, which names the method to tune"
        raise UserError("cli.conflicting_options", text, "method.name", "remove --set method.name")
    given = merge_tables(COMPARE_DEFAULTS if config is None else read_toml(Path(config)), {"method": {"name": method}})
    tables = Experiment(**with_overrides(given, overrides)).to_tables()
    space = spaces.search_space(method, over)
    spaces.require_valid(tables, space)
    return tables, space


class _Search:
    """Proposes settings, and tries them."""

    def __init__(
        self,
        library: Any,
        experiment: Experiment,
        space: SearchSpace,
        closed: FederatedData,
        model: UserModel | None,
        watch: Watch,
    ) -> None:
        self._optuna, self._space, self._closed, self._model, self.watch = library, space, closed, model, watch
        tables = experiment.to_tables()
        self._tables = tables | {
            "run": {key: value for key, value in tables["run"].items() if key not in IGNORED_RUN_KEYS}
        }
        self._seed, self._rounds = experiment.run.seed, experiment.run.rounds
        self._points = spaces.grid_points(self._tables, space)
        self._kinds = {key: self._distribution(values) for key, values in space.dimensions.items()}

    def suggest(self, done: list[Trial], trials: int) -> Settings | None:
        """Other settings than those before; None if there are none.

        The configuration's own come first. A grid that the trials cover is walked through; else a sampler chooses.
        """
        tried = [trial.settings for trial in done]
        own = spaces.current_settings(self._tables, self._space)
        if own is not None and own not in tried:
            return own
        left = None if self._points is None else [point for point in self._points if point not in tried]
        if left is not None and trials >= len(self._points or ()):
            return next(iter(left), None)
        study = self._replayed(done)
        for attempt in range(MAX_PROPOSALS):
            seed = seeds.derive_seed(self._seed, "tune", len(done), attempt) % 2**32
            study.sampler = self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
            asked = study.ask(self._kinds)
            settings: Settings = dict(asked.params)
            if settings not in tried and spaces.is_valid(self._tables, settings):
                return settings
            study.tell(asked, state=self._optuna.trial.TrialState.FAIL)  # which samplers leave out
        return next(iter(left or ()), None)

    def run_trial(self, done: list[Trial], settings: Settings) -> Trial:
        """Run a federation with these settings, as long as it keeps up with the trials before it."""
        study = self._replayed(done)
        study.enqueue_trial(settings)
        asked, number, curve = study.ask(self._kinds), len(done) + 1, dict[int, float]()
        self.watch.began(number, settings, self._rounds)
        began = time.perf_counter()

        def outcome(kind: Any, value: float | None = None, why: str = "") -> Trial:
            return Trial(number, settings, kind, value, curve, round(time.perf_counter() - began, 2), why)

        experiment = Experiment(**spaces.apply_settings(self._tables, settings))
        try:
            with Run(build_setup(experiment, self._closed, self._model)) as run:
                for record in run:
                    self.watch.round(record)
                    if record["accuracy"] is None:
                        continue
                    curve[record["round"]] = record["accuracy"]
                    asked.report(record["accuracy"], record["round"])
                    if record["round"] < self._rounds and asked.should_prune():
                        return outcome("pruned")
        except Diverged as error:
            return outcome("failed", why=str(error))
        return outcome("complete", run.result.summary["last10"])

    def _replayed(self, done: list[Trial]) -> "optuna.Study":
        """What the trials so far have shown."""
        states = self._optuna.trial.TrialState
        pruner = self._optuna.pruners.MedianPruner(PRUNER_STARTUP_TRIALS, max(2, self._rounds // 4))
        study: optuna.Study = self._optuna.create_study(direction="maximize", pruner=pruner)
        for trial in done:
            state = states.COMPLETE if trial.outcome == "complete" else states.PRUNED
            study.add_trial(
                self._optuna.trial.create_trial(
                    state=state,
                    value=trial.value,
                    params=trial.settings,
                    distributions=self._kinds,
                    intermediate_values=trial.curve,
                )
            )
        return study

    def _distribution(self, values: Any) -> Any:
        if isinstance(values, GridValues):
            return self._optuna.distributions.CategoricalDistribution(values.of)
        return self._optuna.distributions.FloatDistribution(values.low, values.high, log=values.log)


def _search_fingerprint(experiment: Experiment, space: SearchSpace, closed: FederatedData) -> Tables:
    """All that makes it this search and no other; the data as it is seen, without the test set."""
    return {
        "space": {key: str(values) for key, values in space.dimensions.items()},
        "validation": VALIDATION_FRACTION,
        "data": closed.dataset.fingerprint,
        "partition": closed.partition.hash,
        "config": experiment.to_tables(),
    }


def import_optuna() -> Any:
    """Import optuna; raises an error with the command that installs it if it is missing."""
    try:
        import optuna
    except ImportError:
        raise missing_extra("optuna", "tune") from None
    return optuna


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Without the library's own messages inside."""
    before = library.logging.get_verbosity()
    library.logging.set_verbosity(library.logging.ERROR)
    try:
        yield
    finally:
        library.logging.set_verbosity(before)


VALIDATION_FRACTION = 0.2  # of every client's examples


def with_validation_split(dealt: FederatedData, run: RunSection) -> FederatedData:
    """The same clients without a share of their examples, on which every model is scored instead of the test set."""
    store, known = (
        torch.arange(len(e.labels)) if e.rows is None else e.rows for e in (dealt.client_examples, dealt.auxiliary)
    )
    seed = seeds.derive_seed(run.seed if run.partition_seed is None else run.partition_seed, "validation")
    partition, rows = split_validation(
        dealt.partition, VALIDATION_FRACTION, seed, np.flatnonzero(np.isin(store, known))
    )
    whole, chosen = dealt.dataset, store[torch.from_numpy(rows)]
    dataset = replace(
        whole,
        test_x=whole.train_x[chosen],
        test_y=whole.train_y[chosen],
        test_groups=None if whole.train_groups is None else whole.train_groups[chosen],
    )
    validation = Examples(dataset.test_x, dataset.test_y, dealt.test.transform)
    return dealt._replace(dataset=dataset, test=validation, partition=partition)
