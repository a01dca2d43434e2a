"""Studies that compare methods: the same federation, cohorts and initial weights for each of them."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedrecall.config.experiment import CHOICES, COMPARE_DEFAULTS, ConfigLike, Experiment, load_tables
from fedrecall.config.overrides import apply_override, with_overrides
from fedrecall.config.tables import Tables, merge_tables
from fedrecall.core.method import Method
from fedrecall.data.catalog import DATASETS
from fedrecall.data.custom import as_dataset
from fedrecall.data.dataset import Dataset
from fedrecall.errors import UserError, unknown_name
from fedrecall.methods import METHODS
from fedrecall.models import Model
from fedrecall.runs.directory import RunDirectory
from fedrecall.runs.setup import FederatedData, Setup, UserModel, build_setup, load_and_partition, with_resolved_choices
from fedrecall.studies.study import Cell, Study, Target, slug

DEFAULT_METHODS = ("fedavg", "fedprox", "fedntd", "fedlmd", "fedcad", "fedgkd")

DEFAULT_SEEDS = 5

MethodLike = str | Mapping[str, Any] | Method | type[Method]

ModelLike = str | Mapping[str, Any] | Model | UserModel


@dataclass(frozen=True, eq=False)
class PythonObjects:
    """Objects passed in Python that a study's tables name "own"; empty for a study that tables describe completely."""

    data: Dataset | None = None
    model: UserModel | None = None
    partition: object = None
    methods: Mapping[str, Method] = field(default_factory=dict)
    """User-defined methods by row."""
    _federated: dict[str, FederatedData] = field(default_factory=dict, repr=False)
    """The federated data of the last cell: consecutive cells differ in the method, and share the data."""

    @property
    def is_empty(self) -> bool:
        """True if no object was passed."""
        return self.data is None and self.model is None and self.partition is None and not self.methods

    def setup(self, cell: Cell, experiment: Experiment) -> Setup:
        """Build the setup of a cell's run."""
        if cell.row in self.methods:
            experiment = experiment.model_copy(update={"method": self.methods[cell.row]})
        federated = self._load(experiment)
        experiment = with_resolved_choices(experiment, federated, self.data, self.model, self.partition)
        return build_setup(experiment, federated, self.model)

    def require_unchanged(self, cell: Cell, experiment: Experiment, path: Path) -> None:
        """Raise an error if a finished run was made with other objects of the same names."""
        if self.is_empty:
            return
        if differences := RunDirectory(path).differences(self.setup(cell, experiment)):
            raise UserError(
                "study.other_settings",
                f"{path}: the finished run has other settings: {'; '.join(differences)}",
                str(path),
                "set another out, or remove it",
            )

    def _load(self, experiment: Experiment) -> FederatedData:
        """Load and partition the data, or return those of the cell before if the configuration is the same."""
        run = experiment.run
        key = repr((experiment.data, experiment.federation, run.seed, run.partition_seed))
        if key not in self._federated:
            self._federated.clear()
            self._federated[key] = load_and_partition(experiment, data=self.data, partition=self.partition)
        return self._federated[key]


def comparison_study(
    methods: Sequence[MethodLike] | Mapping[str, MethodLike] = (),
    config: ConfigLike | None = None,
    overrides: Sequence[str] = (),
    seeds: int = DEFAULT_SEEDS,
    *,
    data: object = None,
    model: ModelLike | None = None,
    partition: object = None,
    settings: Tables | None = None,
) -> tuple[Study, PythonObjects]:
    """Make the study of several methods with one configuration, and collect the objects that no table can hold.

    The first method is the reference of the others. `settings` are tables on top of the configuration, below the
    overrides.
    """
    if seeds < 1:
        raise UserError("config.invalid_value", f"seeds = {seeds}: less than one", "seeds", "set at least 1")
    if any(text.replace(" ", "").startswith(("method.name=", "method=")) for text in overrides):
        raise UserError(
            "config.conflict",
            "method.name: the arguments of compare name the methods",
            "method.name",
            "remove --set method.name, and name the method as an argument",
        )
    rows, user_methods = _method_rows(methods or DEFAULT_METHODS)
    defaults = COMPARE_DEFAULTS if data is None else {}
    base, settings = merge_tables(defaults if config is None else load_tables(config)), settings or {}
    dataset = None
    if isinstance(data, str) and data in DATASETS:
        base = merge_tables(base, {"data": {"name": data}})
    elif data is not None:
        dataset = as_dataset(data)
        base = merge_tables(base, {"data": {"name": "own"}})
        federation = merge_tables(base, settings).get("federation", {})
        if dataset.group_names and partition is None and not federation.keys() & {"partition", "clients"}:
            partition = "groups"
            settings = merge_tables(settings, {"federation": {"clients": len(dataset.group_names)}})
    user_model, model_table = _split_python_object("model", model)
    user_partition, partition_table = _split_python_object("partition", partition)
    base = merge_tables(
        base,
        {"model": model_table} if model_table else {},
        {"federation": {"partition": partition_table}} if partition_table else {},
        settings,
    )
    if "sample" in settings.get("federation", {}):
        base["federation"].pop("fraction", None)
    base = with_overrides(base, overrides)
    experiment = Experiment(**base)
    name = experiment.data.name if dataset is None else dataset.name
    objects = PythonObjects(dataset, user_model, user_partition, user_methods)
    on_command_line = data is None and model is None and partition is None and not settings
    study = Study(
        id=f"compare-{slug(name)}",
        title=f"Methods compared on {name}",
        command=_command(methods, config, overrides, seeds) if on_command_line else "",
        base=base,
        rows=rows,
        columns={name: {}},
        seeds=tuple(range(experiment.run.seed, experiment.run.seed + seeds)),
        measure="last10",
        target=experiment.run.targets[0] if experiment.run.targets else Target(of=next(iter(rows)), measure="best"),
    )
    return study, objects


def _command(
    methods: Sequence[MethodLike] | Mapping[str, MethodLike],
    config: ConfigLike | None,
    overrides: Sequence[str],
    seeds: int,
) -> str:
    """Return the command that makes the same study; empty if the command line cannot express it."""
    names = [] if isinstance(methods, Mapping) and methods else [name for name in methods if isinstance(name, str)]
    if len(names) < len(methods) or not isinstance(config, str | Path | None):
        return ""
    options = ["--config", str(config)] if config is not None else []
    options += [] if seeds == DEFAULT_SEEDS else ["--seeds", str(seeds)]
    options += [argument for text in overrides for argument in ("--set", text)]
    return shlex.join(["fedrecall", "compare", *names, *options])


def _method_rows(
    methods: Sequence[MethodLike] | Mapping[str, MethodLike],
) -> tuple[dict[str, Tables], dict[str, Method]]:
    """Return the rows of a study by name, and the user-defined methods of some of them."""
    if isinstance(methods, str):
        raise UserError("config.invalid_value", f'methods = "{methods}": not a list', "methods", f'pass ["{methods}"]')
    pairs = methods.items() if isinstance(methods, Mapping) else ((None, method) for method in methods)
    rows, user_methods = dict[str, Tables](), dict[str, Method]()
    for name, method_like in pairs:
        label, row, method = _method_row(method_like)
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


def _method_row(method: MethodLike) -> tuple[str, Tables, Method | None]:
    """Return a method's label, its tables, and the method itself if it is user-defined."""
    if isinstance(method, str):
        text = re.sub(r"\s*([:=,])\s*", r"\1", method)
        return text, _parse_method(text), None
    if isinstance(method, type) and issubclass(method, Method):
        method = method()
    if isinstance(method, Mapping):
        CHOICES["method"].build(method)  # raises an error if the table is invalid
        settings = {key: value for key, value in method.items() if key != "name"}
        return _label(str(method.get("name", "fedavg")), settings), {"method": dict(method)}, None
    if not isinstance(method, Method):
        raise UserError(
            "config.invalid_value",
            f"methods: {method!r} is not a method",
            "methods",
            "pass a name, a table such as {'name': 'fedlmd'}, or a Method",
        )
    table = CHOICES["method"].dump(method)
    defaults = {f.name: f.default for f in fields(method) if f.default is not MISSING}
    settings = {key: value for key, value in table.items() if key in defaults and value != defaults[key]}
    if table["name"] == "own":
        return _label(table["of"], settings), {"method": table}, method
    return _label(table["name"], settings), {"method": table}, None


def _label(name: str, settings: Mapping[str, Any]) -> str:
    return name + (":" if settings else "") + ",".join(f"{key}={value}" for key, value in settings.items())


def _parse_method(text: str) -> Tables:
    """Parse `fedlmd:tau=3,local.prox=0.1`: keys without a section belong to the method."""
    name, _, settings = text.partition(":")
    if name not in METHODS:
        raise unknown_name("method", name, METHODS, key="method.name")
    tables: Tables = {"method": {"name": name}}
    for setting in re.split(r",(?=[\w.]+\s*=)", settings) if settings else ():
        apply_override(tables, setting if "." in setting.partition("=")[0] else f"method.{setting}")
    return tables


def _split_python_object(kind: str, value: Any) -> tuple[Any, Tables]:
    """Return an object that no table can make and the table that names it; or None, and the table that makes it."""
    if value is None:
        return None, {}
    choice = CHOICES[kind]
    if isinstance(value, str | Mapping):
        return None, choice.dump(choice.build(value))
    if type(value) in choice.classes.values():
        return None, choice.dump(value)
    return value, {"name": "own", "of": getattr(value, "__name__", type(value).__name__)}
