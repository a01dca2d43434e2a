"""MobileNet, version 1, for small images.

"MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications", Howard et al., arXiv:1704.04861.
"""

from dataclasses import dataclass

from torch import nn

from fedrecall.models.base import BnStats, FeatureClassifier, batch_norm2d, require_image_shape

# Output channels and stride of each block of a depthwise and a pointwise convolution.
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *5 * ((512, 1),), (1024, 2), (1024, 1))


@dataclass(frozen=True)
class MobileNet:
    """MobileNet v1 with a first convolution of stride 1, for FedLMD's Table 4; h has 1024 dimensions.

    The paper states neither version nor adaptation; this is the common adaptation to 32x32.
    """

    bn_stats: BnStats = "running"
    """Normalisation statistics: "running" averages, or those of the batch at hand."""

    def build(self, shape: tuple[int, ...], classes: int) -> FeatureClassifier:
        """Build the module for images of this shape."""
        channels, _, _ = require_image_shape("mobilenet", shape, smallest=16)
        layers = self._conv(channels, 32, 3, 1, 1)
        channels = 32
        for width, stride in BLOCKS:
            layers += self._conv(channels, channels, 3, stride, channels)  # depthwise
            layers += self._conv(channels, width, 1, 1, 1)  # pointwise
            channels = width
        return FeatureClassifier(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), channels, classes)

    def _conv(self, channels: int, out: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
        conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [conv, batch_norm2d(out, self.bn_stats), nn.ReLU()]
