"""Measured federation: images of noise in the shape of CIFAR, equal clients, any model, method and engine."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrecall.core.exchange import Exchange
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientSGD, ServerSGD
from fedrecall.core.precision import Precision
from fedrecall.core.training import LocalTraining
from fedrecall.core.types import Server
from fedrecall.data.examples import Examples
from fedrecall.data.partition import Partition
from fedrecall.data.transforms import Transform
from fedrecall.models import MODELS
from fedrecall.simulation import ENGINES
from fedrecall.simulation.clients import SimulatedClients

CLASSES = 10
PLAIN = Transform(mean=(0.5,) * 3, std=(0.25,) * 3)
AUGMENTED = Transform(mean=(0.5,) * 3, std=(0.25,) * 3, pad=4, flip=True)


def pictures(n: int, shape: tuple[int, ...] = (3, 32, 32), seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return uint8 noise and labels. The time of a round does not depend on their values."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (n, *shape), generator=rng, dtype=torch.uint8)
    return x, torch.randint(0, CLASSES, (n,), generator=rng)


@dataclass(frozen=True)
class Work:
    """Size of one round."""

    clients: int = 10
    images: int = 500  # per client
    epochs: int = 5
    batch: int = 50
    model: str = "cnn"
    sample: int | None = None  # clients per round; None: all
    shape: tuple[int, ...] = (3, 32, 32)

    @property
    def cohort(self) -> list[int]:
        """Number of clients per round."""
        return list(range(self.sample or self.clients))


class Running:
    """A federation on an engine, one round at a time."""

    def __init__(
        self,
        work: Work,
        method: Method,
        *,
        engine: str = "pool",
        transform: Transform = PLAIN,
        precision: Precision = "fp32",
    ) -> None:
        torch.set_num_threads(1)  # as in a run: the workers use the cores
        n = work.clients * work.images
        x, y = pictures(n, work.shape)
        torch.manual_seed(0)
        f = FlatModel(MODELS[work.model]().build(work.shape, CLASSES))
        offsets = np.arange(work.clients + 1) * work.images
        world = SimulatedClients(
            method=method,
            training=LocalTraining(work.epochs, work.batch, ClientSGD(lr=0.01, momentum=0.9), precision=precision),
            train=Examples(x, y, transform),
            test=Examples(*pictures(1000, work.shape, seed=1), transform),
            partition=Partition(np.arange(n), offsets, n, {"name": "equal"}, 0),
            classes=CLASSES,
            seed=0,
        )
        self.work, self.method = work, method
        self.engine = ENGINES[engine](world.precomputed(), f)
        aux = Examples(*pictures(320, work.shape, seed=2), transform)
        self.server = Server(f, f.w, f.b, f.int_buffers, ServerSGD(), extra=method.init(f.w), auxiliary=aux)

    def round(self) -> None:
        """Run one round without evaluation."""
        cohort = self.engine.cohort(self.server.t, self.work.cohort)
        exchange = Exchange(self.server, cohort)
        done = exchange.with_averaged_buffers(self.method.round(self.server, exchange))
        self.server = Server(**{**vars(done), "t": done.t + 1})

    def close(self) -> None:
        """Stop the engine's processes."""
        self.engine.close()
