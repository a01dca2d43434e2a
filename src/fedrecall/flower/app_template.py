"""Flower app of a configuration (`fedrecall flower new`): two files from templates, without code."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined

from fedrecall.config.choices import OwnCode, PythonObject
from fedrecall.config.experiment import Experiment
from fedrecall.errors import UserError
from fedrecall.files import write_atomic
from fedrecall.flower.app_config import EXPERIMENT_KEY, OUT_KEY, OVERRIDES_KEY
from fedrecall.models.huggingface import HuggingFace

APP_NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,39}")

SHOWN_NODES = 3  # nodes whose command is in the README

APP_TEMPLATES = {"pyproject.toml": "pyproject.toml.j2", "README.md": "README.md.j2"}


def write_app(folder: Path, config: Path | None, overrides: Sequence[str] = ()) -> Experiment:
    """Write the app to a folder that is empty or does not exist."""
    experiment = with_flower_engine(Experiment.load(config, overrides))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            "flower.directory_not_empty",
            f"{folder}: exists and is not empty",
            str(folder),
            "choose another folder for the app",
        )
    name = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-")
    if not APP_NAME_PATTERN.fullmatch(name):
        raise UserError(
            "flower.invalid_name",
            f'"{folder.name}": not a valid name of a Flower app',
            str(folder),
            "choose a folder name that begins with a letter and has at most 40 characters",
        )
    if isinstance(experiment.model, HuggingFace):  # nodes with another base refuse to train
        experiment = experiment.model_copy(update={"model": experiment.model.with_checksum()})
    tables = experiment.to_tables()
    toml = tomli_w.dumps(tables)
    if "'''" in toml:
        raise UserError(
            "flower.not_serialisable",
            "a value of the configuration has ''', which cannot be written into a Flower app",
            EXPERIMENT_KEY,
            "remove the '''",
        )
    values = {
        "name": name,
        "title": f"{tables['method']['name']} on {experiment.data.name}",
        "out": f"runs/{name}",
        "experiment": toml,
        "clients": experiment.federation.clients,
        "shown_nodes": min(experiment.federation.clients, SHOWN_NODES),
        "experiment_key": EXPERIMENT_KEY,
        "overrides_key": OVERRIDES_KEY,
        "out_key": OUT_KEY,
    }
    loader = PackageLoader("fedrecall.flower")
    templates = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, template in APP_TEMPLATES.items():
            write_atomic(folder / file, templates.get_template(template).render(values).encode())
    except OSError as error:
        raise UserError(
            "flower.cannot_write",
            f"{folder}: cannot write the app: {error.strerror}",
            str(folder),
            "choose another folder, or change its permissions",
        ) from None
    return experiment


def with_flower_engine(experiment: Experiment) -> Experiment:
    """Return the experiment with the engine `flower`. Raises an error for objects passed in Python."""
    chosen = {
        "method": experiment.method,
        "model": experiment.model,
        "federation.partition": experiment.federation.partition,
        "data": PythonObject("data", "data") if experiment.data.name == "own" else None,
    }
    for key, part in chosen.items():
        if isinstance(part, PythonObject) and not isinstance(part, OwnCode):
            raise UserError(
                "flower.not_serialisable",
                f"{key}: an object passed in Python, which cannot be written into a Flower app",
                key,
                "use a name and settings that the configuration has",
            )
    tables: dict[str, Any] = experiment.to_tables()
    engine = {key: value for key, value in tables["engine"].items() if key in ("min_replies", "timeout")}
    return Experiment(**tables | {"engine": engine | {"name": "flower"}})
