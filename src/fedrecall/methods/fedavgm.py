"""FedAvgM: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.

Hsu, Qi, Brown. 2019. https://arxiv.org/abs/1909.06335

Public code differs in how the momentum is written; the variants are fields.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fedrecall.core.method import Method
from fedrecall.core.optim import ServerSGD
from fedrecall.core.types import Cohort, Reply, Server


@dataclass(frozen=True)
class FedAvgM(Method):
    """FedAvg with momentum at the server; to add it to another method, set server.momentum."""

    beta_s: float = 0.9  # momentum
    eta_s: float = 1.0  # server learning rate
    damped: bool = False  # v <- beta_s v + (1 - beta_s)(w - wbar)
    nesterov: bool = False  # step with (w - wbar) + beta_s v

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.beta_s < 1, "beta_s", "beta_s must be < 1")

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """v <- beta_s v + (w - wbar), w <- w - eta_s v."""
        momentum = ServerSGD(self.eta_s, self.beta_s, self.damped, self.nesterov)
        target, extra = momentum.step(server.w, server.mean(replies)["w"], server.extra)
        return server.step(target).with_extra(**extra)
