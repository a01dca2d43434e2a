"""Who is there: which node holds which client. Clients have numbers of their own; a node's is for transport only."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedrecall.errors import UserError
from fedrecall.flower.codec import InvalidMessage
from fedrecall.flower.messages import REGISTER, TaskFailed, TaskRequest, parse_reply, request_message, to_array_record

NODE_POLL_INTERVAL = 0.25  # seconds between two looks for replies

HELLO_TIMEOUT = 120.0  # seconds, so that a node which hangs does not hold up a round for long


class RegisteredClient(NamedTuple):
    """A client that has said hello."""

    node: int
    n: int  # examples
    has_own_data: bool  # its data are its own


@dataclass
class NodeRegistry:
    """The clients of a federation that have been heard of."""

    grid: Grid
    population: int
    timeout: float  # seconds that a node may take to say hello
    members: dict[int, RegisteredClient] = field(default_factory=dict)
    _registered: set[int] = field(default_factory=set)
    _problems: dict[int, str] = field(default_factory=dict)  # nodes that gave no useful answer, and why

    def connected_clients(self) -> dict[int, RegisteredClient]:
        """The clients whose nodes are connected now. A node that is new, or back, is asked who it is."""
        online = set(self.grid.get_node_ids())
        self._registered &= online  # one that comes back is asked again
        new = sorted(online - self._registered)
        if new:
            heard: dict[int, RegisteredClient] = {}
            within = min(self.timeout / 3, HELLO_TIMEOUT)  # time to ask again: Flower can lose a message
            orders = {node: request_message(TaskRequest(REGISTER), to_array_record({}), node, within) for node in new}
            for node, message in send_and_collect(self.grid, orders, within):
                self._register(node, message, heard)
            for client in heard.keys() & self.members.keys():
                if self.members[client].node in online - {heard[client].node}:
                    taken = f"node {heard[client].node} has registered as client {client} in its place"
                    self._problems[self.members[client].node] = taken
            self.members |= heard
        return {client: member for client, member in self.members.items() if member.node in online}

    def wait_for_clients(self, least: int) -> None:
        """Wait for all clients; when the time is over, `least` of them are enough."""
        deadline = time.monotonic() + self.timeout
        while len(here := self.connected_clients()) < self.population and time.monotonic() < deadline:
            time.sleep(NODE_POLL_INTERVAL)
        if len(here) < least:
            missing = sorted(set(range(self.population)) - set(here))
            why = "".join(f"; node {node}: {reason}" for node, reason in self._problems.items())
            raise UserError(
                "flower.too_few_clients",
                f"engine.timeout = {self.timeout:g}: {len(here)} of {self.population} clients connected within "
                f"{self.timeout:g} s, {least} are needed; missing: {', '.join(map(str, missing[:20]))}{why}",
                "engine.timeout",
                "start their nodes, each with client=NUMBER in its node-config, or raise engine.timeout",
            )
        if len({member.has_own_data for member in here.values()}) > 1:
            own = ", ".join(str(client) for client, member in sorted(here.items()) if member.has_own_data)
            raise UserError(
                "flower.mixed_data",
                "some nodes have their own data and others a part of the configured data set "
                f"(clients with their own data: {own})",
                "node-config",
                "set folder, table or index in the node-config of all nodes, or of none",
            )

    def _register(self, node: int, message: Message | None, heard: dict[int, RegisteredClient]) -> None:
        self._problems.pop(node, None)
        if message is None:  # it is asked again at the next opportunity
            self._problems[node] = "it did not register in time"
            return
        self._registered.add(node)
        try:
            answer = parse_reply(message)
            if not 0 <= answer.client < self.population:
                what = f"client = {answer.client}: the clients are 0 to {self.population - 1}"
                raise TaskFailed("reply.wrong_client", what, "node-config")
        except (TaskFailed, InvalidMessage) as error:
            self._problems[node] = f"{error} ({error.code})"
            return
        if answer.client in heard:
            what = f"client = {answer.client}: two nodes have registered as this client"
            hint = "give each node its own client=NUMBER in the node-config"
            raise UserError("flower.duplicate_client", what, "node-config", hint)
        heard[answer.client] = RegisteredClient(node, answer.n, answer.has_own_data)


def send_and_collect(grid: Grid, orders: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, Message | None]]:
    """Send messages, and give the answers as they come, by the key of the order; None for those that are overdue.

    An error that Flower reports has the SuperLink as its source: answers are known by what they answer to.
    """
    deadline = time.monotonic() + timeout
    identities = list(grid.push_messages(list(orders.values())))
    waiting = {}
    for key, identity in zip(orders, identities, strict=True):
        if identity:
            waiting[identity] = key
        else:  # Flower did not take it: the node is unknown
            yield key, None
    while waiting and time.monotonic() < deadline:
        for message in grid.pull_messages(list(waiting)):
            yield waiting.pop(message.metadata.reply_to_message_id), message
        if waiting:
            time.sleep(NODE_POLL_INTERVAL)
    for key in waiting.values():
        yield key, None
