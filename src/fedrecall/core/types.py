"""Types that methods use, by lifetime: Server a run, Local a client's round, Step a batch.

Shapes: B batch, K classes, D features, d weights, e float buffers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedrecall.errors import UserError
from fedrecall.tensor_dict import Inputs

if TYPE_CHECKING:
    from fedrecall.core.flat_model import FlatModel
    from fedrecall.core.optim import ServerOptimiser
    from fedrecall.core.training import LocalTraining


Payload = dict[str, Tensor]

"""Named tensors: everything that is sent between server and clients or stored as client state."""

ReplyWeighting = Literal["size", "uniform"]


class Output(NamedTuple):
    """Features and logits of a model on a batch."""

    h: Tensor  # features: the input of the last linear layer [B, D]
    z: Tensor  # logits [B, K]


class Step(NamedTuple):
    """One batch, as the loss sees it."""

    w: Tensor  # live weights [d]
    h: Tensor  # features [B, D]
    z: Tensor  # logits [B, K]
    y: Tensor  # labels [B]; B is the number of tokens where these have labels
    frozen: dict[str, Output]  # outputs of the frozen models on this batch
    last: bool = False  # True in the last local epoch


class Examples(Protocol):
    """Labelled examples: of a client, the server's auxiliary set, the test set."""

    @property
    def y(self) -> Tensor:
        """Labels, int64 [n]; of tokens those of all tokens that have one, example after example."""
        ...

    @property
    def is_augmented(self) -> bool:
        """True if a batch drawn with a generator is random, so that outputs cannot be cached."""
        ...

    def __len__(self) -> int: ...

    def batch(self, rows: Tensor | slice, rng: Generator | None = None) -> Inputs:
        """Return model-ready inputs of these rows: augmented if `rng` is given, else with the test-time transforms."""
        ...

    def positions(self, rows: Tensor | slice) -> Tensor | slice:
        """Return where the labels of these rows are in `y`: `rows`, unless the labels are those of tokens."""
        ...

    def subset(self, rows: Tensor) -> Self:
        """Return a view of these rows."""
        ...

    def precomputed(self) -> Self:
        """Return the same examples with deterministic transforms applied once, where that saves work."""
        ...


class Local(NamedTuple):
    """One client's round: received payload, client state and data. Read-only."""

    f: FlatModel
    w: Tensor  # the global weights w^t [d]
    b: Tensor  # float buffers [e]: the received ones; in `reply`, those after training
    down: Payload  # received payload, and the tensors of `prepare`
    memory: Payload  # client state
    data: Examples
    y: Tensor  # labels of `data` [n], on the device of w
    counts: Tensor  # examples per class [K]
    training: LocalTraining  # settings of this round: its learning rate is after decay
    t: int  # round, from 0
    seed: int  # of this client's round, for a method that draws random numbers
    scratch: Payload  # values that `loss` may write and `reply` reads; dropped after the round
    class_weights: Tensor | None = None  # weight of each class in the cross-entropy [K]; None: equal

    def state(self, w: Tensor) -> Tensor:
        """Return the complete model [d + e] with these weights and the buffers of this round."""
        return self.f.join(w, self.b)

    def cross_entropy(self, z: Tensor, y: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Return the mean cross-entropy of a batch, with the client's class weights (`local.class_weights`).

        The cross-entropy of every method is this one or `cross_entropy_terms`. With weights it is the weighted mean, as
        that of `torch.nn.CrossEntropyLoss`.
        """
        return F.cross_entropy(z, y, self.class_weights, label_smoothing=label_smoothing)

    def cross_entropy_terms(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the terms [B] whose mean is `cross_entropy`."""
        terms = F.cross_entropy(z, y, self.class_weights, reduction="none")
        return terms if self.class_weights is None else terms / self.class_weights[y].mean()


class Reply(NamedTuple):
    """Reply of one client."""

    up: Payload  # tensors for the server
    n: int  # number of examples
    memory: Payload  # new client state
    metrics: Payload  # measurements of the training: not seen by methods, not counted as traffic
    client: int | None = None  # number of the client
    b: Tensor | None = None  # float buffers of the client's model [e], which `up` has only on the way to the server


@dataclass(frozen=True, eq=False)
class Score:
    """Evaluation of a model on a set of examples."""

    predicted: Tensor  # the label with the largest logit, int64 [n]
    y: Tensor  # true labels
    loss: float  # summed cross-entropy
    z: Tensor | None = None  # logits [n, K], if requested

    @property
    def num_correct(self) -> int:
        """Number of correct predictions."""
        return int((self.predicted == self.y).sum())

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return self.num_correct / len(self.y)

    @property
    def mean_loss(self) -> float:
        """Mean cross-entropy."""
        return self.loss / len(self.y)


@dataclass(frozen=True)
class Server:
    """State of the server between rounds. Immutable: every change returns a new one."""

    f: FlatModel
    w: Tensor  # global weights [d]
    b: Tensor  # global float buffers [e], averaged by `Exchange` independent of the method
    int_buffers: Tensor  # integer buffers, such as the batch count of a batch norm
    optimiser: ServerOptimiser
    extra: Payload = field(default_factory=dict)  # state of the method
    optimiser_state: Payload = field(default_factory=dict)  # state of the optimiser
    weights: ReplyWeighting = "size"  # weights of replies in a mean
    auxiliary: Examples | None = None
    t: int = 0
    seed: int = 0  # of the run, for a method that draws random numbers at the server

    @property
    def state(self) -> Tensor:
        """Complete model, weights and buffers, as one vector."""
        return self.f.join(self.w, self.b)

    @property
    def evaluated_state(self) -> Tensor:
        """Complete model that is evaluated and saved: with the weights in `extra["evaluated"]`, if there are any."""
        return self.f.join(self.extra.get("evaluated", self.w), self.b)

    @property
    def require_auxiliary(self) -> Examples:
        """Auxiliary examples; raises a UserError if there are none."""
        if self.auxiliary is None or not len(self.auxiliary):
            raise UserError(
                "method.needs_auxiliary_data",
                "the method needs auxiliary data at the server",
                "data.aux_per_class",
                "set data.aux_per_class",
            )
        return self.auxiliary

    def mean(self, replies: Iterable[Reply], unweighted: Collection[str] = ()) -> Payload:
        """Average the replies with the configured weights; average the names in `unweighted` uniformly."""
        return average_replies(replies, self.weights, unweighted)

    def step(self, target: Tensor) -> Server:
        """Take a step of the server optimiser towards a target, usually the mean of the clients' weights."""
        w, moments = self.optimiser.step(self.w, target, self.optimiser_state)
        return replace(self, w=w, optimiser_state=moments)

    def with_extra(self, **extra: Tensor) -> Server:
        """Return the server with these entries of the method's state replaced."""
        return replace(self, extra={**self.extra, **extra})


class Cohort(Protocol):
    """The clients of one round, as a method sees them."""

    @property
    def size(self) -> int:
        """|S_t|: number of accepted replies; before the first one, number of sampled clients."""
        ...

    @property
    def population(self) -> int:
        """N: number of all clients."""
        ...

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Run a task ("train" or one of `Traits.extra_tasks`) on every client; yield replies in a fixed order."""
        ...


class EngineCohort(Cohort, Protocol):
    """A cohort as the engine hands it to `Exchange`, which validates every reply."""

    def accept(self, reply: Reply) -> None:
        """Store the client state of a valid reply. Without this call the client's state stays as it was."""
        ...


class Engine(Protocol):
    """Runs clients, independent of the method."""

    def cohort(self, t: int, clients: Sequence[int]) -> EngineCohort:
        """Return the cohort of round t."""
        ...

    def evaluate(self, state: Tensor, *, logits: bool = False) -> Score:
        """Evaluate a complete model on the test set; with `logits` the score has them."""
        ...


def require_payload(payload: object, origin: str) -> Payload:
    """Return what a hook of a method returned; raise an error if it is not a dictionary of dense tensors by name.

    Methods are written by users, whom no type checker stops; other processes can receive nothing else. `origin` begins
    the message.
    """
    hint = "return a dictionary of dense tensors with values, by name"
    if not isinstance(payload, dict):
        what = f"{origin} is of type {type(payload).__name__}, not a dictionary of tensors by name"
        raise UserError("method.invalid_payload", what, "method", hint)
    for name, t in payload.items():
        if not isinstance(name, str):
            found = "its name is not a string"
        elif not isinstance(t, Tensor):
            found = f"it is a {type(t).__name__}, not a tensor"
        elif t.layout is not torch.strided or t.is_meta:
            found = f"it is a tensor on {t.device} with layout {t.layout}"
        else:
            continue
        raise UserError("method.invalid_payload", f"{origin} has {name!r}: {found}", "method", hint)
    return payload


def payload_bytes(payload: Payload) -> int:
    """Return the size of all tensors of a payload, in bytes."""
    return sum(t.nbytes for t in payload.values())


class RunningMean:
    """Running mean of payloads, in the memory of one.

    Each addend moves the mean by its share of the weight so far, so that the mean of equal payloads has their bits.
    """

    def __init__(self) -> None:
        self.value: Payload = {}
        self._weight: dict[str, float] = {}

    def add(self, addend: Payload, weight: float) -> None:
        """Add a payload to the mean, name by name. Payloads need not have the same names."""
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
    """Average the replies, weighted by number of examples or uniformly; the names in `unweighted` always uniformly."""
    weighted, plain = RunningMean(), RunningMean()
    for reply in replies:
        weighted.add({k: t for k, t in reply.up.items() if k not in unweighted}, reply.n if weights == "size" else 1)
        plain.add({k: t for k, t in reply.up.items() if k in unweighted}, 1)
    return weighted.value | plain.value
