"""FedLMD and FedLMD-Tf: Federated Learning with Label-Masking Distillation.

Lu, Li, Bao, Wang, Qian, Ge. ACM Multimedia 2023. https://arxiv.org/abs/2409.13136

The printed threshold of a majority label cannot be meant; the code's is taken: strictly more samples than the client's
mean per class. As in the code the teacher's target class is masked too, and the term is scaled by tau^2. Where masks
leave the teacher no class a sample adds nothing. The published teacher-free code cannot run; its text is followed.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.core.method import Method
from fedrecall.core.ops import is_class, keep, kl, soften
from fedrecall.core.types import Local, Step


def masked_distillation(s: Step, r: Local, z_g: Tensor, tau: float) -> Tensor:
    """KL per sample: the teacher keeps the minority labels but the true one, the student all but the true one."""
    minority = r.counts <= len(r.y) / len(r.counts)  # all but J_k, Eq. (2)
    not_true = ~is_class(s.y, s.z.shape[-1])
    q = soften(z_g, tau, minority & not_true)  # Eq. (3)
    return kl(keep(s.z, not_true), q, tau)  # Eq. (4), (6)


@dataclass(frozen=True)
class FedLMD(Method):
    """Distils only the labels of which the client has few."""

    beta: float = 1.0  # weight of the distillation, Eq. (5)
    tau: float = 1.0  # temperature, Eq. (3), (4)

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """The received model."""
        return {"global": r.w}

    def loss(self, s: Step, r: Local) -> Tensor:
        """CE + beta tau^2 L_lmd."""
        lmd = masked_distillation(s, r, s.frozen["global"].z, self.tau)
        return F.cross_entropy(s.z, s.y) + self.beta * self.tau**2 * lmd.mean()  # Eq. (5)


@dataclass(frozen=True)
class FedLMDTf(Method):
    """FedLMD without a teacher: the labels of which the client has few are to be equally likely."""

    beta: float = 1.0  # weight of the distillation, Eq. (7)
    tau: float = 1.0  # temperature
    switch: int | None = None  # the round, from 0, at which FedLMD takes over (its Figure 8); None: never

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """None, until the switch."""
        return {"global": r.w} if self.switch is not None and r.t >= self.switch else {}

    def loss(self, s: Step, r: Local) -> Tensor:
        """CE + beta tau^2 L_lmd with equal logits for a teacher."""
        z_g = s.frozen["global"].z if "global" in s.frozen else torch.zeros_like(s.z)  # Eq. (8)
        lmd = masked_distillation(s, r, z_g, self.tau)
        return F.cross_entropy(s.z, s.y) + self.beta * self.tau**2 * lmd.mean()  # Eq. (7)
