"""Studies that compare methods: the same federation, cohorts and initial weights for each of them."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedrecall.config.choices import PythonObject
from fedrecall.config.experiment import Experiment
from fedrecall.config.run_section import metric_reference
from fedrecall.config.sources import (
    COMPARE_DEFAULTS,
    ConfigLike,
    import_own_code,
    with_section_objects,
    without_section_objects,
)
from fedrecall.config.tables import Tables, merge_tables
from fedrecall.core.method import Method
from fedrecall.data.catalog import DATASETS
from fedrecall.data.dataset import Dataset
from fedrecall.data.partition import Partition
from fedrecall.errors import UserError, unknown_name
from fedrecall.methods import METHODS
from fedrecall.runs.directory import RunDirectory
from fedrecall.runs.evaluation import duplicate_metric
from fedrecall.runs.keywords import Keywords, MethodLike, PythonObjects, name_method
from fedrecall.runs.setup import FederatedData, Setup, build_setup, load_and_partition, with_resolved_choices
from fedrecall.studies.study import Baseline, Cell, Study, Target, slug

DEFAULT_METHODS = ("fedavg", "fedprox", "fedntd", "fedlmd", "fedcad", "fedgkd")

FURTHER_METHODS = ("fedlsd", "fedssd")  # in place of default methods that cannot act on the data

DEFAULT_SEEDS = 5

NO_BASELINES = "none"  # value of --baselines


@dataclass(frozen=True, eq=False)
class StudyObjects(PythonObjects):
    """Objects passed in Python for all runs of a study, and the methods of single rows."""

    methods: Mapping[str, Method] = field(default_factory=dict)
    """User-defined methods by row."""
    metrics: Mapping[str, Callable[..., float]] = field(default_factory=dict)
    """Functions passed in run.metrics, by the names that the study's tables have for them."""
    sections: Mapping[str, object] = field(default_factory=dict)
    """Objects passed in sections, such as server.robust, by key."""
    _federated: dict[str, FederatedData] = field(default_factory=dict, repr=False)
    """The federated data of the last cell: consecutive cells differ in the method, and share the data."""

    @property
    def is_empty(self) -> bool:
        """True if no object was passed."""
        return super().is_empty and not self.methods and not self.sections

    def with_functions(self, experiment: Experiment) -> Experiment:
        """Return the experiment with the functions and the objects of sections in place of their names."""
        metrics = tuple(self.metrics.get(metric, metric) for metric in experiment.run.metrics)
        changes: dict[str, Any] = {"run": experiment.run.model_copy(update={"metrics": metrics})}
        for key, chosen in self.sections.items():
            section, _, name = key.partition(".")
            table = changes.get(section, getattr(experiment, section))
            if isinstance(getattr(table, name), PythonObject):  # a baseline has no such setting
                changes[section] = table.model_copy(update={name: chosen})
        return experiment.model_copy(update=changes)

    def setup(self, cell: Cell, experiment: Experiment) -> Setup:
        """Build the setup of a cell's run."""
        if cell.row in self.methods:
            experiment = experiment.model_copy(update={"method": self.methods[cell.row]})
        partition = None if cell.baseline in ("central", "majority") else self.partition
        federated = self._load(experiment, partition)
        experiment = with_resolved_choices(experiment, federated, self.data, self.model, partition)
        return build_setup(experiment, federated, self.model)

    def require_unchanged(self, cell: Cell, experiment: Experiment, path: Path) -> None:
        """Raise an error if a finished run was made with other objects or files of the same names."""
        if self.is_empty and not experiment.data.may_name_clients:
            return
        if differences := RunDirectory(path).differences(self.setup(cell, experiment)):
            raise UserError(
                "study.other_settings",
                f"{path}: the finished run has other settings: {'; '.join(differences)}",
                str(path),
                "set another out, or remove it",
            )

    def _load(self, experiment: Experiment, partition: object) -> FederatedData:
        """Load and partition the data, or return those of the cell before if the configuration is the same."""
        run, tokenizer = experiment.run, experiment.data.tokenizer_for(experiment.model)
        key = repr((experiment.data, tokenizer, experiment.federation, run.seed, run.partition_seed))
        if key not in self._federated:
            self._federated.clear()
            self._federated[key] = load_and_partition(experiment, data=self.data, partition=partition)
        return self._federated[key]


def comparison_study(
    methods: Sequence[MethodLike] | Mapping[str, MethodLike] = (),
    config: ConfigLike | None = None,
    overrides: Sequence[str] = (),
    seeds: int = DEFAULT_SEEDS,
    keywords: Keywords | None = None,
    baselines: Sequence[str] | None = None,
) -> tuple[Study, StudyObjects]:
    """Make the study of several methods with one configuration, and collect the objects that no table can hold.

    The first method is the reference of the others. `baselines` are rows below them; None: those of
    `default_baselines`.
    """
    given: object = seeds  # written by users, whom no type checker stops
    if not isinstance(given, int) or given < 1:
        message, hint = f"seeds = {seeds!r}: not a number of seeds from 1", "set how many; seed= sets the first one"
        raise UserError("config.invalid_value", message, "seeds", hint)
    overrides = [overrides] if isinstance(overrides, str) else overrides
    if any(text.replace(" ", "").startswith(("method.name=", "method=")) for text in overrides):
        raise UserError(
            "config.conflict",
            "method.name: the arguments of compare name the methods",
            "method.name",
            "remove --set method.name, and name the method as an argument",
        )
    keywords = keywords or Keywords()
    defaults = COMPARE_DEFAULTS if config is None and keywords.data is None else None
    base, objects = keywords.apply(defaults if config is None else config, overrides)
    if isinstance(config, Experiment):
        base = with_section_objects(base, config)
    experiment = Experiment(**base)
    draws_test_set = experiment.data.draws_test_set
    if objects.data is not None:
        draws_test_set = objects.data.split_again is not None
    # each seed has its own test set; a partition that was passed has the rows of one
    if draws_test_set and experiment.data.split_seed is None and not isinstance(objects.partition, Partition):
        base = merge_tables(base, {"data": {"split_seed": "run"}})
        experiment = Experiment(**base)
    if functions := _functions(experiment):  # study.toml has their names
        names = [metric_reference(metric) for metric in experiment.run.metrics]
        base = merge_tables(base, {"run": {"metrics": names}})
        experiment = Experiment(**base)
    base, sections = without_section_objects(base, experiment)
    rows, user_methods = _method_rows(methods or default_methods(experiment, objects.data))
    chosen = default_baselines(experiment, objects) if baselines is None else baselines
    rows |= _baseline_rows(chosen, experiment, objects)
    name = experiment.data.title if objects.data is None else objects.data.name
    target_row = "fedavg" if "fedavg" in rows else next(iter(rows))
    study = Study(
        id=f"compare-{slug(name)}",
        title=f"Methods compared on {name}",
        command=_command(methods, config, overrides, seeds, keywords, baselines),
        base=base,
        rows=rows,
        columns={name: {}},
        seeds=tuple(range(experiment.run.seed, experiment.run.seed + seeds)),
        measure="last10",
        target=experiment.run.targets[0] if experiment.run.targets else Target(of=target_row, measure="last10"),
    )
    return study, StudyObjects(objects.data, objects.model, objects.partition, user_methods, functions, sections)


def _functions(experiment: Experiment) -> dict[str, Callable[..., float]]:
    """Return the functions in run.metrics, by their names in tables."""
    found = dict[str, Callable[..., float]]()
    for metric in (metric for metric in experiment.run.metrics if callable(metric)):
        if found.setdefault(name := metric_reference(metric), metric) is not metric:
            raise duplicate_metric(name)
    return found


def default_methods(experiment: Experiment, data: Dataset | None = None) -> list[str]:
    """Return six methods that can act on the data."""
    if data is None and not experiment.data.may_name_clients:
        classes = experiment.data.classes or DATASETS[experiment.data.name].num_classes
    else:
        classes = (data or import_own_code(experiment).data.load()).num_classes
    names = (*DEFAULT_METHODS, *FURTHER_METHODS)
    return [name for name in names if METHODS[name]().inactive_reason(classes, None) is None][: len(DEFAULT_METHODS)]


def default_baselines(experiment: Experiment, objects: PythonObjects) -> tuple[Baseline, ...]:
    """Return the baselines of a comparison on the user's own data; none for named data sets, whose runs may be long.

    "majority" needs no training, and "central" has the cost of FedAvg, the cheapest method. "local" is left out: with
    many clients it has many small runs.
    """
    has_test = experiment.data.test > 0 if objects.data is None else len(objects.data.test_y) > 0
    is_own = objects.data is not None or experiment.data.may_name_clients
    return ("central", "majority") if is_own and has_test else ()


def _baseline_rows(names: Sequence[str], experiment: Experiment, objects: PythonObjects) -> dict[str, Tables]:
    """Return the rows of the baselines. "central" and "local" make as many sample passes as FedAvg's run."""
    if isinstance(names, str) or (unknown := [name for name in names if name not in get_args(Baseline)]):
        first = names if isinstance(names, str) else unknown[0]
        raise unknown_name("baseline", first, get_args(Baseline), key="baselines")
    run, local, rows = experiment.run, experiment.local, dict[str, Tables]()
    share = _participation(experiment, objects) if names else 1.0
    for name in names:
        if name == "local":  # a client trains in the rounds in which it would participate
            rounds, epochs = max(1, round(share * run.rounds)), local.epochs
        else:
            passes = max(1, round(share * run.rounds * local.epochs))
            rounds = min(run.rounds, passes)
            epochs = max(1, round(passes / rounds))
        rows[name] = {"baseline": name, "run": {"rounds": rounds}, "local": {"epochs": epochs}}
    return rows


def _participation(experiment: Experiment, objects: PythonObjects) -> float:
    """Return the share of the clients that train in a round."""
    federation = experiment.federation
    if federation.sample is None:
        return federation.fraction or 1.0
    clients = federation.clients
    if "clients" not in federation.model_fields_set and experiment.data.may_name_clients:
        data = objects.data or import_own_code(experiment).data.load()
        clients = clients if data.train_groups is None else len(np.unique(data.train_groups.numpy()))
    return min(1.0, federation.sample / clients)


def _command(
    methods: Sequence[MethodLike] | Mapping[str, MethodLike],
    config: ConfigLike | None,
    overrides: Sequence[str],
    seeds: int,
    keywords: Keywords,
    baselines: Sequence[str] | None,
) -> str:
    """Return the command that makes the same study; empty if the command line cannot express it."""
    names = [] if isinstance(methods, Mapping) and methods else [name for name in methods if isinstance(name, str)]
    arguments = keywords.arguments
    if len(names) < len(methods) or not isinstance(config, str | Path | None) or arguments is None:
        return ""
    options = ["--config", str(config)] if config is not None else []
    options += arguments
    options += [] if seeds == DEFAULT_SEEDS else ["--seeds", str(seeds)]
    options += [] if baselines is None else ["--baselines", ",".join(baselines) or NO_BASELINES]
    options += [argument for text in overrides for argument in ("--set", text)]
    return shlex.join(["fedrecall", "compare", *names, *options])


def _method_rows(
    methods: Sequence[MethodLike] | Mapping[str, MethodLike],
) -> tuple[dict[str, Tables], dict[str, Method]]:
    """Return the rows of a study by name, and the user-defined methods of some of them."""
    given: object = methods
    if isinstance(given, str | Method):
        shown = f'"{given}"' if isinstance(given, str) else type(given).__name__
        raise UserError("config.invalid_value", f"methods = {shown}: not a list", "methods", f"pass [{shown}]")
    pairs = methods.items() if isinstance(methods, Mapping) else ((None, method) for method in methods)
    rows, user_methods = dict[str, Tables](), dict[str, Method]()
    for name, method_like in pairs:
        label, row, method = name_method(method_like)
        if (name or label) in rows:
            raise UserError(
                "study.duplicate_name",
                f"methods: {name or label} is listed twice",
                "methods",
                "remove one of the two, or name them in a dictionary",
            )
        rows[name or label] = row
        if method is not None:
            user_methods[name or label] = method
    return rows, user_methods
