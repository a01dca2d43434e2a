"""The reference engine: one client after another, in this process. Every other engine is compared with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor

from fedrecall.core.client_state import ClientStateStore
from fedrecall.core.failures import FailurePolicy, FailureTracker, format_exception
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.errors import UserError
from fedrecall.simulation.clients import SimulatedClients
from fedrecall.simulation.cohort import SimulatedCohort


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
