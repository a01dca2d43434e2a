"""The reference engine: one client after another, in this process. Every other engine is compared with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedrecall.core.flat import Flat
from fedrecall.core.types import Payload, Reply, Score
from fedrecall.engines.world import World


@dataclass(frozen=True)
class Serial:
    """All clients of a run, and what each remembers."""

    world: World
    f: Flat
    memories: dict[int, Payload] = field(default_factory=dict)

    def cohort(self, t: int, clients: Sequence[int]) -> "SerialCohort":
        """These clients, for round t."""
        return SerialCohort(self, t, self.world.order(clients))

    def evaluate(self, state: Tensor) -> Score:
        """A complete model on the global test set."""
        return self.f.score(state, self.world.test)


@dataclass(frozen=True)
class SerialCohort:
    """The clients of one round."""

    engine: Serial
    t: int
    clients: list[int]

    @property
    def size(self) -> int:
        """How many clients were sampled."""
        return len(self.clients)

    @property
    def population(self) -> int:
        """All clients there are."""
        return len(self.engine.world.partition)

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Run a task on each; a client's memory is committed when its reply is given out."""
        engine = self.engine
        for client in self.clients:
            reply = engine.world.perform(engine.f, task, client, self.t, down, engine.memories.get(client))
            engine.memories[client] = reply.memory
            yield reply
