"""The ClientApp: one message handler, which runs a task on the data of this node.

The only tasks are registration, "train", "evaluate" and the tasks that the method defines.
"""

import logging
import time
from contextlib import nullcontext

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedrecall.config.experiment import Experiment
from fedrecall.config.sources import import_own_code
from fedrecall.core.evaluation import EVALUATE
from fedrecall.core.failures import format_exception
from fedrecall.core.precision import require_working
from fedrecall.core.seeds import single_threaded
from fedrecall.core.types import Payload
from fedrecall.data.cache import node_cache
from fedrecall.errors import UserError
from fedrecall.flower.app_config import NodeConfig, read_experiment
from fedrecall.flower.client_state import NodeStateStore
from fedrecall.flower.codec import InvalidMessage, require_same_spec
from fedrecall.flower.data_schema import load_data_schema
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
from fedrecall.flower.node_data import (
    check_own_code,
    describe_node_data,
    load_node_data,
    make_client_runner,
    public_reason,
    with_base_of_node,
    without_paths,
)
from fedrecall.simulation.devices import make_deterministic, worker_device

log = logging.getLogger("flwr.fedrecall")


def handle_message(message: Message, context: Context) -> Message:
    """Run the requested task and return the reply. Errors are replies too; tracebacks stay in this node's log."""
    request, node, started = None, None, time.perf_counter()
    try:
        request, down = parse_request(message)
        node = NodeConfig.from_node_config(context.node_config)
        experiment = with_base_of_node(read_experiment(context.run_config), node)
        check_own_code(experiment, node, request.code)
        experiment = import_own_code(experiment, allowed=node.code)
        reply = run_request(request, down, node, experiment)
        seconds = time.perf_counter() - started
        log.info("node %d, client %d: %s: %d examples, %.2f s", context.node_id, node.client, request, reply.n, seconds)
        return reply_message(reply, message)
    except (UserError, InvalidMessage) as error:
        text, code, key = str(error), error.code, without_paths(error.key or "", node, error.key)
        reason = public_reason(error, node)
    except Exception as error:
        text, code, key = format_exception(error)[1], TASK_FAILED, None
        reason = public_reason(error, node)
    task = "invalid request" if request is None else request
    client = None if node is None else node.client
    log.error("node %d, client %s: %s failed: %s [%s]", context.node_id, client, task, text, code)
    return failure_message(reason, message, code, key, client)


def run_request(request: TaskRequest, down: Payload, node: NodeConfig, experiment: Experiment) -> TaskReply:
    """Run a task. The new client state is on disk when this returns, before the reply is sent."""
    schema = load_data_schema(request.schema)
    # Every message has a process of its own: what was decoded for one is read from the disk for the next.
    with node_cache(node.state / "cache") if node.has_own_data else nullcontext():
        data = load_node_data(node, experiment, schema)
    n = len(data.partition.rows(node.client))
    if request.task == REGISTER:
        description = describe_node_data(node, experiment, data.dataset, schema)
        return TaskReply(node.client, n, node.has_own_data, False, {}, {}, description)
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
        device = worker_device(0, experiment.engine.device)
        require_working(clients.training.precision, device)
        make_deterministic(device)
        reply = clients.run_task(f.to(device), request.task, node.client, request.version.t, down, memory)
    if request.task != EVALUATE:  # an evaluation has no version of its own and changes no state
        store.write(request.version, reply.memory)
    return TaskReply(node.client, n, node.has_own_data, bool(reply.memory), reply.up, reply.metrics)


app = ClientApp()

getattr(app, MESSAGE_TYPE)()(handle_message)
