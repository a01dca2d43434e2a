"""Steps before a robust rule: replies are averaged with others, so that honest ones differ less.

Under label skew honest replies are far apart, and a malicious one hides between them. Each step here yields averages of
several replies; the robust rule follows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import torch
from annotated_types import Ge

from fedrecall.constraints import NonNegativeInt, check_constraints
from fedrecall.core import seeds
from fedrecall.core.reply_distances import mix, squared_distances
from fedrecall.core.robust import ExchangeInfo, with_median_integers
from fedrecall.core.types import Reply
from fedrecall.errors import UserError


@dataclass(frozen=True)
class NearestNeighbourMixing:
    """Replacement of every reply by the mean of the n - f replies nearest to it, itself among them.

    Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity. Allouah, Farhadkhani, Guerraoui, Gupta,
    Pinot, Stephan. AISTATS 2023. https://arxiv.org/abs/2302.01772, Algorithm 2.
    """

    attackers: NonNegativeInt = 1
    """f: maximum number of malicious clients in a round. Needs 2 f + 1 replies."""

    def __post_init__(self) -> None:
        check_constraints(self, "server.preaggregation")

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Yield as many replies, mixed."""
        received = with_median_integers(replies)
        if len(received) <= 2 * self.attackers:
            raise UserError(
                "robust.too_few_replies",
                f"round {exchange.t + 1}: server.preaggregation.attackers = {self.attackers} needs "
                f"{2 * self.attackers + 1} replies, but {len(received)} were received",
                "server.preaggregation",
                "lower attackers, or sample more clients",
            )
        number = len(received) - self.attackers
        for reply, order in zip(received, squared_distances(received).argsort(dim=1, stable=True), strict=True):
            weights = torch.zeros(len(received), dtype=torch.float64)
            weights[order[:number]] = 1 / number
            yield reply._replace(up={**reply.up, **mix(received, weights)})


@dataclass(frozen=True)
class Bucketing:
    """Means of randomly composed buckets of replies, in the place of the replies.

    Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing. Karimireddy, He, Jaggi. ICLR 2022.
    https://arxiv.org/abs/2006.09365, Algorithm 1.
    """

    size: Annotated[int, Ge(2)] = 2
    """s: number of replies in a bucket; the last bucket may have fewer."""

    def __post_init__(self) -> None:
        check_constraints(self, "server.preaggregation")

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Yield one reply a bucket, with the number of examples of its replies together."""
        received = with_median_integers(replies)
        order = torch.randperm(len(received), generator=seeds.generator(exchange.seed, "bucketing", exchange.t))
        shuffled = [received[i] for i in order.tolist()]
        for start in range(0, len(shuffled), self.size):
            members = shuffled[start : start + self.size]
            up = mix(members, torch.full((len(members),), 1 / len(members), dtype=torch.float64))
            yield members[0]._replace(up={**members[0].up, **up}, n=sum(reply.n for reply in members))


PREAGGREGATIONS: dict[str, type[NearestNeighbourMixing | Bucketing]] = {
    "bucketing": Bucketing,
    "nearest-neighbours": NearestNeighbourMixing,
}


@dataclass(frozen=True)
class ExampleCountLimit:
    """Limit of the number of examples of a reply, relative to the median of the round."""

    ratio: float

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Yield the replies with at most `ratio` times the median number of examples."""
        received = list(replies)
        limit = max(1, int(self.ratio * median([reply.n for reply in received] or [1])))
        yield from (reply._replace(n=min(reply.n, limit)) for reply in received)
