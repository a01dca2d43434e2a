"""FedACG: Communication-Efficient Federated Learning with Accelerated Client Gradient.

Kim, Kim, Han. CVPR 2024. https://arxiv.org/abs/2201.03172

The server momentum m adds up to w^(t+1) - w^t: the new global model is the mean of the clients' models. As in the
official code clients have equal weights and the proximal term has no factor 1/2. That code also clips gradients, for
which there is a setting: `local.clip = 10`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from fedrecall.constraints import Weight
from fedrecall.core.method import Method
from fedrecall.core.types import Cohort, Local, Payload, Reply, Server, Step


@dataclass(frozen=True)
class FedACG(Method):
    """Clients start from a look-ahead point of the server's momentum, and a proximal term holds them there."""

    lam: Annotated[float, Ge(0), Lt(1)] = 0.85
    """Momentum of the server, and length of the look-ahead."""
    beta: Weight = 1e-3
    """Weight of the proximal term beta ||w - start||^2."""
    weights: Literal["uniform", "size"] = "uniform"
    """Weights of the clients in the mean."""

    def init(self, w: Tensor) -> Payload:
        """Return zero momentum."""
        return {"m": torch.zeros_like(w)}

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Broadcast w + lam m, then average."""
        return self.aggregate(server, cohort.run("train", {"w": server.w + self.lam * server.extra["m"]}), cohort)

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """Update m <- lam m + mean D_k, w <- w + m, which is the mean of the clients' weights."""
        mean = server.mean(replies, unweighted={"w"} if self.weights == "uniform" else ())["w"]
        return server.step(mean).with_extra(m=mean - server.w)

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE + beta ||w - start||^2."""
        ce = r.cross_entropy(s.z, s.y)
        return ce + self.beta * (s.w - r.w).square().sum() if self.beta else ce
