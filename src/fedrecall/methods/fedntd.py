"""FedNTD: Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.

Lee, Jeong, Shin, Bae, Yun. NeurIPS 2022. https://arxiv.org/abs/2106.03097

The factor tau^2 is the official code's. Without a teacher it is the FedNTD-Tf of FedLMD's Table 2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecall.constraints import Temperature, Weight
from fedrecall.core.losses import kl, mask_label, one_hot_mask, soft_targets
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Step


@dataclass(frozen=True)
class FedNTD(Method):
    """Distillation of the teacher's distribution over the classes other than the label."""

    beta: Weight = 1.0
    """Weight of the distillation."""
    tau: Temperature = 1.0
    """Temperature."""
    teacher: bool = True
    """Use the received model. False: a uniform target on the not-true classes (FedNTD-Tf)."""

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return the received model."""
        return {"global": r.w} if self.teacher else {}

    def distillation(self, s: Step, r: Local) -> Tensor:
        """Return beta tau^2 KL over the not-true classes."""
        z_g = s.frozen["global"].z if self.teacher else torch.zeros_like(s.z)
        not_true = ~one_hot_mask(s.y, s.z.shape[-1])
        ntd = kl(mask_label(s.z, s.y), soft_targets(z_g, self.tau, not_true), self.tau)
        return self.beta * self.tau**2 * ntd.mean()

    def inactive_reason(self, classes: int, counts: Tensor | None) -> str | None:
        """Return a reason for two classes: the distribution over the one class that is not true is constant."""
        return "with two classes its term is 0" if classes == 2 else None

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE plus the distillation."""
        return r.cross_entropy(s.z, s.y) + self.distillation(s, r)
