"""Central differential privacy for clients: a setting of the experiment, beside whatever method runs.

Learning Differentially Private Recurrent Language Models. McMahan, Ramage, Talwar, Zhang. ICLR 2018.
https://arxiv.org/abs/1710.06963. Here samples have a fixed size, and the neighbour of a population is one in which a
single client has other data.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from fedrecall.constraints import OpenUnitInterval, PositiveFloat, check_constraints
from fedrecall.core import seeds
from fedrecall.core.robust import ExchangeInfo, clip_to_norm
from fedrecall.core.types import Reply
from fedrecall.errors import UserError, missing_extra

SENSITIVITY = 2.0  # bounds: one clipped update may be replaced by the opposite one


@dataclass(frozen=True)
class GaussianMechanism:
    """Clip every update, add Gaussian noise to their sum."""

    clip: PositiveFloat = 1.0
    """S: maximum L2 norm of an update."""
    noise: PositiveFloat = 1.0
    """z: standard deviation of the noise added to the sum of updates, in units of `clip`."""
    delta: OpenUnitInterval = 1e-5
    """Probability that the bound epsilon does not hold. Choose it well below 1 / clients."""
    source: Literal["seed", "system"] = "seed"
    """Source of the noise. Only "system" cannot be predicted from run.seed."""

    def __post_init__(self) -> None:
        check_constraints(self, "server.privacy")


@dataclass(frozen=True)
class PrivateAggregation:
    """The rule of such a run: the method sees nothing but the noised mean, whatever it makes of it."""

    privacy: GaussianMechanism
    seed: int

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """As many replies as came, each with w^t + (sum of clipped updates + noise) / clients asked.

        A reply that does not come counts as no update: the divisor does not tell.
        """
        shells, total = list[Reply](), None
        for reply in replies:
            if set(reply.up) != {"w"} or "w" not in exchange.down:
                beside = ", ".join(sorted(set(reply.up) - {"w"})) or "no weights"
                raise UserError(
                    "privacy.not_covered",
                    f"server.privacy covers only the weights w, but replies to the task {exchange.task} have {beside}",
                    "server.privacy",
                    "choose a method and a model that send nothing else (see docs/privacy.md)",
                )
            update = clip_to_norm(reply.up["w"] - exchange.down["w"], self.privacy.clip).double()
            total = update if total is None else total + update
            shells.append(reply._replace(up={}, n=1))
        if total is None:
            return
        total += self.privacy.noise * self.privacy.clip * self._normal(len(total), exchange.t)
        w = exchange.down["w"] + (total / exchange.num_asked).to(exchange.down["w"].dtype)
        yield from (shell._replace(up={"w": w}) for shell in shells)

    def _normal(self, n: int, t: int) -> torch.Tensor:
        if self.privacy.source == "system":
            return seeds.system_normal(n)
        return torch.randn(n, generator=seeds.generator(self.seed, "noise", t), dtype=torch.float64)


PRIVACY: dict[str, type[GaussianMechanism]] = {"gaussian": GaussianMechanism}


@cache
def epsilon_after(privacy: GaussianMechanism, population: int, sample: int, rounds: int) -> float:
    """What so many rounds give away of one client, by Renyi differential privacy (the package dp-accounting)."""
    try:
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant
    except ImportError:
        raise missing_extra("dp-accounting", "privacy") from None
    event = dp_accounting.GaussianDpEvent(privacy.noise / SENSITIVITY)
    if sample < population:
        event = dp_accounting.SampledWithoutReplacementDpEvent(population, sample, event)
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(event, rounds).get_epsilon(privacy.delta))
