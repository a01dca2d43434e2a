"""AlexNet with batch normalisation, for Office-Caltech-10.

"FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", Li, Jiang, Zhang, Kamp, Dou, ICLR 2021.
"""

from dataclasses import dataclass

from torch import nn

from fedrecall.models.base import (
    BnStats,
    FeatureClassifier,
    batch_norm2d,
    keeps_running_statistics,
    require_image_shape,
)


@dataclass(frozen=True)
class AlexNet:
    """FedBN's AlexNet, for 256x256 images: no dropout, no pre-training; h has 4096 dimensions."""

    bn_stats: BnStats = "running"
    """Normalisation statistics: "running" averages, or those of the batch at hand."""

    def build(self, shape: tuple[int, ...], classes: int) -> FeatureClassifier:
        """Build the module for images of this shape."""
        channels, _, _ = require_image_shape("alexnet", shape, smallest=63)
        features = nn.Sequential(
            *self._conv(channels, 64, 11, stride=4, padding=2),
            nn.MaxPool2d(3, 2),
            *self._conv(64, 192, 5, padding=2),
            nn.MaxPool2d(3, 2),
            *self._conv(192, 384, 3, padding=1),
            *self._conv(384, 256, 3, padding=1),
            *self._conv(256, 256, 3, padding=1),
            nn.MaxPool2d(3, 2),
            nn.AdaptiveAvgPool2d(6),
            nn.Flatten(),
            *self._linear(9216, 4096),
            *self._linear(4096, 4096),
        )
        return FeatureClassifier(features, 4096, classes)

    def _conv(self, channels: int, out: int, kernel: int, *, stride: int = 1, padding: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, out, kernel, stride, padding), batch_norm2d(out, self.bn_stats), nn.ReLU()]

    def _linear(self, width: int, out: int) -> list[nn.Module]:
        norm = nn.BatchNorm1d(out, track_running_stats=keeps_running_statistics(self.bn_stats))
        return [nn.Linear(width, out), norm, nn.ReLU()]
