"""Clients that lie, for the researcher who wants to see what it does: which ones is a matter of the seed."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fedrecall.constraints import OpenUnitInterval, check_constraints
from fedrecall.core import seeds
from fedrecall.core.types import Payload
from fedrecall.data.examples import Examples


@runtime_checkable
class Attack(Protocol):
    """What a hostile client does to its examples before it trains, and to its reply after."""

    @property
    def share(self) -> float:
        """Of all clients, how many are hostile."""
        ...

    def poison_data(self, data: Examples, classes: int) -> Examples:
        """The examples that it trains on."""
        ...

    def poison_update(self, up: Payload, down: Payload) -> Payload:
        """The reply that it sends."""
        ...


@dataclass(frozen=True)
class Scaling:
    """Sends its update many times as long: model replacement.

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
        """Train on what there is."""
        return data

    def poison_update(self, up: Payload, down: Payload) -> Payload:
        """w^t + scale (w - w^t)."""
        return _scale_update(up, down, self.scale)


@dataclass(frozen=True)
class SignFlip:
    """Sends its update backwards.

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
        """Train on what there is."""
        return data

    def poison_update(self, up: Payload, down: Payload) -> Payload:
        """w^t - scale (w - w^t)."""
        return _scale_update(up, down, -self.scale)


@dataclass(frozen=True)
class LabelFlip:
    """Trains honestly on wrong labels: class k is called K - 1 - k.

    Local Model Poisoning Attacks to Byzantine-Robust Federated Learning. Fang, Cao, Jia, Gong. USENIX Security 2020.
    https://arxiv.org/abs/1911.11815
    """

    share: OpenUnitInterval = 0.2
    """Fraction of all clients that are malicious."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.attack")

    def poison_data(self, data: Examples, classes: int) -> Examples:
        """The same inputs with other labels."""
        return Examples(data.x, classes - 1 - data.labels, data.transform, data.rows)

    def poison_update(self, up: Payload, down: Payload) -> Payload:
        """Send what was learned."""
        return up


ATTACKS: dict[str, type[Scaling | SignFlip | LabelFlip]] = {
    "label-flip": LabelFlip,
    "scaling": Scaling,
    "sign-flip": SignFlip,
}


def malicious_clients(attack: Attack, population: int, seed: int) -> frozenset[int]:
    """The clients that are hostile, the same for the whole run."""
    number = num_malicious(attack, population)
    return frozenset(seeds.numpy_generator(seed, "attack").choice(population, number, replace=False).tolist())


def num_malicious(attack: Attack, population: int) -> int:
    """How many they are."""
    return round(attack.share * population)


def _scale_update(up: Payload, down: Payload, factor: float) -> Payload:
    """The reply with its update of the weights scaled; what else it carries stays."""
    if "w" not in up or "w" not in down:
        return up
    return {**up, "w": down["w"] + factor * (up["w"] - down["w"])}
