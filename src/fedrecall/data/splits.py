"""The server's auxiliary set: a few labelled examples per class, drawn from the training set."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.partition import Partition
from fedrecall.data.partitioners import Ints
from fedrecall.errors import UserError, unknown_name


def split_auxiliary(labels: Tensor, per_class: int, mode: str, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Rows of the auxiliary set, and the rows that are left to the clients, both ascending.

    "overlap" leaves every row with the clients, so that their data stays comparable with the baselines'; a class with
    fewer examples than asked gives all it has. "holdout" takes the rows away from the clients; a class that would have
    nothing left is refused, because then no client could learn it and the comparison would mean something else.
    """
    if mode not in ("overlap", "holdout"):
        raise unknown_name("data.aux", mode, ["overlap", "holdout"])
    if per_class < 0:
        raise UserError(
            "config.invalid_value",
            f"data.aux_per_class = {per_class}: negative",
            "data.aux_per_class",
            "use 0 or more; 0 means no auxiliary set",
        )
    y = labels.numpy()
    taken = np.zeros(len(y), dtype=bool)
    for c in np.unique(y):
        rows = np.flatnonzero(y == c)
        if mode == "holdout" and 0 < per_class >= len(rows):
            raise UserError(
                "data.cannot_hold_out",
                f'data.aux_per_class = {per_class}: with data.aux = "holdout" the clients have no example of class {c} '
                f"left, which has {len(rows)} training examples",
                "data.aux_per_class",
                'lower it, or use data.aux = "overlap"',
            )
        taken[rng.permutation(rows)[:per_class]] = True
    left = ~taken if mode == "holdout" else np.ones_like(taken)
    return torch.from_numpy(np.flatnonzero(taken)), torch.from_numpy(np.flatnonzero(left))


def split_validation(partition: Partition, share: float, seed: int, spared: Ints) -> tuple[Partition, Ints]:
    """The partition without a share of every client's rows, and the rows that it lost, ascending.

    The share is rounded up, and a client with one row keeps it. Rows in `spared` stay where they are and do not count:
    what the server holds too is no evidence.
    """
    owner = np.repeat(np.arange(len(partition)), partition.sizes)
    free = np.flatnonzero(~np.isin(partition.indices, spared))
    _, out = stratified_holdout(torch.from_numpy(owner[free]), share, seed)
    lost = np.zeros(len(owner), dtype=bool)
    lost[free[out.numpy()]] = True
    if not lost.any():
        raise UserError(
            "data.cannot_hold_out",
            "no client has two examples, so none can be held out for validation",
            "federation.clients",
            "use fewer clients",
        )
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner[~lost], minlength=len(partition)))))
    note = f"{lost.sum()} samples are held out for validation"
    kept = replace(partition, indices=partition.indices[~lost], offsets=offsets, notes=(*partition.notes, note))
    return kept, np.sort(partition.indices[lost])


def stratified_holdout(groups: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows that stay and rows that are held out: this share of every group, rounded up, drawn at random.

    A group of two or more has some on either side, a single example stays. Rows come group by group in drawn order, so
    that the first of a group are a random choice of it.
    """
    order = np.lexsort((np.random.default_rng(seed).random(len(groups)), groups.numpy()))
    place, size = _rank_in_group(groups[torch.from_numpy(order)])
    # The small number keeps a product such as 0.1 * 30 from being rounded up for its last bit.
    held = place < np.minimum(np.ceil(fraction * size - 1e-9), size - 1)
    return torch.from_numpy(order[~held]), torch.from_numpy(order[held])


def first_per_group(groups: Tensor, limit: int) -> Tensor:
    """Rows of the first `limit` examples of every group, ascending."""
    order = torch.argsort(groups, stable=True)
    place, _ = _rank_in_group(groups[order])
    return order[torch.from_numpy(place < limit)].sort().values


def _rank_in_group(ordered: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """For ids in ascending order: the place of each in its group, and the size of that group."""
    _, start, size = np.unique(ordered.numpy(), return_index=True, return_counts=True)
    return np.arange(len(ordered)) - np.repeat(start, size), np.repeat(size, size)
