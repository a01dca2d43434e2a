"""Test bench of methods: participants and lost replies of every round chosen by hand, in any precision."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedrecall.core.exchange import Exchange
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientSGD, ServerOptimiser, ServerSGD
from fedrecall.core.training import LocalTraining, train
from fedrecall.core.types import Local, Output, Payload, Reply, ReplyWeighting, Server, Step
from support.tiny_federation import TinyNet, Vectors, local

TRAINING = LocalTraining(epochs=2, batch=4, optimiser=ClientSGD(lr=0.1, momentum=0.9))
COHORTS = ((0, 1), (1, 2, 3), (0, 3), (1, 2))  # partial participation, with and without a break
SIZES = ((5, 2, 0), (0, 3, 2), (1, 1, 1), (0, 6, 0))  # examples per class: some absent, balanced, one class only


def make_clients(
    sizes: Sequence[Sequence[int]] = SIZES, dtype: torch.dtype = torch.float64, noise: float = 0.0
) -> list[Vectors]:
    """Return clients with these numbers of examples of each class."""
    rng = torch.Generator().manual_seed(11)
    out = []
    for counts in sizes:
        y = torch.tensor([c for c, n in enumerate(counts) for _ in range(n)], dtype=torch.int64)
        out.append(Vectors((torch.randn(len(y), 6, generator=rng) + 3 * torch.eye(3, 6)[y]).to(dtype), y, noise))
    return out


def network(dtype: torch.dtype = torch.float64, *, batch_norm: bool = False, seed: int = 3) -> TinyNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TinyNet(batch_norm=batch_norm).to(dtype)


@dataclass(frozen=True)
class RoundOutcome:
    """Outcome of a round."""

    before: Server
    server: Server
    floats_up: float  # per participating client
    floats_down: float
    replies: list[Reply]
    client_states: dict[int, Payload]


@dataclass
class Cohort:
    method: Method
    f: FlatModel
    clients: list[Vectors]
    members: Sequence[int]
    lost: Collection[int]
    training: LocalTraining
    t: int
    client_states: dict[int, Payload]
    replies: list[Reply] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def population(self) -> int:
        return len(self.clients)

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        for k in self.members:
            if k in self.lost:
                continue
            memory = self.client_states.get(k, self.method.memory(down.get("w", self.f.w)))
            personal_w, personal_b = self.f.split(memory.get("own", self.f.w))
            r = local(
                self.f,
                self.clients[k],
                training=self.training,
                t=self.t,
                w=down.get("w", personal_w),
                b=down.get("b", personal_b if len(personal_b) else self.f.b),
                down=down,
                memory=memory,
            )
            if task == "train":
                reply = train(self.method, r, 0, k)
            else:
                reply = Reply(getattr(self.method, task)(r), len(r.y), r.memory, {})
            self.replies.append(reply)
            yield reply._replace(client=k)

    def accept(self, reply: Reply) -> None:
        self.client_states[reply.client] = reply.memory


def run_cohorts(
    method: Method,
    *,
    net: TinyNet | None = None,
    clients: list[Vectors] | None = None,
    cohorts: Sequence[Sequence[int]] = COHORTS,
    lost: Mapping[int, Collection[int]] = {},
    training: LocalTraining = TRAINING,
    aux: Vectors | None = None,
    optimiser: ServerOptimiser = ServerSGD(),
    weights: ReplyWeighting = "size",
    start: Server | None = None,
) -> list[RoundOutcome]:
    """Run these cohorts from the round of `start`; `lost` has the clients whose replies are lost, by round."""
    f = FlatModel(net or network()) if start is None else start.f
    clients = clients or make_clients(dtype=f.w.dtype)
    fresh = Server(f, f.w, f.b, f.int_buffers, optimiser, extra=method.init(f.w), weights=weights, auxiliary=aux)
    server = start or fresh
    client_states: dict[int, Payload] = {}
    width, done = f.w.element_size(), []
    for t, members in enumerate(cohorts[server.t :], server.t):
        before, cohort = server, Cohort(method, f, clients, members, lost.get(t, ()), training, t, client_states)
        exchange = Exchange(server, cohort)
        server = replace(exchange.with_averaged_buffers(method.round(server, exchange)), t=t + 1)
        now = {k: dict(m) for k, m in client_states.items()}
        up, down = exchange.bytes_up / width, exchange.bytes_down / width
        done.append(RoundOutcome(before, server, up, down, cohort.replies, now))
    return done


def make_step(
    z: Tensor,
    y: Tensor,
    frozen: Mapping[str, Tensor | Output] = {},
    *,
    h: Tensor | None = None,
    w: Tensor | None = None,
    last: bool = False,
) -> Step:
    """Return a step made by hand; a frozen model has logits only, or features and logits."""
    h = z.new_zeros(len(y), 1) if h is None else h
    outputs = {name: out if isinstance(out, Output) else Output(h.detach(), out) for name, out in frozen.items()}
    return Step(z.new_zeros(1) if w is None else w, h, z, y, outputs, last)


def client(y: Tensor, classes: int, **changes: object) -> Local:
    """Return a client's round made by hand; without `counts` its data are the batch."""
    fields = {
        "counts": torch.bincount(y, minlength=classes),
        "y": y,
        "w": torch.zeros(1, dtype=torch.float64),
    } | changes
    if "counts" in changes:
        fields["y"] = torch.repeat_interleave(torch.arange(classes), fields["counts"])
    defaults = {"b": torch.zeros(0), "down": {}, "memory": {}, "training": TRAINING, "t": 1}
    return Local(**({"f": None, "data": None, "seed": 0, "scratch": {}} | defaults | fields))
