"""Attacks of malicious clients, for experiments. The seed selects the malicious clients."""

from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from fedrecall.constraints import Factor, NonNegativeInt, OpenUnitInterval, PositiveInt, check_constraints
from fedrecall.core import seeds
from fedrecall.core.types import Payload
from fedrecall.data.examples import Examples
from fedrecall.data.token_labels import NO_LABEL
from fedrecall.errors import UserError
from fedrecall.simulation.collusion import InnerProductManipulation, LittleIsEnough, Mimic, MinMax


@runtime_checkable
class Attack(Protocol):
    """Attack of a share of the clients: `ClientAttack` or `Collusion`."""

    @property
    def share(self) -> float:
        """Fraction of all clients that are malicious."""
        ...


@runtime_checkable
class ClientAttack(Attack, Protocol):
    """Change that a malicious client makes to its examples before training, and to its reply after training."""

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
    scale: Factor = 10.0
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
    scale: Factor = 1.0
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
        flipped = torch.where(data.labels == NO_LABEL, NO_LABEL, classes - 1 - data.labels)
        return Examples(data.x, flipped, data.transform, data.rows)

    def poison_update(self, up: Payload, down: Payload) -> Payload:
        """Send the tensors unchanged."""
        return up


@dataclass(frozen=True)
class Backdoor:
    """Training on examples with a trigger and a label of the attacker's choice, and a scaled update.

    How To Backdoor Federated Learning. Bagdasaryan, Veit, Hua, Estrin, Shmatikov. AISTATS 2020.
    https://arxiv.org/abs/1807.00459
    """

    share: OpenUnitInterval = 0.2
    """Fraction of all clients that are malicious."""
    scale: Factor = 5.0
    """Factor applied to the update of the weights."""
    target: NonNegativeInt = 0
    """Class that the model shall predict for an input with the trigger."""
    size: PositiveInt = 2
    """Side of the square of bright pixels in the last corner; for other inputs, number of the last features."""

    def __post_init__(self) -> None:
        check_constraints(self, "federation.attack")

    def poison_data(self, data: Examples, classes: int) -> Examples:
        """Return the examples, every second one with the trigger and the target as its label."""
        if self.target >= classes:
            text = f"federation.attack.target = {self.target}: the data have {classes} classes"
            raise UserError("config.conflict", text, "federation.attack.target", f"set at most {classes - 1}")
        x = _own_inputs(data)
        odd = (torch.arange(len(x)) % 2).bool()
        x = torch.where(odd.view(-1, *[1] * (x.ndim - 1)), self._triggered(x, data), x)
        return Examples(x, torch.where(odd, self.target, data.y), data.transform)

    def poison_update(self, up: Payload, down: Payload) -> Payload:
        """Send w^t + scale (w - w^t)."""
        return _scale_update(up, down, self.scale)

    def with_trigger(self, data: Examples) -> Examples:
        """Return the examples with the trigger, and their true labels: the share predicted as the target is success."""
        return Examples(self._triggered(_own_inputs(data), data), data.y, data.transform)

    def _triggered(self, x: Tensor, data: Examples) -> Tensor:
        x, last = x.clone(), slice(-self.size, None)
        x[(..., last, last) if x.ndim == 4 else (..., last)] = cast(Tensor, data.x).max()
        return x


ATTACKS: dict[str, type[Attack]] = {
    "alie": LittleIsEnough,
    "backdoor": Backdoor,
    "ipm": InnerProductManipulation,
    "label-flip": LabelFlip,
    "mimic": Mimic,
    "min-max": MinMax,
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


def _own_inputs(data: Examples) -> Tensor:
    """Return the untransformed inputs of a view."""
    if not isinstance(data.x, Tensor) or data.x.ndim == 1 or data.labels.ndim > 1:
        text = 'federation.attack = "backdoor": needs one tensor of pixels or features, and one label for each example'
        raise UserError("config.conflict", text, "federation.attack", "choose another attack")
    return data.x if data.rows is None else data.x[data.rows]


def _scale_update(up: Payload, down: Payload, factor: float) -> Payload:
    """Scale the update of the weights; other tensors of the reply are unchanged."""
    if "w" not in up or "w" not in down:
        return up
    return {**up, "w": down["w"] + factor * (up["w"] - down["w"])}
