"""FedLMD and FedLMD-Tf: Federated Learning with Label-Masking Distillation.

Lu, Li, Bao, Wang, Qian, Ge. ACM Multimedia 2023. https://arxiv.org/abs/2409.13136

The printed threshold of a majority label is implausible; here it is that of the code: strictly more samples than the
client's mean per class. As in the code the teacher's target class is masked too, and the term is scaled by tau^2. If
masks leave the teacher no class, a sample adds nothing. The published teacher-free code cannot run; its text is
followed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecall.constraints import NonNegativeInt, Temperature, Weight
from fedrecall.core.losses import kl, mask_label, one_hot_mask, soft_targets
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Step


def minority_targets(z_g: Tensor, y: Tensor, r: Local, tau: float) -> Tensor:
    """Return a teacher's distribution [B, K] over the minority labels without the true one."""
    minority = r.counts <= len(r.y) / len(r.counts)  # all but J_k, Eq. (2)
    return soft_targets(z_g, tau, minority & ~one_hot_mask(y, len(r.counts)))  # Eq. (3)


def not_true_kl(s: Step, q: Tensor, tau: float) -> Tensor:
    """Return the KL per sample, of the student's distribution over all labels without the true one."""
    return kl(mask_label(s.z, s.y), q, tau)  # Eq. (4), (6)


@dataclass(frozen=True)
class FedLMD(Method):
    """Distillation of only those labels of which the client has few examples."""

    beta: Weight = 1.0
    """Weight of the distillation, Eq. (5)."""
    tau: Temperature = 1.0
    """Temperature, Eq. (3), (4)."""

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return the received model."""
        return {"global": r.w}

    def distillation(self, s: Step, r: Local) -> Tensor:
        """Return beta tau^2 L_lmd."""
        lmd = not_true_kl(s, minority_targets(s.frozen["global"].z, s.y, r, self.tau), self.tau)
        return self.beta * self.tau**2 * lmd.mean()

    def inactive_reason(self, classes: int, counts: Tensor | None) -> str | None:
        """Return a reason for two classes: the distribution over the one class that is not true is constant."""
        return "with two classes its term is 0" if classes == 2 else None

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE plus the distillation."""
        return r.cross_entropy(s.z, s.y) + self.distillation(s, r)  # Eq. (5)


@dataclass(frozen=True)
class FedLMDTf(Method):
    """FedLMD without a teacher: the target is uniform over the labels of which the client has few examples."""

    beta: Weight = 1.0
    """Weight of the distillation, Eq. (7)."""
    tau: Temperature = 1.0
    """Temperature."""
    switch: NonNegativeInt | None = None
    """Round, from 0, at which FedLMD replaces the uniform target (Figure 8). None: never."""

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return no model before the switch, then the received one."""
        return {"global": r.w} if self.switch is not None and r.t >= self.switch else {}

    def distillation(self, s: Step, r: Local) -> Tensor:
        """Return beta tau^2 L_lmd, with the uniform targets before the switch."""
        if "global" in s.frozen:
            q = minority_targets(s.frozen["global"].z, s.y, r, self.tau)
        else:
            q = self._uniform_targets(r)[s.y]
        return self.beta * self.tau**2 * not_true_kl(s, q, self.tau).mean()

    def _uniform_targets(self, r: Local) -> Tensor:
        """Return the targets by label [K, K], with equal logits as the teacher, Eq. (8). All batches have the same."""
        if "targets" not in r.scratch:
            classes = len(r.counts)
            labels = torch.arange(classes, device=r.w.device)
            r.scratch["targets"] = minority_targets(r.w.new_zeros(classes, classes), labels, r, self.tau)
        return r.scratch["targets"]

    def inactive_reason(self, classes: int, counts: Tensor | None) -> str | None:
        """Return a reason for two classes: the distribution over the one class that is not true is constant."""
        return "with two classes its term is 0" if classes == 2 else None

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE plus the distillation."""
        return r.cross_entropy(s.z, s.y) + self.distillation(s, r)  # Eq. (7)
