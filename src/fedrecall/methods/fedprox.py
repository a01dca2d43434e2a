"""FedProx: Federated Optimization in Heterogeneous Networks.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. MLSys 2020. https://arxiv.org/abs/1812.06127

The norm is squared and halved, as in the paper; some public code leaves out the square.
"""

from dataclasses import dataclass

from torch import Tensor

from fedrecall.constraints import Weight
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Step


@dataclass(frozen=True)
class FedProx(Method):
    """Proximal term towards the global weights; to add it to another method, set local.prox."""

    mu: Weight = 0.001
    """Weight of the proximal term, Eq. (2)."""

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE + mu/2 ||w - w^t||^2."""
        return r.cross_entropy(s.z, s.y) + self.mu / 2 * (s.w - r.w).square().sum()  # Eq. (2)
