"""What the two sides of a Flower app are told: the run's configuration, and what a node says of itself."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrecall.errors import UserError, unknown
from fedrecall.experiment.config import Experiment, override_all

EXPERIMENT, CHANGES, OUT = "experiment", "set", "out"  # keys of the app's configuration
KEYS = ("client", "state", "folder", "table", "label", "index")  # of a node's


def configured(app: Mapping[str, Any]) -> Experiment:
    """The experiment in an app's configuration, with the overrides that were given to `flwr run`."""
    try:
        tables = tomllib.loads(str(app[EXPERIMENT]))
    except KeyError:
        raise UserError(f'the app\'s configuration has no "{EXPERIMENT}": make it with fedrecall flower new') from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f'"{EXPERIMENT}" of the app\'s configuration is not valid TOML: {error}') from None
    override_all(tables, str(app.get(CHANGES, "")).split())
    experiment = Experiment(**tables)
    if experiment.engine.name != "flower":
        raise UserError('a Flower app needs engine.name = "flower": make it with fedrecall flower new')
    return experiment


@dataclass(frozen=True)
class Node:
    """What a node is told when it is started: who it is, where its memory is, which data it has."""

    client: int  # its number in the federation, from 0
    state: Path  # a folder of its own
    folder: Path | None = None  # its images, one folder a class; or
    table: Path | None = None  # its CSV or Parquet file; or
    label: str | None = None  # (the table's label column, where the configuration names none)
    index: Path | None = None  # a text file of rows of the configured data set; or none: a part of it, for trials

    def __post_init__(self) -> None:
        given = [name for name in ("folder", "table", "index") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UserError(f"node-config: give one of {' and '.join(given)}, not more")
        if self.label is not None and self.table is None:
            raise UserError("node-config: label is the column of a table")

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "Node":
        """From the node-config of a SuperNode."""
        for key in config:
            if key not in KEYS:
                raise unknown("key of the node-config", key, KEYS)
        client, state = config.get("client"), config.get("state")
        if type(client) is not int or client < 0:
            raise UserError("node-config: client = NUMBER is missing: which client of the federation is this, from 0?")
        if not isinstance(state, str) or not state:
            raise UserError('node-config: state = "FOLDER" is missing: where may this node keep what it remembers?')
        paths = {name: Path(str(config[name])).expanduser() for name in ("folder", "table", "index") if name in config}
        label = None if "label" not in config else str(config["label"])
        return cls(client, Path(state).expanduser(), label=label, **paths)

    @property
    def own(self) -> bool:
        """Whether its data are its own; else they are a part of the configured data set."""
        return any((self.folder, self.table, self.index))
