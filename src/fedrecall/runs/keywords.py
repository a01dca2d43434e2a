"""Keywords that `run`, `compare` and `tune` share, in Python and on the command line, as one configuration.

A name, a number or a table becomes part of the configuration. An object that no table can hold is kept beside it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from fedrecall.config.choices import PYTHON_OBJECT, PythonObject
from fedrecall.config.data_section import SOURCE_KEYS
from fedrecall.config.experiment import CHOICES, Experiment
from fedrecall.config.overrides import apply_override, with_overrides
from fedrecall.config.own_code import is_code_path
from fedrecall.config.sources import ConfigLike, load_tables
from fedrecall.config.tables import Tables, merge_tables
from fedrecall.core.method import Method
from fedrecall.data.catalog import DATASETS
from fedrecall.data.custom import as_dataset
from fedrecall.data.dataset import Dataset
from fedrecall.errors import UserError, unknown_name
from fedrecall.methods import METHODS
from fedrecall.models import Model
from fedrecall.runs.setup import UserModel

MethodLike = str | Mapping[str, Any] | Method | type[Method]

ModelLike = str | Mapping[str, Any] | Model | UserModel

SETTING_KEYS = {
    "clients": "federation.clients",
    "sample": "federation.sample",
    "rounds": "run.rounds",
    "seed": "run.seed",
    "lr": "local.lr",
    "epochs": "local.epochs",
    "batch": "local.batch",
}  # keywords that are one value of the configuration


@dataclass(frozen=True, eq=False)
class PythonObjects:
    """Objects passed in Python that tables name "own"; empty if the tables are complete."""

    data: Dataset | None = None
    model: UserModel | None = None
    partition: object = None

    @property
    def is_empty(self) -> bool:
        """True if no object was passed."""
        return self.data is None and self.model is None and self.partition is None


class NamedMethod(NamedTuple):
    """A method with the name of its row in a table."""

    label: str
    tables: Tables
    method: Method | None
    """The object, if it is not of this library: its table only names it."""


@dataclass(frozen=True, eq=False)
class Keywords:
    """Values of the shared keywords; None: the configuration decides."""

    data: object = None
    model: ModelLike | None = None
    partition: object = None
    clients: int | None = None
    sample: int | None = None
    alpha: float | None = None
    rounds: int | None = None
    seed: int | None = None
    lr: float | None = None
    epochs: int | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.alpha is not None and self.partition is not None:
            raise UserError(
                "config.conflict",
                f"alpha = {self.alpha}: it sets a Dirichlet partition, and partition is set too",
                "alpha",
                "remove alpha or partition",
            )

    def apply(self, config: ConfigLike | None, overrides: Sequence[str] = ()) -> tuple[Tables, PythonObjects]:
        """Return the tables of a configuration with the keywords, then the overrides, on top; and the objects."""
        base = {} if config is None else load_tables(config)
        given: object = self.partition
        if isinstance(config, Experiment) and given is None:
            chosen = config.federation.partition  # a table only names an object of the user
            is_own = CHOICES["partition"].dump(chosen)["name"] == PYTHON_OBJECT and not isinstance(chosen, PythonObject)
            given = chosen if is_own else None
        data, base = _with_data(base, self.data)
        model, model_table = _split("model", self.model)
        partition, partition_table = _split("partition", given)
        if self.alpha is not None:
            partition_table = {"name": "dirichlet", "alpha": self.alpha}
        settings: Tables = {}
        for keyword, key in SETTING_KEYS.items():
            if (value := getattr(self, keyword)) is not None:
                section, _, name = key.partition(".")
                settings.setdefault(section, {})[name] = value
        tables = merge_tables(
            base,
            {"model": model_table} if model_table else {},
            {"federation": {"partition": partition_table}} if partition_table else {},
            settings,
        )
        if self.sample is not None:
            tables["federation"].pop("fraction", None)
        return with_overrides(tables, overrides), PythonObjects(data, model, partition)

    @property
    def arguments(self) -> list[str] | None:
        """Arguments of the command line with the same meaning; None if it cannot express them."""
        words = []
        for name in ("data", "model"):
            value = getattr(self, name)
            if isinstance(value, str | Path):
                words += [f"--{name}", str(value)]
            elif value is not None:
                return None
        if self.partition is not None:
            if not isinstance(self.partition, str):
                return None
            words += ["--set", f"federation.partition.name={self.partition}"]
        for name in ("alpha", *SETTING_KEYS):
            if (value := getattr(self, name)) is not None:
                is_option = name not in ("lr", "epochs", "batch")
                words += [f"--{name}", str(value)] if is_option else ["--set", f"{SETTING_KEYS[name]}={value}"]
        return words


def name_method(method: MethodLike) -> NamedMethod:
    """Return the label and the tables of a method: a name with settings, a table, an object or a class."""
    if isinstance(method, str):
        text = re.sub(r"\s*([:=,])\s*", r"\1", method)
        return NamedMethod(text, _parse_method(text), None)
    if isinstance(method, type) and issubclass(method, Method):
        method = method()
    if isinstance(method, Mapping):
        CHOICES["method"].build(method)  # raises an error if the table is invalid
        settings = {key: value for key, value in method.items() if key != "name"}
        return NamedMethod(_label(str(method.get("name", "fedavg")), settings), merge_tables({"method": method}), None)
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
    if table["name"] == PYTHON_OBJECT:
        return NamedMethod(_label(table["of"], settings), {"method": table}, method)
    return NamedMethod(_label(table["name"], settings), {"method": table}, None)


def _label(name: str, settings: Mapping[str, Any]) -> str:
    return name + (":" if settings else "") + ",".join(f"{key}={value}" for key, value in settings.items())


def _parse_method(text: str) -> Tables:
    """Parse `fedlmd:tau=3,local.prox=0.1` or `package.module:Class:tau=3`: keys without a section are the method's."""
    name, _, settings = text.partition(":")
    if name not in METHODS:
        attribute, _, after = settings.partition(":")
        if not is_code_path(f"{name}:{attribute}"):
            raise unknown_name("method", name, METHODS, key="method.name")
        name, settings = f"{name}:{attribute}", after
    tables: Tables = {"method": {"name": name}}
    for setting in re.split(r",(?=[\w.]+\s*=)", settings) if settings else ():
        apply_override(tables, setting if "." in setting.partition("=")[0] else f"method.{setting}")
    return tables


def _with_data(base: Tables, data: object) -> tuple[Dataset | None, Tables]:
    """Return an object with the data, or None and the tables that name the data."""
    if data is None:
        return None, base
    if not isinstance(data, str | Path):
        return as_dataset(data), merge_tables(_without_source(base, PYTHON_OBJECT), {"data": {"name": PYTHON_OBJECT}})
    text, path = str(data), Path(data).expanduser()
    table: Tables = {"name": text}
    if path.suffix.lower() in (".csv", ".parquet"):
        table = {"name": "table", "path": str(path)}
    elif path.is_dir() and text not in DATASETS:
        table = {"name": "folder", "path": str(path)}
    elif text not in DATASETS and not is_code_path(text):
        raise unknown_name("folder or data set", text, DATASETS, key="data")
    return None, merge_tables(_without_source(base, table["name"]), {"data": table})


def _without_source(base: Tables, name: str) -> Tables:
    """Return the tables without the keys of another kind of data."""
    data = base.get("data", {})
    if data.get("name", "digits") == name:
        return base
    dropped = [key for key in SOURCE_KEYS if key != "root" or name not in DATASETS]
    return base | {"data": {key: value for key, value in data.items() if key not in dropped}}


def _split(kind: str, value: Any) -> tuple[Any, Tables]:
    """Return an object that no table can make and the table that names it; or None, and the table that makes it."""
    if value is None:
        return None, {}
    choice = CHOICES[kind]
    if isinstance(value, str | Mapping):
        return None, choice.dump(choice.build(value))
    if type(value) in choice.classes.values():
        return None, choice.dump(value)
    name = type(value).__name__ if isinstance(value, nn.Module) else getattr(value, "__name__", type(value).__name__)
    return value, {"name": PYTHON_OBJECT, "of": name}
