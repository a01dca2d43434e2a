"""Residual networks for small images.

"Deep Residual Learning for Image Recognition", He, Zhang, Ren, Sun, CVPR 2016.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from fedrecall.errors import unknown_name
from fedrecall.models.base import (
    PROJECTION_DIM,
    BnStats,
    FeatureClassifier,
    batch_norm2d,
    require_image_shape,
    with_projection_head,
)

Norm = Callable[[int], nn.Module]


class Residual(nn.Module):
    """Residual block: ReLU of a branch plus its input, or a 1x1 projection of the input if the shapes differ."""

    def __init__(self, branch: nn.Sequential, channels: int, out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.branch = branch
        self.skip = nn.Identity() if stride == 1 and channels == out else _conv(channels, out, 1, stride, norm)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map a feature map to the next one."""
        y: Tensor = self.relu(self.branch(x) + self.skip(x))
        return y


@dataclass(frozen=True)
class ResNet50:
    """ResNet-50 for 32x32 images, as in MOON and FedCSD: no pooling in the stem; h has 2048 dimensions.

    "Model-Contrastive Federated Learning", Li, He, Song, CVPR 2021, section 4.1. The published code has 1000 outputs
    for any data; this model has one per class.
    """

    head: bool = False
    """Append MOON's projection head, after which h has 256 dimensions."""
    bn_stats: BnStats = "running"
    """Normalisation statistics: "running" averages, or those of the batch at hand."""

    def build(self, shape: tuple[int, ...], classes: int) -> FeatureClassifier:
        """Build the module for images of this shape."""
        channels, _, _ = require_image_shape("resnet50", shape, smallest=8)

        def norm(width: int) -> nn.Module:
            return batch_norm2d(width, self.bn_stats)

        layers: list[nn.Module] = [*_conv(channels, 64, 3, 1, norm), nn.ReLU()]
        channels = 64
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for block in range(blocks):
                layers.append(_bottleneck(channels, width, stride if block == 0 else 1, norm))
                channels = 4 * width
        features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        for module in features.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if self.head:
            return FeatureClassifier(with_projection_head(features, channels), PROJECTION_DIM, classes)
        return FeatureClassifier(features, channels, classes)


@dataclass(frozen=True)
class ResNet8:
    """ResNet-8: one basic block in each of three stages, 16-32-64 channels; h has 64 dimensions.

    Of FedLMD's Table 4 and of FedGKD; with `norm = "group"` as in FedGKD, 16 channels per group.
    """

    norm: Literal["batch", "group"] = "batch"
    """Normalisation layer: batch or group normalisation."""
    bn_stats: BnStats = "running"
    """Normalisation statistics: "running" averages, or those of the batch at hand."""

    def build(self, shape: tuple[int, ...], classes: int) -> FeatureClassifier:
        """Build the module for images of this shape."""
        channels, _, _ = require_image_shape("resnet8", shape, smallest=4)
        if self.norm not in ("batch", "group"):
            raise unknown_name("model.norm", self.norm, ("batch", "group"))

        def norm(width: int) -> nn.Module:
            return nn.GroupNorm(width // 16, width) if self.norm == "group" else batch_norm2d(width, self.bn_stats)

        features = nn.Sequential(
            *_conv(channels, 16, 3, 1, norm),
            nn.ReLU(),
            _basic(16, 16, 1, norm),
            _basic(16, 32, 2, norm),
            _basic(32, 64, 2, norm),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        return FeatureClassifier(features, 64, classes)


def _conv(channels: int, out: int, kernel: int, stride: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), norm(out))


def _basic(channels: int, width: int, stride: int, norm: Norm) -> Residual:
    first, second = _conv(channels, width, 3, stride, norm), _conv(width, width, 3, 1, norm)
    return Residual(nn.Sequential(*first, nn.ReLU(), *second), channels, width, stride, norm)


def _bottleneck(channels: int, width: int, stride: int, norm: Norm) -> Residual:
    narrow, middle = _conv(channels, width, 1, 1, norm), _conv(width, width, 3, stride, norm)
    wide = _conv(width, 4 * width, 1, 1, norm)
    branch = nn.Sequential(*narrow, nn.ReLU(), *middle, nn.ReLU(), *wide)
    return Residual(branch, channels, 4 * width, stride, norm)
