"""FedSSD: Learning Critically: Selective Self Distillation in Federated Learning on Non-IID Data.

He, Chen, Yang, Yu, Huang, Gu. IEEE Transactions on Big Data, 2022. https://arxiv.org/abs/2504.14694

Eq. (3) weights both logit vectors, so its squared error carries M^2: at the printed m_max the distillation is about
0.01 % of the gradient at the logits, and the method is FedAvg. Table 3 and Theorem 1 have a linear weight, with which
it is 3 to 5 %. `weighting` has both; linear is the default.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from fedrecall.constraints import Weight
from fedrecall.core.losses import class_mean, confusion_matrix, credibility, label_probability
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.types import Local, Payload, Server, Step


@dataclass(frozen=True)
class FedSSD(Method):
    """Distillation of each logit, weighted by the teacher's credibility on that class and sample."""

    m_max: Weight = 0.01
    """Upper bound of the weights, Eq. (4); 0.001 on CIFAR-100 and Tiny-ImageNet."""
    weighting: Literal["squared", "linear"] = "linear"
    """M (z_g - z)^2, or (M (z_g - z))^2 as Eq. (3) prints it, which at the printed m_max has no effect."""
    reduction: Literal["sum", "mean"] = "sum"
    """Reduction over the logits."""
    matrix: Literal["hard", "soft"] = "hard"
    """Counts of predictions, or mean probabilities."""

    @property
    def traits(self) -> Traits:
        """The credibility matrix needs auxiliary data."""
        return Traits(needs_auxiliary_data=True)

    def broadcast(self, server: Server) -> Payload:
        """Return the credibility matrix A[k1, k2]: the rate of predicting k2 for class k1, on the auxiliary data."""
        z, y = server.f.outputs(server.state, server.require_auxiliary).z, server.require_auxiliary.y
        return {"A": confusion_matrix(z, y) if self.matrix == "hard" else class_mean(F.softmax(z, -1), y, z.shape[-1])}

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return the received model."""
        return {"global": r.w}

    def logit_weights(self, s: Step, r: Local) -> Tensor:
        """Compute M [B, K], the teacher's credibility on each class and sample."""
        m_class = credibility(r.down["A"])
        m_sample = 1 - (1 - label_probability(s.frozen["global"].z, s.y)).clamp_min(0).sqrt()
        return self.m_max * F.relu(m_class * m_sample[:, None] - 0.1)  # Eq. (4)

    def sample_metrics(self, s: Step, r: Local) -> Payload:
        """Return the mean weight of a sample's logits."""
        return {"trust": self.logit_weights(s, r).mean(-1)}

    def distillation(self, s: Step, r: Local) -> Tensor:
        """Return sum_c M_c (z_g,c - z_c)^2, or sum_c (M_c (z_g,c - z_c))^2."""
        z_g, m = s.frozen["global"].z, self.logit_weights(s, r)
        error = (m * (z_g - s.z)).square() if self.weighting == "squared" else m * (z_g - s.z).square()
        ssd = error.sum(-1) if self.reduction == "sum" else error.mean(-1)
        return ssd.mean()

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE plus the distillation."""
        return r.cross_entropy(s.z, s.y) + self.distillation(s, r)  # Eq. (3), (6)


def descent_rate(m_max: float, L_f: float, L_F: float, *, eta: float, B: float, S: int, L_m: float = 0.0) -> float:
    """Return rho of the paper's Theorem 1: the loss decreases by rho ||grad F||^2 in a round if rho > 0.

    L_f bounds the change of the logits, L_F is the smoothness of the clients' losses, L_m their largest negative
    curvature, eta the inexactness of local training, B the dissimilarity of the clients' gradients (1: equal), S the
    clients per round. With a = m_max L_f, the theorem needs a + L_m > 0 and rho > 0. For L_m = 0 the latter is a lower
    bound of a / L_F, which exists if B (eta + (1 + eta) sqrt(2 / S)) < 1.

    >>> descent_rate(4.9, 1.0, 1.0, eta=0.01, B=1.0, S=10) > 0 > descent_rate(4.8, 1.0, 1.0, eta=0.01, B=1.0, S=10)
    True
    >>> descent_rate(0.01, 1.0, 1.0, eta=0.01, B=1.0, S=10) > 0  # the printed m_max, for L_f = L_F
    False
    """
    a = m_max * L_f
    if a <= 0 or a + L_m <= 0:
        return -float("inf")
    b, c = B * (1 + eta), a + L_m
    linear = 1 / a - eta * B / a - b * sqrt(2) / (c * sqrt(S))
    return linear - L_F * (b / (c * a) + b**2 / (2 * c**2) + b**2 * (2 * sqrt(2 * S) + 2) / (c**2 * S))
