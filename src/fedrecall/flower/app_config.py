"""Configuration of a Flower app: the experiment in the app, and the node-config of a SuperNode."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrecall.config.experiment import Experiment
from fedrecall.config.overrides import apply_overrides
from fedrecall.errors import UserError, unknown_name

EXPERIMENT_KEY, OVERRIDES_KEY, OUT_KEY = "experiment", "set", "out"  # keys of the app's configuration

NODES_PARTITION = "nodes"  # recorded partition of a run whose nodes have their own data

NODE_KEYS = ("client", "state", "folder", "table", "label", "index", "code", "base")  # keys of a node-config


def read_experiment(app: Mapping[str, Any]) -> Experiment:
    """Read the experiment from an app's configuration, with the overrides of `flwr run -c`."""
    try:
        tables = tomllib.loads(str(app[EXPERIMENT_KEY]))
    except KeyError:
        raise UserError(
            "flower.invalid_app",
            f'the configuration of the app has no "{EXPERIMENT_KEY}"',
            EXPERIMENT_KEY,
            "write the app with `fedrecall flower new`",
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            "flower.invalid_app",
            f'"{EXPERIMENT_KEY}" in the configuration of the app is not valid TOML ({error})',
            EXPERIMENT_KEY,
            "correct it, or write the app with `fedrecall flower new`",
        ) from None
    apply_overrides(tables, str(app.get(OVERRIDES_KEY, "")).split())
    experiment = Experiment(**tables)
    if experiment.engine.name != "flower":
        raise UserError(
            "flower.invalid_app",
            f'engine.name = "{experiment.engine.name}": a Flower app needs engine.name = "flower"',
            "engine.name",
            "write the app with `fedrecall flower new`",
        )
    return experiment


@dataclass(frozen=True)
class NodeConfig:
    """Configuration of a node: the number of its client, the folder of its client state, and its data."""

    client: int  # number of its client, from 0
    state: Path  # folder for its client state
    folder: Path | None = None  # images, one folder per class
    table: Path | None = None  # CSV or Parquet file
    label: str | None = None  # label column of the table; None: data.label
    index: Path | None = None  # text file of row numbers of the configured data set
    code: tuple[str, ...] = ()  # own code, "package.module:Class", that this node imports if the experiment names it
    base: Path | None = None  # folder of the pretrained model on this node; None: model.path

    def __post_init__(self) -> None:
        sources = [name for name in ("folder", "table", "index") if getattr(self, name) is not None]
        if len(sources) > 1:
            raise UserError(
                "flower.invalid_node_config",
                f"node-config: {' and '.join(sources)} are both set",
                f"node-config.{sources[-1]}",
                "use one of them",
            )
        if self.label is not None and self.table is None:
            raise UserError(
                "flower.invalid_node_config",
                f"node-config.label = {self.label}: the label column of a table, and there is no table",
                "node-config.label",
                "set table, or remove label",
            )

    @classmethod
    def from_node_config(cls, config: Mapping[str, Any]) -> "NodeConfig":
        """Read the node-config of a SuperNode."""
        for key in config:
            if key not in NODE_KEYS:
                raise unknown_name("key of the node-config", key, NODE_KEYS, "config.unknown_key", f"node-config.{key}")
        client, state = config.get("client"), config.get("state")
        if type(client) is not int or client < 0:
            raise UserError(
                "flower.invalid_node_config",
                f"node-config.client = {client}: not a number of a client",
                "node-config.client",
                "set client = NUMBER, the number of this client in the federation, from 0",
            )
        if not isinstance(state, str) or not state:
            raise UserError(
                "flower.invalid_node_config",
                f"node-config.state = {state}: not a folder",
                "node-config.state",
                'set state = "FOLDER", where this node stores its client state',
            )
        keys = [name for name in ("folder", "table", "index", "base") if name in config]
        paths = {name: Path(str(config[name])).expanduser() for name in keys}
        label = None if "label" not in config else str(config["label"])
        code = tuple(str(config.get("code", "")).replace(",", " ").split())
        return cls(client, Path(state).expanduser(), label=label, code=code, **paths)

    @property
    def has_own_data(self) -> bool:
        """True if the node has its own data; False if it uses its part of the configured data set."""
        return any((self.folder, self.table, self.index))
