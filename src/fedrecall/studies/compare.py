"""Methods side by side: the same federation, cohorts and first weights for all of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from fedrecall.config.experiment import CHOICES, Experiment, override, override_all
from fedrecall.core.method import Method
from fedrecall.data.catalog import DATASETS
from fedrecall.data.custom import as_dataset
from fedrecall.errors import UserError, unknown
from fedrecall.methods import METHODS
from fedrecall.models import Model
from fedrecall.runs.setup import OwnModel
from fedrecall.studies.given import Given
from fedrecall.studies.study import Study, Tables, Target, merged, read, slug

USUAL = ("fedavg", "fedprox", "fedntd", "fedlmd", "fedcad", "fedgkd")

SEEDS = 5

# Forgetting at work in a minute or two: each of 40 clients has two digits, and three of them train at a time.
DIGITS: Tables = {
    "data": {"name": "digits"},
    "federation": {"clients": 40, "sample": 3, "partition": {"name": "shards", "s": 2}},
    "local": {"epochs": 10, "batch": 16, "lr": 0.05},
    "run": {"rounds": 60, "local_accuracy": True, "checkpoint_every": 20},
}

AnyMethod = str | Mapping[str, Any] | Method | type[Method]

AnyModel = str | Mapping[str, Any] | Model | OwnModel

AnyConfig = Experiment | Mapping[str, Any] | str | Path


def comparison_study(
    methods: Sequence[str] = (),
    config: AnyConfig | None = None,
    overrides: Sequence[str] = (),
    seeds: int = SEEDS,
) -> Study:
    """The study of some methods, given as `name` or `name:key=value,...`, with one configuration.

    The first method is what the others are compared with.
    """
    base = with_overrides(DIGITS if config is None else tables_of(config), overrides)
    return side_by_side(rows_of(methods or USUAL)[0], base, overrides, seeds)


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
    methods: Sequence[AnyMethod] | Mapping[str, AnyMethod],
    config: AnyConfig | None,
    overrides: Sequence[str],
    seeds: int,
    *,
    data: object,
    model: AnyModel | None,
    partition: object,
    settings: Tables,
) -> tuple[Study, Given]:
    """The study of what a Python user gives, and the objects that its tables cannot hold."""
    rows, own_methods = rows_of(methods or USUAL)
    usual: Tables = DIGITS if data is None else {}
    base = merged(usual if config is None else tables_of(config))
    dataset = None
    if isinstance(data, str) and data in DATASETS:
        base = merged(base, {"data": {"name": data}})
    elif data is not None:
        dataset = as_dataset(data)
        base = merged(base, {"data": {"name": "own"}})
        chosen = merged(base, settings).get("federation", {}).keys() & {"partition", "clients"}
        if dataset.group_names and partition is None and not chosen:
            partition, settings = "groups", merged(settings, {"federation": {"clients": len(dataset.group_names)}})
    own_model, table = _own("model", model)
    own_partition, law = _own("partition", partition)
    base = merged(base, {"model": table} if table else {}, {"federation": {"partition": law}} if law else {}, settings)
    if "sample" in settings.get("federation", {}):
        base["federation"].pop("fraction", None)
    given = Given(dataset, own_model, own_partition, own_methods)
    name = None if dataset is None else dataset.name
    return side_by_side(rows, with_overrides(base, overrides), overrides, seeds, name), given


def tables_of(config: AnyConfig) -> Tables:
    """A configuration as tables: a complete one, a part of one, or that of a file."""
    if isinstance(config, Experiment):
        return config.tables()
    return merged(config) if isinstance(config, Mapping) else read(Path(config))


def with_overrides(tables: Tables, overrides: Sequence[str]) -> Tables:
    """Tables with "key=value" texts on top."""
    out = merged(tables)
    override_all(out, overrides)
    return out


def rows_of(
    methods: Sequence[AnyMethod] | Mapping[str, AnyMethod],
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


def _row(given: AnyMethod) -> tuple[str, Tables, Method | None]:
    """A method's name, its tables, and the method itself if no tables can make it."""
    if isinstance(given, str):
        text = re.sub(r"\s*([:=,])\s*", r"\1", given)
        return text, _described(text), None
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


def _described(given: str) -> Tables:
    """What `fedlmd:tau=3,local.prox=0.1` means: keys without a section are the method's."""
    name, _, settings = given.partition(":")
    if name not in METHODS:
        raise unknown("method", name, METHODS, key="method.name")
    tables: Tables = {"method": {"name": name}}
    for text in re.split(r",(?=[\w.]+\s*=)", settings) if settings else ():
        override(tables, text if "." in text.partition("=")[0] else f"method.{text}")
    return tables


def _own(kind: str, given: Any) -> tuple[Any, Tables]:
    """An object that no tables can make, and the tables that name it; or none, and tables that make it."""
    if given is None:
        return None, {}
    choice = CHOICES[kind]
    if isinstance(given, str | Mapping):
        return None, choice.dump(choice.build(given))
    if type(given) in choice.valid.values():
        return None, choice.dump(given)
    return given, {"name": "own", "of": getattr(given, "__name__", type(given).__name__)}
