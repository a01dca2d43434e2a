"""A vision transformer for small images.

"An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", Dosovitskiy et al., ICLR 2021.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedrecall.constraints import PositiveInt, check_constraints
from fedrecall.errors import UserError
from fedrecall.models.base import Dropout, FeatureClassifier, require_image_shape


@dataclass(frozen=True)
class Vit:
    """Small vision transformer for 32x32 images: pre-norm blocks, mean of the patches as h. Train it with adamw.

    The mean in place of a class token: "Better plain ViT baselines for ImageNet-1k", Beyer, Zhai, Kolesnikov,
    arXiv:2205.01580.
    """

    patch: PositiveInt = 4
    """Side of a patch in pixels; it must divide height and width of the images."""
    width: PositiveInt = 128
    """Number of dimensions of a token, and of h."""
    depth: PositiveInt = 6
    """Number of blocks."""
    heads: PositiveInt = 4
    """Number of attention heads; it must divide the width."""
    expansion: PositiveInt = 2
    """Width of the hidden layer of a block, as a multiple of the width."""
    dropout: Dropout = 0.0
    """Probability of dropout after attention and after the hidden layers."""

    def __post_init__(self) -> None:
        check_constraints(self, "model")

    def build(self, shape: tuple[int, ...], classes: int) -> FeatureClassifier:
        """Build the module for images of this shape."""
        channels, height, width = require_image_shape("vit", shape, smallest=self.patch)
        if height % self.patch or width % self.patch:
            raise _invalid("patch", self.patch, f"it must divide height and width of the images, {height}x{width}")
        if self.width % self.heads:
            raise _invalid("heads", self.heads, f"it must divide model.width = {self.width}")
        blocks = [Block(self.width, self.heads, self.expansion * self.width, self.dropout) for _ in range(self.depth)]
        patches = Patches(channels, self.patch, self.width, (height // self.patch) * (width // self.patch))
        return FeatureClassifier(
            nn.Sequential(patches, *blocks, nn.LayerNorm(self.width), TokenMean()), self.width, classes
        )


class Patches(nn.Module):
    """Patches as tokens: a linear map of each patch, and a learned position."""

    def __init__(self, channels: int, patch: int, width: int, tokens: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(channels, width, patch, patch)
        self.position = nn.Parameter(torch.randn(tokens, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, C, H, W] to tokens [B, N, D]."""
        tokens: Tensor = self.projection(x).flatten(2).transpose(1, 2)
        return tokens + self.position


class Block(nn.Module):
    """Transformer block: attention and a hidden layer, each added to its normalised input."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [B, N, D] to tokens."""
        x = x + self.drop(self.attention(self.norm1(x)))
        out: Tensor = x + self.drop(self.hidden(self.norm2(x)))
        return out

    def attention(self, x: Tensor) -> Tensor:
        """Return self-attention, without torch's fused kernels, which vmap (the Fisher of FedCurv) lacks."""
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * (d // self.heads) ** -0.5).softmax(-1)
        out: Tensor = self.out((weights @ v).transpose(1, 2).reshape(b, n, d))
        return out


class TokenMean(nn.Module):
    """Mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, N, D] to [B, D]."""
        return x.mean(1)


def _invalid(key: str, value: int, wrong: str) -> UserError:
    return UserError("config.invalid_value", f"model.{key} = {value}: {wrong}", f"model.{key}")
