"""Aggregation rules that limit the harm of a few malicious replies.

A rule is applied to the replies of one exchange before the method receives them, so it works with every method. It
covers all tensors of a reply: weights, buffers and what the method adds. All rules but clipping to a given norm hold
all replies of a round in memory.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Annotated, NamedTuple, Protocol, runtime_checkable

import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor

from fedrecall.constraints import NonNegativeInt, PositiveFloat, PositiveInt, check_constraints
from fedrecall.core.reply_distances import float_groups, mix, squared_distances
from fedrecall.core.reply_validation import MODEL_TENSORS, l2_norm
from fedrecall.core.types import Payload, Reply
from fedrecall.errors import UserError

SORT_CHUNK = 2**20  # numbers of a reply that are sorted at a time, to limit the memory of sorting


class ExchangeInfo(NamedTuple):
    """Task and payload that the replies of one exchange belong to."""

    task: str
    down: Payload
    num_sampled: int  # sampled clients
    t: int  # round, from 0
    number: int = 0  # of the exchange in its round, from 0
    seed: int = 0  # of the run, for a rule that draws random numbers


@runtime_checkable
class AggregationRule(Protocol):
    """Rule that selects or changes the replies that the method receives."""

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Yield the selected or changed replies."""
        ...


@dataclass(frozen=True)
class Median:
    """Coordinate-wise median of the replies. All clients have the same weight, independent of their sizes.

    Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. Yin, Chen, Ramchandran, Bartlett.
    ICML 2018. https://arxiv.org/abs/1803.01498, Definition 1.
    """

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Replace the tensors of every reply by the median."""
        return _replace_by_centre(replies, share=None)


@dataclass(frozen=True)
class TrimmedMean:
    """Coordinate-wise mean of the replies without the largest and the smallest values.

    Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. Yin, Chen, Ramchandran, Bartlett.
    ICML 2018. https://arxiv.org/abs/1803.01498, Definition 2.
    """

    share: Annotated[float, Ge(0), Lt(0.5)] = 0.2
    """beta: fraction of the replies removed at either end, at least the fraction of malicious clients."""

    def __post_init__(self) -> None:
        check_constraints(self, "server.robust")

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Replace the tensors of every reply by the trimmed mean."""
        return _replace_by_centre(replies, self.share)


@dataclass(frozen=True)
class GeometricMedian:
    """Geometric median of the replies: the point with the smallest sum of distances to them, by Weiszfeld's steps.

    Robust Aggregation for Federated Learning. Pillutla, Kakade, Harchaoui. IEEE Transactions on Signal Processing 2022.
    https://arxiv.org/abs/1912.13445, Algorithm 2.
    """

    steps: Annotated[int, Ge(1), Le(10_000)] = 32
    """Number of Weiszfeld's steps, from the mean."""
    smoothing: PositiveFloat = 1e-6
    """Smallest distance that a step divides by, relative to the median distance of two replies."""

    def __post_init__(self) -> None:
        check_constraints(self, "server.robust")

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Replace the tensors of every reply by the geometric median."""
        received = with_median_integers(replies)
        if received:
            centre = mix(received, self.coefficients(squared_distances(received)))
            yield from (reply._replace(up={**reply.up, **centre}) for reply in received)

    def coefficients(self, squared: Tensor) -> Tensor:
        """Return the weights [n] of the replies whose combination is the median, from their squared distances.

        The squared distance of a reply i to the combination a is (D a)_i - a D a / 2.
        """
        a = torch.full((len(squared),), 1 / len(squared), dtype=squared.dtype)
        smallest = self.smoothing * float(squared.median().sqrt() or 1.0)
        for _ in range(self.steps):
            to_all = squared @ a
            near = 1 / (to_all - a @ to_all / 2).clamp_min(0).sqrt().clamp_min(smallest)
            a = near / near.sum()
        return a


@dataclass(frozen=True)
class Clip:
    """Upper bound of the norm of every update of the weights, and of every other tensor of a reply.

    Can You Really Backdoor Federated Learning? Sun, Kairouz, Suresh, McMahan. 2019. https://arxiv.org/abs/1911.07963
    """

    norm: PositiveFloat | None = None
    """Maximum L2 norm of an update. None: the median norm of the round's updates."""

    def __post_init__(self) -> None:
        check_constraints(self, "server.robust")

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Replace every float tensor of a reply by t_0 + min(1, bound / ||t - t_0||) (t - t_0).

        t_0 is the sent tensor for weights and buffers, and 0 for other tensors. The bound of the weights is `norm`;
        that of another tensor is its median over the round.
        """
        first = next(replies, None)
        if first is None:
            return
        bounds = {"w": self.norm} if self.norm is not None and "w" in first.up else {}
        received: Iterator[Reply] = chain([first], replies)
        if set(first.up) != set(bounds):  # other tensors need the replies of the whole round
            buffered = with_median_integers(received)
            received = iter(buffered)
            for name in float_groups(buffered):
                bounds.setdefault(name, median([l2_norm(_update(r.up, name, exchange.down)) for r in buffered]))
        for reply in received:
            yield reply._replace(up=reply.up | {n: _clipped(reply.up, n, exchange.down, bounds[n]) for n in bounds})


@dataclass(frozen=True)
class Krum:
    """Selection of the replies with the nearest neighbours: the best one, or several (multi-Krum).

    Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent. Blanchard, El Mhamdi, Guerraoui, Stainer.
    NeurIPS 2017. https://arxiv.org/abs/1703.02757
    """

    attackers: NonNegativeInt = 1
    """f: maximum number of malicious clients in a round. Needs 2 f + 3 replies."""
    keep: PositiveInt = 1
    """m: number of replies to keep. More than one is multi-Krum."""

    def __post_init__(self) -> None:
        check_constraints(self, "server.robust")

    @property
    def min_replies(self) -> int:
        """Smallest number of replies for which the rule is defined."""
        return max(2 * self.attackers + 3, self.attackers + 2 + self.keep)

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Yield the selected replies, in their original order."""
        received = with_median_integers(replies)
        if len(received) < self.min_replies:
            raise UserError(
                "robust.too_few_replies",
                f"round {exchange.t + 1}: krum with server.robust.attackers = {self.attackers} and "
                f"server.robust.keep = {self.keep} needs {self.min_replies} replies, but {len(received)} were received",
                "server.robust",
                "lower attackers or keep, or sample more clients",
            )
        distances = squared_distances(received)
        nearest = distances.sort(1).values[:, 1 : len(received) - self.attackers - 1]  # n - f - 2 neighbours
        best = nearest.sum(1).argsort(stable=True)[: self.keep]
        yield from (received[i] for i in sorted(best.tolist()))


AGGREGATION_RULES: dict[str, type[Median | TrimmedMean | GeometricMedian | Clip | Krum]] = {
    "clip": Clip,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "median": Median,
    "trimmed-mean": TrimmedMean,
}


def clip_to_norm(update: Tensor, bound: float) -> Tensor:
    """Scale an update down to the bound if its norm is larger."""
    return update * min(1.0, bound / max(l2_norm(update), 1e-300))


def _replace_by_centre(replies: Iterable[Reply], share: float | None) -> Iterator[Reply]:
    """Replace the tensors of every reply by their centre, so that any mean of them has its bits."""
    received = list(replies)
    names = dict.fromkeys(name for r in received for name in r.up)
    centre = {name: _centre([r.up[name] for r in received if name in r.up], share) for name in names}
    yield from (reply._replace(up={name: centre[name] for name in reply.up}) for reply in received)


def _centre(tensors: list[Tensor], share: float | None) -> Tensor:
    """Return the median, or the mean without this share of values at either end; a median for integers."""
    n, flat = len(tensors), [t.flatten() for t in tensors]
    cut = (n - 1) // 2 if share is None or not flat[0].is_floating_point() else int(share * n + 1e-9)  # 0.29 * 100
    out = torch.empty_like(flat[0])
    for start in range(0, len(out), SORT_CHUNK):
        piece = slice(start, start + SORT_CHUNK)
        ordered = torch.stack([t[piece] for t in flat]).sort(0).values
        out[piece] = ordered[cut : n - cut].mean(0) if out.is_floating_point() else ordered[cut]
    return out.view(tensors[0].shape)


def with_median_integers(replies: Iterable[Reply]) -> list[Reply]:
    """Return all replies with every integer tensor replaced by its median: no distance or scale applies to a count."""
    received = list(replies)
    names = [n for n, t in received[0].up.items() if not t.is_floating_point()] if received else []
    centre = {n: _centre([r.up[n] for r in received], None) for n in names if all(n in r.up for r in received)}
    return [reply._replace(up=reply.up | centre) for reply in received]


def _update(up: Payload, name: str, down: Payload) -> Tensor:
    """Return the change of a sent tensor, or the tensor itself if none was sent."""
    return up[name] - down[name] if name in MODEL_TENSORS and name in down else up[name]


def _clipped(up: Payload, name: str, down: Payload, bound: float) -> Tensor:
    update = clip_to_norm(_update(up, name, down), bound)
    return down[name] + update if name in MODEL_TENSORS and name in down else update
