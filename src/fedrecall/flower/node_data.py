"""The data of a Flower node: its share of a partition, or a folder, table or index file of its own. Needs no Flower."""

import re
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedrecall.config.data_section import TABLE_KEYS
from fedrecall.config.experiment import Experiment
from fedrecall.config.own_code import code_hash
from fedrecall.config.sources import own_code
from fedrecall.core.flat_model import FlatModel
from fedrecall.data.dataset import Dataset
from fedrecall.data.partition import Partition
from fedrecall.data.preprocessing import Preprocessing, column_sums
from fedrecall.data.tabular import read_table
from fedrecall.errors import SeveralProblems, UserError, first_line
from fedrecall.flower.app_config import NodeConfig
from fedrecall.flower.codec import InvalidMessage
from fedrecall.flower.data_schema import DataDescription
from fedrecall.models.huggingface import HuggingFace
from fedrecall.runs.setup import (
    FederatedData,
    build_model,
    load_and_partition,
    make_flat_model,
    make_simulated_clients,
    with_resolved_choices,
)
from fedrecall.simulation.clients import SimulatedClients

HASH_DIGITS_SENT = 16  # digits of a hash in messages


def load_node_data(node: NodeConfig, experiment: Experiment, schema: Preprocessing | None = None) -> FederatedData:
    """Load the data of this node, in the form of the federation's data; `schema` is None before registration."""
    clients = experiment.federation.clients
    if node.client >= clients:
        raise UserError(
            "flower.invalid_node_config",
            f"node-config.client = {node.client}: out of range for federation.clients = {clients}",
            "node-config.client",
            f"use 0 to {clients - 1}",
        )
    if not node.has_own_data:
        return load_and_partition(experiment)
    # Only the server has auxiliary examples, and a node's own data are as they are.
    section = experiment.data.model_copy(update={"aux_per_class": 0, "imbalance": None})
    if node.index is None:
        section = section.model_copy(update=_data_keys(node, experiment, schema))
    dataset = section.load(experiment.model, schema=schema if node.index is None else None)
    if node.folder is not None and dataset.split_again is None:
        message = f"node-config.folder = {node.folder}: it has a folder of test images, which would not be used"
        hint = "name the folder of the training images; data.client_test holds out a share of them"
        raise UserError("flower.invalid_node_config", message, "node-config.folder", hint)
    samples = len(dataset.train_y)
    rows = np.arange(samples) if node.index is None else _rows(node, samples)
    offsets = np.where(np.arange(clients + 1) > node.client, len(rows), 0)
    partition = Partition(rows, offsets, samples, {"name": "node"}, 0)
    return load_and_partition(experiment.model_copy(update={"data": section}), data=dataset, partition=partition)


def with_base_of_node(experiment: Experiment, node: NodeConfig) -> Experiment:
    """Return the experiment with the pretrained model in the folder of this node, if its node-config names one."""
    if node.base is None:
        return experiment
    if not isinstance(experiment.model, HuggingFace):
        message = f"node-config.base = {node.base}: the model of the experiment has no pretrained base"
        raise UserError("flower.invalid_node_config", message, "node-config.base", "remove base")
    return experiment.model_copy(update={"model": replace(experiment.model, path=str(node.base))})


def public_reason(error: Exception, node: NodeConfig | None) -> str:
    """Return one line about an error for the server, without names of the node's files and without their contents.

    Of an error of the library the message is sent, without the text of the exception that caused it: a reader of
    tables quotes the row that it could not read. Of any other exception only the class and the place are sent.
    """
    if not isinstance(error, UserError | InvalidMessage):
        frames = traceback.extract_tb(error.__traceback__)
        place = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        what = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        return f"{type(error).__name__}{what}{place}; the log of the node has the traceback"
    if isinstance(error, SeveralProblems):
        reasons = Counter(public_reason(found, node) for found in error.found)  # without names many are the same
        listed = [reason if number == 1 else f"{number} x {reason}" for reason, number in reasons.items()]
        return f"{len(error.found)} problems: {'; '.join(listed)}"
    text, cause = str(error), error.__cause__ or error.__context__
    if cause is not None and not isinstance(cause, OSError | UserError) and len(quoted := first_line(cause)) > 3:
        text = text.replace(quoted, type(cause).__name__)
    return without_paths(text, node, error.key)


def without_paths(text: str, node: NodeConfig | None, file: str | None) -> str:
    """Return a text with the keys of the node-config in place of the paths of the node's data.

    `file` is the path that an error is about, if it is about one: its name may have any characters.
    """
    for key in ("folder", "table", "index") if node is not None else ():
        if (path := getattr(node, key)) is not None:
            if file is not None and Path(file).is_relative_to(path):
                for known in (file, str(Path(file).resolve())):  # a link is reported with the file that it leads to
                    text = text.replace(known, f"node-config.{key}")
            text = re.sub(rf"{re.escape(str(path))}(/.*?(?=: | and |, |$))?", f"node-config.{key}", text)
            text = text.replace(f'"{path.stem}"', f"node-config.{key}")  # the name of the data
            text = re.sub(rf"(?<![\w/]){re.escape(path.name)}/", f"node-config.{key}/", text)  # in a hint
    return text


def check_own_code(experiment: Experiment, node: NodeConfig, expected: Sequence[str]) -> None:
    """Raise an error if own code that this node lists differs from the coordinator's; it is not imported before."""
    hashes = dict(entry.rpartition("=")[::2] for entry in expected)
    for name in own_code(experiment):
        theirs = hashes.get(name, "")
        if name in node.code and (mine := code_hash(name, "node-config.code")) != theirs:
            raise UserError(
                "flower.other_code",
                f"{name}: the source on this node has the hash {mine[:HASH_DIGITS_SENT]}, that of the coordinator "
                f"{theirs[:HASH_DIGITS_SENT] or 'none'}",
                "node-config.code",
                "install the same source, or pack it into the app with fedrecall flower new --module",
            )


def make_client_runner(experiment: Experiment, data: FederatedData) -> tuple[SimulatedClients, FlatModel]:
    """Build the clients and the model of this node; every request carries the weights."""
    experiment = with_resolved_choices(experiment, data, None, None, None)
    module = build_model(experiment, data.dataset, None)
    return make_simulated_clients(experiment, data), make_flat_model(experiment, module)


def describe_node_data(node: NodeConfig, experiment: Experiment, dataset: Dataset, schema: Preprocessing | None) -> str:
    """Return the form of the node's own table or folder, for the registration; empty if it has none.

    Before the schema is fixed, it has the sums of the columns whose mean and standard deviation are fitted.
    """
    if node.folder is None and node.table is None:
        return ""
    section, form = experiment.data, dataset.preprocessing()
    if not form.columns or schema is not None or section.has_fixed_columns:
        return DataDescription.of(form).model_dump_json()
    if experiment.server.privacy is not None:
        raise UserError(
            "privacy.not_covered",
            "data.columns: server.privacy does not cover the sums by which the columns of all nodes are standardised",
            "data.columns",
            "give the mean and std, or the categories, of every column in data.columns",
        )
    fixed, missing = section.column_encodings or {}, section.missing or "refuse"
    assert node.table is not None
    columns = read_table(node.table)
    sums = {
        column.name: column_sums(columns[column.name], column.name, str(node.table), missing)
        for column in form.columns
        if column.categories is None and fixed.get(column.name) is None
    }
    return DataDescription.of(form, sums).model_dump_json()


def _data_keys(node: NodeConfig, experiment: Experiment, schema: Preprocessing | None) -> dict[str, object]:
    """Return the keys of the data section for a node with a folder or a table."""
    # All examples of the node are its client's: it holds out data.client_test and data.validation, not data.test.
    data = experiment.data
    unset: dict[str, object] = dict.fromkeys(("root", "limit", "client", "time", "test_path")) | {"test": 0.0}
    unset |= {"classes": None, "labels": data.labels}
    if node.folder is not None:
        return unset | dict.fromkeys(TABLE_KEYS) | {"name": "folder", "path": node.folder}
    assert node.table is not None
    drop = None
    if schema is None and data.columns is None:  # later the schema names the columns
        drop = tuple(name for name in read_table(node.table) if name in (*(data.drop or ()), data.client, data.time))
    label = node.label or data.label
    return unset | {"name": "table", "path": node.table, "label": label, "drop": drop, "size": None}


def _rows(node: NodeConfig, samples: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    assert node.index is not None
    try:
        rows = np.array([int(row) for row in node.index.read_text().split()], dtype=np.int64)
    except (OSError, ValueError) as error:
        raise UserError(
            "flower.invalid_node_config",
            f"node-config.index = {node.index}: cannot be read as row numbers ({first_line(error)})",
            "node-config.index",
            "use a text file of row numbers",
        ) from None
    if not len(rows) or rows.min() < 0 or rows.max() >= samples or len(np.unique(rows)) < len(rows):
        raise UserError(
            "flower.invalid_node_config",
            f"node-config.index = {node.index}: rows are missing, repeated or out of range",
            "node-config.index",
            f"use different rows, from 0 to {samples - 1}",
        )
    return rows
