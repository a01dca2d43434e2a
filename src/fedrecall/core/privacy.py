"""Central differential privacy for clients: a setting of the experiment, for any method.

Learning Differentially Private Recurrent Language Models. McMahan, Ramage, Talwar, Zhang. ICLR 2018.
https://arxiv.org/abs/1710.06963. Here samples have a fixed size, and neighbouring populations differ in the data of
one client.
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

SENSITIVITY = 2.0  # in units of `clip`: one clipped update may be replaced by the opposite one


@dataclass(frozen=True)
class GaussianMechanism:
    """Clipping of every update, and Gaussian noise on their sum."""

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
    """Aggregation rule of a private run: the method receives only the noised mean."""

    privacy: GaussianMechanism
    seed: int

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Replace the weights of every reply by w^t + (sum of clipped updates + noise) / sampled clients.

        A missing reply counts as a zero update, so the divisor does not reveal it.
        """
        without_weights, total = list[Reply](), None
        for reply in replies:
            if set(reply.up) != {"w"} or "w" not in exchange.down:
                others = ", ".join(sorted(set(reply.up) - {"w"})) or "no weights"
                raise UserError(
                    "privacy.not_covered",
                    f"server.privacy covers only the weights w, but replies to the task {exchange.task} have {others}",
                    "server.privacy",
                    "choose a method and a model that send nothing else (see docs/privacy.md)",
                )
            update = clip_to_norm(reply.up["w"] - exchange.down["w"], self.privacy.clip).double()
            total = update if total is None else total + update
            without_weights.append(reply._replace(up={}, n=1))
        if total is None:
            return
        total += self.privacy.noise * self.privacy.clip * self._normal(len(total), exchange.t)
        w = exchange.down["w"] + (total / exchange.num_sampled).to(exchange.down["w"].dtype)
        yield from (reply._replace(up={"w": w}) for reply in without_weights)

    def _normal(self, n: int, t: int) -> torch.Tensor:
        if self.privacy.source == "system":
            return seeds.system_normal(n)
        return torch.randn(n, generator=seeds.generator(self.seed, "noise", t), dtype=torch.float64)


PRIVACY: dict[str, type[GaussianMechanism]] = {"gaussian": GaussianMechanism}


@cache
def epsilon_after(privacy: GaussianMechanism, population: int, sample: int, rounds: int) -> float:
    """Compute epsilon after a number of rounds, by Renyi differential privacy (the package dp-accounting)."""
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
