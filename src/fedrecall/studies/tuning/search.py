"""Search for the settings of a method with the highest validation accuracy.

A proposal depends only on the seed, the number of the trial and the trials before it. An interrupted search is
therefore resumed with the same proposals.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from fedrecall.config.experiment import Experiment
from fedrecall.config.overrides import with_overrides
from fedrecall.config.sources import COMPARE_DEFAULTS, ConfigLike, import_own_code, require_no_section_objects
from fedrecall.config.tables import Tables, merge_tables
from fedrecall.core import seeds
from fedrecall.core.exchange import Diverged
from fedrecall.errors import UserError, missing_extra
from fedrecall.methods.search_spaces import GridValues, SearchSpace
from fedrecall.runs.directory import locked
from fedrecall.runs.keywords import Keywords, MethodLike, PythonObjects, name_method
from fedrecall.runs.records import RoundRecord
from fedrecall.runs.run import Run
from fedrecall.runs.setup import build_setup, load_and_partition, with_resolved_choices, without_test
from fedrecall.studies.statistics import last10
from fedrecall.studies.study import slug
from fedrecall.studies.tuning import space as spaces
from fedrecall.studies.tuning.space import Settings
from fedrecall.studies.tuning.trials import SearchFolder, Trial, best_trial

if TYPE_CHECKING:
    import optuna


STARTUP_TRIALS = 8  # random trials before the sampler uses their results

PRUNER_STARTUP_TRIALS = 4  # complete trials before one is pruned

MAX_PROPOSALS = 10  # proposals per trial; one that was tried before or is invalid is discarded

# Settings that cost time and do not affect the score, or end a trial early.
IGNORED_RUN_KEYS = ("probes", "targets", "local_accuracy", "track", "metrics", "stop")

VALIDATION_FRACTION = 0.2  # of every client's examples, where data.validation is 0


class TuningResult(NamedTuple):
    """Trials of a search, and the best of them."""

    folder: Path
    space: SearchSpace
    trials: list[Trial]
    best: Trial | None
    config: Path | None
    """Configuration with the best settings."""


@dataclass(frozen=True)
class TuningEvent:
    """A change of state of one trial."""

    kind: Literal["started", "round", "finished"]
    number: int
    """Number of the trial, from 1."""
    settings: Settings
    record: RoundRecord | None = None
    """Record of the round, for `round`."""
    trial: Trial | None = None
    """Outcome of the trial, for `finished`."""


class Search:
    """A context manager that locks the search's folder, and an iterable of the events of its trials.

    Every trial trains on the clients' data without a fraction that is held out for validation. The test set is not
    used. The folder is up to date before `finished` is yielded: a search that is left early can be resumed.
    """

    def __init__(
        self,
        method: MethodLike,
        config: ConfigLike | None = None,
        *,
        trials: int = 20,
        over: Sequence[str] = (),
        overrides: Sequence[str] = (),
        out: str | Path | None = None,
        keywords: Keywords | None = None,
    ) -> None:
        """Describe a search of `trials` trials, those of an interrupted search in `out` included."""
        self._optuna = import_optuna()
        self._tables, self._objects, self.space = resolve_search(method, config, over, overrides, keywords)
        if trials < 1:
            message = f"trials = {trials}: must be at least 1"
            raise UserError("config.invalid_value", message, "trials", "set it to 1 or more")
        self.method = str(self._tables["method"]["name"])
        self.num_trials, self.data_name = trials, str(self._tables["data"]["name"])
        self.rounds: int = self._tables["run"]["rounds"]
        self.validation: float = self._tables["data"].get("validation") or VALIDATION_FRACTION
        self.folder = Path("tuning") / slug(f"{self.method}-{self.data_name}") if out is None else Path(out)
        self._distributions = {key: self._distribution(values) for key, values in self.space.dimensions.items()}

    def __enter__(self) -> Self:
        experiment = import_own_code(Experiment(**self._tables))
        data, model, partition = self._objects.data, self._objects.model, self._objects.partition
        section = experiment.data.model_copy(update={"validation": self.validation, "client_test": 0.0})
        validated = experiment.model_copy(update={"data": section})
        federated = load_and_partition(validated, data=data, partition=partition)
        self._experiment = with_resolved_choices(experiment, federated, data, model, partition)
        self._data = without_test(federated)
        tables = with_resolved_choices(validated, federated, data, model, partition).to_tables()
        run = {key: value for key, value in tables["run"].items() if key not in IGNORED_RUN_KEYS}
        self._trial_tables = tables | {"run": run}
        self._grid = spaces.grid_points(self._trial_tables, self.space)
        with ExitStack() as stack:
            stack.enter_context(_quiet(self._optuna))
            stack.enter_context(locked(self.folder))
            self._files = SearchFolder(self.folder)
            self._trials = self._files.open(self._search_fingerprint())
            self._best_config = self._files.save(self._experiment, self._trials)
            self._events = self._run_trials()
            stack.callback(self._events.close)
            self._resources = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.__exit__(kind, error, traceback)

    def __iter__(self) -> Iterator[TuningEvent]:
        return self._events

    @property
    def result(self) -> TuningResult:
        """The trials so far."""
        return TuningResult(self.folder, self.space, self._trials, best_trial(self._trials), self._best_config)

    def _run_trials(self) -> Generator[TuningEvent, None, None]:
        while len(self._trials) < self.num_trials:
            study = self._replay_trials()
            settings = self._suggest(study)
            if settings is None:
                return
            yield TuningEvent("started", len(self._trials) + 1, settings)
            study.enqueue_trial(settings)
            trial = yield from self._run_trial(study.ask(self._distributions), settings)
            self._trials.append(trial)
            self._best_config = self._files.save(self._experiment, self._trials)
            yield TuningEvent("finished", trial.number, settings, trial=trial)

    def _suggest(self, study: "optuna.Study") -> Settings | None:
        """Propose settings that were not tried; None if there are none.

        The settings of the configuration are the first proposal. A grid that the trials can cover is searched
        completely; otherwise a sampler proposes.
        """
        tried = [trial.settings for trial in self._trials]
        current = spaces.current_settings(self._trial_tables, self.space)
        if current is not None and current not in tried:
            return current
        untried = None if self._grid is None else [point for point in self._grid if point not in tried]
        if untried is not None and self.num_trials >= len(self._grid or ()):
            return next(iter(untried), None)
        for attempt in range(MAX_PROPOSALS):
            seed = seeds.derive_seed(self._experiment.run.seed, "tune", len(tried), attempt) % 2**32
            study.sampler = self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
            proposal = study.ask(self._distributions)
            settings: Settings = dict(proposal.params)
            study.tell(proposal, state=self._optuna.trial.TrialState.FAIL)  # samplers and pruners ignore failed trials
            if settings not in tried and spaces.is_valid(self._trial_tables, settings):
                return settings
        return next(iter(untried or ()), None)

    def _run_trial(self, proposal: "optuna.Trial", settings: Settings) -> Generator[TuningEvent, None, Trial]:
        """Run a federation with some settings; end it early if it falls behind the trials before it."""
        number, curve, start = len(self._trials) + 1, dict[int, float](), time.perf_counter()

        def make_trial(outcome: Any, value: float | None = None, why: str = "") -> Trial:
            return Trial(number, settings, outcome, value, curve, round(time.perf_counter() - start, 2), why)

        experiment = import_own_code(Experiment(**spaces.apply_settings(self._trial_tables, settings)))
        try:
            with Run(build_setup(experiment, self._data, self._objects.model)) as run:
                for record in run:
                    yield TuningEvent("round", number, settings, record=record)
                    if "validation" not in record:
                        continue
                    curve[record["round"]] = record["validation"]["accuracy"]
                    proposal.report(curve[record["round"]], record["round"])
                    if record["round"] < self.rounds and proposal.should_prune():
                        return make_trial("pruned")
        except Diverged as error:
            return make_trial("failed", why=str(error))
        return make_trial("complete", last10(list(curve.items())))

    def _replay_trials(self) -> "optuna.Study":
        """Return an Optuna study of the trials so far, the same before and after an interruption."""
        states = self._optuna.trial.TrialState
        pruner = self._optuna.pruners.MedianPruner(PRUNER_STARTUP_TRIALS, max(2, self.rounds // 2))
        study: optuna.Study = self._optuna.create_study(direction="maximize", pruner=pruner)
        for trial in self._trials:
            study.add_trial(
                self._optuna.trial.create_trial(
                    state=states.COMPLETE if trial.outcome == "complete" else states.PRUNED,
                    value=trial.value,
                    params=trial.settings,
                    distributions=self._distributions,
                    intermediate_values=trial.curve,
                )
            )
        return study

    def _distribution(self, values: Any) -> Any:
        if isinstance(values, GridValues):
            return self._optuna.distributions.CategoricalDistribution(values.of)
        return self._optuna.distributions.FloatDistribution(values.low, values.high, log=values.log)

    def _search_fingerprint(self) -> Tables:
        """Return the facts that identify the search; the data without the test set."""
        return {
            "space": {key: str(values) for key, values in self.space.dimensions.items()},
            "validation": self._trial_tables["data"]["validation"],
            "data": self._data.dataset.fingerprint,
            "partition": self._data.partition.hash,
            "config": self._experiment.to_tables(),
        }


def resolve_search(
    method: MethodLike,
    config: ConfigLike | None,
    over: Sequence[str],
    overrides: Sequence[str],
    keywords: Keywords | None = None,
) -> tuple[Tables, PythonObjects, SearchSpace]:
    """Return the complete configuration, the objects beside it, and the search space, all of them validated."""
    if any(text.replace(" ", "").startswith(("method.name=", "method=")) for text in overrides):
        message = f"--set method.name conflicts with the argument {method}, which names the method to tune"
        raise UserError("cli.conflicting_options", message, "method.name", "remove --set method.name")
    keywords, named = keywords or Keywords(), name_method(method)
    if named.method is not None:  # every trial makes a method of its own from the tables
        message = f"method = {named.label}: an object, which cannot be made again with other settings"
        raise UserError("config.invalid_value", message, "method", 'name its class: "package.module:Class"')
    defaults = COMPARE_DEFAULTS if config is None and keywords.data is None else None
    base, objects = keywords.apply(defaults if config is None else config)
    experiment = import_own_code(Experiment(**with_overrides(merge_tables(base, named.tables), overrides)))
    require_no_section_objects(experiment, "which the file of the best settings cannot have")
    tables = experiment.to_tables()
    space = spaces.search_space(str(tables["method"]["name"]), over)
    spaces.require_valid(tables, space)
    return tables, objects, space


def import_optuna() -> Any:
    """Import optuna; raise an error with the command that installs it if it is missing."""
    try:
        import optuna
    except ImportError:
        raise missing_extra("optuna", "tune") from None
    return optuna


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Suppress Optuna's log messages."""
    verbosity = library.logging.get_verbosity()
    library.logging.set_verbosity(library.logging.ERROR)
    try:
        yield
    finally:
        library.logging.set_verbosity(verbosity)
