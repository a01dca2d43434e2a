"""The server's part of a federation whose nodes have their own data: the schema, and a setup without client data."""

import json
import logging
from pathlib import Path

from fedrecall.config.choices import PythonObject, require
from fedrecall.config.data_section import DataSection
from fedrecall.config.experiment import Experiment
from fedrecall.core.evaluation import HeldOutPart
from fedrecall.data.dataset import Dataset, list_names
from fedrecall.data.partition import Partition
from fedrecall.data.preprocessing import Preprocessing
from fedrecall.errors import UserError
from fedrecall.files import write_atomic
from fedrecall.flower.app_config import NODES_PARTITION
from fedrecall.flower.data_schema import DataDescription, dump_data_schema, load_data_schema, placeholder
from fedrecall.flower.nodes import NodeRegistry
from fedrecall.runs.setup import Setup, build_setup, prepare_run, unassigned_data, with_resolved_choices

DATA_SCHEMA_FILE = "schema.json"  # in the run directory: the form of the nodes' own data, the same after every restart

log = logging.getLogger("flwr.fedrecall")


def has_server_data(section: DataSection) -> bool:
    """Return True if the configuration names data of the coordinator, not only the kind of the nodes' data."""
    return section.name not in ("table", "folder") or section.path is not None


def check_without_server_data(experiment: Experiment) -> None:
    """Reject a method that needs examples at the coordinator, if it has none."""
    method = require(experiment.method)
    if method.traits.needs_auxiliary_data and not has_server_data(experiment.data):
        message = f"data.path: not set, and {type(method).__name__} needs auxiliary examples at the coordinator"
        hint = "set data.path to labelled data of the coordinator, or use a method that needs none"
        raise UserError("config.conflict", message, "data.path", hint)


def read_data_schema(out: Path) -> Preprocessing | None:
    """Return the schema of the run that is resumed; None for a new run."""
    path = out / DATA_SCHEMA_FILE
    return load_data_schema(path.read_text()) if path.exists() else None


def save_data_schema(out: Path, schema: Preprocessing | None) -> None:
    """Write the schema to the run directory, readable, for a resumed run."""
    if schema is not None:
        write_atomic(
            out / DATA_SCHEMA_FILE, (json.dumps(json.loads(dump_data_schema(schema)), indent=2) + "\n").encode()
        )


def prepare_federation(experiment: Experiment, nodes: NodeRegistry, min_clients: int) -> Setup:
    """Set up a run on registered nodes. If these have tables or folders of their own, their form is fixed first."""
    if not any(member.has_own_data for member in nodes.members.values()):
        return prepare_run(experiment)
    section, run = experiment.data, experiment.run
    own = section.load(experiment.model, run.seed) if has_server_data(section) else None
    if any(member.description is not None for member in nodes.members.values()):
        if nodes.schema is None:
            server = None if own is None else DataDescription.of(own.preprocessing())
            schema = nodes.fix_schema(section, server, min_clients)
            log.info("classes: %s", list_names(schema.classes, 20))
            if schema.columns:
                log.info("columns: %s", list_names([column.name for column in schema.columns], 20))
        if own is not None and own.columns:
            own = section.load(experiment.model, run.seed, nodes.schema)
    if own is None and nodes.schema is None:  # the nodes have rows of a data set that the server does not have
        own = section.load(experiment.model, run.seed)  # raises: data.path is not set
    if own is not None:
        return setup_without_client_data(experiment, own)
    assert nodes.schema is not None
    none = experiment.model_copy(update={"data": section.model_copy(update={"aux_per_class": 0, "imbalance": None})})
    form = DataDescription.of(nodes.schema)
    return setup_without_client_data(none, placeholder(form, nodes.schema.columns))


def setup_without_client_data(experiment: Experiment, dataset: Dataset) -> Setup:
    """Set up a run whose clients have their data on their nodes. The server uses only test and auxiliary data."""
    section, federation = experiment.data, experiment.federation
    federated = unassigned_data(section, dataset, federation.clients, experiment.run.seed_for("partition"))
    parts: tuple[HeldOutPart, ...] = ("client_test", "validation")
    held_out: dict[HeldOutPart, Partition] = {p: federated.partition for p in parts if getattr(section, p)}
    nodes = federation.model_copy(update={"partition": PythonObject("partition", NODES_PARTITION)})
    experiment = experiment.model_copy(update={"federation": nodes})
    federated = federated._replace(held_out=held_out)
    return build_setup(with_resolved_choices(experiment, federated, None, None, None), federated)
