"""FedAvg with plain distillation or with smoothed labels: the controls of FedLMD's Tables 1 and 2."""

from dataclasses import dataclass

from torch import Tensor

from fedrecall.constraints import Temperature, UnitInterval, Weight
from fedrecall.core.losses import kl, soft_targets
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Step


@dataclass(frozen=True)
class FedAvgKD(Method):
    """FedAvg with distillation of all classes from the received model; with tau = 1 the KL row of FedSSD's Table 3."""

    beta: Weight = 1.0
    """Weight of the distillation."""
    tau: Temperature = 1.0
    """Temperature."""

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return the received model."""
        return {"global": r.w}

    def distillation(self, s: Step, r: Local) -> Tensor:
        """Return beta tau^2 KL(teacher || student)."""
        distance = kl(s.z, soft_targets(s.frozen["global"].z, self.tau), self.tau)
        return self.beta * self.tau**2 * distance.mean()

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE plus the distillation."""
        return r.cross_entropy(s.z, s.y) + self.distillation(s, r)


@dataclass(frozen=True)
class FedAvgLS(Method):
    """Cross-entropy with smoothed labels: 1 - smoothing on the label, the rest spread over all classes."""

    smoothing: UnitInterval = 0.1
    """Probability mass that is spread over all classes."""

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return the cross-entropy with targets (1 - smoothing) onehot + smoothing / C."""
        return r.cross_entropy(s.z, s.y, label_smoothing=self.smoothing)
