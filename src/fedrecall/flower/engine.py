"""The engine of a real federation: it sends the sampled clients' nodes their tasks, and gives out what comes back.

What clients remember stays on their nodes. The server keeps, in place of each memory, a receipt: the version that it
has had the reply of, which is a part of its checkpoints like any memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from flwr.app import Message
from torch import Tensor

from fedrecall.core.client_state import ClientStateStore
from fedrecall.core.engine import SampledCohort, TaskEngine
from fedrecall.core.failures import FailurePolicy, FailureTracker
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.flower.client_state import StateVersion
from fedrecall.flower.codec import InvalidMessage
from fedrecall.flower.messages import TaskFailed, TaskRequest, parse_reply, request_message, to_array_record
from fedrecall.flower.nodes import NodeRegistry, send_and_collect
from fedrecall.simulation.clients import SimulatedClients


@dataclass
class FlowerEngine(TaskEngine):
    """All clients of a run, on their nodes."""

    clients: SimulatedClients
    f: FlatModel
    nodes: NodeRegistry
    run_id: str  # the key of this run, by which nodes know their memories of it
    timeout: float  # seconds that a task may take
    classes: tuple[str, ...]
    faults: FailurePolicy = FailurePolicy()
    client_state: ClientStateStore = field(default_factory=ClientStateStore)  # receipts
    oldest_checkpoint_round: Callable[[], int] = lambda: 0  # the round of the oldest checkpoint
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
        """Send all their tasks at once; replies are given out by the clients' sizes, the order of every engine."""
        version = StateVersion(t, next(self._exchanges))
        here = self.nodes.connected_clients()
        order = sorted(clients, key=lambda c: (-self.nodes.members[c].n if c in self.nodes.members else 0, c))
        attendance = FailureTracker(self.faults, version.t, len(clients))
        record, messages = to_array_record(down), {}
        for client in order:
            if client in here:
                said = TaskRequest(
                    task,
                    client,
                    version,
                    self._acknowledged_version(client),
                    self.oldest_checkpoint_round(),
                    self.run_id,
                    self.classes,
                )
                messages[client] = request_message(said, record, here[client].node, self.timeout)
        came: dict[int, Message | None] = {client: None for client in order if client not in here}
        answers = send_and_collect(self.nodes.grid, messages, self.timeout)
        for client in order:
            while client not in came:
                key, message = next(answers)
                came[key] = message
            message = came.pop(client)
            try:
                if client not in here:
                    raise TaskFailed("reply.not_connected", "its node is not connected")
                if message is None:
                    what = f"engine.timeout = {self.timeout:g}: no reply within {self.timeout:g} s"
                    raise TaskFailed("reply.timeout", what, "engine.timeout")
                answer = parse_reply(message)
                if answer.client != client:
                    raise InvalidMessage("reply.wrong_client", f"client {answer.client} replied in its place")
            except (TaskFailed, InvalidMessage) as error:
                reason = f"{error} (task {task})"
                attendance.record(
                    client, reason, f"{error.code}: {reason}\n", cause=error, code=error.code, key=error.key
                )
                continue
            receipt = {"version": torch.tensor(version)} if answer.saved_state else {}
            yield Reply(answer.up, answer.n, receipt, answer.report, client)

    def _acknowledged_version(self, client: int) -> StateVersion | None:
        receipt = self.client_state.get(client)
        return None if receipt is None else StateVersion(*receipt["version"].tolist())

    def evaluate(self, state: Tensor) -> Score:
        """A complete model on the server's test set."""
        return self.f.score(state, self.clients.test)
