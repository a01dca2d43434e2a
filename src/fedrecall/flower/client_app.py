"""The ClientApp: one handler. The order names the task; only "train" and the method's own tasks are ever performed."""

import logging
from dataclasses import replace

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

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


def load_node_data(node: NodeConfig, experiment: Experiment, classes: tuple[str, ...] = ()) -> FederatedData:
    """What this node holds; labels are numbered by these names of the whole federation, once they are known."""
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
    # The server alone has auxiliary examples.
    data = experiment.data.model_copy(update={"aux_per_class": 0})
    if node.index is None:
        data = data.model_copy(update=_data_keys(node, experiment))
    dataset = data.load()
    if classes and node.index is None:
        dataset = relabel(dataset, classes)
    samples = len(dataset.train_y)
    rows = np.arange(samples) if node.index is None else _rows(node, samples)
    offsets = np.where(np.arange(clients + 1) > node.client, len(rows), 0)
    partition = Partition(rows, offsets, samples, {"name": "node"}, 0)
    return load_and_partition(experiment.model_copy(update={"data": data}), data=dataset, partition=partition)


def make_client_runner(experiment: Experiment, dealt: FederatedData) -> tuple[SimulatedClients, FlatModel]:
    """The node's world and model; the weights come with every order."""
    experiment = with_resolved_choices(experiment, dealt, None, None, None)
    return make_simulated_clients(experiment, dealt), FlatModel(build_model(experiment, dealt.dataset, None))


def relabel(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """The same data, its labels numbered as everyone's. A node need not have examples of every class."""
    for name in dataset.classes:
        if name not in classes:
            raise UserError(
                "data.unknown_class",
                f'class "{name}" of this node: the data of the server does not have it (classes: '
                f"{', '.join(classes[:20])})",
                name,
                "rename or remove it",
            )
    numbers = torch.tensor([classes.index(name) for name in dataset.classes])

    def told(y: Tensor) -> Tensor:
        return numbers[y]

    return replace(dataset, classes=classes, train_y=told(dataset.train_y), test_y=told(dataset.test_y))


def _data_keys(node: NodeConfig, experiment: Experiment) -> dict[str, object]:
    """The data section of a node that has a folder or a table."""
    none = {"root": None, "classes": None, "limit": None, "client": None, "label": None}
    if node.folder is not None:
        return none | {"name": "folder", "path": node.folder}
    label = node.label or experiment.data.label
    assert node.table is not None
    for column, values in read_table(node.table).items():
        if column != label and str(values.type) in ("string", "large_string"):
            raise UserError(
                "data.text_column",
                f'{node.table}: column "{column}" has words, and another node may have other words',
                str(node.table),
                "turn them into numbers, the same on all nodes",
            )
    return none | {"name": "table", "path": node.table, "label": label, "size": None}


def _rows(node: NodeConfig, samples: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    assert node.index is not None
    try:
        words = node.index.read_text().split()
        rows = np.array([int(word) for word in words], dtype=np.int64)
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


log = logging.getLogger("flwr.fedrecall")


def handle_message(message: Message, context: Context) -> Message:
    """Carry out an order. What goes wrong is an answer too; its traceback stays in this node's log."""
    try:
        order, down = parse_request(message)
        return reply_message(
            run_request(
                order, down, NodeConfig.from_node_config(context.node_config), read_experiment(context.run_config)
            ),
            message,
        )
    except (UserError, InvalidMessage) as error:
        reason, code, key = str(error), error.code, error.key
    except Exception as error:
        (reason, text), code, key = format_exception(error), TASK_FAILED, None
        log.error("%s", text)
    log.error("declined: %s [%s]", reason, code)
    return failure_message(reason, message, code, key)


def run_request(order: TaskRequest, down: Payload, node: NodeConfig, experiment: Experiment) -> TaskReply:
    """The answer to an order. What the client remembers is on the disk before the answer leaves."""
    dealt = load_node_data(node, experiment, order.classes)
    if order.task == REGISTER:
        return TaskReply(node.client, len(dealt.partition.rows(node.client)), node.has_own_data, False, {}, {})
    if order.client != node.client:
        raise UserError(
            "flower.wrong_client",
            f"node-config.client = {node.client}: the task is for client {order.client}",
            "node-config.client",
            "start each node with its own client number",
        )
    store = NodeStateStore.for_client(node.state, order.run, node.client)
    memory = store.read(order.acknowledged)
    store.prune(order.acknowledged, order.oldest)
    with single_threaded():
        world, f = make_client_runner(experiment, dealt)
        require_same_spec(down, {"w": f.w, "b": f.b, "counters": f.int_buffers})
        reply = world.run_task(f.to(worker_device(0)), order.task, node.client, order.version.t, down, memory)
    store.write(order.version, reply.memory)
    return TaskReply(node.client, reply.n, node.has_own_data, bool(reply.memory), reply.up, reply.metrics)


app = ClientApp()

getattr(app, MESSAGE_TYPE)()(handle_message)
