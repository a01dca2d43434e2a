"""Reference engine: runs one client after another in this process. All other engines give its bits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.engine import SampledCohort, TaskEngine
from fedrecall.core.failures import FailurePolicy, FailureTracker, format_exception
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.errors import UserError
from fedrecall.simulation.clients import SimulatedClients


@dataclass(frozen=True)
class SerialEngine(TaskEngine):
    """Engine that runs one client after another in this process."""

    clients: SimulatedClients
    f: FlatModel
    failures: FailurePolicy = FailurePolicy()
    client_state: ClientStateStore = field(default_factory=ClientStateStore)

    @property
    def population(self) -> int:
        """Number of all clients."""
        return len(self.clients.partition)

    def cohort(self, t: int, clients: Sequence[int]) -> SampledCohort:
        """Return the cohort of round t, largest client first."""
        return super().cohort(t, self.clients.largest_first(clients))

    def run_task(self, t: int, clients: Sequence[int], task: str, down: Payload) -> Iterator[Reply]:
        """Run a task of round t on these clients, in this order."""
        failures = FailureTracker(self.failures, t, len(clients))
        for client in clients:
            try:
                reply = self.clients.run_task(self.f, task, client, t, down, self.client_state.get(client))
            except UserError:
                raise
            except Exception as error:
                failures.record(client, *format_exception(error), cause=error)
                continue
            yield reply._replace(client=client)

    def evaluate(self, state: Tensor, *, logits: bool = False) -> Score:
        """Evaluate a complete model on the test set; with `logits` the score has them."""
        return self.f.score(state.to(self.f.w.device), self.clients.test, logits=logits)
