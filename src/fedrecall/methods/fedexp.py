"""FedExP: Speeding Up Federated Averaging via Extrapolation.

Jhunjhunwala, Wang, Joshi. ICLR 2023. https://arxiv.org/abs/2301.09604

As in the official code clients are weighted by size, and the model that is evaluated is the mean of the last two
iterates, because the iterates oscillate. Its `eps` decays by the square of the learning rate's decay in each round.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from fedrecall.constraints import NonNegativeFloat, PositiveFloat
from fedrecall.core.method import Method
from fedrecall.core.types import Cohort, Reply, Server


@dataclass(frozen=True)
class FedExP(Method):
    """A server step that is longer the more the clients' updates disagree."""

    eps: NonNegativeFloat = 1e-3
    """Constant in the denominator, times the number of replies; the official code has 0.1 on EMNIST."""
    eps_decay: PositiveFloat = 1.0
    """Factor of eps after every round; the official code has the square of local.lr_decay."""
    average_last: bool = True
    """Evaluate the mean of the last two global models."""

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """Step by eta_g times the mean update, eta_g = max(1, mean ||D_k||^2 / (2 (||mean D||^2 + m eps)))."""

        def with_squares() -> Iterator[Reply]:
            for reply in replies:
                yield reply._replace(up=reply.up | {"square": (reply.up["w"] - server.w).square().sum()})

        m = server.mean(with_squares())
        length = (m["w"] - server.w).square().sum() + cohort.size * self.eps * self.eps_decay**server.t
        eta = max(1.0, float(0.5 * m["square"] / length)) if length > 0 else 1.0
        new = server.step(torch.lerp(server.w, m["w"], eta))
        if not self.average_last:
            return new
        return new.with_extra(evaluated=torch.lerp(server.w, new.w, 0.5) if server.t else new.w)
