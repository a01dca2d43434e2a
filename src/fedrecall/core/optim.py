"""Optimisers on vectors: SGD at the client, averaging, momentum, Adagrad, Adam and Yogi at the server."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedrecall.core.types import Payload


@dataclass(frozen=True)
class ClientSGD:
    """Client optimiser, with a new state in each round. Its proximal term adds FedProx to any method."""

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    prox: float = 0.0  # mu: adds mu/2 ||w - w^t||^2 to the loss of any method
    lr_decay: float = 1.0  # round t uses lr * lr_decay**t

    def at_round(self, t: int) -> "ClientSGD":
        """Return the optimiser of round t, from 0, with the decayed learning rate."""
        return replace(self, lr=self.lr * self.lr_decay**t, lr_decay=1.0)

    def step(self, w: Tensor, g: Tensor, v: Tensor) -> None:
        """Take one heavy-ball step in place: change w and the momentum v, overwrite g."""
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)
        if self.momentum:
            torch.add(g, v, alpha=self.momentum, out=v)
            w.sub_(v, alpha=self.lr)
        else:
            w.sub_(g, alpha=self.lr)


def effective_steps(steps: int, lr: float, momentum: float, prox: float = 0.0) -> float:
    """Return the distance in units of lr that `steps` equal gradients move the weights: FedNova's ||a||_1.

    Plain SGD: steps. Momentum rho: (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho). Proximal term mu without momentum:
    (1 - (1 - lr mu)^K) / (lr mu). The recursion covers all of them, also combined.
    """
    speed = distance = 0.0
    for _ in range(steps):
        speed = momentum * speed + 1 - lr * prox * distance
        distance += speed
    return distance


class ServerOptimiser(Protocol):
    """Rule that moves the global weights towards a target, usually the mean of the clients' weights."""

    def step(self, w: Tensor, target: Tensor, moments: Payload) -> tuple[Tensor, Payload]:
        """Return (new weights, new moments). Moments are empty before the first round."""
        ...


@dataclass(frozen=True)
class ServerSGD:
    """Plain averaging, or FedAvgM with momentum. Hsu, Qi, Brown, 2019. https://arxiv.org/abs/1909.06335."""

    lr: float = 1.0  # eta_s
    momentum: float = 0.0  # beta_s
    damped: bool = False  # v <- beta_s v + (1 - beta_s)(w - target), as in MOON's code
    nesterov: bool = False  # step with (w - target) + beta_s v, as in Flower and FL-bench

    def step(self, w: Tensor, target: Tensor, moments: Payload) -> tuple[Tensor, Payload]:
        """Return w - lr v with v <- momentum v + (w - target).

        An interpolation: lr = 1 without momentum gives the bits of the target.
        """
        gain = 1 - self.momentum if self.damped else 1.0
        new = torch.lerp(w, target, self.lr * gain)
        if not self.momentum:
            return new, {}
        old = moments.get("v", torch.zeros_like(w))
        v = self.momentum * old + gain * (w - target)
        return new.sub_(v if self.nesterov else old, alpha=self.lr * self.momentum), {"v": v}


@dataclass(frozen=True)
class AdaptiveServer:
    """FedAdagrad, FedAdam, FedYogi: Adaptive Federated Optimization, Algorithm 2, without bias correction.

    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. ICLR 2021. https://arxiv.org/abs/2003.00295.
    """

    rule: Literal["adagrad", "adam", "yogi"] = "adam"
    lr: float = 0.01  # eta
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3  # adaptivity; v starts at tau^2

    def step(self, w: Tensor, target: Tensor, moments: Payload) -> tuple[Tensor, Payload]:
        """Take one server step on the pseudo-gradient target - w."""
        delta = target - w
        m = torch.lerp(delta, moments.get("m", torch.zeros_like(w)), self.beta1)
        v = moments.get("v", torch.full_like(w, self.tau**2))
        square = delta.square()
        if self.rule == "adagrad":
            v = v + square
        elif self.rule == "adam":
            v = torch.lerp(square, v, self.beta2)
        else:
            v = v - (1 - self.beta2) * square * (v - square).sign()
        return w + self.lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}
