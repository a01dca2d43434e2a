"""Labelled examples as a view: rows of shared tensors, transformed when a batch is read."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from fedrecall.data.token_labels import NO_LABEL, label_per_example
from fedrecall.data.transforms import Transform
from fedrecall.tensor_dict import Inputs, TensorDict, named_tensors

NO_TRANSFORM = Transform()

PRECOMPUTE_BYTES = 64 * 2**20  # limit for holding a client's transformed examples in memory during its training


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples of a client, of the server's auxiliary set, or of the test set.

    `x` and `labels` are the complete data (in shared memory or a mapped file) and are never copied: each client adds
    only an index vector.
    """

    x: Inputs  # uint8 images [N, C, H, W], float32 or int64 of any shape [N, ...], or several of these by name
    labels: Tensor  # int64 [N]; of tokens [N, L]
    transform: Transform
    rows: Tensor | None = None  # rows of this view, int64 [n]; None: all N

    @cached_property
    def y(self) -> Tensor:
        """Labels of the view, int64 [n]; of tokens those of all tokens that have one, text after text."""
        labels = self._labels_of_view
        return labels if labels.ndim == 1 else labels[labels != NO_LABEL]

    @property
    def example_labels(self) -> Tensor:
        """One label for each example of the view, int64 [n]; of a text with labels of tokens the rarest of them."""
        if self.labels.ndim == 1:
            return self.y
        labels = label_per_example(self.labels)
        return labels if self.rows is None else labels[self.rows]

    @property
    def _labels_of_view(self) -> Tensor:
        return self.labels if self.rows is None else self.labels.index_select(0, self.rows)

    @cached_property
    def _ends(self) -> Tensor:
        """Position in `y` after the last token of each text."""
        return (self._labels_of_view != NO_LABEL).sum(1).cumsum(0)

    @property
    def is_augmented(self) -> bool:
        """True if batches are augmented at random, so that model outputs on them cannot be cached."""
        return self.transform.is_random

    def __len__(self) -> int:
        return len(self.labels if self.rows is None else self.rows)

    def batch(self, rows: Tensor | slice, rng: Generator | None = None) -> Inputs:
        """Return the model inputs of these rows: augmented if `rng` is passed, else with the test-time transform.

        A slice of float inputs without normalisation is a view of the shared data: do not write to it.
        """
        if self.rows is not None:
            rows = self.rows[rows]
        x = self.x[rows] if isinstance(rows, slice) else _select(self.x, rows)
        return self.transform.apply(x, rng)

    def positions(self, rows: Tensor | slice) -> Tensor | slice:
        """Return where the labels of these rows are in `y`, and their outputs among those of all examples."""
        if self.labels.ndim == 1:
            return rows
        ends = self._ends
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        return torch.cat([torch.arange(a, b) for a, b in zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)])

    def subset(self, rows: Tensor) -> "Examples":
        """Return a view of some rows of this view."""
        return Examples(self.x, self.labels, self.transform, rows if self.rows is None else self.rows[rows])

    def precomputed(self, max_bytes: int = PRECOMPUTE_BYTES) -> "Examples":
        """Return the examples with the transform applied, so that it is not computed again in every epoch.

        Returns the view itself if it is augmented, if the transform computes nothing, or above `max_bytes`.
        """
        first = named_tensors(self.x[:1], "x").values()
        needs_transform = self.transform.mean is not None or any(t.dtype == torch.uint8 for t in first)
        if self.is_augmented or not needs_transform or 4 * len(self) * sum(map(Tensor.numel, first)) > max_bytes:
            return self
        trim = self.transform.trim
        after = Transform(trim=trim) if trim else NO_TRANSFORM
        return Examples(self.batch(slice(None)), self._labels_of_view, after)

    def class_counts(self, classes: int) -> Tensor:
        """Return the number of examples of each class, int64 [K]."""
        return torch.bincount(self.y, minlength=classes)


def _select(x: Inputs, rows: Tensor) -> Inputs:
    """Return x[rows] in the memory format of x. index_select is 20 times as fast, but its result is contiguous."""
    if isinstance(x, TensorDict):
        return x.map(lambda t: _select_rows(t, rows))
    return _select_rows(x, rows)


def _select_rows(x: Tensor, rows: Tensor) -> Tensor:
    if x.ndim == 4 and x.stride(1) == 1 and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return x.index_select(0, rows)
