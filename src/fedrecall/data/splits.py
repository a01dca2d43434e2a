"""The server's auxiliary set: a few labelled examples per class, drawn from the training set."""

import numpy as np
import torch
from torch import Tensor

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
