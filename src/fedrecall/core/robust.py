"""What is made of the replies before the method sees them, so that a few hostile ones do little harm.

A rule works with every method: it takes the replies of one exchange and gives replies on. Those that look at all
replies together hold all of them.
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

SORT_CHUNK = 2**20  # numbers of a reply that are sorted at a time, so that sorting takes little memory


class ExchangeInfo(NamedTuple):
    """What the replies of one exchange are replies to."""

    task: str
    down: Payload
    num_asked: int  # that were asked
    t: int  # the round, from 0


@runtime_checkable
class AggregationRule(Protocol):
    """From the replies that came to those that the method sees."""

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """The replies, chosen or changed."""
        ...


@dataclass(frozen=True)
class Median:
    """Every number is the median of the clients' numbers; all count the same, whatever they say of their size.

    Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. Yin, Chen, Ramchandran, Bartlett.
    ICML 2018. https://arxiv.org/abs/1803.01498, Definition 1.
    """

    def apply(self, replies: Iterator[Reply], asked: ExchangeInfo) -> Iterator[Reply]:
        """The same number of replies, each with the median in place of its own numbers."""
        return _replace_by_centre(replies, share=None)


@dataclass(frozen=True)
class TrimmedMean:
    """Every number is the mean of the clients' numbers without the largest and the smallest of them.

    Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. Yin, Chen, Ramchandran, Bartlett.
    ICML 2018. https://arxiv.org/abs/1803.01498, Definition 2.
    """

    share: Annotated[float, Ge(0), Lt(0.5)] = 0.2
    """beta: fraction of the replies removed at either end, at least the fraction of malicious clients."""

    def __post_init__(self) -> None:
        check_constraints(self, "server.robust")

    def apply(self, replies: Iterator[Reply], asked: ExchangeInfo) -> Iterator[Reply]:
        """The same number of replies, each with the trimmed mean in place of its own numbers."""
        return _replace_by_centre(replies, self.share)


@dataclass(frozen=True)
class Clip:
    """No update of the weights is longer than a bound; what else a reply carries is left as it is.

    Can You Really Backdoor Federated Learning? Sun, Kairouz, Suresh, McMahan. 2019. https://arxiv.org/abs/1911.07963
    """

    norm: PositiveFloat | None = None
    """Maximum L2 norm of an update. None: the median norm of the round's updates."""

    def __post_init__(self) -> None:
        check_constraints(self, "server.robust")

    def apply(self, replies: Iterator[Reply], asked: ExchangeInfo) -> Iterator[Reply]:
        """w^t + min(1, norm / ||w - w^t||) (w - w^t) of each."""
        w, bound, came = asked.down.get("w"), self.norm, list[Reply]()
        if bound is None:
            came = list(replies)
            bound = median([l2_norm(r.up["w"] - w) for r in came if w is not None and "w" in r.up] or [1.0])
        for reply in came or replies:
            if w is None or "w" not in reply.up:
                yield reply
            else:
                yield reply._replace(up={**reply.up, "w": w + clip_to_norm(reply.up["w"] - w, bound)})


@dataclass(frozen=True)
class Krum:
    """Only the replies with the nearest neighbours count: the best one, or some of the best (multi-Krum).

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
        """Replies without which it means nothing."""
        return max(2 * self.attackers + 3, self.attackers + 2 + self.keep)

    def apply(self, replies: Iterator[Reply], asked: ExchangeInfo) -> Iterator[Reply]:
        """The replies chosen, in the order in which they came."""
        kept = list(replies)
        if len(kept) < self.min_replies:
            raise UserError(
                "robust.too_few_replies",
                f"round {asked.t + 1}: krum with server.robust.attackers = {self.attackers} and server.robust.keep = "
                f"{self.keep} needs {self.min_replies} replies, but {len(kept)} were received",
                "server.robust",
                "lower attackers or keep, or sample more clients",
            )
        points = [_as_vector(r.up) for r in kept]
        far = torch.tensor([[l2_norm(a - b) ** 2 for b in points] for a in points], dtype=torch.float64)
        near = far.sort(1).values[:, 1 : len(kept) - self.attackers - 1]  # the n - f - 2 nearest others
        best = near.sum(1).argsort(stable=True)[: self.keep]
        yield from (kept[i] for i in sorted(best.tolist()))


AGGREGATION_RULES: dict[str, type[Median | TrimmedMean | Clip | Krum]] = {
    "clip": Clip,
    "krum": Krum,
    "median": Median,
    "trimmed-mean": TrimmedMean,
}


def clip_to_norm(update: Tensor, bound: float) -> Tensor:
    """The update, shortened to the bound if it is longer."""
    return update * min(1.0, bound / max(l2_norm(update), 1e-300))


def _replace_by_centre(replies: Iterable[Reply], share: float | None) -> Iterator[Reply]:
    """Every reply with the centre in place of its tensors, so that any mean of them is the centre, to the bit."""
    kept = list(replies)
    names = dict.fromkeys(name for r in kept for name in r.up)
    centre = {name: _centre([r.up[name] for r in kept if name in r.up], share) for name in names}
    yield from (reply._replace(up={name: centre[name] for name in reply.up}) for reply in kept)


def _centre(tensors: list[Tensor], share: float | None) -> Tensor:
    """The median, or the mean without this share of numbers at either end; of whole numbers always a median."""
    n, flat = len(tensors), [t.flatten() for t in tensors]
    cut = (n - 1) // 2 if share is None or not flat[0].is_floating_point() else int(share * n + 1e-9)  # 0.29 * 100
    out = torch.empty_like(flat[0])
    for start in range(0, len(out), SORT_CHUNK):
        piece = slice(start, start + SORT_CHUNK)
        ordered = torch.stack([t[piece] for t in flat]).sort(0).values
        out[piece] = ordered[cut : n - cut].mean(0) if out.is_floating_point() else ordered[cut]
    return out.view(tensors[0].shape)


def _as_vector(up: Payload) -> Tensor:
    """Where a reply stands: by its weights, or else by all its numbers."""
    return up["w"] if "w" in up else torch.cat([t.flatten() for t in up.values() if t.is_floating_point()])
