"""Clients that do not answer, or answer late: the same ones on every engine, as the seed says."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedrecall.constraints import NonNegativeFloat, NonNegativeInt, PositiveFloat, check_constraints
from fedrecall.core import seeds
from fedrecall.core.types import Engine, EngineCohort, Payload, Reply, Score


@dataclass(frozen=True)
class StragglerModel:
    """How long clients take, and how long the server waits.

    The unit of time is a round of a client of average size and median speed. A client's time is its number of
    examples, times its own speed (the same all run), times the luck of the round; both are log-normal. A reply that
    comes too late is not used.
    """

    spread: NonNegativeFloat = 0.5
    """Standard deviation of the logarithm of the clients' speeds, constant over the run."""
    jitter: NonNegativeFloat = 0.1
    """Standard deviation of the logarithm of a client's time in one round."""
    deadline: PositiveFloat | None = None
    """Time after which the server closes the round. None: wait for every requested reply."""
    over: NonNegativeInt = 0
    """Number of clients sampled beyond those needed. The first replies are used."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.straggler")

    def response_time(self, seed: int, t: int, client: int, size: float) -> float:
        """When a client of so many examples, in units of the average, answers in round t."""
        speed = seeds.numpy_generator(seed, "absence", client).standard_normal()
        luck = seeds.numpy_generator(seed, "absence", client, t).standard_normal()
        return float(size * math.exp(self.spread * speed + self.jitter * luck))


STRAGGLER_MODELS: dict[str, type[StragglerModel]] = {"lognormal": StragglerModel}


@dataclass(frozen=True)
class UnreliableClients:
    """An engine, some of whose clients do not answer: nothing but the seed, the round and the client decides.

    An absent client does not run, so its memory stays what it was. Whoever is absent is so for all exchanges of the
    round. A round is never empty: where nobody would have answered, the server waits for the client that is nearest to
    doing so.
    """

    engine: Engine
    sizes: Sequence[int]  # examples of every client
    target_replies: int  # replies a round
    seed: int
    dropout: float = 0.0  # the chance that a client which is asked does not answer
    straggler: StragglerModel | None = None

    def cohort(self, t: int, clients: Sequence[int]) -> EngineCohort:
        """Those of the clients that answer in time."""
        return PartialCohort(self.engine.cohort(t, self.responding_clients(t, clients)), len(clients))

    def evaluate(self, state: Tensor) -> Score:
        """As the engine does."""
        return self.engine.evaluate(state)

    def responding_clients(self, t: int, clients: Sequence[int]) -> list[int]:
        """Who answers in round t, the first ones first; at least one."""
        luck = {k: seeds.numpy_generator(self.seed, "absence", k, t, 1).random() for k in clients}
        there = [k for k in clients if luck[k] >= self.dropout] or [max(clients, key=lambda k: luck[k])]
        if self.straggler is None:
            return there
        average = sum(self.sizes) / len(self.sizes)
        sizes = {k: self.sizes[k] / average if average else 1.0 for k in there}  # unknown where nodes have the data
        times = {k: self.straggler.response_time(self.seed, t, k, sizes[k]) for k in there}
        first = sorted(there, key=lambda k: (times[k], k))
        deadline = math.inf if self.straggler.deadline is None else self.straggler.deadline
        return [k for k in first[: self.target_replies] if times[k] <= deadline] or first[:1]


@dataclass(frozen=True)
class PartialCohort:
    """The clients that answer, among those that were asked."""

    cohort: EngineCohort
    size: int

    @property
    def population(self) -> int:
        """All clients there are."""
        return self.cohort.population

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """The replies of those that answer."""
        return self.cohort.run(task, down)

    def accept(self, reply: Reply) -> None:
        """Store the client state that belongs to a reply."""
        self.cohort.accept(reply)
