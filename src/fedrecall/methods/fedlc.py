"""FedLC: Federated Learning with Label Distribution Skew via Logits Calibration.

Zhang, Li, Li, Xu, Wu, Ding, Wu. ICML 2022. https://arxiv.org/abs/2209.00189

The margin of a class without examples is infinite, so the class leaves the softmax. Public implementations divide by
zero there, or put a small count in its place. Testing uses plain logits.
"""

from dataclasses import dataclass

from torch import Tensor

from fedrecall.constraints import Weight
from fedrecall.core.losses import mask_logits
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Step


@dataclass(frozen=True)
class FedLC(Method):
    """Cross-entropy with a margin per class, larger for classes of which the client has few examples."""

    tau: Weight = 1.0
    """Scale of the margins; 0 is FedAvg."""

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return the cross-entropy of z_c - tau n_c^(-1/4) over the classes that the client holds."""
        if not self.tau:
            return r.cross_entropy(s.z, s.y)
        margin = self.tau * r.counts.clamp(min=1).to(s.z.dtype) ** -0.25
        return r.cross_entropy(mask_logits(s.z - margin, r.counts > 0), s.y)
