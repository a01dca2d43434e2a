"""Data that probes read, and the form of their records."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedrecall.core.evaluation import confusion_counts
from fedrecall.data.examples import Examples
from fedrecall.data.partition import Partition

ProbeRecord = dict[str, Any]  # plain data, ready for JSON


@dataclass(frozen=True)
class ProbeContext:
    """The data that probes use beside a round's result."""

    train: Examples  # of all clients
    test: Examples
    partition: Partition
    classes: int

    def labels(self, client: int) -> Tensor:
        """Count a client's training examples of each class [K]."""
        return self.train.subset(torch.from_numpy(self.partition.rows(client))).class_counts(self.classes)

    def count(self, labels: Tensor) -> Tensor:
        """Count the occurrences of each class [K]."""
        return torch.bincount(labels, minlength=self.classes)

    def confusion(self, predicted: Tensor) -> Tensor:
        """Count test examples by true class and predicted class [K, K]."""
        return confusion_counts(self.test.y, predicted, self.classes)
