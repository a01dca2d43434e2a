"""Optimisers on vectors: SGD and Adam at the client; averaging, momentum, Adagrad, Adam and Yogi at the server."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Literal, Protocol

import torch
from torch import Tensor

from fedrecall.core.types import Payload


@dataclass(frozen=True)
class ClientSGD:
    """SGD with heavy-ball momentum, as `torch.optim.SGD`."""

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0  # L2 penalty, added to the gradient

    def begin(self, w: Tensor) -> Callable[[Tensor], None]:
        """Return the step function of one client's round, with a new state.

        A step changes w in place by a gradient, which it may overwrite.
        """
        v = torch.zeros_like(w)

        def step(g: Tensor) -> None:
            if self.weight_decay:
                g.add_(w, alpha=self.weight_decay)
            if self.momentum:
                torch.add(g, v, alpha=self.momentum, out=v)
                w.sub_(v, alpha=self.lr)
            else:
                w.sub_(g, alpha=self.lr)

        return step

    def effective_steps(self, steps: int, prox: float = 0.0) -> float:
        """Return the distance in units of lr that `steps` equal gradients move the weights: FedNova's ||a||_1.

        Plain SGD: steps. Momentum rho: (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho). Proximal term mu without
        momentum: (1 - (1 - lr mu)^K) / (lr mu). The recursion covers all of them, also combined.
        """
        speed = distance = 0.0
        for _ in range(steps):
            speed = self.momentum * speed + 1 - self.lr * prox * distance
            distance += speed
        return distance


@dataclass(frozen=True)
class ClientAdam:
    """Adam with bias correction, as `torch.optim.Adam` and `torch.optim.AdamW`.

    Kingma, Ba, ICLR 2015, https://arxiv.org/abs/1412.6980; Loshchilov, Hutter, ICLR 2019,
    https://arxiv.org/abs/1711.05101. The first step of an object of `torch.optim` imports torch's compiler, which takes
    seconds in every worker.
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False  # AdamW: the weights decay directly; else the decay is added to the gradient

    def begin(self, w: Tensor) -> Callable[[Tensor], None]:
        """Return the step function of one client's round, with a new state, as that of `ClientSGD`."""
        m, v, root = torch.zeros_like(w), torch.zeros_like(w), torch.empty_like(w)
        steps = count(1)

        def step(g: Tensor) -> None:
            t = next(steps)
            if self.weight_decay and self.decoupled:
                w.mul_(1 - self.lr * self.weight_decay)
            elif self.weight_decay:
                g.add_(w, alpha=self.weight_decay)
            m.lerp_(g, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            torch.sqrt(v, out=root).div_((1 - self.beta2**t) ** 0.5).add_(self.eps)
            w.addcdiv_(m, root, value=-self.lr / (1 - self.beta1**t))

        return step


ClientOptimiser = ClientSGD | ClientAdam


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
