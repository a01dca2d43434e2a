"""Pooling: the bits of torch."""

import pytest
import torch
import torch.nn.functional as F

from fedrecall.models import MODELS
from fedrecall.models.base import FastMaxPool2d

SHAPES = [(4, 6, 28, 28), (3, 1, 8, 6), (2, 5, 7, 9), (1, 3, 2, 2), (2, 16, 10, 10)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("learns", [False, True])
def test_the_same_bits_as_torch(shape: tuple[int, ...], layout: torch.memory_format, learns: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    for values in (torch.randn(shape, generator=rng), torch.randint(-1, 2, shape, generator=rng).float()):
        x = values.clone(memory_format=layout).requires_grad_(learns)
        pooled, expected = FastMaxPool2d()(x), F.max_pool2d(x, 2)
        assert torch.equal(pooled, expected)
        if learns:
            g = torch.randn(expected.shape, generator=rng)
            (mine,), (torchs,) = (torch.autograd.grad(y, x, g) for y in (pooled, expected))
            assert torch.equal(mine, torchs)


def test_nan_is_propagated() -> None:
    x = torch.zeros(1, 3, 4, 4).to(memory_format=torch.channels_last)
    x[0, 1, 2, 3] = torch.nan
    assert torch.isnan(FastMaxPool2d()(x)).nonzero().tolist() == [[0, 1, 1, 1]]


@pytest.mark.parametrize("name", ["cnn", "cnn-32-64"])
def test_a_teacher_has_the_outputs_of_the_trained_module(name: str) -> None:
    model = MODELS[name]().build((3, 32, 32), 10)
    x = torch.randn(8, 3, 32, 32).to(memory_format=torch.channels_last)
    learned = model(x)[1]
    with torch.no_grad():
        logits = model(x)[1]
    assert torch.equal(learned, logits)
