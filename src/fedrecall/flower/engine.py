"""Engine of a real federation: sends tasks to the nodes of the sampled clients and yields their replies.

Client states stay on the nodes. In place of each state the server stores a receipt: the version of the state that
belongs to the last accepted reply. Receipts are saved in checkpoints as client states are on other engines.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.engine import SampledCohort, TaskEngine
from fedrecall.core.evaluation import EVALUATE
from fedrecall.core.failures import FailurePolicy, FailureTracker
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload, Reply, Score, payload_bytes
from fedrecall.flower.client_state import StateVersion
from fedrecall.flower.codec import InvalidMessage
from fedrecall.flower.messages import TaskFailed, TaskReply, TaskRequest, parse_reply, request_message, to_array_record
from fedrecall.flower.nodes import NodeRegistry, RawReply, RegisteredClient, send_and_collect
from fedrecall.simulation.clients import SimulatedClients


@dataclass
class NodeTransfer:
    """Messages between the server and a client in one round."""

    seconds: float = 0.0  # from sending the requests until the replies arrived
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass
class FlowerEngine(TaskEngine):
    """Engine that runs every client on its Flower node."""

    clients: SimulatedClients
    f: FlatModel
    nodes: NodeRegistry
    run_id: str  # key of the run, under which nodes store client states
    timeout: float  # seconds for a task
    failures: FailurePolicy = FailurePolicy()
    client_state: ClientStateStore = field(default_factory=ClientStateStore)  # receipts of the client states
    oldest_checkpoint_round: Callable[[], int] = lambda: 0  # round of the oldest checkpoint
    watch: Callable[[int, str, Sequence[int]], None] | None = None  # called with the clients whose replies are awaited
    record_nodes: bool = True  # False with server.privacy: nothing about single clients is recorded
    _transfers: dict[int, NodeTransfer] = field(default_factory=dict)  # of this round, by client
    _exchanges: Iterator[int] = field(default_factory=count)  # numbers of the exchanges of this round

    @property
    def population(self) -> int:
        """Number of all clients."""
        return self.nodes.population

    def cohort(self, t: int, clients: Sequence[int]) -> SampledCohort:
        """Return the cohort of round t."""
        self._exchanges = count()
        return super().cohort(t, clients)

    def run_task(self, t: int, clients: Sequence[int], task: str, down: Payload) -> Iterator[Reply]:
        """Send all tasks at once. Replies are yielded in the order of all engines: the largest client first."""
        version = StateVersion(t, next(self._exchanges))
        connected = self.nodes.connected_clients()
        order = sorted(clients, key=lambda c: (-self.nodes.members[c].n if c in self.nodes.members else 0, c))
        failures = FailureTracker(self.failures, t - (task == EVALUATE), len(clients))  # evaluated after the round
        record = to_array_record(down)
        messages = {
            client: request_message(self._request(task, client, version), record, connected[client].node, self.timeout)
            for client in order
            if client in connected
        }
        received: dict[int, RawReply] = {client: None for client in order if client not in connected}
        waiting, started, bytes_down = set(messages), time.monotonic(), payload_bytes(down)
        if self.watch is not None:
            self.watch(t, task, sorted(waiting))
        replies = send_and_collect(self.nodes.grid, messages, self.timeout)
        for client in order:
            while client not in received:
                key, message = next(replies)
                received[key] = message
                waiting.discard(key)
                if self.watch is not None:
                    self.watch(t, task, sorted(waiting))
                transfer = self._transfers.setdefault(key, NodeTransfer())
                transfer.seconds += time.monotonic() - started
                transfer.bytes_down += bytes_down
            try:
                reply = self._parse(received.pop(client), client, connected)
            except (TaskFailed, InvalidMessage) as error:
                sender = f"node {connected[client].node}: " if client in connected else ""
                reason = f"{sender}{error} (task {task})"
                failures.record(
                    client, reason, f"{error.code}: {reason}\n", cause=error, code=error.code, key=error.key
                )
                continue
            self._transfers[client].bytes_up += payload_bytes(reply.up) + payload_bytes(reply.report)
            receipt = {"version": torch.tensor(version)} if reply.saved_state else {}
            yield Reply(reply.up, reply.n, receipt, reply.report, client)

    def _request(self, task: str, client: int, version: StateVersion) -> TaskRequest:
        return TaskRequest(
            task,
            client,
            version,
            self._acknowledged_version(client),
            self.oldest_checkpoint_round(),
            self.run_id,
            self.nodes.schema_text,
            self.nodes.code,
        )

    def _parse(self, message: RawReply, client: int, connected: Mapping[int, RegisteredClient]) -> TaskReply:
        """Read a client's reply; raise an error if there is none, or if it is not the reply of this client."""
        if client not in connected:
            raise self.nodes.problem(client)
        if message is None:
            text = f"engine.timeout = {self.timeout:g}: no reply within {self.timeout:g} s"
            raise TaskFailed("reply.timeout", text, "engine.timeout")
        if isinstance(message, InvalidMessage):
            raise message
        reply = parse_reply(message)
        if reply.client != client:
            raise InvalidMessage("reply.wrong_client", f"client {reply.client} replied in its place")
        if reply.n != connected[client].n:
            text = f"number of examples = {reply.n}: the client registered with {connected[client].n}"
            raise InvalidMessage("reply.invalid_example_count", text)
        return reply

    def round_details(self) -> dict[str, Any]:
        """Return the time and the bytes of each client's messages in the last round, and clear them."""
        nodes = {
            str(client): {**vars(transfer), "seconds": round(transfer.seconds, 2)}
            for client, transfer in sorted(self._transfers.items())
        }
        self._transfers.clear()
        return {"nodes": nodes} if self.record_nodes else {}

    def _acknowledged_version(self, client: int) -> StateVersion | None:
        receipt = self.client_state.get(client)
        return None if receipt is None else StateVersion(*receipt["version"].tolist())

    def evaluate(self, state: Tensor, *, logits: bool = False) -> Score:
        """Evaluate a complete model on the server's test set; with `logits` the score has them."""
        return self.f.score(state, self.clients.test, logits=logits)
