"""Aggregation rules that limit the harm of a few malicious replies.

A rule is applied to the replies of one exchange before the method receives them, so it works with every method. Median,
trimmed mean, Krum and clipping to the median hold all replies of a round in memory.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Annotated, NamedTuple, Protocol, runtime_checkable

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from fedrecall.constraints import NonNegativeInt, PositiveFloat, PositiveInt, check_constraints
from fedrecall.core.reply_validation import l2_norm
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
class Clip:
    """Upper bound of the norm of every update of the weights. Other tensors of a reply are unchanged.

    Can You Really Backdoor Federated Learning? Sun, Kairouz, Suresh, McMahan. 2019. https://arxiv.org/abs/1911.07963
    """

    norm: PositiveFloat | None = None
    """Maximum L2 norm of an update. None: the median norm of the round's updates."""

    def __post_init__(self) -> None:
        check_constraints(self, "server.robust")

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Replace the weights of every reply by w^t + min(1, norm / ||w - w^t||) (w - w^t)."""
        w, bound, buffered = exchange.down.get("w"), self.norm, list[Reply]()
        if bound is None:
            buffered = list(replies)
            bound = median([l2_norm(r.up["w"] - w) for r in buffered if w is not None and "w" in r.up] or [1.0])
        for reply in buffered or replies:
            if w is None or "w" not in reply.up:
                yield reply
            else:
                yield reply._replace(up={**reply.up, "w": w + clip_to_norm(reply.up["w"] - w, bound)})


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
        received = list(replies)
        if len(received) < self.min_replies:
            raise UserError(
                "robust.too_few_replies",
                f"round {exchange.t + 1}: krum with server.robust.attackers = {self.attackers} and "
                f"server.robust.keep = {self.keep} needs {self.min_replies} replies, but {len(received)} were received",
                "server.robust",
                "lower attackers or keep, or sample more clients",
            )
        points = [_as_vector(r.up) for r in received]
        distances = torch.tensor([[l2_norm(a - b) ** 2 for b in points] for a in points], dtype=torch.float64)
        nearest = distances.sort(1).values[:, 1 : len(received) - self.attackers - 1]  # n - f - 2 neighbours
        best = nearest.sum(1).argsort(stable=True)[: self.keep]
        yield from (received[i] for i in sorted(best.tolist()))


AGGREGATION_RULES: dict[str, type[Median | TrimmedMean | Clip | Krum]] = {
    "clip": Clip,
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


def _as_vector(up: Payload) -> Tensor:
    """Return the vector that represents a reply: its weights, or else all its float tensors."""
    return up["w"] if "w" in up else torch.cat([t.flatten() for t in up.values() if t.is_floating_point()])
