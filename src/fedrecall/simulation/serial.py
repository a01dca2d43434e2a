"""The reference engine: one client after another, in this process. Every other engine is compared with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from torch import Tensor

from fedrecall.core.client_state import ClientStateStore
from fedrecall.core.failures import FailurePolicy, FailureTracker, format_exception
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.errors import UserError
from fedrecall.simulation.clients import SimulatedClients


class Exchanges(Protocol):
    """What such an engine can do."""

    @property
    def clients(self) -> SimulatedClients:
        """What every client's task may look at."""
        ...

    @property
    def client_state(self) -> ClientStateStore:
        """What clients remember."""
        ...

    def run_task(self, t: int, clients: list[int], task: str, down: Payload) -> Iterator[Reply]:
        """The replies of these clients, in this order; what they would remember is in them."""
        ...


@dataclass(frozen=True)
class SimulatedCohort:
    """The clients that take part in round t."""

    engine: Exchanges
    t: int
    clients: list[int]  # in the order of world.order
    _refused: set[int] = field(default_factory=set)

    @property
    def size(self) -> int:
        """How many were sampled."""
        return len(self.clients)

    @property
    def population(self) -> int:
        """All clients there are."""
        return len(self.engine.clients.partition)

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Every client's reply to a task; its memory is committed with it, unless it is refused."""
        return commit(self.engine.run_task(self.t, self.clients, task, down), self.engine.client_state, self._refused)

    def refuse(self, client: int) -> None:
        """Leave this client's memory as it was before the reply that was given out last."""
        self._refused.add(client)


def commit(replies: Iterator[Reply], memories: ClientStateStore, refused: set[int]) -> Iterator[Reply]:
    """Give replies out; a client remembers what it did once its reply has been looked at and is not in `refused`."""
    for reply in replies:
        assert reply.client is not None
        refused.discard(reply.client)
        try:
            yield reply
        finally:  # whoever takes no further reply has taken this one
            if reply.client not in refused:
                memories[reply.client] = reply.memory


@dataclass(frozen=True)
class SerialEngine:
    """All clients of a run, and what each remembers."""

    clients: SimulatedClients
    f: FlatModel
    failures: FailurePolicy = FailurePolicy()
    client_state: ClientStateStore = field(default_factory=ClientStateStore)

    def cohort(self, t: int, clients: Sequence[int]) -> SimulatedCohort:
        """These clients, for round t."""
        return SimulatedCohort(self, t, self.clients.largest_first(clients))

    def run_task(self, t: int, clients: list[int], task: str, down: Payload) -> Iterator[Reply]:
        """Run a task on each."""
        attendance = FailureTracker(self.failures, t, len(clients))
        for client in clients:
            try:
                reply = self.clients.run_task(self.f, task, client, t, down, self.client_state.get(client))
            except UserError:
                raise
            except Exception as error:
                attendance.record(client, *format_exception(error), cause=error)
                continue
            yield reply._replace(client=client)

    def evaluate(self, state: Tensor) -> Score:
        """A complete model on the global test set."""
        return self.f.score(state, self.clients.test)

    def close(self) -> None:
        """Give back what the engine holds outside this process's memory."""
        self.client_state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
