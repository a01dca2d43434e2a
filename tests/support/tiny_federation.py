"""Tiny federation: a few vectors, a tiny network, an engine over a list of clients."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientSGD, ServerOptimiser, ServerSGD
from fedrecall.core.training import LocalTraining, train
from fedrecall.core.types import EngineCohort, Local, Payload, Reply, Score, Server
from fedrecall.testing.federation import TinyNet


@dataclass
class Vectors:
    x: Tensor
    y: Tensor
    noise: float = 0.0  # augmentation: each batch drawn with a generator is another one

    @property
    def is_augmented(self) -> bool:
        return self.noise > 0

    def __len__(self) -> int:
        return len(self.y)

    def precomputed(self) -> "Vectors":
        return self

    def batch(self, rows: Tensor | slice, rng: torch.Generator | None = None) -> Tensor:
        x = self.x[rows]
        if rng is None or not self.noise:
            return x
        return x + self.noise * torch.randn(x.shape, generator=rng, dtype=x.dtype)

    def positions(self, rows: Tensor | slice) -> Tensor | slice:
        return rows


def vectors(n: int = 41, seed: int = 0, dtype: torch.dtype = torch.float32, noise: float = 0.0) -> Vectors:
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=rng)
    return Vectors(torch.randn(n, 6, generator=rng).to(dtype) + y[:, None], y, noise)


def flat(dtype: torch.dtype = torch.float32, seed: int = 0, **kwargs: object) -> FlatModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return FlatModel(TinyNet(**kwargs).to(dtype))


def local(
    f: FlatModel, data: Vectors, *, training: LocalTraining = LocalTraining(), t: int = 0, **changes: object
) -> Local:
    r = Local(
        f=f,
        w=f.w.clone(),
        b=f.b.clone(),
        down={},
        memory={},
        data=data,
        y=data.y,
        counts=torch.bincount(data.y, minlength=3),
        training=training.at_round(t),
        t=t,
        seed=0,
        scratch={},
    )
    return r._replace(**changes)


def accepted(cohort: EngineCohort, task: str, down: Payload) -> Iterator[Reply]:
    """Run a task and accept every reply, as `Exchange` does with valid ones."""
    for reply in cohort.run(task, down):
        cohort.accept(reply)
        yield reply


def server(f: FlatModel, method: Method, optimiser: ServerOptimiser = ServerSGD()) -> Server:
    return Server(f, f.w, f.b, f.int_buffers, optimiser, extra=method.init(f.w))


@dataclass
class ListEngine:
    """Engine over a list of clients; replies of `lost` never arrive."""

    method: Method
    f: FlatModel
    clients: list[Vectors]
    training: LocalTraining = LocalTraining(epochs=2, batch=7, optimiser=ClientSGD(0.1))
    lost: tuple[int, ...] = ()
    client_states: dict[int, Payload] = field(default_factory=dict)
    tasks: list[tuple[str, list[str]]] = field(default_factory=list)

    def cohort(self, t: int, clients: Sequence[int]) -> "ListCohort":
        return ListCohort(self, t, list(clients))

    def evaluate(self, state: Tensor, *, logits: bool = False) -> Score:
        return self.f.score(state, self.clients[0])


@dataclass
class ListCohort:
    engine: ListEngine
    t: int
    clients: list[int]

    @property
    def size(self) -> int:
        return len(self.clients)

    @property
    def population(self) -> int:
        return len(self.engine.clients)

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        engine = self.engine
        engine.tasks.append((task, sorted(down)))
        for k in self.clients:
            if k in engine.lost:
                continue
            memory = engine.client_states.get(k, engine.method.memory(down["w"]))
            r = local(
                engine.f,
                engine.clients[k],
                training=engine.training,
                t=self.t,
                w=down["w"],
                b=down.get("b", engine.f.b),
                down=down,
                memory=memory,
            )
            yield train(engine.method, r, 0, k)._replace(client=k)

    def accept(self, reply: Reply) -> None:
        self.engine.client_states[reply.client] = reply.memory
