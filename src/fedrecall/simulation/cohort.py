"""The clients of one round: the same for every engine that has all of them at hand."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from fedrecall.core.client_state import Memories
from fedrecall.core.types import Payload, Reply
from fedrecall.simulation.clients import World


class Exchanges(Protocol):
    """What such an engine can do."""

    @property
    def world(self) -> World:
        """What every client's task may look at."""
        ...

    @property
    def memories(self) -> Memories:
        """What clients remember."""
        ...

    def exchange(self, t: int, clients: list[int], task: str, down: Payload) -> Iterator[Reply]:
        """The replies of these clients, in this order; what they would remember is in them."""
        ...


@dataclass(frozen=True)
class Sampled:
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
        return len(self.engine.world.partition)

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Every client's reply to a task; its memory is committed with it, unless it is refused."""
        return commit(self.engine.exchange(self.t, self.clients, task, down), self.engine.memories, self._refused)

    def refuse(self, client: int) -> None:
        """Leave this client's memory as it was before the reply that was given out last."""
        self._refused.add(client)


def commit(replies: Iterator[Reply], memories: Memories, refused: set[int]) -> Iterator[Reply]:
    """Give replies out; a client remembers what it did once its reply has been looked at and is not in `refused`."""
    for reply in replies:
        assert reply.client is not None
        refused.discard(reply.client)
        try:
            yield reply
        finally:  # whoever takes no further reply has taken this one
            if reply.client not in refused:
                memories[reply.client] = reply.memory
