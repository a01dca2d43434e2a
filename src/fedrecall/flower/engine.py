"""Engine of a real federation: sends tasks to the nodes of the sampled clients and yields their replies.

Client states stay on the nodes. In place of each state the server stores a receipt: the version of the state that
belongs to the last accepted reply. Receipts are saved in checkpoints as client states are on other engines.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.engine import SampledCohort, TaskEngine
from fedrecall.core.failures import FailurePolicy, FailureTracker
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.flower.client_state import StateVersion
from fedrecall.flower.codec import InvalidMessage
from fedrecall.flower.messages import TaskFailed, TaskRequest, parse_reply, request_message, to_array_record
from fedrecall.flower.nodes import NodeRegistry, RawReply, send_and_collect
from fedrecall.simulation.clients import SimulatedClients


@dataclass
class FlowerEngine(TaskEngine):
    """Engine that runs every client on its Flower node."""

    clients: SimulatedClients
    f: FlatModel
    nodes: NodeRegistry
    run_id: str  # key of the run, under which nodes store client states
    timeout: float  # seconds for a task
    classes: tuple[str, ...]
    failures: FailurePolicy = FailurePolicy()
    client_state: ClientStateStore = field(default_factory=ClientStateStore)  # receipts of the client states
    oldest_checkpoint_round: Callable[[], int] = lambda: 0  # round of the oldest checkpoint
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
        failures = FailureTracker(self.failures, version.t, len(clients))
        record, messages = to_array_record(down), {}
        for client in order:
            if client in connected:
                request = TaskRequest(
                    task,
                    client,
                    version,
                    self._acknowledged_version(client),
                    self.oldest_checkpoint_round(),
                    self.run_id,
                    self.classes,
                )
                messages[client] = request_message(request, record, connected[client].node, self.timeout)
        received: dict[int, RawReply] = {client: None for client in order if client not in connected}
        replies = send_and_collect(self.nodes.grid, messages, self.timeout)
        for client in order:
            while client not in received:
                key, message = next(replies)
                received[key] = message
            message = received.pop(client)
            try:
                if client not in connected:
                    raise TaskFailed("reply.not_connected", "its node is not connected")
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
            except (TaskFailed, InvalidMessage) as error:
                reason = f"{error} (task {task})"
                failures.record(
                    client, reason, f"{error.code}: {reason}\n", cause=error, code=error.code, key=error.key
                )
                continue
            receipt = {"version": torch.tensor(version)} if reply.saved_state else {}
            yield Reply(reply.up, reply.n, receipt, reply.report, client)

    def _acknowledged_version(self, client: int) -> StateVersion | None:
        receipt = self.client_state.get(client)
        return None if receipt is None else StateVersion(*receipt["version"].tolist())

    def evaluate(self, state: Tensor, *, logits: bool = False) -> Score:
        """Evaluate a complete model on the server's test set; with `logits` the score has them."""
        return self.f.score(state, self.clients.test, logits=logits)
