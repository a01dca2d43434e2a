"""Distances between replies over all that is aggregated: weights, buffers and every other tensor.

A malicious reply with honest weights may have false batch-norm statistics or a false control variate. So every tensor
is a group of its own, and the scale of a group is taken from the cohort: a distance in it is divided by the median.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedrecall.core.reply_validation import l2_norm
from fedrecall.core.types import Payload, Reply


def float_groups(replies: Sequence[Reply]) -> list[str]:
    """Return the names of the float tensors that every reply has."""
    return [n for n, t in replies[0].up.items() if t.is_floating_point() and all(n in r.up for r in replies)]


def squared_distances(replies: Sequence[Reply]) -> Tensor:
    """Return the squared distances of all pairs of replies, float64 [n, n].

    With several groups, each group's squared distances are divided by their median and added. A group in which most
    pairs agree exactly has median 0; its smallest other distance is used, so that what differs there is far away.
    """
    groups = [_pairwise([reply.up[name] for reply in replies]) for name in float_groups(replies)]
    if len(groups) == 1:
        return groups[0]
    return torch.stack([group / _scale(group) for group in groups]).sum(0)


def mix(replies: Sequence[Reply], weights: Tensor) -> Payload:
    """Return the combination of all float tensors of the replies with these weights [n]."""
    return {
        name: sum((float(a) * r.up[name] for r, a in zip(replies, weights, strict=True) if a), torch.zeros(()))
        for name in float_groups(replies)
    }


def _pairwise(tensors: Sequence[Tensor]) -> Tensor:
    out = torch.zeros(len(tensors), len(tensors), dtype=torch.float64)
    for i, a in enumerate(tensors):
        for j in range(i):
            out[i, j] = out[j, i] = l2_norm(a - tensors[j]) ** 2
    return out


def _scale(group: Tensor) -> float:
    pairs = group[~torch.eye(len(group), dtype=torch.bool)]
    positive = pairs[pairs > 0]
    if not len(positive):
        return 1.0
    return float(pairs.median()) or float(positive.min())
