"""The vocabulary, sorted by lifetime: Server and memory last a run, Local a client's round, Step a batch.

Shapes: B batch, K classes, D features, d weights, e float buffers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self

from torch import Generator, Tensor

from fedrecall.errors import UserError

if TYPE_CHECKING:
    from fedrecall.core.flat_model import FlatModel
    from fedrecall.core.optim import ServerOptimiser
    from fedrecall.core.training import LocalTraining


Payload = dict[str, Tensor]

"""All that ever crosses the wire, or stays in a client's memory: named, flat, tensors only."""

ReplyWeighting = Literal["size", "uniform"]


class Output(NamedTuple):
    """What a model says of a batch."""

    h: Tensor  # features: the input of the last linear layer [B, D]
    z: Tensor  # logits [B, K]


class Step(NamedTuple):
    """One batch, as the loss sees it."""

    w: Tensor  # live weights [d]
    h: Tensor  # features [B, D]
    z: Tensor  # logits [B, K]
    y: Tensor  # labels [B]
    frozen: dict[str, Output]  # what the frozen models say of this batch
    last: bool = False  # whether the local epoch is the last one


class Examples(Protocol):
    """Labelled examples, wherever they lie: a client's, the server's auxiliary set, the test set."""

    @property
    def y(self) -> Tensor:
        """Labels, int64 [n]."""
        ...

    @property
    def is_augmented(self) -> bool:
        """Whether a batch drawn with a generator is random, so that nothing said of it can be cached."""
        ...

    def __len__(self) -> int: ...

    def batch(self, rows: Tensor | slice, rng: Generator | None = None) -> Tensor:
        """Return model-ready inputs of these rows: augmented if `rng` is given, else with the test-time transforms."""
        ...

    def subset(self, rows: Tensor) -> Self:
        """Return a view of these rows."""
        ...

    def precomputed(self) -> Self:
        """Return the same examples with deterministic transforms applied once, where that saves work."""
        ...


class Local(NamedTuple):
    """One client's round: what came down, what it kept, what it owns. Read-only."""

    f: FlatModel
    w: Tensor  # the global weights w^t [d]
    b: Tensor  # float buffers [e]: the ones received; in `reply`, the ones after training
    down: Payload  # what came, and what `prepare` made of it
    memory: Payload
    data: Examples
    y: Tensor  # all its labels [n]
    counts: Tensor  # examples per class [K]
    training: LocalTraining  # settings of this round: its learning rate is after decay
    t: int  # the round, from 0
    seed: int  # of this client's round, for a method that draws
    scratch: Payload  # values that `loss` may write and `reply` reads; dropped after the round

    def state(self, w: Tensor) -> Tensor:
        """Return the complete model [d + e] with these weights and the buffers of this round."""
        return self.f.join(w, self.b)


class Reply(NamedTuple):
    """What one client answers."""

    up: Payload
    n: int  # examples
    memory: Payload
    metrics: Payload  # how the training went, for the record: no method sees it, no byte is counted
    client: int | None = None  # who says so, for the record


@dataclass(frozen=True, eq=False)
class Score:
    """How a model does on a set of examples: what it says of each, and the sum of its losses."""

    predicted: Tensor  # the label with the largest logit, int64 [n]
    y: Tensor  # the true one
    loss: float  # summed cross-entropy

    @property
    def num_correct(self) -> int:
        """How many examples' largest logit is the label's."""
        return int((self.predicted == self.y).sum())

    @property
    def accuracy(self) -> float:
        """Their share."""
        return self.num_correct / len(self.y)

    @property
    def mean_loss(self) -> float:
        """Mean cross-entropy."""
        return self.loss / len(self.y)


@dataclass(frozen=True)
class Server:
    """What lasts from round to round at the server; every change makes a new one."""

    f: FlatModel
    w: Tensor  # global weights [d]
    b: Tensor  # global float buffers [e], averaged by the core whatever a method does with w
    int_buffers: Tensor  # integer buffers, such as the number of batches a batch norm has seen
    optimiser: ServerOptimiser
    extra: Payload = field(default_factory=dict)  # the method's own state
    optimiser_state: Payload = field(default_factory=dict)  # the optimiser's state
    weights: ReplyWeighting = "size"  # how replies are weighted
    auxiliary: Examples | None = None
    t: int = 0

    @property
    def state(self) -> Tensor:
        """The complete model, weights and buffers: one vector for teachers and evaluation."""
        return self.f.join(self.w, self.b)

    @property
    def require_auxiliary(self) -> Examples:
        """The auxiliary examples, for a method that cannot do without."""
        if self.auxiliary is None or not len(self.auxiliary):
            raise UserError(
                "method.needs_auxiliary_data",
                "the method needs auxiliary data at the server",
                "data.aux_per_class",
                "set data.aux_per_class",
            )
        return self.auxiliary

    def mean(self, replies: Iterable[Reply], unweighted: Collection[str] = ()) -> Payload:
        """The replies' mean, weighted as the experiment says, but for the names that are always averaged uniformly."""
        return average_replies(replies, self.weights, unweighted)

    def step(self, target: Tensor) -> Server:
        """Move towards the target (usually the mean of the clients' weights), as the server optimiser does."""
        w, moments = self.optimiser.step(self.w, target, self.optimiser_state)
        return replace(self, w=w, optimiser_state=moments)

    def with_extra(self, **extra: Tensor) -> Server:
        """The same server with these entries of the method's state replaced."""
        return replace(self, extra={**self.extra, **extra})


class Cohort(Protocol):
    """The clients sampled for one round, wherever they live: all that a method sees of an engine."""

    @property
    def size(self) -> int:
        """|S_t|: how many were asked; once replies have come, how many came."""
        ...

    @property
    def population(self) -> int:
        """N: all clients there are."""
        ...

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Every client's answer to a task ("train", or a method's own), in an order fixed by the cohort."""
        ...


class EngineCohort(Cohort, Protocol):
    """A cohort as the engine hands it to `Exchange`, which validates every reply."""

    def accept(self, reply: Reply) -> None:
        """Store the client state of a valid reply. Without this call the client's state stays as it was."""
        ...


class Engine(Protocol):
    """Where clients run. It knows no method."""

    def cohort(self, t: int, clients: Sequence[int]) -> EngineCohort:
        """These clients, for round t."""
        ...

    def evaluate(self, state: Tensor) -> Score:
        """A complete model on the global test set."""
        ...


def payload_bytes(payload: Payload) -> int:
    """Return the size of all tensors of a payload, in bytes."""
    return sum(t.nbytes for t in payload.values())


class RunningMean:
    """A running mean of payloads: no more than one of them is held.

    Each addend moves the mean by its share of the weight so far, so that a single one, or many equal ones, come out
    to the bit.
    """

    def __init__(self) -> None:
        self.value: Payload = {}
        self._weight: dict[str, float] = {}

    def add(self, addend: Payload, weight: float) -> None:
        """Take one more into the mean, name by name; a name may be missing from some."""
        for name, t in addend.items():
            if name in self.value:
                self._weight[name] += weight
                self.value[name].lerp_(t, weight / self._weight[name])
            else:
                self._weight[name] = weight
                self.value[name] = t.clone()


def average_replies(
    replies: Iterable[Reply], weights: ReplyWeighting = "size", unweighted: Collection[str] = ()
) -> Payload:
    """The replies' mean, by their numbers of examples or uniform; the names in `uniform` always uniform."""
    weighted, plain = RunningMean(), RunningMean()
    for reply in replies:
        weighted.add({k: t for k, t in reply.up.items() if k not in unweighted}, reply.n if weights == "size" else 1)
        plain.add({k: t for k, t in reply.up.items() if k in unweighted}, 1)
    return weighted.value | plain.value
