"""Batched transforms compared with a loop over images."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator, Tensor

from fedrecall.data.transforms import TRANSFORM_PRESETS, Transform, resolve_transform
from fedrecall.errors import UserError

B = 33
COLOUR = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}


def rng(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def images(channels: int = 3, h: int = 12, w: int = 10) -> Tensor:
    return torch.randint(1, 256, (B, channels, h, w), generator=rng(9), dtype=torch.uint8)


def crop(image: np.ndarray, top: int, left: int, pad: int, mode: str) -> np.ndarray:
    wide = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="reflect" if mode == "reflect" else "constant")
    return wide[:, top : top + image.shape[1], left : left + image.shape[2]]


def turn(image: np.ndarray, degrees: float) -> np.ndarray:
    _, h, w = image.shape
    out = np.zeros_like(image)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    for i in range(h):
        for j in range(w):
            y, x = i + 0.5 - h / 2, j + 0.5 - w / 2
            a, b = math.floor(sin * x + cos * y + h / 2), math.floor(cos * x - sin * y + w / 2)
            if 0 <= a < h and 0 <= b < w:
                out[:, i, j] = image[:, a, b]
    return out


def reference(t: Transform, x: Tensor, g: Generator) -> Tensor:
    """Transform one image after the other, with the same draws in the same order."""
    n, _, h, w = x.shape
    top = torch.randint(2 * t.pad + 1, (n,), generator=g) if t.pad else torch.zeros(n, dtype=torch.long)
    left = torch.randint(2 * t.pad + 1, (n,), generator=g) if t.pad else torch.zeros(n, dtype=torch.long)
    flip = torch.randint(2, (n,), generator=g) if t.flip else torch.zeros(n)
    angle = (torch.rand(n, generator=g) * 2 - 1) * t.rotate if t.rotate else torch.zeros(n)
    row = torch.randint(h, (n,), generator=g) if t.cutout else torch.zeros(n)
    column = torch.randint(w, (n,), generator=g) if t.cutout else torch.zeros(n)
    out = []
    for k in range(n):
        image = crop(x[k].numpy(), int(top[k]), int(left[k]), t.pad, t.pad_mode)
        image = image[:, :, ::-1] if flip[k] else image
        image = turn(image, float(angle[k])) if t.rotate else image
        z = torch.from_numpy(image.copy()).double() / 255
        if t.mean is not None and t.std is not None:
            z = (z - torch.tensor(t.mean).double().view(-1, 1, 1)) / torch.tensor(t.std).double().view(-1, 1, 1)
        for i in range(h):
            for j in range(w):
                half = t.cutout // 2
                if t.cutout and -half <= i - row[k] < half and -half <= j - column[k] < half:
                    z[:, i, j] = 0
        out.append(z)
    return torch.stack(out).float()


@pytest.mark.parametrize(
    "t",
    [
        Transform(pad=4, flip=True, **COLOUR),
        Transform(pad=3, pad_mode="reflect", flip=True),
        Transform(flip=True),
        Transform(rotate=25.0),
        Transform(cutout=6, **COLOUR),
        Transform(pad=2, flip=True, rotate=15.0, cutout=4, **COLOUR),
        Transform(pad=2, pad_mode="reflect", flip=True, rotate=40.0, **COLOUR),
    ],
    ids=str,
)
def test_augment_is_the_loop_over_images(t: Transform) -> None:
    x = images()
    got, expected = t.apply_train(x, rng(5)), reference(t, x, rng(5))
    assert got.dtype == torch.float32
    # A coordinate that falls on the border of two pixels may be rounded either way.
    different = (~torch.isclose(got, expected, atol=1e-5)).float().mean()
    assert different < (1e-3 if t.rotate else 1e-9)


def test_rotation_is_pils() -> None:
    x = images(h=32, w=32)
    got = Transform(rotate=30.0).apply_train(x, rng(1))
    angles = (torch.rand(B, generator=rng(1)) * 2 - 1) * 30
    expected = np.stack(
        [
            np.asarray(Image.fromarray(i.permute(1, 2, 0).numpy()).rotate(float(a)))
            for i, a in zip(x, angles, strict=True)
        ]
    )
    different = ((got * 255).round().byte().permute(0, 2, 3, 1).numpy() != expected).mean()
    assert different < 2e-3  # PIL counts in steps of 2^-16


def test_plain_is_scaled_and_normalised_and_floats_stay() -> None:
    x = images()
    expected = (x.double() / 255 - torch.tensor(COLOUR["mean"]).view(3, 1, 1)) / torch.tensor(COLOUR["std"]).view(
        3, 1, 1
    )
    assert torch.allclose(Transform(**COLOUR).apply_test(x).double(), expected, atol=1e-6)
    assert torch.equal(Transform().apply_test(x), x.float() / 255)
    table = torch.randn(5, 3, generator=rng())
    assert Transform().apply_test(table) is table
    before = table.clone()
    normalised = Transform(**COLOUR).apply_test(table)
    assert torch.allclose(normalised, (table - torch.tensor(COLOUR["mean"])) / torch.tensor(COLOUR["std"]))
    assert torch.equal(table, before)


def test_float_images_are_augmented_without_touching_the_store() -> None:
    x = images().float() / 255
    before = x.clone()
    t = Transform(pad=2, flip=True, cutout=4)
    assert torch.allclose(t.apply_train(x, rng(3)), t.apply_train(images(), rng(3)))
    assert torch.equal(x, before)


def test_crop_reaches_every_offset_and_flip_half_of_the_images() -> None:
    x = torch.zeros(4000, 1, 5, 5, dtype=torch.uint8)
    x[:, :, 2, 2] = 255
    at = Transform(pad=2).apply_train(x, rng()).flatten(1).argmax(1)
    assert torch.bincount(at, minlength=25).min() > 80  # 160 expected
    x = torch.zeros(4000, 1, 1, 2, dtype=torch.uint8)
    x[..., 0] = 255
    assert 0.45 < Transform(flip=True).apply_train(x, rng())[..., 1].mean() < 0.55


def test_cutout_is_a_clipped_square_of_zeros_after_normalisation() -> None:
    x = torch.full((2000, 1, 32, 32), 200, dtype=torch.uint8)
    out = Transform(mean=(0.5,), std=(0.5,), cutout=16).apply_train(x, rng())
    zeros = (out == 0).sum((1, 2, 3))
    assert zeros.max() == 256
    assert zeros.min() == 64  # centred in a corner: rows 0..7
    assert out.unique().tolist() == [0.0, pytest.approx(200 / 127.5 - 1)]


@pytest.mark.parametrize("preset", TRANSFORM_PRESETS)
def test_presets_are_deterministic_and_use_no_global_generator(preset: str) -> None:
    for name, t in TRANSFORM_PRESETS[preset].items():
        x = images(channels=1 if name in ("mnist", "femnist") else 3, h=28, w=28)
        torch.manual_seed(1)
        state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        first = t.apply_train(x, rng(7))
        assert torch.equal(state, torch.get_rng_state())
        assert np.array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002
        torch.manual_seed(2)
        assert torch.equal(first, t.apply_train(x, rng(7)))
        assert torch.equal(first, t.apply_train(x, rng(8))) != t.is_random


def test_constants_of_the_presets() -> None:
    moon = TRANSFORM_PRESETS["moon"]["cifar10"]
    assert moon.mean == (125.3 / 255, 123.0 / 255, 113.9 / 255)
    assert (moon.pad, moon.pad_mode, moon.flip, moon.rotate, moon.cutout) == (4, "reflect", True, 0, 0)
    assert TRANSFORM_PRESETS["moon"]["cifar100"] == TRANSFORM_PRESETS["fedcsd"]["cifar100"]
    assert TRANSFORM_PRESETS["moon"]["cifar100"] == Transform(
        (0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615), pad=4, flip=True, rotate=15.0
    )
    assert TRANSFORM_PRESETS["moon"]["tiny-imagenet"] == Transform((0.5,) * 3, (0.5,) * 3)
    assert TRANSFORM_PRESETS["niid-bench"]["cifar10"] == replace(moon, mean=None, std=None)
    assert TRANSFORM_PRESETS["fedlmd"]["cifar10"].cutout == TRANSFORM_PRESETS["fedlmd"]["mnist"].cutout == 16
    assert TRANSFORM_PRESETS["fedlmd"]["cifar10"].pad_mode == "zero"
    assert (TRANSFORM_PRESETS["fedlmd"]["cinic10"].cutout, TRANSFORM_PRESETS["fedlmd"]["cinic10"].pad_mode) == (
        0,
        "reflect",
    )
    assert TRANSFORM_PRESETS["fedlmd"]["mnist"].mean == (0.1307,)
    assert TRANSFORM_PRESETS["fedbn"]["office-caltech-10"] == Transform(flip=True, rotate=30.0)
    assert not TRANSFORM_PRESETS["fedcsd"]["femnist"].is_random


def test_transform_for() -> None:
    plain = Transform(mean=(0.5,), std=(0.2,))
    assert resolve_transform("none", "mnist", plain) is plain
    assert resolve_transform("fedlmd", "mnist", plain) == TRANSFORM_PRESETS["fedlmd"]["mnist"]
    assert resolve_transform({"pad": 2, "flip": True}, "mnist", plain) == replace(plain, pad=2, flip=True)
    assert resolve_transform({"mean": [0.1], "std": [1]}, "mnist", plain) == Transform((0.1,), (1.0,))


@pytest.mark.parametrize(
    ("augment", "code", "key", "facts"),
    [
        ("mon", "config.unknown_name", "data.augment", ('"mon"', '"moon"')),
        ("moon", "config.conflict", "data.augment", ('"mnist"', "cifar10, cifar100, femnist")),
        ({"padd": 4}, "config.unknown_key", "data.augment.padd", ('"pad"',)),
        ({"pad": "much"}, "config.invalid_value", "data.augment.pad", ("'much'",)),
        ({"pad": -1}, "config.invalid_value", "data.augment.pad", ("-1",)),
        ({"pad_mode": "wrap"}, "config.invalid_value", "data.augment.pad_mode", ("'wrap'",)),
        ({"mean": [0.5, 0.5]}, "config.conflict", "data.augment.std", ("mean", "channel")),
        ({"mean": None}, "config.conflict", "data.augment.std", ("mean",)),
        ({"std": [0.0]}, "config.invalid_value", "data.augment.std", ("0.0",)),
    ],
)
def test_bad_augmentations_are_one_line(
    augment: str | dict[str, object], code: str, key: str, facts: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as error:
        resolve_transform(augment, "mnist", Transform(mean=(0.5,), std=(0.5,)))
    assert (error.value.code, error.value.key) == (code, key)
    assert all(fact in str(error.value) for fact in facts)
    assert "\n" not in str(error.value)


def test_transforms_that_do_not_fit_the_data() -> None:
    def error_of(call: Callable[[], object]) -> tuple[str, str | None]:
        with pytest.raises(UserError) as error:
            call()
        return error.value.code, error.value.key

    assert error_of(lambda: Transform(**COLOUR).apply_test(images(channels=1))) == (
        "data.shape_mismatch",
        "data.augment.mean",
    )
    assert error_of(lambda: Transform(flip=True).apply_train(torch.zeros(4, 7), rng())) == (
        "config.conflict",
        "data.augment",
    )
    wide = Transform(pad=12, pad_mode="reflect")
    assert error_of(lambda: wide.apply_train(images(), rng())) == ("config.invalid_value", "data.augment.pad")
    unknown = ("config.unknown_name", "data.augment.pad_mode")
    assert error_of(lambda: Transform(pad_mode="wrap")) == unknown  # type: ignore[arg-type]
