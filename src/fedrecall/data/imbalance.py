"""Imbalance of classes: some labels are rare in the whole federation."""

from dataclasses import Field, dataclass, replace
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from annotated_types import Ge

from fedrecall.constraints import check_constraints
from fedrecall.data.dataset import Dataset
from fedrecall.data.partitioners import Ints
from fedrecall.data.token_labels import label_per_example


@runtime_checkable
class Imbalance(Protocol):
    """Interface of a rule for the number of training examples of each class."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def class_sizes(self, counts: Ints) -> Ints:
        """Return the number of examples of each class to keep [K], at most `counts`."""
        ...


@dataclass(frozen=True)
class Exponential:
    """Long tail: class c of K keeps n ratio^(-c / (K - 1)) examples, with n those of the largest class.

    "Class-Balanced Loss Based on Effective Number of Samples", Cui, Jia, Lin, Song, Belongie, CVPR 2019.
    """

    ratio: Annotated[float, Ge(1)] = 100.0
    """Number of examples of the first class, divided by that of the last one."""

    def __post_init__(self) -> None:
        check_constraints(self, "data.imbalance")

    def class_sizes(self, counts: Ints) -> Ints:
        """Return exponentially decreasing sizes, at least 1 and at most those that exist."""
        position = np.arange(len(counts)) / max(len(counts) - 1, 1)
        sizes = np.rint(counts.max() * self.ratio**-position).astype(np.int64)
        kept: Ints = np.minimum(sizes.clip(min=1), counts)
        return kept


IMBALANCES: dict[str, type[Imbalance]] = {"exponential": Exponential}


def with_imbalance(dataset: Dataset, imbalance: Imbalance | None, rng: np.random.Generator) -> Dataset:
    """Return the data with fewer training examples of some classes, drawn at random; the test set is not changed."""
    if imbalance is None:
        return dataset
    labels = label_per_example(dataset.train_y).numpy()
    sizes = imbalance.class_sizes(np.bincount(labels, minlength=dataset.num_classes))
    kept = [rng.permutation(np.flatnonzero(labels == c))[:size] for c, size in enumerate(sizes)]
    rows = torch.from_numpy(np.sort(np.concatenate(kept)))
    x, y = dataset.train_x[rows], dataset.train_y[rows]
    groups, units = (None if ids is None else ids[rows] for ids in (dataset.train_groups, dataset.train_units))
    return replace(dataset, train_x=x, train_y=y, train_groups=groups, train_units=units)


def frequency_groups(counts: Ints) -> dict[str, Ints]:
    """Divide the classes into thirds by their number of training examples: many, medium, few.

    Thirds that are not whole make the middle larger: of ten classes 3, 4 and 3. Of classes with as many examples the
    first counts as more frequent.
    """
    order = np.argsort(-counts, kind="stable")
    third = len(counts) // 3
    return {
        "many": np.sort(order[:third]),
        "medium": np.sort(order[third : len(counts) - third]),
        "few": np.sort(order[len(counts) - third :]),
    }
