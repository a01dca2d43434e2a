"""Flower app of a configuration (`fedrecall flower new`): files from templates, and modules of the user's own."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined

from fedrecall.config.choices import OwnCode, PythonObject
from fedrecall.config.experiment import Experiment
from fedrecall.config.sources import own_code
from fedrecall.errors import UserError, unknown_name
from fedrecall.files import write_atomic
from fedrecall.flower.app_config import EXPERIMENT_KEY, NODES_PARTITION, OUT_KEY, OVERRIDES_KEY
from fedrecall.models.huggingface import HuggingFace
from fedrecall.runs.setup import with_clients_of_data

APP_NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,39}")

SHOWN_NODES = 3  # nodes whose command is in the README

APP_TEMPLATES = {"pyproject.toml": "pyproject.toml.j2", "README.md": "README.md.j2"}

# files that are written on request, by the name of the request
OPERATION_TEMPLATES = {
    "systemd": {
        "operation/fedrecall-superlink.service": "fedrecall-superlink.service.j2",
        "operation/fedrecall-supernode@.service": "fedrecall-supernode@.service.j2",
        "operation/node.env": "node.env.j2",
    },
    "compose": {"operation/compose.yaml": "compose.yaml.j2", "operation/Dockerfile": "Dockerfile.j2"},
    "nginx": {"operation/nginx.conf": "nginx.conf.j2"},
}

# top-level names that no packed module may have: Flower leaves most of these folders out of an app
RESERVED_NAMES = ("operation", "fedrecall", "build", "dist", "eggs", "env", "lib", "lib64", "parts", "venv")


def write_app(
    folder: Path,
    config: Path | None,
    overrides: Sequence[str] = (),
    modules: Sequence[Path] = (),
    operation: Sequence[str] = (),
) -> Experiment:
    """Write the app to a folder that is empty or does not exist.

    `modules` are Python files and packages that the app brings to all machines. `operation` are keys of
    OPERATION_TEMPLATES: files to run the daemons with.
    """
    experiment = with_flower_engine(_with_named_clients(Experiment.load(config, overrides)))
    packed = packed_files(modules)
    for name in operation:
        if name not in OPERATION_TEMPLATES:
            raise unknown_name("kind of files", name, OPERATION_TEMPLATES, "cli.invalid_option", "--with")
    name = _app_name(folder)
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
        "code": own_code(experiment),
        "modules": sorted({target.parts[0] for target in packed}),
        "operation": {name: list(OPERATION_TEMPLATES[name]) for name in operation},
    }
    templates = dict(APP_TEMPLATES)
    for kind in operation:
        templates |= OPERATION_TEMPLATES[kind]
    loader = PackageLoader("fedrecall.flower")
    jinja = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    files = {Path(file): jinja.get_template(template).render(values).encode() for file, template in templates.items()}
    _write_files(folder, files, packed)
    return experiment


def _app_name(folder: Path) -> str:
    """Return the name of the app in a folder, which must be empty or not exist."""
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
    return name


def _write_files(folder: Path, rendered: Mapping[Path, bytes], packed: Mapping[Path, Path]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in [*rendered.items(), *((target, source.read_bytes()) for target, source in packed.items())]:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / file, content)
    except OSError as error:
        raise UserError(
            "flower.cannot_write",
            f"{folder}: cannot write the app: {error.strerror}",
            str(folder),
            "choose another folder, or change its permissions",
        ) from None


def packed_files(modules: Sequence[Path]) -> dict[Path, Path]:
    """Return the Python files of modules and packages, by their path in the app."""
    out: dict[Path, Path] = {}

    def is_test(path: Path) -> bool:  # Flower leaves these files out of an app
        return path.stem.startswith("test_") or path.stem.endswith("_test")

    for path in modules:
        is_package = (path / "__init__.py").is_file()
        name = path.resolve().name if is_package else path.stem
        if not is_package and (path.suffix != ".py" or not path.is_file()):
            problem = "neither a Python file nor a folder with __init__.py"
        elif not name.isidentifier() or name in {*RESERVED_NAMES, *sys.stdlib_module_names} or is_test(path):
            problem = f'"{name}" cannot be the name of a packed module'
        elif any(file.parts[0] in (name, f"{name}.py") for file in out):
            problem = f'two modules have the name "{name}"'
        else:
            sources = sorted(s for s in path.rglob("*.py") if not is_test(s)) if is_package else [path]
            out |= {Path(name) / s.relative_to(path) if is_package else Path(s.name): s for s in sources}
            continue
        raise UserError("flower.invalid_module", f"--module = {path}: {problem}", "--module", "name another one")
    return out


def with_flower_engine(experiment: Experiment) -> Experiment:
    """Return the experiment with the engine `flower`. Raises an error for objects passed in Python.

    The partition of a run on nodes with their own data is left out: the nodes have it.
    """
    tables: dict[str, Any] = experiment.to_tables()
    if experiment.federation.partition == PythonObject("partition", NODES_PARTITION):
        federation = {key: value for key, value in tables["federation"].items() if key != "partition"}
        tables |= {"federation": federation}
        experiment = Experiment(**tables)
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
    engine = {key: value for key, value in tables["engine"].items() if key in ("min_replies", "timeout", "device")}
    return Experiment(**tables | {"engine": engine | {"name": "flower"}})


def _with_named_clients(experiment: Experiment) -> Experiment:
    """Return the experiment with the clients that the coordinator's data names, if the configuration states none.

    The app has every setting, so that on the nodes a default could not be told from a number that was set.
    """
    data, stated = experiment.data, experiment.federation.model_fields_set & {"clients", "partition"}
    if stated or not data.may_name_clients or data.path is None or not data.path.exists():
        return experiment
    return with_clients_of_data(experiment, data.load(experiment.model, experiment.run.seed), None, None)
