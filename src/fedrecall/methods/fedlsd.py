"""FedLSD: local self-distillation with a constant weight, as FedCAD's paper defines and reports it.

Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning. He, Chen, Yang, Zhang, Zeng. 2022. The name
is from the first version of FedNTD's paper: Lee, Shin, Jeong, Yun. 2021. https://arxiv.org/abs/2106.03097v1

FedCAD's text has no factor tau^2, the method's first code has one: `kd_scale` chooses, the text is the default.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedrecall.constraints import Temperature, UnitInterval
from fedrecall.core.losses import convex_combination, kd_factor, soft_ce, soft_targets
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Step


@dataclass(frozen=True)
class FedLSD(Method):
    """Distillation from the received model, with one weight for all labels."""

    alpha: UnitInterval = 0.3
    """Weight of the distillation; the paper's grid is 0.1, 0.3, 0.5."""
    tau: Temperature = 2.0
    """Temperature."""
    kd_scale: Literal["none", "T2"] = "none"
    """Factor of the distillation: "T2" is tau^2."""

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return the received model."""
        return {"global": r.w}

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return (1 - alpha) CE + alpha L_d."""
        l_c = r.cross_entropy_terms(s.z, s.y)
        l_d = kd_factor(self.kd_scale, self.tau) * soft_ce(s.z, soft_targets(s.frozen["global"].z, self.tau), self.tau)
        return convex_combination(torch.full_like(l_c, self.alpha), l_c, l_d).mean()
