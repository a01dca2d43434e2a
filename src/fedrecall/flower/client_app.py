"""The ClientApp: one message handler, which runs a task on the data of this node.

The only tasks are registration, "train" and the tasks that the method defines.
"""

import logging
from dataclasses import replace

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedrecall.config.experiment import Experiment
from fedrecall.core.failures import format_exception
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.seeds import single_threaded
from fedrecall.core.types import Payload
from fedrecall.data.dataset import Dataset
from fedrecall.data.partition import Partition
from fedrecall.data.tabular import read_table
from fedrecall.errors import UserError, first_line
from fedrecall.flower.app_config import NodeConfig, read_experiment
from fedrecall.flower.client_state import NodeStateStore
from fedrecall.flower.codec import InvalidMessage, require_same_spec
from fedrecall.flower.messages import (
    MESSAGE_TYPE,
    REGISTER,
    TASK_FAILED,
    TaskReply,
    TaskRequest,
    failure_message,
    parse_request,
    reply_message,
)
from fedrecall.runs.setup import (
    FederatedData,
    build_model,
    load_and_partition,
    make_simulated_clients,
    with_resolved_choices,
)
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.processes import worker_device

log = logging.getLogger("flwr.fedrecall")


def handle_message(message: Message, context: Context) -> Message:
    """Run the requested task and return the reply. Errors are replies too; tracebacks stay in this node's log."""
    request = None
    try:
        request, down = parse_request(message)
        node = NodeConfig.from_node_config(context.node_config)
        return reply_message(run_request(request, down, node, read_experiment(context.run_config)), message)
    except (UserError, InvalidMessage) as error:
        reason, code, key = str(error), error.code, error.key
    except Exception as error:
        (reason, text), code, key = format_exception(error), TASK_FAILED, None
        log.error("%s", text)
    task = "invalid request" if request is None else f"round {request.version.t + 1}, task {request.task}"
    log.error("node %d: %s failed: %s [%s]", context.node_id, task, reason, code)
    return failure_message(reason, message, code, key)


def run_request(request: TaskRequest, down: Payload, node: NodeConfig, experiment: Experiment) -> TaskReply:
    """Run a task. The new client state is on disk when this returns, before the reply is sent."""
    data = load_node_data(node, experiment, request.classes)
    if request.task == REGISTER:
        return TaskReply(node.client, len(data.partition.rows(node.client)), node.has_own_data, False, {}, {})
    if request.client != node.client:
        raise UserError(
            "flower.wrong_client",
            f"node-config.client = {node.client}: the task is for client {request.client}",
            "node-config.client",
            "start each node with its own client number",
        )
    store = NodeStateStore.for_client(node.state, request.run, node.client)
    memory = store.read(request.acknowledged)
    store.prune(request.acknowledged, request.oldest)
    with single_threaded():
        clients, f = make_client_runner(experiment, data)
        require_same_spec(down, {"w": f.w, "b": f.b, "counters": f.int_buffers})
        reply = clients.run_task(f.to(worker_device(0)), request.task, node.client, request.version.t, down, memory)
    store.write(request.version, reply.memory)
    return TaskReply(node.client, reply.n, node.has_own_data, bool(reply.memory), reply.up, reply.metrics)


def load_node_data(node: NodeConfig, experiment: Experiment, classes: tuple[str, ...] = ()) -> FederatedData:
    """Load the data of this node. `classes` are the federation's class names; empty before registration."""
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
    # Only the server has auxiliary examples.
    section = experiment.data.model_copy(update={"aux_per_class": 0})
    if node.index is None:
        section = section.model_copy(update=_data_keys(node, experiment))
    dataset = section.load()
    if classes and node.index is None:
        dataset = relabel(dataset, classes)
    samples = len(dataset.train_y)
    rows = np.arange(samples) if node.index is None else _rows(node, samples)
    offsets = np.where(np.arange(clients + 1) > node.client, len(rows), 0)
    partition = Partition(rows, offsets, samples, {"name": "node"}, 0)
    return load_and_partition(experiment.model_copy(update={"data": section}), data=dataset, partition=partition)


def make_client_runner(experiment: Experiment, data: FederatedData) -> tuple[SimulatedClients, FlatModel]:
    """Build the clients and the model of this node; every request carries the weights."""
    experiment = with_resolved_choices(experiment, data, None, None, None)
    return make_simulated_clients(experiment, data), FlatModel(build_model(experiment, data.dataset, None))


def relabel(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """Return the data with labels as positions in `classes`. A node may lack examples of some classes."""
    for name in dataset.classes:
        if name not in classes:
            raise UserError(
                "data.unknown_class",
                f'class "{name}" of this node: the data of the server does not have it (classes: '
                f"{', '.join(classes[:20])})",
                name,
                "rename or remove it",
            )
    positions = torch.tensor([classes.index(name) for name in dataset.classes])
    return replace(dataset, classes=classes, train_y=positions[dataset.train_y], test_y=positions[dataset.test_y])


def _data_keys(node: NodeConfig, experiment: Experiment) -> dict[str, object]:
    """Return the keys of the data section for a node with a folder or a table."""
    unset = {"root": None, "classes": None, "limit": None, "client": None, "label": None}
    if node.folder is not None:
        return unset | {"name": "folder", "path": node.folder}
    label = node.label or experiment.data.label
    assert node.table is not None
    for column, values in read_table(node.table).items():
        if column != label and str(values.type) in ("string", "large_string"):
            raise UserError(
                "data.text_column",
                f'{node.table}: column "{column}" is text, and another node may have other values',
                str(node.table),
                "turn them into numbers, the same on all nodes",
            )
    return unset | {"name": "table", "path": node.table, "label": label, "size": None}


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


app = ClientApp()

getattr(app, MESSAGE_TYPE)()(handle_message)
