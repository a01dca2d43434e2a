"""Labelled examples as a view: which rows of the big shared tensors, and what they go through on the way out.

And what is done with labels before: numbering them, and choosing rows by them.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from fedrecall.data.transforms import Transform

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
