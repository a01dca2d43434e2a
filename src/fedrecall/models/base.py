"""Base of all models, features and a linear classifier, and the layers that several models share."""

from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Lt
from torch import Tensor, nn

from fedrecall.errors import UserError, unknown_name

PROJECTION_DIM = 256  # output width of MOON's projection head

Dropout = Annotated[float, Ge(0), Lt(1)]
"""Probability of dropout."""

BnStats = Literal["running", "batch"]
"""Test-time statistics of batch normalisation: running means, or the test batch's own (FedNTD's and FedLMD's code)."""


class FeatureClassifier(nn.Module):
    """Model whose `forward` returns the features h, which enter the last linear layer, and the logits z."""

    takes_integers: ClassVar[bool] = False
    """True if the features are made of integers, by an embedding. Otherwise integers become floats."""

    def __init__(self, features: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map inputs [B, ...] to features [B, D] and logits [B, K]."""
        h: Tensor = self.features(x if x.is_floating_point() or self.takes_integers else x.float())
        return h, self.classifier(h)


class FastMaxPool2d(nn.Module):
    """`nn.MaxPool2d(2)`, to the same bits.

    Torch scans one window after the other and records the position of its maximum, which only gradients need. Without
    gradients, two elementwise maxima (upper and lower rows, then left and right columns) run at memory speed on
    channels-last images: 7 times as fast with 6 channels, 1.3 times with 64. With gradients, torch is faster.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, C, H // 2, W // 2]."""
        b, c, h, w = x.shape
        needs_grad = torch.is_grad_enabled() and x.requires_grad
        if needs_grad or x.stride(1) != 1 or not x.is_contiguous(memory_format=torch.channels_last) or h % 2 or w % 2:
            return F.max_pool2d(x, 2)
        rows = x.permute(0, 2, 3, 1).reshape(b, h // 2, 2, w // 2, 2 * c)
        pairs = torch.maximum(rows[:, :, 0], rows[:, :, 1])
        return torch.maximum(pairs[..., :c], pairs[..., c:]).permute(0, 3, 1, 2)


def with_projection_head(features: nn.Sequential, width: int) -> nn.Sequential:
    """Append MOON's projection head, d -> d -> 256. The classifier takes its output.

    "Model-Contrastive Federated Learning", Li, He, Song, CVPR 2021, section 3.2.
    """
    return nn.Sequential(*features, nn.Linear(width, width), nn.ReLU(), nn.Linear(width, PROJECTION_DIM))


def batch_norm2d(channels: int, bn_stats: BnStats) -> nn.BatchNorm2d:
    """Build batch normalisation of images, with or without running statistics."""
    return nn.BatchNorm2d(channels, track_running_stats=keeps_running_statistics(bn_stats))


def keeps_running_statistics(bn_stats: BnStats) -> bool:
    """Return True if batch normalisation keeps running statistics."""
    if bn_stats not in ("running", "batch"):
        raise unknown_name("model.bn_stats", bn_stats, ("running", "batch"))
    return bn_stats == "running"


def require_image_shape(model: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Return channels, height and width of images that the model supports; raise an error for others."""
    if len(shape) != 3:
        kind = f"{shape[0]} numbers" if len(shape) == 1 else f"of shape {'x'.join(map(str, shape))}"
        raise UserError(
            "model.unsupported_input",
            f'model.name = "{model}": the model needs images, but a sample is {kind}',
            "model.name",
            'use model.name = "mlp", which takes any shape',
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise UserError(
            "model.unsupported_input",
            f'model.name = "{model}": the model needs images of at least {smallest}x{smallest}, '
            f"but these are {height}x{width}",
            "model.name",
            'use model.name = "mlp", which takes any size, or resize the images',
        )
    return channels, height, width
