"""Splits of a data set: stratified hold-out, the server's auxiliary set, clients' validation data."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.partition import Partition
from fedrecall.data.partitioners import Ints
from fedrecall.errors import UserError, unknown_name


def stratified_holdout(groups: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out a share of every group, drawn at random and rounded up; returns remaining rows and held-out rows.

    A group of two or more has rows on both sides; a single row remains. Rows are in the order of groups and random
    within a group, so that the first rows of a group are a random sample of it.
    """
    order = np.lexsort((np.random.default_rng(seed).random(len(groups)), groups.numpy()))
    rank, size = _rank_in_group(groups[torch.from_numpy(order)])
    # 1e-9, because a product such as 0.1 * 30 may exceed the integer by a rounding error.
    held_out = rank < np.minimum(np.ceil(fraction * size - 1e-9), size - 1)
    return torch.from_numpy(order[~held_out]), torch.from_numpy(order[held_out])


def first_per_group(groups: Tensor, limit: int) -> Tensor:
    """Return the rows of the first `limit` examples of every group, ascending."""
    order = torch.argsort(groups, stable=True)
    rank, _ = _rank_in_group(groups[order])
    return order[torch.from_numpy(rank < limit)].sort().values


def split_auxiliary(labels: Tensor, per_class: int, mode: str, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw the server's auxiliary set from the training set; returns its rows and the clients' rows, both ascending.

    With "overlap" the clients keep all rows, so that their data equals that of the baselines; a class with fewer than
    `per_class` examples contributes all of them. With "holdout" the clients lose the rows; a class that would have no
    example left is an error, because clients could then not learn it.
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
    auxiliary = np.zeros(len(y), dtype=bool)
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
        auxiliary[rng.permutation(rows)[:per_class]] = True
    clients = ~auxiliary if mode == "holdout" else np.ones_like(auxiliary)
    return torch.from_numpy(np.flatnonzero(auxiliary)), torch.from_numpy(np.flatnonzero(clients))


def split_validation(partition: Partition, share: float, seed: int, excluded: Ints) -> tuple[Partition, Ints]:
    """Hold out a share of every client's rows; returns the remaining partition and the validation rows, ascending.

    The share is rounded up, and a client with one row keeps it. Rows in `excluded` (the server's auxiliary set) are
    neither held out nor counted: the server trains on them, so they cannot validate.
    """
    owner = np.repeat(np.arange(len(partition)), partition.sizes)
    candidates = np.flatnonzero(~np.isin(partition.indices, excluded))
    _, drawn = stratified_holdout(torch.from_numpy(owner[candidates]), share, seed)
    held_out = np.zeros(len(owner), dtype=bool)
    held_out[candidates[drawn.numpy()]] = True
    if not held_out.any():
        raise UserError(
            "data.cannot_hold_out",
            "no client has two examples, so none can be held out for validation",
            "federation.clients",
            "use fewer clients",
        )
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner[~held_out], minlength=len(partition)))))
    note = f"{held_out.sum()} samples are held out for validation"
    rest = replace(partition, indices=partition.indices[~held_out], offsets=offsets, notes=(*partition.notes, note))
    return rest, np.sort(partition.indices[held_out])


def _rank_in_group(ordered: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the rank of each element in its group and the size of that group, for group ids in ascending order."""
    _, start, size = np.unique(ordered.numpy(), return_index=True, return_counts=True)
    return np.arange(len(ordered)) - np.repeat(start, size), np.repeat(size, size)
