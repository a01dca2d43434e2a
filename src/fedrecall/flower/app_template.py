"""A Flower app from a configuration: two small files, and no code, because its components are in this library."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedrecall.config.choices import PythonObject
from fedrecall.config.experiment import Experiment
from fedrecall.errors import UserError
from fedrecall.files import write_atomic
from fedrecall.flower.app_config import EXPERIMENT_KEY, OUT_KEY, OVERRIDES_KEY

APP_NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,39}")

PROJECT = """\
# A Flower app made by `fedrecall flower new`: it has no code of its own, its components are in the installed library.
[project]
name = "{name}"
version = "1.0.0"
description = "{title}"
license = "Apache-2.0"
dependencies = []  # every machine has fedrecall[flower] installed; nothing is installed at run time

[tool.flwr.app]
publisher = "fedrecall"

[tool.flwr.app.components]
serverapp = "fedrecall.flower.server_app:app"
clientapp = "fedrecall.flower.client_app:app"

[tool.flwr.app.config]
{out} = "{place}"  # the run directory, on the machine of the SuperLink
{set} = ""  # overrides, e.g. flwr run . -c '{set}="run.rounds=5 method.tau=3"'
# The experiment: edit it here, or make the app anew.
{experiment} = '''
{tables}'''
"""

README = """\
# {name}

{title}, over {clients} clients: a Flower app. Every machine needs the same version of fedrecall
with its extra flower: run `pip install ".[flower]"` in the folder of its repository.
This page is for a trial on one machine, without encryption; the page `deployment` of fedrecall's documentation takes
it from here to authenticated nodes on machines of their own.

In every terminal, first (no telemetry, no look for updates, no installations at run time; Flower's own files apart):

```
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_HOME=$PWD/flower-server
```

The server:

```
flower-superlink --insecure --host 127.0.0.1 --port 8000
```

The nodes, each in a terminal of its own, numbered from 0:

```
{nodes}
```

`client` is the node's number, `state` a folder for what it remembers. Without more, a node takes the part of the
configured data set that has its number, for trials. Its own data are named by one of `folder="PATH"` (images, one
folder a class), `table="FILE" label="COLUMN"` (CSV or Parquet) and `index="FILE"` (row numbers of the configured data).

The run:

```
mkdir -p "$FLWR_HOME"
printf '[superlink.local]\\naddress = "127.0.0.1:8000"\\ninsecure = true\\n' > "$FLWR_HOME/config.toml"
flwr run . local --stream
```

Its run directory is `{place}`, seen from where the SuperLink was started. A run that was interrupted goes on when it is
started again; for another one, choose another directory: `flwr run . local --stream -c '{out}="another"'`.
"""


def write_app(folder: Path, config: Path | None, overrides: Sequence[str] = ()) -> Experiment:
    """Write the app to a folder that is empty or not there yet."""
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
    tables = experiment.to_tables()
    text, clients = tomli_w.dumps(tables), experiment.federation.clients
    if "'''" in text:
        raise UserError(
            "flower.not_serialisable",
            "a value of the configuration has ''', which cannot be written into a Flower app",
            EXPERIMENT_KEY,
            "remove the '''",
        )
    title = f"{tables['method']['name']} on {experiment.data.name}"
    words = {"name": name, "title": title, "place": f"runs/{name}", "tables": text, "clients": clients}
    words |= {
        "out": OUT_KEY,
        "set": OVERRIDES_KEY,
        "experiment": EXPERIMENT_KEY,
        "nodes": "\n".join(map(_supernode_command, range(min(clients, 3)))),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "pyproject.toml", PROJECT.format(**words).encode())
        write_atomic(folder / "README.md", README.format(**words).encode())
    except OSError as error:
        raise UserError(
            "flower.cannot_write",
            f"{folder}: cannot write the app: {error.strerror}",
            str(folder),
            "choose another folder, or change its permissions",
        ) from None
    return experiment


def with_flower_engine(experiment: Experiment) -> Experiment:
    """The same experiment on the engine of real federations."""
    parts = {
        "method": isinstance(experiment.method, PythonObject),
        "model": isinstance(experiment.model, PythonObject),
        "federation.partition": isinstance(experiment.federation.partition, PythonObject),
        "data": experiment.data.name == "own",
    }
    for key, own in parts.items():
        if own:
            raise UserError(
                "flower.not_serialisable",
                f"{key}: an object passed in Python, which cannot be written into a Flower app",
                key,
                "use a name and settings that the configuration has",
            )
    tables: dict[str, Any] = experiment.to_tables()
    engine = {key: value for key, value in tables["engine"].items() if key in ("min_replies", "timeout")}
    return Experiment(**tables | {"engine": engine | {"name": "flower"}})


def _supernode_command(client: int) -> str:
    return (
        f"FLWR_HOME=$PWD/flower-{client} flower-supernode --insecure --superlink 127.0.0.1:8000 --port {9094 + client} "
        f"--node-config 'client={client} state=\"state-{client}\"'"
    )
