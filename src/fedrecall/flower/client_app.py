"""The ClientApp: one handler. The order names the task; only "train" and the method's own tasks are ever performed."""

import logging

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedrecall.config.experiment import Experiment
from fedrecall.core.failures import described
from fedrecall.core.types import Payload
from fedrecall.errors import UserError
from fedrecall.flower.app_config import Node, configured
from fedrecall.flower.client_state import Store
from fedrecall.flower.codec import Malformed, require_like
from fedrecall.flower.local import dealt_to, settled
from fedrecall.flower.messages import (
    HELLO,
    KIND,
    TASK_FAILED,
    Answer,
    Order,
    answer_message,
    declined_message,
    read_order,
)
from fedrecall.runs.run import one_thread
from fedrecall.simulation.worker import device

log = logging.getLogger("flwr.fedrecall")


def handle(message: Message, context: Context) -> Message:
    """Carry out an order. What goes wrong is an answer too; its traceback stays in this node's log."""
    try:
        order, down = read_order(message)
        return answer_message(
            perform(order, down, Node.read(context.node_config), configured(context.run_config)), message
        )
    except (UserError, Malformed) as error:
        reason, code, key = str(error), error.code, error.key
    except Exception as error:
        (reason, text), code, key = described(error), TASK_FAILED, None
        log.error("%s", text)
    log.error("declined: %s [%s]", reason, code)
    return declined_message(reason, message, code, key)


def perform(order: Order, down: Payload, node: Node, experiment: Experiment) -> Answer:
    """The answer to an order. What the client remembers is on the disk before the answer leaves."""
    dealt = dealt_to(node, experiment, order.classes)
    if order.task == HELLO:
        return Answer(node.client, len(dealt.partition.rows(node.client)), node.own, False, {}, {})
    if order.client != node.client:
        raise UserError(
            "flower.wrong_client",
            f"node-config.client = {node.client}: the task is for client {order.client}",
            "node-config.client",
            "start each node with its own client number",
        )
    store = Store.of(node.state, order.run, node.client)
    memory = store.read(order.acknowledged)
    store.tidy(order.acknowledged, order.oldest)
    with one_thread():
        world, f = settled(experiment, dealt)
        require_like(down, {"w": f.w, "b": f.b, "counters": f.counters})
        reply = world.perform(f.to(device(0)), order.task, node.client, order.version.t, down, memory)
    store.write(order.version, reply.memory)
    return Answer(node.client, reply.n, node.own, bool(reply.memory), reply.up, reply.report)


app = ClientApp()

getattr(app, KIND)()(handle)
