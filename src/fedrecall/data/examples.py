"""Labelled examples as a view: which rows of the big shared tensors, and what they go through on the way out.

And what is done with labels before: numbering them, and choosing rows by them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from fedrecall.data.transforms import Transform
from fedrecall.errors import UserError

PRECOMPUTE_BYTES = 64 * 2**20  # bytes of a client's examples that are held as floats while it trains


@dataclass(frozen=True, eq=False)
class Examples:
    """Some examples of a store: a client's, the server's auxiliary set, the test set.

    `x` and `labels` are the whole store (in shared memory or a mapped file) and are never copied; a hundred clients are
    a hundred index vectors.
    """

    x: Tensor  # uint8 images [N, C, H, W], or float32 of any shape [N, ...]
    labels: Tensor  # int64 [N]
    transform: Transform
    rows: Tensor | None = None  # which of the N, int64 [n]; None: all

    @cached_property
    def y(self) -> Tensor:
        """Labels of the view, int64 [n]."""
        return self.labels if self.rows is None else self.labels.index_select(0, self.rows)

    @property
    def is_augmented(self) -> bool:
        """Whether a batch drawn with a generator is random, so that nothing said of it can be cached."""
        return self.transform.is_random

    def __len__(self) -> int:
        return len(self.labels if self.rows is None else self.rows)

    def batch(self, rows: Tensor | slice, rng: Generator | None = None) -> Tensor:
        """Model-ready inputs of these rows: augmented with `rng`, by the test-time transforms without.

        A slice of float inputs that need no normalisation is a view of the store: read it, do not write to it.
        """
        if self.rows is not None:
            rows = self.rows[rows]
        x = self.x[rows] if isinstance(rows, slice) else _select(self.x, rows)
        return (
            self.transform.apply_test(x) if rng is None or not self.is_augmented else self.transform.apply_train(x, rng)
        )

    def subset(self, rows: Tensor) -> "Examples":
        """A view of the view: its rows, counted from its own beginning."""
        return Examples(self.x, self.labels, self.transform, rows if self.rows is None else self.rows[rows])

    def precomputed(self) -> "Examples":
        """The same examples, made ready for the model once instead of in every epoch, where that changes nothing.

        It does with augmentation; it is not worth it where nothing is computed, and not wise where it fills the memory.
        """
        computed = self.x.dtype == torch.uint8 or self.transform.mean is not None
        if self.is_augmented or not computed or 4 * len(self) * self.x[:1].numel() > PRECOMPUTE_BYTES:
            return self
        return Examples(self.batch(slice(None)), self.y, Transform())

    def class_counts(self, classes: int) -> Tensor:
        """How many examples of each class, int64 [K]."""
        return torch.bincount(self.y, minlength=classes)


def _select(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows] in the layout of x; index_select is twenty times as fast on images, but always gives contiguous rows."""
    if x.ndim == 4 and x.stride(1) == 1 and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return x.index_select(0, rows)


def encode_labels(
    columns: Iterable[Sequence[Any]], names: tuple[str, ...] | None, what: str, data: str | None = None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Values of several splits as ids 0..K-1, with their names: the given ones, else the values in order."""
    where = f'data "{data}": {what}' if data else what
    arrays = [_label_array(column, what, where) for column in columns]
    if len({a.dtype.kind for a in arrays if len(a)}) > 1:
        raise UserError(
            "data.invalid_labels",
            f"{where} are numbers in one part of the data and words in another",
            what,
            "use one kind in all parts",
        )
    if names is None:
        values = np.unique(np.concatenate(arrays))
        return [torch.from_numpy(np.searchsorted(values, a)) for a in arrays], tuple(str(v) for v in values)
    for a in arrays:
        if a.dtype.kind != "i" or (len(a) and not 0 <= a.min() <= a.max() < len(names)):
            low, high = (a.min(), a.max()) if a.dtype.kind == "i" else (a[0], a[-1])
            raise UserError(
                "data.invalid_labels",
                f"{where} have values from {low} to {high}",
                what,
                f"use values in 0..{len(names) - 1}",
            )
    return [torch.from_numpy(a) for a in arrays], names


def _label_array(column: Sequence[Any], what: str, where: str) -> np.ndarray[Any, Any]:
    array = np.asarray(column)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array):
        array = array.astype(str)  # words as pandas has them
    kind = array.dtype.kind
    whole = kind in "biu" or (kind == "f" and bool((np.isfinite(array) & (array == np.floor(array))).all()))
    if array.ndim != 1 or not (whole or kind in "SU"):
        message = f"{where} are not one whole number or word for each example, with none missing"
        if array.ndim == 1:
            hint = "replace or remove the other values"
        else:
            message, hint = f"{message}; their shape is {list(array.shape)}", "flatten a column, argmax one-hot rows"
        raise UserError("data.invalid_labels", message, what, hint)
    return array.astype(np.int64) if whole else array.astype(str)


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
