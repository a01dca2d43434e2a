"""FedLSD: local self-distillation with a constant weight, as FedCAD's paper defines and reports it.

Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning. He, Chen, Yang, Zhang, Zeng. 2022. The name
is from the first version of FedNTD's paper: Lee, Shin, Jeong, Yun. 2021. https://arxiv.org/abs/2106.03097v1

FedCAD's text has no factor, the method's first code has tau^2, and FedCAD's algorithm, read literally, adds the sum
over the batch to the mean cross-entropy: `kd_scale` chooses, the text is the default.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecall.constraints import Temperature, UnitInterval
from fedrecall.core.losses import KdScale, kd_factor, soft_ce, soft_targets
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Step


@dataclass(frozen=True)
class FedLSD(Method):
    """Distillation from the received model, with one weight for all labels."""

    alpha: UnitInterval = 0.3
    """Weight of the distillation; the paper's grid is 0.1, 0.3, 0.5."""
    tau: Temperature = 2.0
    """Temperature."""
    kd_scale: KdScale = "none"
    """Factor of the distillation: "T2" is tau^2, "sum" the number of examples in the batch."""

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return the received model."""
        return {"global": r.w}

    def distillation(self, s: Step, r: Local) -> Tensor:
        """Return alpha L_d per sample."""
        l_d = soft_ce(s.z, soft_targets(s.frozen["global"].z, self.tau), self.tau)
        alpha = torch.full_like(l_d, self.alpha)
        return alpha * (kd_factor(self.kd_scale, self.tau, len(s.y)) * l_d)

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return (1 - alpha) CE + alpha L_d."""
        l_c = r.cross_entropy_terms(s.z, s.y)
        return ((1 - torch.full_like(l_c, self.alpha)) * l_c + self.distillation(s, r)).mean()
