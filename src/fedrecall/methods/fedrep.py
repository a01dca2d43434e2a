"""FedRep: Exploiting Shared Representations for Personalized Federated Learning.

Collins, Hassani, Mokhtari, Shakkottai. ICML 2021. https://arxiv.org/abs/2102.07078

The epochs of `local.epochs` are divided: the first ones train the head with the body fixed, the last ones the body with
the head fixed.
"""

from dataclasses import dataclass
from typing import Literal

from fedrecall.constraints import PositiveInt
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.types import Local


@dataclass(frozen=True)
class FedRep(Method):
    """Private heads on a shared body; head and body are trained in turn."""

    body_epochs: PositiveInt = 1
    """Number of local epochs, the last ones, that train the body. All epochs before them train the head."""

    @property
    def traits(self) -> Traits:
        """The head stays at the client, and is trained in at least one epoch."""
        return Traits(private="head", personalised=True, min_epochs=self.body_epochs + 1)

    def trained_part(self, epoch: int, r: Local) -> Literal["all", "shared", "private"]:
        """Return the head, then the body."""
        return "private" if epoch < r.training.epochs - self.body_epochs else "shared"
