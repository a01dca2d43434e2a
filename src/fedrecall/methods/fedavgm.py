"""FedAvgM: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.

Hsu, Qi, Brown. 2019. https://arxiv.org/abs/1909.06335

Implementations differ in the form of the momentum; the variants are fields.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from fedrecall.constraints import Weight
from fedrecall.core.method import Method
from fedrecall.core.optim import ServerSGD
from fedrecall.core.types import Cohort, Reply, Server


@dataclass(frozen=True)
class FedAvgM(Method):
    """FedAvg with momentum at the server; to add it to another method, set server.momentum."""

    beta_s: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Momentum."""
    eta_s: Weight = 1.0
    """Server learning rate."""
    damped: bool = False
    """v <- beta_s v + (1 - beta_s)(w - wbar)."""
    nesterov: bool = False
    """Step with (w - wbar) + beta_s v."""

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """Update v <- beta_s v + (w - wbar), w <- w - eta_s v."""
        momentum = ServerSGD(self.eta_s, self.beta_s, self.damped, self.nesterov)
        target, extra = momentum.step(server.w, server.mean(replies)["w"], server.extra)
        return server.step(target).with_extra(**extra)
