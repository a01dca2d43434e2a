"""The clients of one round: the same for every engine that has all of them at hand."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from fedrecall.core.types import Payload, Reply
from fedrecall.engines.world import World


class Exchanges(Protocol):
    """What such an engine can do."""

    @property
    def world(self) -> World:
        """What every client's task may look at."""
        ...

    def exchange(self, t: int, clients: list[int], task: str, down: Payload) -> Iterator[Reply]:
        """The replies of these clients, in this order."""
        ...


@dataclass(frozen=True)
class Sampled:
    """The clients that take part in round t."""

    engine: Exchanges
    t: int
    clients: list[int]  # in the order of world.order

    @property
    def size(self) -> int:
        """How many were sampled."""
        return len(self.clients)

    @property
    def population(self) -> int:
        """All clients there are."""
        return len(self.engine.world.partition)

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Every client's reply to a task; its memory is committed when the reply is given out."""
        return self.engine.exchange(self.t, self.clients, task, down)
