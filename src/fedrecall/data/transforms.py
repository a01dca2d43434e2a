"""Transforms of whole batches: augmentation and normalisation between the stored examples and the model.

All random numbers of a batch are drawn at once from the generator passed in. Crop, flip and rotation only determine the
source pixel of each result pixel, so they are one gather on bytes; the conversion to float follows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from fedrecall.constraints import NonNegativeFloat, NonNegativeInt, check_constraints
from fedrecall.errors import UserError, unknown_name
from fedrecall.tensor_dict import Inputs, TensorDict


@dataclass(frozen=True)
class Transform:
    """Transform of one data set: `apply_test` normalises, `apply_train` also augments."""

    mean: tuple[float, ...] | None = None
    """Mean per channel, for values in [0, 1]. None: no normalisation."""
    std: tuple[float, ...] | None = None
    """Standard deviation per channel, for values in [0, 1]."""
    pad: NonNegativeInt = 0
    """Pixels to pad on every side before a random crop to the original size."""
    pad_mode: Literal["zero", "reflect"] = "zero"
    """Values of the padding: zeros, or the image mirrored at its border."""
    flip: bool = False
    """Flip left and right with probability 1/2."""
    rotate: NonNegativeFloat = 0.0
    """Maximum angle of a random rotation, in degrees. Nearest pixel, zero outside the image."""
    cutout: NonNegativeInt = 0
    """Side of a random square that is set to zero after normalisation, in pixels."""
    trim: bool = False
    """Remove from each batch of texts the columns that are padding in all of them."""

    def __post_init__(self) -> None:
        check_constraints(self, "data.augment")
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise UserError(
                "config.conflict",
                f"data.augment: mean = {self.mean} and std = {self.std} do not fit together",
                "data.augment.std",
                "set both, with one value per channel each",
            )
        if any(s <= 0 for s in self.std or ()):
            raise UserError(
                "config.invalid_value",
                f"data.augment.std = {self.std}: a value is not positive",
                "data.augment.std",
                "use values above 0",
            )

    @property
    def is_random(self) -> bool:
        """True if the result of `apply_train` depends on the generator."""
        return bool(self.pad or self.flip or self.rotate or self.cutout)

    def apply(self, x: Inputs, rng: Generator | None) -> Inputs:
        """Transform a batch, augmented if there is a generator. Of several inputs only images (uint8) change."""
        if self.trim:
            x = _trimmed(x)
        if isinstance(x, TensorDict):
            if self.is_random and not any(t.dtype == torch.uint8 for t in x.tensors.values()):
                raise _not_images(", ".join(x.names))
            return x.map(lambda t: self._apply(t, rng) if t.dtype == torch.uint8 else t)
        return self._apply(x, rng)

    def _apply(self, x: Tensor, rng: Generator | None) -> Tensor:
        return self.apply_test(x) if rng is None or not self.is_random else self.apply_train(x, rng)

    def apply_test(self, x: Tensor) -> Tensor:
        """Scale bytes to [0, 1], then normalise. Floats are only normalised, or returned as they are."""
        is_byte = x.dtype == torch.uint8
        if is_byte:
            x = x.to(torch.float32)
        if self.mean is not None and self.std is not None:
            if x.ndim < 2 or x.shape[1] != len(self.mean):
                channels = x.shape[1] if x.ndim > 1 else 0
                raise UserError(
                    "data.shape_mismatch",
                    f"data.augment.mean = {self.mean}: mean and std have {len(self.mean)} values, but the data has "
                    f"{channels} channels",
                    "data.augment.mean",
                    "use one value per channel",
                )
            scale, shift = _affine(self.mean, self.std, x.ndim, 255.0 if is_byte else 1.0)
            x = x.mul_(scale).add_(shift) if is_byte else (x * scale).add_(shift)
        elif is_byte:
            x = x.div_(255)
        # Channels last, so that convolutions and above all pooling are vectorised over the channels.
        return x.clone(memory_format=torch.channels_last) if is_byte and x.ndim == 4 else x

    def apply_train(self, x: Tensor, rng: Generator) -> Tensor:
        """Augment and normalise. Order of the draws: crop rows and columns, flips, angles, cutout rows and columns."""
        if x.ndim != 4:
            raise _not_images(list(x.shape[1:]))
        if self.pad or self.flip or self.rotate:
            x = self._crop_flip_rotate(x, rng)
        out = self.apply_test(x)
        return out * self._outside_cutout(x, rng) if self.cutout else out

    def _crop_flip_rotate(self, x: Tensor, rng: Generator) -> Tensor:
        """Crop, flip and rotate by one gather: trace each pixel of the result back through the three operations."""
        b, c, h, w = x.shape
        if self.pad_mode == "reflect" and self.pad >= min(h, w):
            raise UserError(
                "config.invalid_value",
                f"data.augment.pad = {self.pad}: too large to reflect images of {h} x {w}",
                "data.augment.pad",
                f"use at most {min(h, w) - 1}",
            )
        dy = torch.randint(2 * self.pad + 1, (b, 1, 1), generator=rng) - self.pad if self.pad else 0
        dx = torch.randint(2 * self.pad + 1, (b, 1, 1), generator=rng) - self.pad if self.pad else 0
        flip = torch.randint(2, (b, 1, 1), generator=rng).bool() if self.flip else None
        i, j = torch.arange(h).view(1, h, 1), torch.arange(w).view(1, 1, w)
        inside: Tensor | None = None
        if self.rotate:
            i, j = _rotated((torch.rand(b, generator=rng) * 2 - 1) * self.rotate, h, w)
            inside = ((i | j) >= 0) & (i < h) & (j < w)  # the "or" of two numbers is negative if one of them is
        if flip is not None:
            j = torch.where(flip, w - 1 - j, j)
        i, j = i + dy, j + dx
        if self.pad_mode == "reflect":
            i, j = (h - 1) - ((h - 1) - i.abs()).abs(), (w - 1) - ((w - 1) - j.abs()).abs()
        # A frame of zeros around the images: zero padding, and at index 0 the value of pixels from outside the image.
        frame = max(self.pad if self.pad_mode == "zero" else 0, 1 if self.rotate else 0)
        width = w + 2 * frame
        index = (i + frame) * width + (j + frame)
        if inside is not None:
            index = index.mul_(inside)
        if frame:
            x = pad(x, (frame, frame, frame, frame))
        index = index.expand(b, h, w).reshape(b, 1, h * w).expand(b, c, h * w)
        return x.reshape(b, c, -1).gather(2, index).view(b, c, h, w)

    def _outside_cutout(self, x: Tensor, rng: Generator) -> Tensor:
        """Return a mask: 0 in the square of centre +- side/2, clipped at the border, and 1 outside."""
        b, _, h, w = x.shape
        top = torch.randint(h, (b, 1), generator=rng) - self.cutout // 2
        left = torch.randint(w, (b, 1), generator=rng) - self.cutout // 2
        row, column = torch.arange(h), torch.arange(w)
        rows = (row < top) | (row >= top + self.cutout)
        columns = (column < left) | (column >= left + self.cutout)
        return (rows.view(b, 1, h, 1) | columns.view(b, 1, 1, w)).to(torch.float32)


def _trimmed(x: Inputs) -> Inputs:
    """Remove leading and trailing columns of padding: where the attention mask or, of token ids alone, the id is 0."""
    mask = x["attention_mask"] if isinstance(x, TensorDict) else x
    used = mask.any(0).nonzero()
    columns = slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 1)
    if isinstance(x, Tensor):
        return x[:, columns]
    return x.map(lambda t: t[:, columns] if t.ndim > 1 and t.shape[1] == mask.shape[1] else t)


def _not_images(found: object) -> UserError:
    message = f"data.augment: augmentation needs images [channels, height, width], and the inputs are {found}"
    return UserError("config.conflict", message, "data.augment", 'set data.augment = "none"')


def _rotated(degrees: Tensor, h: int, w: int) -> tuple[Tensor, Tensor]:
    """Return the source row and column of each pixel for a counter-clockwise rotation, with PIL's rounding."""
    angle = torch.deg2rad(degrees).view(-1, 1, 1)
    cos, sin = torch.cos(angle), torch.sin(angle)
    y = (torch.arange(h) + 0.5 - h / 2).view(1, h, 1)
    x = (torch.arange(w) + 0.5 - w / 2).view(1, 1, w)
    return (sin * x + (cos * y + h / 2)).floor().long(), (cos * x - (sin * y - w / 2)).floor().long()


@lru_cache(maxsize=64)
def _affine(mean: tuple[float, ...], std: tuple[float, ...], ndim: int, unit: float) -> tuple[Tensor, Tensor]:
    """Return scale and shift such that (x/unit - mean) / std = x * scale + shift."""
    m, s = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    shape = (-1,) + (1,) * (ndim - 2)
    return (1 / (unit * s)).float().view(shape), (-m / s).float().view(shape)


_CIFAR100 = Transform(
    mean=(0.50708, 0.48655, 0.44092), std=(0.26733, 0.25644, 0.27615), pad=4, flip=True, rotate=15.0
)  # the released code of FedCSD has MOON's data code

_HALF = Transform(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

_RAW = Transform()  # the papers neither normalise nor augment FEMNIST

_OFFICE = Transform(flip=True, rotate=30.0)

TRANSFORM_PRESETS: dict[str, dict[str, Transform]] = {
    "moon": {
        "cifar10": Transform(
            mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
            std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
            pad=4,
            pad_mode="reflect",
            flip=True,
        ),
        "cifar100": _CIFAR100,
        "tiny-imagenet": _HALF,
        "femnist": _RAW,
    },
    "niid-bench": {
        "cifar10": Transform(pad=4, pad_mode="reflect", flip=True),
        "tiny-imagenet": replace(_HALF, pad=4, flip=True, rotate=15.0),  # at data.size = 32
        "femnist": _RAW,
    },
    "fedlmd": {
        "cifar10": Transform(
            mean=(0.49139968, 0.48215827, 0.44653124),
            std=(0.24703233, 0.24348505, 0.26158768),
            pad=4,
            flip=True,
            cutout=16,
        ),
        "cifar100": Transform(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762), pad=4, flip=True, cutout=16),
        "cinic10": Transform(
            mean=(0.47889522, 0.47227842, 0.43047404),
            std=(0.24205776, 0.23828046, 0.25874835),
            pad=4,
            pad_mode="reflect",
            flip=True,
        ),
        "mnist": Transform(mean=(0.1307,), std=(0.3081,), pad=4, flip=True, cutout=16),
    },
    "fedcsd": {"cifar100": _CIFAR100, "femnist": _RAW, "office-caltech-10": _OFFICE},
    "fedbn": {"office-caltech-10": _OFFICE},
}
"""The papers' transforms, by preset and data set."""


def resolve_transform(augment: str | Mapping[str, object], dataset: str, test_transform: Transform) -> Transform:
    """Return the training transform for `data.augment`.

    "none" means the test transform, another string a preset; a table sets fields on top of the test transform.
    """
    if not isinstance(augment, str):
        return _from_table(test_transform, augment)
    if augment == "none":
        return test_transform
    if augment not in TRANSFORM_PRESETS:
        raise unknown_name("augmentation", augment, ["none", *TRANSFORM_PRESETS], key="data.augment")
    if dataset not in TRANSFORM_PRESETS[augment]:
        raise UserError(
            "config.conflict",
            f'data.augment = "{augment}": the preset has no transforms for data set "{dataset}", only for '
            f"{', '.join(sorted(TRANSFORM_PRESETS[augment]))}",
            "data.augment",
            'use "none" or set fields, such as { pad = 4, flip = true }',
        )
    return TRANSFORM_PRESETS[augment][dataset]


def _from_table(test_transform: Transform, table: Mapping[str, object]) -> Transform:
    from pydantic import TypeAdapter, ValidationError

    values = {f.name: getattr(test_transform, f.name) for f in fields(test_transform)}
    for key in table:
        if key not in values:
            raise unknown_name("key of augment", key, values, "config.unknown_key", f"data.augment.{key}")
    try:
        return TypeAdapter(Transform).validate_python({**values, **table})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["data.augment", *(str(part) for part in first["loc"])])
        raise UserError("config.invalid_value", f"{key} = {first['input']!r}: {first['msg']}", key) from None
