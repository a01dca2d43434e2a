"""Sources of a configuration: files, tables and experiments, the defaults of a comparison, and own code."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from fedrecall.config.choices import PYTHON_OBJECT, NamedChoice, OwnCode, PythonObject
from fedrecall.config.data_section import SOURCE_KEYS, DataSection
from fedrecall.config.experiment import CHOICES, Experiment
from fedrecall.config.own_code import check_arguments, code_hash, import_object, is_code_path
from fedrecall.config.tables import Tables, lookup, merge_tables, read_toml
from fedrecall.errors import UserError

# A federation that shows forgetting within a minute: 40 clients with two digits each, four of them per round. It was
# chosen from three by FedAvg, FedLMD and FedCAD with the seeds 100 to 102; `compare` prints the seeds from 0.
COMPARE_DEFAULTS: Tables = {
    "data": {"name": "digits"},
    "federation": {"clients": 40, "sample": 4, "partition": {"name": "shards", "s": 2}},
    "local": {"epochs": 10, "batch": 16, "lr": 0.05},
    "run": {"rounds": 30, "local_accuracy": True, "probes": ["forgotten", "pull"], "checkpoint_every": 30},
}

ConfigLike = Experiment | Mapping[str, Any] | str | Path


def load_tables(config: ConfigLike) -> Tables:
    """Return a configuration as tables, from an experiment, from tables or from a TOML file."""
    if isinstance(config, Experiment):
        tables = config.to_tables()
        unset = {"clients", "partition"} - config.federation.model_fields_set  # the data may name its clients
        tables["federation"] = {k: v for k, v in tables["federation"].items() if k not in unset}
        tables["run"]["metrics"] = list(config.run.metrics)  # with the functions, which tables only name
        return tables
    return merge_tables(config) if isinstance(config, Mapping) else read_toml(Path(config))


def with_section_objects(tables: Tables, experiment: Experiment) -> Tables:
    """Return tables made from an experiment with the user's objects in its sections, which tables only name."""
    tables = merge_tables(tables)
    for choice, section, chosen in _section_objects(experiment):
        if lookup(tables, choice.key) == choice.dump(chosen):  # else an override has changed it
            tables[section][choice.kind] = chosen
    return tables


def without_section_objects(tables: Tables, experiment: Experiment) -> tuple[Tables, dict[str, Any]]:
    """Return the tables of an experiment with records of the user's objects in its sections, and these by key."""
    tables, objects = merge_tables(tables), dict[str, Any]()
    for choice, section, chosen in _section_objects(experiment):
        tables[section][choice.kind] = choice.dump(chosen)
        objects[choice.key] = chosen
    return tables, objects


def require_no_section_objects(experiment: Experiment, why: str) -> None:
    """Raise an error if a section has an object passed in Python."""
    for choice, _, chosen in _section_objects(experiment):
        message = f"{choice.key}: an object passed in Python ({choice.dump(chosen)['of']}), {why}"
        raise UserError("config.invalid_value", message, choice.key, f"remove it, or set {choice.key}.name")


def require_section_objects(experiment: Experiment) -> None:
    """Raise an error if a section has only the record of an object passed in Python."""
    for choice, _, chosen in _section_choices(experiment):
        if isinstance(chosen, PythonObject):
            message = f"{choice.key}: the configuration refers to an object passed in Python ({chosen.class_name})"
            hint = f"pass it again: {choice.python_call}"
            raise UserError("config.needs_python_object", message, choice.key, hint)


def _section_choices(experiment: Experiment) -> Iterator[tuple[NamedChoice, str, Any]]:
    """Yield the choices in sections that `run` has no keyword for, with their section and the object that is chosen."""
    for choice in CHOICES.values():
        if choice.section is not None and choice.kind != "partition":
            chosen = getattr(getattr(experiment, choice.section), choice.kind)
            if chosen is not None:
                yield choice, choice.section, chosen


def _section_objects(experiment: Experiment) -> Iterator[tuple[NamedChoice, str, Any]]:
    """Yield those of `_section_choices` that are objects of the user, or only name one."""
    for choice, section, chosen in _section_choices(experiment):
        if choice.dump(chosen)["name"] == PYTHON_OBJECT:
            yield choice, section, chosen


def own_code(experiment: Experiment) -> list[str]:
    """Return the names of the user's classes and functions, "package.module:Class", in a configuration."""
    chosen = (experiment.method, experiment.model, experiment.federation.partition)
    data = [experiment.data.name] if is_code_path(experiment.data.name) else []
    metrics = [metric for metric in experiment.run.metrics if is_code_path(metric)]
    return [*data, *(choice.path for choice in chosen if isinstance(choice, OwnCode)), *metrics]


def own_code_hashes(experiment: Experiment) -> dict[str, str]:
    """Return the hash of the source of every own class and function, by its name; nothing is imported."""
    return {name: code_hash(name, "own code") for name in own_code(experiment)}


def import_own_code(experiment: Experiment, allowed: Collection[str] | None = None) -> Experiment:
    """Return the experiment with its own code imported, and the settings of the code validated.

    With `allowed`, the code that the node-config of a Flower node lists, other code is an error.
    """
    names = own_code(experiment)
    if not names:
        return experiment
    if allowed is not None and (others := [name for name in names if name not in allowed]):
        message = f"node-config.code: the experiment names code that this node does not list: {', '.join(others)}"
        hint = f'if you trust it, add code="{" ".join(names)}" to the node-config'
        raise UserError("config.untrusted_code", message, "node-config.code", hint)
    changes: dict[str, Any] = {"data": _with_loader(experiment.data)}
    for kind in ("method", "model"):
        if isinstance(code := getattr(experiment, kind), OwnCode):
            changes[kind] = CHOICES[kind].import_code(code)
    if isinstance(code := experiment.federation.partition, OwnCode):
        partition = CHOICES["partition"].import_code(code)
        changes["federation"] = experiment.federation.model_copy(update={"partition": partition})
    metrics = tuple(_import_metric(metric) if is_code_path(metric) else metric for metric in experiment.run.metrics)
    changes["run"] = experiment.run.model_copy(update={"metrics": metrics})
    return Experiment(**dict(experiment) | changes)  # validated again, now that the method is known


def import_own_model(experiment: Experiment) -> Experiment:
    """Return the experiment with its model's code imported, and nothing else."""
    if not isinstance(experiment.model, OwnCode):
        return experiment
    return experiment.model_copy(update={"model": CHOICES["model"].import_code(experiment.model)})


def _import_metric(path: str) -> Callable[..., Any]:
    function = import_object(path, "run.metrics")
    if not callable(function):
        message = f'run.metrics = "{path}": {type(function).__name__} is not a function'
        raise UserError("config.invalid_value", message, "run.metrics", "name a function of labels and probabilities")
    return cast(Callable[..., Any], function)


def _with_loader(section: DataSection) -> DataSection:
    """Return the section with its function imported, if it names one."""
    if not is_code_path(section.name):
        return section
    function = import_object(section.name, "data.name")
    keys = {key: getattr(section, key) for key in SOURCE_KEYS if getattr(section, key) is not None}
    settings = keys | (section.model_extra or {})
    check_arguments(function, settings, "data")
    section = section.model_copy()
    section._loader = partial(function, **settings)
    return section
