"""MOON: Model-Contrastive Federated Learning.

Li, He, Song. CVPR 2021. https://arxiv.org/abs/2103.16257

The representation is the input of the last linear layer: with `model.head = true` the paper's projection, without it
the plain features, as FedCSD and FedLMD compare it. A client's first round has no previous model, and no contrast: the
public implementations differ here, and the received model in its place would only add a constant.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.constraints import Temperature, Weight
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Payload, Step


@dataclass(frozen=True)
class Moon(Method):
    """Contrastive loss: features near those of the global model, far from those of the client's previous model."""

    mu: Weight = 1.0
    """Weight of the contrast, Eq. (4); the paper's grid is 0.1, 1, 5, 10."""
    tau: Temperature = 0.5
    """Temperature, Eq. (3)."""

    def memory(self, w: Tensor) -> Payload:
        """Return an empty previous model."""
        return {"previous": w[:0]}

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return the received model and the client's previous one, of any age."""
        previous = r.memory.get("previous", r.w[:0])
        return {"global": r.w, "previous": previous} if len(previous) else {}

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE + mu l_con."""
        ce = r.cross_entropy(s.z, s.y)
        if "previous" not in s.frozen:
            return ce
        pull = F.cosine_similarity(s.h, s.frozen["global"].h)
        push = F.cosine_similarity(s.h, s.frozen["previous"].h)
        contrast = -F.log_softmax(torch.stack([pull, push], -1) / self.tau, -1)[:, 0]  # Eq. (3)
        return ce + self.mu * contrast.mean()  # Eq. (4)

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Send and store the trained model."""
        return {"w": w}, {"previous": r.state(w)}
