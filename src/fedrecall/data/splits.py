"""Splits of a data set: stratified hold-out, the server's auxiliary set, examples held out from the clients."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecall.data.partition import Partition
from fedrecall.data.partitioners import Ints
from fedrecall.errors import UserError, unknown_name

# times as text whose alphabetical order is that of time
SORTABLE_TIME = re.compile(r"[0-9]{4}(-[0-9]{2}(-[0-9]{2}([T ][0-9]{2}:[0-9:.]+(Z|[+-][0-9:]+)?)?)?)?")


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


def holdout_rows(labels: Tensor, share: float, seed: int, units: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Hold out a share of every class; returns remaining rows and held-out rows, both ascending.

    With `units`, whole units are held out, a share of those of every class: a unit belongs to its most frequent class.
    """
    if units is None:
        rest, held_out = stratified_holdout(labels, share, seed)
        return rest.sort().values, held_out.sort().values
    _, unit_of_row = np.unique(units.numpy(), return_inverse=True)
    counts = np.zeros((unit_of_row.max() + 1, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (unit_of_row, labels.numpy()), 1)
    _, drawn = stratified_holdout(torch.from_numpy(counts.argmax(1)), share, seed)
    is_held_out = np.isin(unit_of_row, drawn.numpy())
    return torch.from_numpy(np.flatnonzero(~is_held_out)), torch.from_numpy(np.flatnonzero(is_held_out))


def last_rows(times: Sequence[Any], share: float, units: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Hold out the last rows by time, at least the share; returns remaining rows and held-out rows, both ascending.

    Rows of one time are on one side. With `units`, whole units are held out, by the time of their last row. Times that
    are text must be such that their alphabetical order is that of time.
    """
    if (odd := next((t for t in times if isinstance(t, str) and not SORTABLE_TIME.fullmatch(t)), None)) is not None:
        raise UserError(
            "data.invalid_inputs",
            f"time = {odd}: a time as text is not of the form YYYY-MM-DD or YYYY-MM-DD HH:MM, so it cannot be sorted",
            "time",
            "write dates in this form, or convert the column to dates or numbers",
        )
    _, rank = np.unique(np.asarray(times), return_inverse=True)
    if units is not None:
        _, unit = np.unique(units.numpy(), return_inverse=True)
        last = np.zeros(unit.max() + 1, dtype=np.int64)
        np.maximum.at(last, unit, rank)
        rank = last[unit]
    number = ceil(share * len(rank) - 1e-9)
    is_held_out = rank >= np.sort(rank)[-number] if number else np.zeros(len(rank), dtype=bool)
    return torch.from_numpy(np.flatnonzero(~is_held_out)), torch.from_numpy(np.flatnonzero(is_held_out))


def hold_out_of_clients(
    partition: Partition,
    share: float,
    client_rng: Callable[[int], np.random.Generator],
    *,
    excluded: Ints,
    units: Ints | None = None,
    key: str,
) -> tuple[Partition, Partition]:
    """Hold out a share of every client's rows; returns the partitions of the remaining and of the held-out rows.

    The share is rounded up, and a client with one row keeps it. The draw of a client depends only on its own rows and
    its generator, so that a client that holds its data on another machine draws the same. Rows in `excluded` (the
    server's auxiliary set) are neither held out nor counted: the server trains on them. With `units`, one for each row
    of the data set, whole units are held out: a unit in several clients is drawn by the one with most of its rows, and
    held out of all of them. `key` is the configuration key of the share, for messages.
    """
    clients, rows = len(partition), partition.indices
    owner = np.repeat(np.arange(clients), partition.sizes)
    unit_of = np.arange(partition.samples) if units is None else units
    candidates = np.flatnonzero(~np.isin(unit_of[rows], unit_of[excluded]))
    _, first, unit = np.unique(unit_of[rows[candidates]], return_index=True, return_inverse=True)
    pairs, counts = np.unique(unit * clients + owner[candidates], return_counts=True)  # rows of a unit in a client
    order = np.lexsort((-counts, pairs // clients))
    _, largest = np.unique(pairs[order] // clients, return_index=True)
    home = pairs[order][largest] % clients
    by_client = np.lexsort((first, home))  # units of each client, in the order of its rows
    drawn = np.zeros(len(home), dtype=bool)
    for client, members in enumerate(np.split(by_client, np.cumsum(np.bincount(home, minlength=clients))[:-1])):
        # 1e-9, because a product such as 0.1 * 30 may exceed the integer by a rounding error.
        number = min(ceil(share * len(members) - 1e-9), len(members) - 1)
        if number > 0:
            drawn[client_rng(client).permutation(members)[:number]] = True
    held_out = np.zeros(len(rows), dtype=bool)
    held_out[candidates[drawn[unit]]] = True
    rest = _restrict(partition, ~held_out, owner, f"{held_out.sum()} samples are held out by {key}")
    if not held_out.any() or (rest.sizes == 0)[partition.sizes > 0].any():
        wrong = "a client would have none left" if held_out.any() else "no client has two examples or groups"
        hint = "use fewer clients"
        if not len(candidates):
            wrong, hint = "all of them are in the server's auxiliary set", "set a smaller data.aux_per_class"
        raise UserError("data.cannot_hold_out", f"{key} = {share}: examples cannot be held out: {wrong}", key, hint)
    return rest, _restrict(partition, held_out, owner)


def _restrict(partition: Partition, keep: NDArray[np.bool_], owner: Ints, note: str | None = None) -> Partition:
    """Return the partition without the rows at which `keep` is False."""
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner[keep], minlength=len(partition)))))
    notes = partition.notes if note is None else (*partition.notes, note)
    return replace(partition, indices=partition.indices[keep], offsets=offsets, notes=notes)


def _rank_in_group(ordered: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the rank of each element in its group and the size of that group, for group ids in ascending order."""
    _, start, size = np.unique(ordered.numpy(), return_index=True, return_counts=True)
    return np.arange(len(ordered)) - np.repeat(start, size), np.repeat(size, size)
