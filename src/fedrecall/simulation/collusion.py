"""Colluding attackers: malicious clients that see the honest replies of a round, and send what harms most unnoticed.

They are a wrapper of the cohort: after the honest replies, before validation. All malicious clients of a round send the
same weights; other tensors of their replies are their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedrecall.constraints import NonNegativeFloat, OpenUnitInterval, PositiveFloat, check_constraints
from fedrecall.core.types import Engine, EngineCohort, Payload, Reply, Score


@runtime_checkable
class Collusion(Protocol):
    """Update that all malicious clients of a round send, computed from the honest ones."""

    @property
    def share(self) -> float:
        """Fraction of all clients that are malicious."""
        ...

    def forge(self, honest: Tensor, num_malicious: int) -> Tensor:
        """Return the malicious update [d], from the honest updates [h, d] of the round."""
        ...


@dataclass(frozen=True)
class LittleIsEnough:
    """ALIE: the honest mean, shifted in every coordinate by a few standard deviations, within the spread of the others.

    A Little Is Enough: Circumventing Defenses For Distributed Learning. Baruch, Baruch, Goldberg. NeurIPS 2019.
    https://arxiv.org/abs/1902.06156, Algorithm 3.
    """

    share: OpenUnitInterval = 0.2
    """Fraction of all clients that are malicious."""
    z: NonNegativeFloat | None = None
    """Number of standard deviations. None: the largest one at which a majority lies beyond the malicious update."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.attack")

    def forge(self, honest: Tensor, num_malicious: int) -> Tensor:
        """Return mean + z standard deviations."""
        z = self.largest_z(len(honest), num_malicious) if self.z is None else self.z
        return honest.mean(0) + z * _deviation(honest)

    @staticmethod
    def largest_z(num_honest: int, num_malicious: int) -> float:
        """Return the paper's z: its normal quantile leaves floor(n / 2 + 1) - m honest updates beyond."""
        beyond = (num_honest + num_malicious) // 2 + 1 - num_malicious
        quantile = (num_honest - beyond) / num_honest
        return max(0.0, NormalDist().inv_cdf(quantile)) if 0 < quantile < 1 else 0.0


@dataclass(frozen=True)
class InnerProductManipulation:
    """IPM: minus a multiple of the honest mean, so that the aggregate has a negative inner product with it.

    Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation. Xie, Koyejo, Gupta. UAI 2019.
    https://arxiv.org/abs/1903.03936
    """

    share: OpenUnitInterval = 0.2
    """Fraction of all clients that are malicious."""
    epsilon: PositiveFloat = 0.5
    """Length of the malicious update, relative to the honest mean. Small ones pass rules that compare distances."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.attack")

    def forge(self, honest: Tensor, num_malicious: int) -> Tensor:
        """Return -epsilon times the mean."""
        return -self.epsilon * honest.mean(0)


@dataclass(frozen=True)
class MinMax:
    """Honest mean, shifted until an honest update is as far from it as the two most distant honest updates are apart.

    Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated Learning.
    Shejwalkar, Houmansadr. NDSS 2021. https://doi.org/10.14722/ndss.2021.24498, Section IV.
    """

    share: OpenUnitInterval = 0.2
    """Fraction of all clients that are malicious."""
    direction: Literal["deviation", "sign", "unit"] = "deviation"
    """Direction of the shift: minus the standard deviation, minus the sign of the mean, or minus the mean."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.attack")

    def forge(self, honest: Tensor, num_malicious: int) -> Tensor:
        """Return mean + gamma p with the largest gamma, which solves a quadratic equation for each honest update."""
        mean = honest.mean(0).double()
        if self.direction == "deviation":
            p = -_deviation(honest).double()
        else:
            p = -(mean.sign() if self.direction == "sign" else mean)
        away = mean - honest.double()
        pp, pa, aa = p @ p, away @ p, away.square().sum(1)
        if pp == 0:
            return honest.mean(0)
        largest = torch.cdist(honest.double(), honest.double()).max().square()
        gamma = ((pa.square() + pp * (largest - aa)).clamp_min(0).sqrt() - pa) / pp
        return (mean + gamma.min().clamp_min(0) * p).to(honest.dtype)


@dataclass(frozen=True)
class Mimic:
    """Copy of the honest update with the most of the cohort's variance, which the aggregate then overweights.

    Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. Karimireddy, He, Jaggi. ICLR 2022.
    https://arxiv.org/abs/2006.09365, Section 4.2. There the direction is learned over rounds; here it is the first
    principal component of the round, so that a resumed run has the same attackers.
    """

    share: OpenUnitInterval = 0.2
    """Fraction of all clients that are malicious."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.attack")

    def forge(self, honest: Tensor, num_malicious: int) -> Tensor:
        """Return the honest update with the largest projection on the first principal component."""
        centred = (honest - honest.mean(0)).double()
        component = torch.linalg.eigh(centred @ centred.T).eigenvectors[:, -1]
        return honest[int(component.abs().argmax())]


@dataclass(frozen=True)
class ColludingClients:
    """Engine whose malicious clients replace their weights after the honest replies of a round."""

    engine: Engine
    attack: Collusion
    malicious: frozenset[int]

    def cohort(self, t: int, clients: Sequence[int]) -> EngineCohort:
        """Return the cohort with its malicious clients."""
        return ColludingCohort(self.engine.cohort(t, clients), self)

    def evaluate(self, state: Tensor, *, logits: bool = False) -> Score:
        """Evaluate a complete model on the test set."""
        return self.engine.evaluate(state, logits=logits)


@dataclass(frozen=True)
class ColludingCohort:
    """The clients of a round, some of them malicious."""

    cohort: EngineCohort
    colluding: ColludingClients

    @property
    def size(self) -> int:
        """Number of sampled clients."""
        return self.cohort.size

    @property
    def population(self) -> int:
        """Number of all clients."""
        return self.cohort.population

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        """Run a task on every client; the malicious ones send forged weights, if the task has weights."""
        replies, malicious = list(self.cohort.run(task, down)), self.colluding.malicious
        honest = [r.up["w"] - down["w"] for r in replies if r.client not in malicious and "w" in r.up and "w" in down]
        if honest and (number := len(replies) - len(honest)):
            w = down["w"] + self.colluding.attack.forge(torch.stack(honest), number)
            replies = [r._replace(up={**r.up, "w": w}) if r.client in malicious else r for r in replies]
        yield from replies

    def accept(self, reply: Reply) -> None:
        """Store the client state that belongs to a reply."""
        self.cohort.accept(reply)


def _deviation(honest: Tensor) -> Tensor:
    """Return the standard deviation of every coordinate; 0 for a single update."""
    return honest.std(0) if len(honest) > 1 else torch.zeros_like(honest[0])
