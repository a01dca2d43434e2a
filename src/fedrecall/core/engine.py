"""Base class of the engines, and the cohort that they share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.types import Payload, Reply, Score


class TaskEngine(ABC):
    """Engine that stores client states in this process. A subclass runs the tasks."""

    client_state: ClientStateStore

    @property
    @abstractmethod
    def population(self) -> int:
        """Number of all clients."""

    @abstractmethod
    def run_task(self, t: int, clients: Sequence[int], task: str, down: Payload) -> Iterator[Reply]:
        """Run a task of round t on these clients. Replies come in a fixed order and carry the new client states."""

    @abstractmethod
    def evaluate(self, state: Tensor, *, logits: bool = False) -> Score:
        """Evaluate a complete model on the test set; with `logits` the score has them."""

    def cohort(self, t: int, clients: Sequence[int]) -> "SampledCohort":
        """Return the cohort of round t."""
        return SampledCohort(self, t, clients)

    def round_details(self) -> dict[str, Any]:
        """Return what the engine adds to the record of the last round, and clear it. By default nothing."""
        return {}

    def close(self) -> None:
        """Release what the engine holds outside the memory of this process."""
        self.client_state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class SampledCohort:
    """The clients sampled for round t."""

    engine: TaskEngine
    t: int
    clients: Sequence[int]

    @property
    def size(self) -> int:
        """Number of sampled clients."""
        return len(self.clients)

    @property
    def population(self) -> int:
        """Number of all clients."""
        return self.engine.population

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Run a task on every client. No client's stored state changes before its reply is accepted."""
        return self.engine.run_task(self.t, self.clients, task, down)

    def accept(self, reply: Reply) -> None:
        """Store the client state that belongs to a reply."""
        assert reply.client is not None
        self.engine.client_state[reply.client] = reply.memory
