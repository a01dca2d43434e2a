"""Registry of nodes: which node runs which client. Clients have numbers; node ids are for transport only."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from flwr.app import Message
from flwr.serverapp import Grid

from fedrecall.config.data_section import DataSection
from fedrecall.data.preprocessing import Preprocessing
from fedrecall.errors import UserError
from fedrecall.flower.codec import InvalidMessage
from fedrecall.flower.data_schema import DataDescription, dump_data_schema, find_misfit, merge_descriptions
from fedrecall.flower.messages import (
    REGISTER,
    TaskFailed,
    TaskRequest,
    parse_reply,
    request_message,
    to_array_record,
    unreadable,
)

NODE_POLL_INTERVAL = 0.25  # seconds between two requests for replies

REGISTRATION_TIMEOUT = 120.0  # seconds to wait for registrations, so that a node that hangs does not block a round

log = logging.getLogger("flwr.fedrecall")

RawReply: TypeAlias = Message | InvalidMessage | None  # None: no reply in time. InvalidMessage: it cannot be read


class RegisteredClient(NamedTuple):
    """A registered client."""

    node: int
    n: int  # examples
    has_own_data: bool  # False: the node uses a part of the configured data set
    description: DataDescription | None = None  # form of its own table or folder


@dataclass
class NodeRegistry:
    """The registered clients of a federation."""

    grid: Grid
    population: int
    timeout: float  # seconds to wait for clients
    changed: Callable[["NodeRegistry"], None] | None = None  # called whenever the connected nodes were polled
    code: tuple[str, ...] = ()  # own code of the experiment, for `TaskRequest.code`
    schema: Preprocessing | None = None  # form of the nodes' own data; None until `fix_schema`
    online: set[int] = field(default_factory=set)  # nodes at the last poll
    members: dict[int, RegisteredClient] = field(default_factory=dict)
    _registered: set[int] = field(default_factory=set)
    _contested: set[int] = field(default_factory=set)  # clients that several nodes claimed to be at the same time
    _problems: dict[int, TaskFailed] = field(default_factory=dict)  # nodes that are not registered, and the reason

    def connected_clients(self) -> dict[int, RegisteredClient]:
        """Return the clients whose nodes are connected. New and reconnected nodes are registered first."""
        self.online = online = set(self.grid.get_node_ids())
        self._registered &= online  # a node that reconnects is registered again
        self._problems = {node: problem for node, problem in self._problems.items() if node in online}
        new = sorted(online - self._registered)
        if new:
            claims: dict[int, list[RegisteredClient]] = {}
            timeout = min(self.timeout / 3, REGISTRATION_TIMEOUT)  # leaves time for a retry: Flower can lose a message
            hello = TaskRequest(REGISTER, schema=self.schema_text, code=self.code)
            requests = {node: request_message(hello, to_array_record({}), node, timeout) for node in new}
            for node, message in send_and_collect(self.grid, requests, timeout):
                self._read_claim(node, message, claims)
            for client, claimants in claims.items():
                self._register(client, claimants, online)
        if self.changed is not None:
            self.changed(self)
        return {client: member for client, member in self.members.items() if member.node in online}

    @property
    def schema_text(self) -> str:
        """The schema, as requests have it."""
        return dump_data_schema(self.schema)

    def fix_schema(self, section: DataSection, server: DataDescription | None, min_clients: int) -> Preprocessing:
        """Fix the form of the nodes' own data; nodes whose data does not fit take no part. `server`: of its own data.

        Fewer than `min_clients` clients are an error.
        """
        described = {c: m.description for c, m in self.members.items() if m.description is not None}
        examples = {client: member.n for client, member in self.members.items()}
        schema, problems = merge_descriptions(described, section, server, examples)
        self.schema = schema
        for client, error in problems.items():
            self._decline(self.members.pop(client).node, TaskFailed(error.code, str(error), error.key, client))
        self._require(min_clients, self.members)
        return schema

    def problem(self, client: int) -> TaskFailed:
        """Return the reason why a client takes no part: that of its node, or that no node of it is connected."""
        for node, problem in self._problems.items():
            if problem.client == client:
                return TaskFailed(problem.code, f"node {node}: {problem}", problem.key, client)
        return TaskFailed("reply.not_connected", "its node is not connected", client=client)

    def wait_for_clients(self, min_clients: int) -> None:
        """Wait until all clients are connected, but for those whose nodes have declined.

        After the timeout, or if all others have declined, `min_clients` clients are enough; fewer are an error.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            connected = self.connected_clients()
            if self._contested:
                text = f"client = {min(self._contested)}: two nodes have registered as this client"
                hint = "give each node its own client=NUMBER in the node-config"
                raise UserError("flower.duplicate_client", text, "node-config", hint)
            declined = {problem.client for problem in self._problems.values() if problem.code != "reply.timeout"}
            if set(range(self.population)) <= {*connected, *declined} or time.monotonic() >= deadline:
                break
            time.sleep(NODE_POLL_INTERVAL)
        self._require(min_clients, connected)
        if len({member.has_own_data for member in connected.values()}) > 1:
            own = ", ".join(str(client) for client, member in sorted(connected.items()) if member.has_own_data)
            raise UserError(
                "flower.mixed_data",
                "some nodes have their own data and others a part of the configured data set "
                f"(clients with their own data: {own})",
                "node-config",
                "set folder, table or index in the node-config of all nodes, or of none",
            )

    def _require(self, min_clients: int, connected: Collection[int]) -> None:
        """Raise an error, with the reasons of the others, if fewer clients than `min_clients` are connected."""
        if len(connected) >= min_clients:
            return
        missing = sorted(set(range(self.population)) - set(connected))
        problems = "".join(f"; node {node}: {reason} ({reason.code})" for node, reason in self._problems.items())
        raise UserError(
            "flower.too_few_clients",
            f"engine.timeout = {self.timeout:g}: {len(connected)} of {self.population} clients connected within "
            f"{self.timeout:g} s, {min_clients} are needed; missing: {', '.join(map(str, missing[:20]))}{problems}",
            "engine.timeout",
            "start their nodes, each with client=NUMBER in its node-config, or raise engine.timeout",
        )

    def _read_claim(self, node: int, message: RawReply, claims: dict[int, list[RegisteredClient]]) -> None:
        """Add the client that a node claims to be; a node whose hello is invalid gets a problem instead."""
        if message is None:  # `connected_clients` tries again
            self._problems[node] = TaskFailed("reply.timeout", "it did not register in time")
            return
        self._registered.add(node)
        try:
            if isinstance(message, InvalidMessage):
                raise message
            reply = parse_reply(message)
            if reply.up or reply.report:
                raise InvalidMessage("reply.unexpected_tensor", "unexpected tensors in the registration")
            if not 0 <= reply.client < self.population:
                text = f"client = {reply.client}: the clients are 0 to {self.population - 1}"
                raise TaskFailed("reply.wrong_client", text, "node-config")
            description = DataDescription.parse(reply.description) if reply.description else None
            if description is not None and self.schema is not None:
                misfit = find_misfit(description, DataDescription.of(self.schema))
                if misfit is not None:
                    raise TaskFailed(misfit.code, str(misfit), misfit.key, reply.client)
        except (TaskFailed, InvalidMessage) as error:
            client = getattr(error, "client", None)
            self._decline(node, TaskFailed(error.code, str(error), error.key, client))
            return
        claim = RegisteredClient(node, reply.n, reply.has_own_data, description)
        claims.setdefault(reply.client, []).append(claim)

    def _register(self, client: int, claims: list[RegisteredClient], online: set[int]) -> None:
        """Register a client, unless its number is contested or its number of examples has changed.

        A node keeps its client while it is connected: another node cannot take its place.
        """
        member = self.members.get(client)
        taken = member is not None and member.node in online and all(claim.node != member.node for claim in claims)
        if len(claims) > 1:
            self._contested.add(client)
        for claim in claims:
            code = "flower.duplicate_client"
            if member is not None and taken:
                problem = f"client = {client}: node {member.node} has registered as this client"
            elif len(claims) > 1:
                problem = f"client = {client}: several nodes have registered as this client"
            elif member is not None and claim.n != member.n:
                code = "reply.invalid_example_count"
                problem = f"client = {client}: it registered with {member.n} examples before, and now has {claim.n}"
            else:
                self.members[client] = claim
                self._problems.pop(claim.node, None)
                log.info("client %d: node %d, %d examples", client, claim.node, claim.n)
                continue
            self._decline(claim.node, TaskFailed(code, problem, "node-config", client))
            self._registered.discard(claim.node)  # the next round tries again

    def _decline(self, node: int, problem: TaskFailed) -> None:
        """Store the reason why a node is not registered, and log it once."""
        if str(self._problems.get(node)) != str(problem):
            sender = "unknown client" if problem.client is None else f"client {problem.client}"
            log.warning("%s (node %d) is not registered: %s [%s]", sender, node, problem, problem.code)
        self._problems[node] = problem


def send_and_collect(grid: Grid, requests: Mapping[int, Message], timeout: float) -> Iterator[tuple[int, RawReply]]:
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
    while waiting:
        is_last = time.monotonic() >= deadline  # replies that are there are pulled, however late
        for message_id in list(waiting):
            if (reply := _fetch_reply(grid, message_id)) is not None:
                yield waiting.pop(message_id), reply
        if is_last:
            break
        if waiting:
            time.sleep(NODE_POLL_INTERVAL)
    for key in waiting.values():
        yield key, None


def _fetch_reply(grid: Grid, message_id: str) -> Message | InvalidMessage | None:
    """Return the reply to one message; None if there is none yet.

    Each is pulled alone: Flower raises for a reply that it cannot read, and drops the other replies of that call.
    """
    try:
        reply = next(iter(grid.pull_messages([message_id])), None)
        if reply is not None and reply.metadata.reply_to_message_id != message_id:
            return InvalidMessage("reply.foreign_id", "the reply states the id of another request")
    except Exception as error:
        return unreadable(error)
    return reply
