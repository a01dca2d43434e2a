"""The ClientApp: one handler. The order names the task; only "train" and the method's own tasks are ever performed."""

import logging

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedrecall.config.experiment import Experiment
from fedrecall.core.failures import format_exception
from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.flower.app_config import NodeConfig, read_experiment
from fedrecall.flower.client_state import NodeStateStore
from fedrecall.flower.codec import InvalidMessage, require_same_spec
from fedrecall.flower.local import load_node_data, make_client_runner
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
from fedrecall.runs.run import single_threaded
from fedrecall.simulation.worker import worker_device

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
