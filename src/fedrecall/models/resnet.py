"""Residual networks for small images.

"Deep Residual Learning for Image Recognition", He, Zhang, Ren, Sun, CVPR 2016.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from fedrecall.constraints import PositiveInt, check_constraints
from fedrecall.errors import UserError, unknown_name
from fedrecall.models.base import (
    PROJECTION_DIM,
    BnStats,
    FeatureClassifier,
    batch_norm2d,
    require_image_shape,
    with_projection_head,
)

Norm = Callable[[int], nn.Module]

NormName = Literal["batch", "group"]


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
class ResNet18:
    """ResNet-18 for 32x32 images, no pooling in the stem, with group normalisation; h has 512 dimensions."""

    norm: NormName = "group"
    """Normalisation layer: batch or group normalisation."""
    groups: PositiveInt = 2
    """Number of groups of each group normalisation."""
    bn_stats: BnStats = "running"
    """Normalisation statistics: "running" averages, or those of the batch at hand."""

    def __post_init__(self) -> None:
        check_constraints(self, "model")

    def build(self, shape: tuple[int, ...], classes: int) -> FeatureClassifier:
        """Build the module for images of this shape."""
        channels, _, _ = require_image_shape("resnet18", shape, smallest=8)
        return _basic_network(channels, (64, 128, 256, 512), 2, _norm_layer(self, 64), classes)


@dataclass(frozen=True)
class ResNet20:
    """ResNet-20 of the CIFAR experiments, 16-32-64 channels, with group normalisation; h has 64 dimensions.

    Where channels change, the skip connection is a 1x1 projection.
    """

    norm: NormName = "group"
    """Normalisation layer: batch or group normalisation."""
    groups: PositiveInt = 2
    """Number of groups of each group normalisation."""
    bn_stats: BnStats = "running"
    """Normalisation statistics: "running" averages, or those of the batch at hand."""

    def __post_init__(self) -> None:
        check_constraints(self, "model")

    def build(self, shape: tuple[int, ...], classes: int) -> FeatureClassifier:
        """Build the module for images of this shape."""
        channels, _, _ = require_image_shape("resnet20", shape, smallest=4)
        return _basic_network(channels, (16, 32, 64), 3, _norm_layer(self, 16), classes)


@dataclass(frozen=True)
class ResNet8:
    """ResNet-8: one basic block in each of three stages, 16-32-64 channels; h has 64 dimensions.

    Of FedLMD's Table 4 and of FedGKD; with `norm = "group"` as in FedGKD, 16 channels per group.
    """

    norm: NormName = "batch"
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

        return _basic_network(channels, (16, 32, 64), 1, norm, classes)


def _norm_layer(model: ResNet18 | ResNet20, smallest: int) -> Norm:
    """Return the maker of a model's normalisation layers, of which the smallest has this number of channels."""
    if smallest % model.groups:
        raise UserError(
            "config.invalid_value",
            f"model.groups = {model.groups}: it must divide {smallest}, the number of channels of the first layer",
            "model.groups",
            "set a power of two",
        )
    if model.norm == "group":
        return lambda width: nn.GroupNorm(model.groups, width)
    return lambda width: batch_norm2d(width, model.bn_stats)


def _basic_network(channels: int, widths: tuple[int, ...], blocks: int, norm: Norm, classes: int) -> FeatureClassifier:
    """Build stages of basic blocks; all but the first stage halve the image."""
    layers: list[nn.Module] = [*_conv(channels, widths[0], 3, 1, norm), nn.ReLU()]
    channels = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(_basic(channels, width, 2 if stage and block == 0 else 1, norm))
            channels = width
    return FeatureClassifier(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), channels, classes)


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
