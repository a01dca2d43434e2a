"""The two small convolutional networks.

Both apply pooling before ReLU: ReLU is monotone, so the function and its gradient equal those in the papers' order, and
ReLU has a quarter of the work.
"""

from dataclasses import dataclass

from torch import nn

from fedrecall.models.base import (
    PROJECTION_DIM,
    FastMaxPool2d,
    FeatureClassifier,
    require_image_shape,
    with_projection_head,
)


@dataclass(frozen=True)
class Cnn:
    """The 6/16 CNN: LeNet-5 as in MOON, FedCAD, FedSSD and NIID-Bench ("simple-cnn"); h has 84 dimensions.

    "Model-Contrastive Federated Learning", Li, He, Song, CVPR 2021, section 4.1.
    """

    head: bool = False
    """Append MOON's projection head, after which h has 256 dimensions."""

    def build(self, shape: tuple[int, ...], classes: int) -> FeatureClassifier:
        """Build the module for images of this shape."""
        channels, height, width = require_image_shape("cnn", shape, smallest=16)
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        features = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            FastMaxPool2d(),
            nn.ReLU(),
            nn.Conv2d(6, 16, 5),
            FastMaxPool2d(),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * rows * columns, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        if self.head:
            return FeatureClassifier(with_projection_head(features, 84), PROJECTION_DIM, classes)
        return FeatureClassifier(features, 84, classes)


@dataclass(frozen=True)
class Cnn3264:
    """The 32/64 CNN of FedNTD and FedLMD, McMahan's; h has 512 dimensions.

    "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning", Lee et al., NeurIPS 2022.
    """

    def build(self, shape: tuple[int, ...], classes: int) -> FeatureClassifier:
        """Build the module for images of this shape."""
        channels, height, width = require_image_shape("cnn-32-64", shape, smallest=4)
        features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            FastMaxPool2d(),
            nn.ReLU(),
            nn.Conv2d(32, 64, 5, padding=2),
            FastMaxPool2d(),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 512),
            nn.ReLU(),
        )
        return FeatureClassifier(features, 512, classes)
