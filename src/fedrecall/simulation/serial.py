"""The reference engine: one client after another, in this process. Every other engine is compared with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor

from fedrecall.core.client_state import Memories
from fedrecall.core.failures import Attendance, Faults, described
from fedrecall.core.flat_model import Flat
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.errors import UserError
from fedrecall.simulation.clients import World
from fedrecall.simulation.cohort import Sampled


@dataclass(frozen=True)
class Serial:
    """All clients of a run, and what each remembers."""

    world: World
    f: Flat
    faults: Faults = Faults()
    memories: Memories = field(default_factory=Memories)

    def cohort(self, t: int, clients: Sequence[int]) -> Sampled:
        """These clients, for round t."""
        return Sampled(self, t, self.world.order(clients))

    def exchange(self, t: int, clients: list[int], task: str, down: Payload) -> Iterator[Reply]:
        """Run a task on each."""
        attendance = Attendance(self.faults, t, len(clients))
        for client in clients:
            try:
                reply = self.world.perform(self.f, task, client, t, down, self.memories.get(client))
            except UserError:
                raise
            except Exception as error:
                attendance.failed(client, *described(error), cause=error)
                continue
            yield reply._replace(client=client)

    def evaluate(self, state: Tensor) -> Score:
        """A complete model on the global test set."""
        return self.f.score(state, self.world.test)

    def close(self) -> None:
        """Give back what the engine holds outside this process's memory."""
        self.memories.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
