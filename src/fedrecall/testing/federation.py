"""Tiny federations: synthetic images in two tensors, a small network, any method, any engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientSGD, ServerOptimiser, ServerSGD
from fedrecall.core.private_part import PrivateChoice, private_names
from fedrecall.core.rounds import RoundResult, RoundSchedule, run_rounds
from fedrecall.core.seeds import single_threaded
from fedrecall.core.training import LocalTraining
from fedrecall.core.types import Engine, Score, Server
from fedrecall.data.examples import Examples
from fedrecall.data.partition import Partition
from fedrecall.data.transforms import Transform
from fedrecall.simulation import ENGINES
from fedrecall.simulation.availability import PartialCohort
from fedrecall.simulation.clients import SimulatedClients

CLASSES = 3

SKEWED_LABELS = ((0, 0, 0, 1), (1, 1, 1, 1, 1, 1, 2), (2, 2), (0, 1, 2, 0, 1, 2, 0, 1, 2), (1,))

"""Labels of five clients: two classes, a rare class, one class only, balanced, one sample."""

AVERAGE = ServerSGD()


class TinyNet(nn.Module):
    """Network with six inputs, eight features and three classes."""

    def __init__(self, batch_norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8) if batch_norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.c = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits."""
        h = self.drop(torch.relu(self.norm(self.a(x.flatten(1)))))
        return h, self.c(h)


def examples(labels: Sequence[int], *, augment: bool = False, seed: int = 0) -> Examples:
    """Make one uint8 image of 2 x 3 pixels per label; classes are separable."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)
    x = torch.randint(0, 60, (len(y), 1, 2, 3), generator=rng) + 60 * y[:, None, None, None]
    return Examples(x.to(torch.uint8), y, Transform(mean=(0.4,), std=(0.2,), flip=augment))


def simulated_clients(
    method: Method, clients: Sequence[Sequence[int]] = SKEWED_LABELS, *, augment: bool = False, **changes: Any
) -> SimulatedClients:
    """Make clients with these labels."""
    sizes = [len(c) for c in clients]
    labels = [label for c in clients for label in c]
    offsets = np.cumsum([0, *sizes])
    settings: dict[str, Any] = {
        "training": LocalTraining(epochs=2, batch=3, optimiser=ClientSGD(lr=0.05, momentum=0.9)),
        "test": examples([0, 1, 2] * 5, seed=1),
        "seed": 0,
    } | changes
    return SimulatedClients(
        method=method,
        train=examples(labels, augment=augment),
        partition=Partition(np.arange(len(labels)), offsets, len(labels), {"name": "test"}, 0),
        classes=CLASSES,
        **settings,
    )


def model(
    *, batch_norm: bool = False, dtype: torch.dtype = torch.float32, private: PrivateChoice | None = None
) -> FlatModel:
    """Return the network, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net = TinyNet(batch_norm=batch_norm).to(dtype)
        return FlatModel(net, private_names(net, private))


@dataclass(frozen=True)
class LossyEngine:
    """Engine that loses the replies of some clients and does not sample others."""

    engine: Engine
    lost: Sequence[int]
    not_sampled: Sequence[int]

    def cohort(self, t: int, clients: Sequence[int]) -> PartialCohort:
        """Return the clients that reply."""
        sampled = [c for c in clients if c not in self.not_sampled]
        return PartialCohort(self.engine.cohort(t, [c for c in sampled if c not in self.lost]), len(sampled))

    def evaluate(self, state: Tensor, *, logits: bool = False) -> Score:
        """Evaluate a complete model on the test set; with `logits` the score has them."""
        return self.engine.evaluate(state, logits=logits)


def run_federation(
    method: Method,
    *,
    engine: str = "serial",
    batch_norm: bool = False,
    number: int = 3,
    sample: int | None = None,
    optimiser: ServerOptimiser = AVERAGE,
    lost: Sequence[int] = (),
    not_sampled: Sequence[int] = (),
    private: PrivateChoice | None = None,
    **changes: Any,
) -> tuple[list[RoundResult], Any]:
    """Run a few rounds; return their results and the engine. Replies of `lost` clients are dropped."""
    f = model(batch_norm=batch_norm, private=private or method.traits.private)
    w = simulated_clients(method, **changes)
    runner = ENGINES[engine](w, f)
    aux = examples([0, 1, 2] * 4, seed=2)
    start = Server(f, f.w, f.b, f.int_buffers, optimiser, extra=method.init(f.w), auxiliary=aux)
    plan = RoundSchedule(number, len(w.partition), sample or len(w.partition), seed=0)
    with single_threaded(), runner:
        return list(run_rounds(method, start, LossyEngine(runner, lost, not_sampled), plan)), runner
