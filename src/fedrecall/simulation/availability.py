"""Stragglers and dropouts: clients that reply late or not at all, the same ones on every engine."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedrecall.constraints import LogSpread, NonNegativeInt, PositiveFloat, check_constraints
from fedrecall.core import seeds
from fedrecall.core.types import Engine, EngineCohort, Payload, Reply, Score


@dataclass(frozen=True)
class StragglerModel:
    """Response times of clients, and the deadline of the server.

    The unit of time is a round of a client of average size and median speed. A client's response time is its number of
    examples, times its own factor (constant over the run), times a factor of the round; both are log-normal. A reply
    after the deadline is not used.
    """

    spread: LogSpread = 0.5
    """Standard deviation of the logarithm of the clients' speeds, constant over the run."""
    jitter: LogSpread = 0.1
    """Standard deviation of the logarithm of a client's time in one round."""
    deadline: PositiveFloat | None = None
    """Time after which the server closes the round. None: wait for every requested reply."""
    over: NonNegativeInt = 0
    """Number of clients sampled beyond those needed. The first replies are used."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.straggler")

    def response_time(self, seed: int, t: int, client: int, size: float) -> float:
        """Draw the response time of a client in round t. `size` is its number of examples, relative to the average."""
        speed = seeds.numpy_generator(seed, "absence", client).standard_normal()
        draw = seeds.numpy_generator(seed, "absence", client, t).standard_normal()
        return float(size * math.exp(self.spread * speed + self.jitter * draw))


STRAGGLER_MODELS: dict[str, type[StragglerModel]] = {"lognormal": StragglerModel}


@dataclass(frozen=True)
class UnreliableClients:
    """Engine with clients that do not reply, depending only on seed, round and client.

    A client that does not reply does not run, so its state does not change. It is absent from all exchanges of the
    round. A round is never empty: if no client would reply, the server waits for the one with the best draw.
    """

    engine: Engine
    sizes: Sequence[int]  # examples of every client
    target_replies: int  # replies per round
    seed: int
    dropout: float = 0.0  # probability that a sampled client does not reply
    straggler: StragglerModel | None = None

    def cohort(self, t: int, clients: Sequence[int]) -> EngineCohort:
        """Return the clients that reply in time."""
        return PartialCohort(self.engine.cohort(t, self.responding_clients(t, clients)), len(clients))

    def evaluate(self, state: Tensor, *, logits: bool = False) -> Score:
        """Evaluate a complete model on the test set; with `logits` the score has them."""
        return self.engine.evaluate(state, logits=logits)

    def responding_clients(self, t: int, clients: Sequence[int]) -> list[int]:
        """Return the clients that reply in round t, fastest first; at least one."""
        draws = {k: seeds.numpy_generator(self.seed, "absence", k, t, 1).random() for k in clients}
        available = [k for k in clients if draws[k] >= self.dropout] or [max(clients, key=lambda k: draws[k])]
        if self.straggler is None:
            return available
        average = sum(self.sizes) / len(self.sizes)
        sizes = {k: self.sizes[k] / average if average else 1.0 for k in available}  # unknown if nodes have the data
        times = {k: self.straggler.response_time(self.seed, t, k, sizes[k]) for k in available}
        by_time = sorted(available, key=lambda k: (times[k], k))
        deadline = math.inf if self.straggler.deadline is None else self.straggler.deadline
        is_round = len(clients) == self.target_replies + self.straggler.over  # else all clients, after the last round
        wanted = self.target_replies if is_round else len(clients)
        return [k for k in by_time[:wanted] if times[k] <= deadline] or by_time[:1]


@dataclass(frozen=True)
class PartialCohort:
    """The clients that reply, among the sampled ones."""

    cohort: EngineCohort
    size: int

    @property
    def population(self) -> int:
        """Number of all clients."""
        return self.cohort.population

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Run a task on the clients that reply."""
        return self.cohort.run(task, down)

    def accept(self, reply: Reply) -> None:
        """Store the client state that belongs to a reply."""
        self.cohort.accept(reply)
