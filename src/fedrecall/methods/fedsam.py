"""FedSAM and MoFedSAM: Generalized Federated Learning via Sharpness Aware Minimization.

Qu, Li, Duan, Liu, Tang, Lu. ICML 2022. https://arxiv.org/abs/2206.02618

`adaptive` is FedASAM: Improving Generalization in Federated Learning by Seeking Flat Minima. Caldarola, Caputo,
Ciccone. ECCV 2022. https://arxiv.org/abs/2203.11834

The global direction of MoFedSAM is in units of a gradient: with momentum at the client the number of steps is replaced
by their effective number, as in SCAFFOLD.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor

from fedrecall.constraints import NonNegativeFloat
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.optim import ClientSGD
from fedrecall.core.types import Cohort, Local, Payload, Reply, Server


@dataclass(frozen=True)
class FedSAM(Method):
    """Gradients at a perturbed point of high loss near the weights, for a flat minimum."""

    rho: NonNegativeFloat = 0.1
    """Length of the perturbation; 0 is FedAvg."""
    adaptive: bool = False
    """Scale the perturbation by the size of each weight (ASAM)."""
    eta: NonNegativeFloat = 0.2
    """Constant added to the size of each weight, with `adaptive`."""
    beta: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of the gradient in a step; the rest is the last global direction. MoFedSAM has 0.1, FedSAM 1."""

    @property
    def traits(self) -> Traits:
        """The direction of MoFedSAM has the units of an SGD step."""
        return Traits(needs_sgd=self.beta != 1)

    def init(self, w: Tensor) -> Payload:
        """Return a zero direction for MoFedSAM."""
        return {} if self.beta == 1 else {"direction": torch.zeros_like(w)}

    def broadcast(self, server: Server) -> Payload:
        """Return the last global direction for MoFedSAM."""
        return dict(server.extra)

    def perturbation(self, g: Tensor, w: Tensor, r: Local) -> Tensor | None:
        """Return rho g / ||g||, or rho T^2 g / ||T g|| with T = |w| + eta."""
        if not self.rho:
            return None
        scale = w.abs() + self.eta if self.adaptive else torch.ones_like(w)
        scaled = scale * g
        offset: Tensor = scale * scaled * (self.rho / (scaled.norm() + 1e-16))
        return offset

    def correct(self, g: Tensor, r: Local) -> Tensor:
        """Return beta g + (1 - beta) times the global direction."""
        return g if self.beta == 1 else torch.lerp(r.down["direction"], g, self.beta)

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Send the weights; for MoFedSAM also the length that a constant gradient would have moved them."""
        if self.beta == 1:
            return {"w": w}, r.memory
        optimiser = r.training.optimiser
        assert isinstance(optimiser, ClientSGD)  # by `needs_sgd`
        length = optimiser.lr * optimiser.effective_steps(steps)
        return {"w": w, "length": torch.tensor(length, dtype=w.dtype)}, r.memory

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """Average the models; the direction is the mean update per step and learning rate."""
        m = server.mean(replies)
        new = server.step(m["w"])
        if self.beta == 1:
            return new
        moved = m["length"] > 0
        return new.with_extra(direction=torch.where(moved, (server.w - m["w"]) / m["length"], 0.0))
