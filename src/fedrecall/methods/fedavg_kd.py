"""FedAvg with plain distillation or with smoothed labels: the controls of FedLMD's Tables 1 and 2."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedrecall.core.losses import kl, soft_targets
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Step


@dataclass(frozen=True)
class FedAvgKD(Method):
    """Distils all classes from the received model; with tau = 1 the KL row of FedSSD's Table 3."""

    beta: float = 1.0  # weight of the distillation
    tau: float = 1.0  # temperature

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """The received model."""
        return {"global": r.w}

    def loss(self, s: Step, r: Local) -> Tensor:
        """CE + beta tau^2 KL(teacher || student)."""
        distance = kl(s.z, soft_targets(s.frozen["global"].z, self.tau), self.tau)
        return F.cross_entropy(s.z, s.y) + self.beta * self.tau**2 * distance.mean()


@dataclass(frozen=True)
class FedAvgLS(Method):
    """Cross-entropy with smoothed labels: 1 - smoothing on the label, the rest spread over all classes."""

    smoothing: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.smoothing <= 1, "smoothing", "smoothing must be <= 1")

    def loss(self, s: Step, r: Local) -> Tensor:
        """Cross-entropy with (1 - smoothing) onehot + smoothing / C."""
        return F.cross_entropy(s.z, s.y, label_smoothing=self.smoothing)
