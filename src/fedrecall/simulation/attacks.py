"""Attacks of malicious clients, for experiments. The seed selects the malicious clients."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fedrecall.constraints import OpenUnitInterval, check_constraints
from fedrecall.core import seeds
from fedrecall.core.types import Payload
from fedrecall.data.examples import Examples


@runtime_checkable
class Attack(Protocol):
    """Change that a malicious client makes to its examples before training, and to its reply after training."""

    @property
    def share(self) -> float:
        """Fraction of all clients that are malicious."""
        ...

    def poison_data(self, data: Examples, classes: int) -> Examples:
        """Return the examples that the client trains on."""
        ...

    def poison_update(self, up: Payload, down: Payload) -> Payload:
        """Return the tensors that the client sends."""
        ...


@dataclass(frozen=True)
class Scaling:
    """Scaled update: model replacement.

    How To Backdoor Federated Learning. Bagdasaryan, Veit, Hua, Estrin, Shmatikov. AISTATS 2020.
    https://arxiv.org/abs/1807.00459
    """

    share: OpenUnitInterval = 0.2
    """Fraction of all clients that are malicious."""
    scale: float = 10.0
    """Factor applied to the update of the weights."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.attack")

    def poison_data(self, data: Examples, classes: int) -> Examples:
        """Return the examples unchanged."""
        return data

    def poison_update(self, up: Payload, down: Payload) -> Payload:
        """Send w^t + scale (w - w^t)."""
        return _scale_update(up, down, self.scale)


@dataclass(frozen=True)
class SignFlip:
    """Update with the opposite sign.

    RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from Heterogeneous Datasets.
    Li, Xu, Chen, Giannakis, Ling. AAAI 2019. https://arxiv.org/abs/1811.03761
    """

    share: OpenUnitInterval = 0.2
    """Fraction of all clients that are malicious."""
    scale: float = 1.0
    """Length of the reversed update, relative to the honest one."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.attack")

    def poison_data(self, data: Examples, classes: int) -> Examples:
        """Return the examples unchanged."""
        return data

    def poison_update(self, up: Payload, down: Payload) -> Payload:
        """Send w^t - scale (w - w^t)."""
        return _scale_update(up, down, -self.scale)


@dataclass(frozen=True)
class LabelFlip:
    """Training on wrong labels: class k becomes K - 1 - k.

    Local Model Poisoning Attacks to Byzantine-Robust Federated Learning. Fang, Cao, Jia, Gong. USENIX Security 2020.
    https://arxiv.org/abs/1911.11815
    """

    share: OpenUnitInterval = 0.2
    """Fraction of all clients that are malicious."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.attack")

    def poison_data(self, data: Examples, classes: int) -> Examples:
        """Return the same inputs with flipped labels."""
        return Examples(data.x, classes - 1 - data.labels, data.transform, data.rows)

    def poison_update(self, up: Payload, down: Payload) -> Payload:
        """Send the tensors unchanged."""
        return up


ATTACKS: dict[str, type[Scaling | SignFlip | LabelFlip]] = {
    "label-flip": LabelFlip,
    "scaling": Scaling,
    "sign-flip": SignFlip,
}


def malicious_clients(attack: Attack, population: int, seed: int) -> frozenset[int]:
    """Return the malicious clients, the same for the complete run."""
    number = num_malicious(attack, population)
    return frozenset(seeds.numpy_generator(seed, "attack").choice(population, number, replace=False).tolist())


def num_malicious(attack: Attack, population: int) -> int:
    """Return the number of malicious clients."""
    return round(attack.share * population)


def _scale_update(up: Payload, down: Payload, factor: float) -> Payload:
    """Scale the update of the weights; other tensors of the reply are unchanged."""
    if "w" not in up or "w" not in down:
        return up
    return {**up, "w": down["w"] + factor * (up["w"] - down["w"])}
