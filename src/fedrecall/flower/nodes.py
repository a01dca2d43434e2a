"""Registry of nodes: which node runs which client. Clients have numbers; node ids are for transport only."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedrecall.errors import UserError
from fedrecall.flower.codec import InvalidMessage
from fedrecall.flower.messages import REGISTER, TaskFailed, TaskRequest, parse_reply, request_message, to_array_record

NODE_POLL_INTERVAL = 0.25  # seconds between two requests for replies

HELLO_TIMEOUT = 120.0  # seconds to wait for registrations, so that a node that hangs does not block a round


class RegisteredClient(NamedTuple):
    """A registered client."""

    node: int
    n: int  # examples
    has_own_data: bool  # False: the node uses a part of the configured data set


@dataclass
class NodeRegistry:
    """The registered clients of a federation."""

    grid: Grid
    population: int
    timeout: float  # seconds to wait for clients
    members: dict[int, RegisteredClient] = field(default_factory=dict)
    _registered: set[int] = field(default_factory=set)
    _problems: dict[int, str] = field(default_factory=dict)  # nodes that are not registered, and the reason

    def connected_clients(self) -> dict[int, RegisteredClient]:
        """Return the clients whose nodes are connected. New and reconnected nodes are registered first."""
        online = set(self.grid.get_node_ids())
        self._registered &= online  # a node that reconnects is registered again
        new = sorted(online - self._registered)
        if new:
            found: dict[int, RegisteredClient] = {}
            timeout = min(self.timeout / 3, HELLO_TIMEOUT)  # leaves time for a retry: Flower can lose a message
            requests = {
                node: request_message(TaskRequest(REGISTER), to_array_record({}), node, timeout) for node in new
            }
            for node, message in send_and_collect(self.grid, requests, timeout):
                self._register(node, message, found)
            for client in found.keys() & self.members.keys():
                if self.members[client].node in online - {found[client].node}:
                    problem = f"node {found[client].node} has registered as client {client} in its place"
                    self._problems[self.members[client].node] = problem
            self.members |= found
        return {client: member for client, member in self.members.items() if member.node in online}

    def wait_for_clients(self, least: int) -> None:
        """Wait until all clients are connected. After the timeout, `least` clients are enough; fewer are an error."""
        deadline = time.monotonic() + self.timeout
        while len(connected := self.connected_clients()) < self.population and time.monotonic() < deadline:
            time.sleep(NODE_POLL_INTERVAL)
        if len(connected) < least:
            missing = sorted(set(range(self.population)) - set(connected))
            problems = "".join(f"; node {node}: {reason}" for node, reason in self._problems.items())
            raise UserError(
                "flower.too_few_clients",
                f"engine.timeout = {self.timeout:g}: {len(connected)} of {self.population} clients connected within "
                f"{self.timeout:g} s, {least} are needed; missing: {', '.join(map(str, missing[:20]))}{problems}",
                "engine.timeout",
                "start their nodes, each with client=NUMBER in its node-config, or raise engine.timeout",
            )
        if len({member.has_own_data for member in connected.values()}) > 1:
            own = ", ".join(str(client) for client, member in sorted(connected.items()) if member.has_own_data)
            raise UserError(
                "flower.mixed_data",
                "some nodes have their own data and others a part of the configured data set "
                f"(clients with their own data: {own})",
                "node-config",
                "set folder, table or index in the node-config of all nodes, or of none",
            )

    def _register(self, node: int, message: Message | None, found: dict[int, RegisteredClient]) -> None:
        self._problems.pop(node, None)
        if message is None:  # `connected_clients` tries again
            self._problems[node] = "it did not register in time"
            return
        self._registered.add(node)
        try:
            reply = parse_reply(message)
            if not 0 <= reply.client < self.population:
                text = f"client = {reply.client}: the clients are 0 to {self.population - 1}"
                raise TaskFailed("reply.wrong_client", text, "node-config")
        except (TaskFailed, InvalidMessage) as error:
            self._problems[node] = f"{error} ({error.code})"
            return
        if reply.client in found:
            text = f"client = {reply.client}: two nodes have registered as this client"
            hint = "give each node its own client=NUMBER in the node-config"
            raise UserError("flower.duplicate_client", text, "node-config", hint)
        found[reply.client] = RegisteredClient(node, reply.n, reply.has_own_data)


def send_and_collect(
    grid: Grid, requests: Mapping[int, Message], timeout: float
) -> Iterator[tuple[int, Message | None]]:
    """Send messages and yield the replies as they arrive, by the key of the request; None after the timeout.

    Replies are matched by the id of their request, because errors of Flower have the SuperLink as their source.
    """
    deadline = time.monotonic() + timeout
    message_ids = list(grid.push_messages(list(requests.values())))
    waiting = {}
    for key, message_id in zip(requests, message_ids, strict=True):
        if message_id:
            waiting[message_id] = key
        else:  # Flower has rejected the message: the node is unknown
            yield key, None
    while waiting and time.monotonic() < deadline:
        for message in grid.pull_messages(list(waiting)):
            yield waiting.pop(message.metadata.reply_to_message_id), message
        if waiting:
            time.sleep(NODE_POLL_INTERVAL)
    for key in waiting.values():
        yield key, None
