"""A multi-layer perceptron for numbers and categories."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedrecall.constraints import check_constraints
from fedrecall.errors import UserError
from fedrecall.models.base import Dropout

MAX_EMBEDDING = 50  # dimensions of the embedding of a category


@dataclass(frozen=True)
class TabularMlp:
    """MLP with an embedding of every integer column beside the numbers; h is the last hidden layer.

    Inputs are one tensor, or a dictionary of them: int64 are categories, all others numbers. A category with n values
    has (n + 1) / 2 dimensions, at most 50.
    """

    takes_names: ClassVar[bool] = True

    hidden: tuple[int, ...] = (200, 100)
    """Width of each hidden layer."""
    categories: tuple[int, ...] | None = None
    """Number of values of each integer column, in the order of the inputs. None: those of the data."""
    dropout: Dropout = 0.0
    """Probability of dropout after each hidden layer."""

    def __post_init__(self) -> None:
        check_constraints(self, "model")
        for key, sizes in (("hidden", self.hidden), ("categories", self.categories or ())):
            if any(n < 1 for n in sizes):
                message = f"model.{key} = {list(sizes)}: each must be at least 1"
                raise UserError("config.invalid_value", message, f"model.{key}")

    def sized_for(self, values: Mapping[str, tuple[int, ...]]) -> "TabularMlp":
        """Return the model with the categories of the data, where they are not set."""
        found = tuple(n for columns in values.values() for n in columns)
        if self.categories is None:
            return replace(self, categories=found)
        if len(found) != len(self.categories) or any(n > size for n, size in zip(found, self.categories, strict=True)):
            raise UserError(
                "config.conflict",
                f"model.categories = {list(self.categories)}: the integer columns have {list(found)} values",
                "model.categories",
                "set at least these",
            )
        return self

    def build(self, shape: tuple[int, ...] | Mapping[str, tuple[int, ...]], classes: int) -> nn.Module:
        """Build the module for inputs of these shapes."""
        categories = self.categories or ()
        columns = sum(map(prod, shape.values())) if isinstance(shape, Mapping) else prod(shape)
        if len(categories) > columns:
            raise UserError(
                "config.conflict",
                f"model.categories: {len(categories)} columns, but a sample has {columns} values",
                "model.categories",
                "remove it: the numbers of values are then those of the data",
            )
        return TabularNetwork(categories, columns - len(categories), self.hidden, self.dropout, classes)


class TabularNetwork(nn.Module):
    """Embeddings of categories and numbers, linear layers with ReLU, a linear classifier."""

    def __init__(
        self, categories: tuple[int, ...], numbers: int, hidden: tuple[int, ...], dropout: float, classes: int
    ) -> None:
        super().__init__()
        sizes = [(n, min(MAX_EMBEDDING, (n + 1) // 2)) for n in categories]
        self.embeddings = nn.ModuleList([nn.Embedding(*size) for size in sizes])
        widths = (numbers + sum(width for _, width in sizes), *hidden)
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout))]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor | None = None, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Map inputs [B, ...] to features [B, D] and logits [B, K]."""
        tensors = [t.reshape(len(t), -1) for t in ([] if x is None else [x]) + list(inputs.values())]
        columns = (column for t in tensors if t.dtype == torch.int64 for column in t.unbind(1))
        embedded = [embedding(column) for embedding, column in zip(self.embeddings, columns, strict=True)]
        numbers = [t.to(self.classifier.weight.dtype) for t in tensors if t.dtype != torch.int64]
        h: Tensor = self.features(torch.cat([*numbers, *embedded], 1))
        return h, self.classifier(h)
