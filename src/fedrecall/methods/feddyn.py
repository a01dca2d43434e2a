"""FedDyn: Federated Learning Based on Dynamic Regularization.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. ICLR 2021. https://arxiv.org/abs/2111.04263

The broadcast model w^{t+1} is also the evaluated one; the official code plots the mean of the clients' last models and
clips gradients at 10, neither of which is in the paper's algorithm. It also scales alpha by the client's size:
`mean_examples`. With one alpha the fixed point is the minimum of the uniform mean of the clients' losses, whatever
`weights` is; with the scaled one it is the minimum of the mean by size.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedrecall.constraints import PositiveFloat, Weight
from fedrecall.core.method import Method
from fedrecall.core.types import Cohort, Local, Payload, Reply, Server, Step, average_replies


@dataclass(frozen=True)
class FedDyn(Method):
    """Linear and quadratic terms in each client's loss, so that local optima agree with the global one."""

    alpha: Weight = 0.1
    """Strength of the regulariser; 0.01 in the official CIFAR-10 example."""
    weights: Literal["uniform", "size"] = "uniform"
    """Weights of the clients' mean; FedNTD's code weights by size. The fixed point does not depend on them."""
    mean_examples: PositiveFloat | None = None
    """Mean number of examples of all clients: client k uses alpha mean_examples / n_k, as in the official code.
    None: alpha for all clients."""

    def init(self, w: Tensor) -> Payload:
        """Return h, the mean drift of all clients."""
        return {"h": torch.zeros_like(w)}

    def memory(self, w: Tensor) -> Payload:
        """Return the gradient of the client's last local objective."""
        return {"g": torch.zeros_like(w)}

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE - <g_k, w> + alpha/2 ||w - w^t||^2."""
        linear = (r.memory["g"] * s.w).sum()
        return r.cross_entropy(s.z, s.y) - linear + self.alpha_of(r) / 2 * (s.w - r.w).square().sum()  # Eq. (1)

    def alpha_of(self, r: Local) -> float:
        """Return the client's strength of the regulariser."""
        return self.alpha if self.mean_examples is None else self.alpha * self.mean_examples / len(r.data)

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Send the weights; store g_k <- g_k - alpha (w_k - w^t)."""
        return {"w": w}, {"g": r.memory["g"] - self.alpha_of(r) * (w - r.w)}

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """Update h <- h - alpha/N sum_k (w_k - w^t); w^{t+1} = mean_k w_k - h/alpha."""
        m = average_replies(
            (r._replace(up={"w": r.up["w"], "plain": r.up["w"]}) for r in replies), self.weights, {"plain"}
        )
        moved = cohort.size * (m["plain"] - server.w)
        h = server.extra["h"] - self.alpha / cohort.population * moved
        return server.step(m["w"] - h / self.alpha if self.alpha else m["w"]).with_extra(h=h)
