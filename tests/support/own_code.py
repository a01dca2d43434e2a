"""Code of a user's own, as a configuration names it: `support.own_code:Calm`."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

import fedrecall as fr
from fedrecall.data.partitioners import Assignment


@dataclass(frozen=True)
class Calm(fr.Method):
    """FedAvg with a penalty on large logits."""

    weight: Annotated[float, Ge(0)] = 0.1

    def loss(self, s: fr.Step, r: fr.Local) -> Tensor:
        return F.cross_entropy(s.z, s.y) + self.weight * s.z.square().mean()


class Net(nn.Module):
    def __init__(self, inputs: int, hidden: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(inputs, hidden), nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def blobs(per_class: int = 30, classes: int = 3) -> fr.Dataset:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(classes), per_class)
    return fr.from_arrays((rng.normal(size=(len(y), 4)) + 2 * y[:, None]).astype(np.float32), y, name="blobs")


@dataclass(frozen=True)
class Alternate:
    """Example i belongs to client i modulo the number of clients."""

    start: int = 0

    def assign(self, labels, groups, clients, rng) -> Assignment:
        return Assignment((np.arange(len(labels)) + self.start) % clients)


def share_of_first(y, p) -> float:
    """Metric: the share of examples that are predicted as the first class."""
    return float((p.argmax(1) == 0).mean())


def brier(y, p) -> float:
    """Metric: mean squared distance of the probabilities; smaller is better."""
    return float(((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean())


brier.greater_is_better = False
