"""The multi-layer perceptron, for inputs of any shape."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torch import nn

from fedrecall.errors import UserError
from fedrecall.models.base import FeatureClassifier


@dataclass(frozen=True)
class Mlp:
    """Flatten, then linear layers with ReLU; h is the last hidden layer.

    `hidden = (200, 200)` is the "2NN" of "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    McMahan et al., AISTATS 2017.
    """

    hidden: tuple[int, ...] = (200,)
    """Width of each hidden layer. An empty list gives logistic regression."""

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            key = "model.hidden"
            raise UserError("config.invalid_value", f"{key} = {list(self.hidden)}: each width must be at least 1", key)

    def build(self, shape: tuple[int, ...], classes: int) -> FeatureClassifier:
        """Build the module for samples of this shape."""
        widths = (prod(shape), *self.hidden)
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        return FeatureClassifier(nn.Sequential(nn.Flatten(), *layers), widths[-1], classes)
