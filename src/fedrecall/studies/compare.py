"""Methods side by side: the same federation, cohorts and first weights for all of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedrecall.config.experiment import CHOICES, COMPARE_DEFAULTS, ConfigLike, Experiment, load_tables
from fedrecall.config.tables import Tables, apply_override, merge_tables, with_overrides
from fedrecall.core.method import Method
from fedrecall.data.catalog import DATASETS
from fedrecall.data.custom import as_dataset
from fedrecall.data.dataset import Dataset
from fedrecall.errors import UserError, unknown_name
from fedrecall.methods import METHODS
from fedrecall.models import Model
from fedrecall.runs.directory import RunDirectory
from fedrecall.runs.setup import Setup, UserModel, prepare_run
from fedrecall.studies.study import Cell, Study, Target, slug


@dataclass(frozen=True)
class PythonObjects:
    """The objects behind a study whose tables name them "own"; nothing, for a study that needs none."""

    data: Dataset | None = None
    model: UserModel | None = None
    partition: object = None
    methods: Mapping[str, Method] = field(default_factory=dict)  # by row

    def setup(self, cell: Cell, experiment: Experiment) -> Setup:
        """Everything that a cell's run needs."""
        if cell.row in self.methods:
            experiment = experiment.model_copy(update={"method": self.methods[cell.row]})
        return prepare_run(experiment, data=self.data, model=self.model, partition=self.partition)

    def require_unchanged(self, cell: Cell, path: Path) -> None:
        """Refuse a finished run that was made with other objects under the same names."""
        if self == NO_OBJECTS:
            return
        if differences := RunDirectory(path).differences(self.setup(cell, Experiment(**cell.config))):
            raise UserError(
                "study.other_settings",
                f"{path}: the finished run has other settings: {'; '.join(differences)}",
                str(path),
                "set another out, or remove it",
            )


NO_OBJECTS = PythonObjects()

DEFAULT_METHODS = ("fedavg", "fedprox", "fedntd", "fedlmd", "fedcad", "fedgkd")

DEFAULT_SEEDS = 5

MethodLike = str | Mapping[str, Any] | Method | type[Method]

ModelLike = str | Mapping[str, Any] | Model | UserModel


def comparison_study(
    methods: Sequence[str] = (),
    config: ConfigLike | None = None,
    overrides: Sequence[str] = (),
    seeds: int = DEFAULT_SEEDS,
) -> Study:
    """The study of some methods, given as `name` or `name:key=value,...`, with one configuration.

    The first method is what the others are compared with.
    """
    base = with_overrides(COMPARE_DEFAULTS if config is None else load_tables(config), overrides)
    return side_by_side(method_rows(methods or DEFAULT_METHODS)[0], base, overrides, seeds)


def side_by_side(
    rows: Mapping[str, Tables], base: Tables, overrides: Sequence[str], seeds: int, data: str | None = None
) -> Study:
    """The study of some rows, all of it checked; `data` is what to call the data, if not as the configuration does."""
    if seeds < 1:
        raise UserError("config.invalid_value", f"seeds = {seeds}: less than one", "seeds", "set at least 1")
    if any(text.replace(" ", "").startswith(("method.name=", "method=")) for text in overrides):
        raise UserError(
            "config.conflict",
            "method.name: the arguments of compare name the methods",
            "method.name",
            "remove --set method.name, and name the method as an argument",
        )
    experiment = Experiment(**base)
    data, first = data or experiment.data.name, next(iter(rows))
    study = Study(
        id=f"compare-{slug(data)}",
        title=f"Methods compared on {data}",
        base=base,
        rows=rows,
        columns={data: {}},
        seeds=tuple(range(experiment.run.seed, experiment.run.seed + seeds)),
        measure="last10",
        target=experiment.run.targets[0] if experiment.run.targets else Target(of=first, measure="best"),
    )
    for cell in study.cells():
        study.experiment(cell)
    return study


def own_study(
    methods: Sequence[MethodLike] | Mapping[str, MethodLike],
    config: ConfigLike | None,
    overrides: Sequence[str],
    seeds: int,
    *,
    data: object,
    model: ModelLike | None,
    partition: object,
    settings: Tables,
) -> tuple[Study, PythonObjects]:
    """The study of what a Python user gives, and the objects that its tables cannot hold."""
    rows, own_methods = method_rows(methods or DEFAULT_METHODS)
    usual: Tables = COMPARE_DEFAULTS if data is None else {}
    base = merge_tables(usual if config is None else load_tables(config))
    dataset = None
    if isinstance(data, str) and data in DATASETS:
        base = merge_tables(base, {"data": {"name": data}})
    elif data is not None:
        dataset = as_dataset(data)
        base = merge_tables(base, {"data": {"name": "own"}})
        chosen = merge_tables(base, settings).get("federation", {}).keys() & {"partition", "clients"}
        if dataset.group_names and partition is None and not chosen:
            partition, settings = (
                "groups",
                merge_tables(settings, {"federation": {"clients": len(dataset.group_names)}}),
            )
    own_model, table = _split_python_object("model", model)
    own_partition, law = _split_python_object("partition", partition)
    base = merge_tables(
        base, {"model": table} if table else {}, {"federation": {"partition": law}} if law else {}, settings
    )
    if "sample" in settings.get("federation", {}):
        base["federation"].pop("fraction", None)
    given = PythonObjects(dataset, own_model, own_partition, own_methods)
    name = None if dataset is None else dataset.name
    return side_by_side(rows, with_overrides(base, overrides), overrides, seeds, name), given


def method_rows(
    methods: Sequence[MethodLike] | Mapping[str, MethodLike],
) -> tuple[dict[str, Tables], dict[str, Method]]:
    """The rows of a study, and the methods of someone's own behind them; names are given, or made from settings."""
    if isinstance(methods, str):
        raise UserError("config.invalid_value", f'methods = "{methods}": not a list', "methods", f'pass ["{methods}"]')
    named = methods.items() if isinstance(methods, Mapping) else ((None, each) for each in methods)
    rows, own = dict[str, Tables](), dict[str, Method]()
    for name, each in named:
        label, row, method = _row(each)
        if (name or label) in rows:
            raise UserError(
                "study.duplicate_name",
                f"methods: {name or label} is there twice",
                "methods",
                "remove one of the two, or name them in a dictionary",
            )
        rows[name or label] = row
        if method is not None:
            own[name or label] = method
    return rows, own


def _row(given: MethodLike) -> tuple[str, Tables, Method | None]:
    """A method's name, its tables, and the method itself if no tables can make it."""
    if isinstance(given, str):
        text = re.sub(r"\s*([:=,])\s*", r"\1", given)
        return text, _parse_method(text), None
    if isinstance(given, type) and issubclass(given, Method):
        given = given()
    if isinstance(given, Mapping):
        CHOICES["method"].build(given)  # refuses what is no method
        settings = {key: value for key, value in given.items() if key != "name"}
        return _label(str(given.get("name", "fedavg")), settings), {"method": dict(given)}, None
    if not isinstance(given, Method):
        raise UserError(
            "config.invalid_value",
            f"methods: {given!r} is not a method",
            "methods",
            "pass a name, a table such as {'name': 'fedlmd'}, or a Method",
        )
    table = CHOICES["method"].dump(given)
    defaults = {f.name: f.default for f in fields(given) if f.default is not MISSING}
    settings = {key: value for key, value in table.items() if key in defaults and value != defaults[key]}
    method = given if table["name"] == "own" else None
    return _label(table["of" if method else "name"], settings), {"method": table}, method


def _label(name: str, settings: Mapping[str, Any]) -> str:
    return name + (":" if settings else "") + ",".join(f"{key}={value}" for key, value in settings.items())


def _parse_method(given: str) -> Tables:
    """What `fedlmd:tau=3,local.prox=0.1` means: keys without a section are the method's."""
    name, _, settings = given.partition(":")
    if name not in METHODS:
        raise unknown_name("method", name, METHODS, key="method.name")
    tables: Tables = {"method": {"name": name}}
    for text in re.split(r",(?=[\w.]+\s*=)", settings) if settings else ():
        apply_override(tables, text if "." in text.partition("=")[0] else f"method.{text}")
    return tables


def _split_python_object(kind: str, given: Any) -> tuple[Any, Tables]:
    """An object that no tables can make, and the tables that name it; or none, and tables that make it."""
    if given is None:
        return None, {}
    choice = CHOICES[kind]
    if isinstance(given, str | Mapping):
        return None, choice.dump(choice.build(given))
    if type(given) in choice.classes.values():
        return None, choice.dump(given)
    return given, {"name": "own", "of": getattr(given, "__name__", type(given).__name__)}
