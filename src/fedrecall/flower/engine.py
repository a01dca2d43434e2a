"""The engine of a real federation: it sends the sampled clients' nodes their tasks, and gives out what comes back.

What clients remember stays on their nodes. The server keeps, in place of each memory, a receipt: the version that it
has had the reply of, which is a part of its checkpoints like any memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Self

import torch
from flwr.app import Message
from torch import Tensor

from fedrecall.core.client_state import Memories
from fedrecall.core.failures import Attendance, Faults
from fedrecall.core.flat_model import Flat
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.flower.client_state import Version
from fedrecall.flower.codec import Malformed
from fedrecall.flower.messages import Declined, Order, order_message, packed, read_answer
from fedrecall.flower.nodes import Roll, sent
from fedrecall.simulation.clients import World
from fedrecall.simulation.cohort import commit


@dataclass
class Federation:
    """All clients of a run, on their nodes."""

    world: World
    f: Flat
    roll: Roll
    run: str  # the key of this run, by which nodes know their memories of it
    timeout: float  # seconds that a task may take
    classes: tuple[str, ...]
    faults: Faults = Faults()
    memories: Memories = field(default_factory=Memories)  # receipts
    oldest: Callable[[], int] = lambda: 0  # the round of the oldest checkpoint

    def cohort(self, t: int, clients: Sequence[int]) -> "Asked":
        """These clients, for round t."""
        return Asked(self, t, clients)

    def exchange(self, version: Version, clients: Sequence[int], task: str, down: Payload) -> Iterator[Reply]:
        """Send all their tasks at once; replies are given out by the clients' sizes, the order of every engine."""
        here = self.roll.here()
        order = sorted(clients, key=lambda c: (-self.roll.members[c].n if c in self.roll.members else 0, c))
        attendance = Attendance(self.faults, version.t, len(clients))
        record, messages = packed(down), {}
        for client in order:
            if client in here:
                said = Order(task, client, version, self._receipt(client), self.oldest(), self.run, self.classes)
                messages[client] = order_message(said, record, here[client].node, self.timeout)
        came: dict[int, Message | None] = {client: None for client in order if client not in here}
        answers = sent(self.roll.grid, messages, self.timeout)
        for client in order:
            while client not in came:
                key, message = next(answers)
                came[key] = message
            message = came.pop(client)
            try:
                if client not in here:
                    raise Declined("reply.not_connected", "its node is not connected")
                if message is None:
                    what = f"engine.timeout = {self.timeout:g}: no reply within {self.timeout:g} s"
                    raise Declined("reply.timeout", what, "engine.timeout")
                answer = read_answer(message)
                if answer.client != client:
                    raise Malformed("reply.wrong_client", f"client {answer.client} replied in its place")
            except (Declined, Malformed) as error:
                reason = f"{error} (task {task})"
                attendance.failed(
                    client, reason, f"{error.code}: {reason}\n", cause=error, code=error.code, key=error.key
                )
                continue
            receipt = {"version": torch.tensor(version)} if answer.remembers else {}
            yield Reply(answer.up, answer.n, receipt, answer.report, client)

    def _receipt(self, client: int) -> Version | None:
        receipt = self.memories.get(client)
        return None if receipt is None else Version(*receipt["version"].tolist())

    def evaluate(self, state: Tensor) -> Score:
        """A complete model on the server's test set."""
        return self.f.score(state, self.world.test)

    def close(self) -> None:
        """Give back what the engine holds outside this process's memory."""
        self.memories.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Asked:
    """The clients that take part in round t."""

    engine: Federation
    t: int
    clients: Sequence[int]
    _exchanges: Iterator[int] = field(default_factory=count)
    _refused: set[int] = field(default_factory=set)

    @property
    def size(self) -> int:
        """How many were sampled."""
        return len(self.clients)

    @property
    def population(self) -> int:
        """All clients there are."""
        return self.engine.roll.population

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Every client's reply to a task; its memory is acknowledged with it, unless it is refused."""
        version = Version(self.t, next(self._exchanges))
        replies = self.engine.exchange(version, self.clients, task, down)
        return commit(replies, self.engine.memories, self._refused)

    def refuse(self, client: int) -> None:
        """Keep the receipt of the client's memory before: its node goes back to that one, and removes the other."""
        self._refused.add(client)
