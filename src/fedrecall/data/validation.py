"""Examples to choose settings by: held out from the clients, never from the test set."""

from dataclasses import replace

import numpy as np
import torch

from fedrecall.data.examples import stratified_holdout
from fedrecall.data.partition import Partition
from fedrecall.data.partitioners import Ints
from fedrecall.errors import UserError


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
