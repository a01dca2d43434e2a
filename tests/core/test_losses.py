"""Losses compared with numbers computed by hand and with a loop written from the definitions, in float64."""

import math

import pytest
import torch
from torch import Tensor

from fedrecall.core.losses import (
    class_mean,
    confusion_matrix,
    kl,
    label_probability,
    mask_label,
    mask_logits,
    one_hot_mask,
    soft_ce,
    soft_targets,
)

Z = torch.tensor([[1, 2, 0.5, -1], [0.2, -0.3, 1.5, 0]], dtype=torch.float64)
ZG = torch.tensor([[0.5, 3, 1.5, -0.5], [1, 0, -0.5, -1]], dtype=torch.float64)
Y = torch.tensor([1, 2])


def loop(z: Tensor, q: Tensor, tau: float) -> tuple[list[float], list[float]]:
    """Return (cross-entropy, KL) of each row, with 0 log 0 = 0."""
    ce, divergence = [], []
    for row, target in zip(z.tolist(), q.tolist(), strict=True):
        total = sum(math.exp(v / tau) for v in row)
        log_p = [v / tau - math.log(total) for v in row]
        ce.append(-sum(t * lp for t, lp in zip(target, log_p, strict=True) if t > 0))
        divergence.append(sum(t * (math.log(t) - lp) for t, lp in zip(target, log_p, strict=True) if t > 0))
    return ce, divergence


def test_golden_numbers() -> None:
    q = soft_targets(ZG, 2.0)
    assert soft_ce(Z, q, 2.0).tolist() == pytest.approx([1.22609614, 1.47739867], abs=1e-8)
    assert kl(Z, q, 2.0).tolist() == pytest.approx([0.04123808, 0.16353714], abs=1e-8)
    assert float(kl(Z, soft_targets(ZG, 1.0), 1.0).mean()) == pytest.approx(0.3771325344, abs=1e-10)
    assert label_probability(ZG, Y).tolist() == pytest.approx([0.74883227, 0.12925005], abs=1e-8)


@pytest.mark.parametrize("tau", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("masked", [False, True])
def test_against_the_definition(tau: float, masked: bool) -> None:
    mask = torch.tensor([[True, False, True, True], [True, True, False, False]]) if masked else None
    q = soft_targets(ZG, tau, mask)
    assert q.sum(-1).tolist() == pytest.approx([1, 1])
    ce, divergence = loop(Z, q, tau)
    assert soft_ce(Z, q, tau).tolist() == pytest.approx(ce)
    assert kl(Z, q, tau).tolist() == pytest.approx(divergence)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.5, 1.0, 4.0])
def test_masks_are_exact_in_every_precision(dtype: torch.dtype, tau: float) -> None:
    mask = ~one_hot_mask(Y, 4)
    z = Z.to(dtype).requires_grad_()
    q = soft_targets(ZG.to(dtype), tau, mask)
    assert (q[~mask] == 0).all()
    loss = kl(mask_logits(z, mask), q, tau).sum() + soft_ce(mask_logits(z, mask), q, tau).sum()
    (g,) = torch.autograd.grad(loss, z)
    assert torch.isfinite(loss)
    assert torch.isfinite(g).all()
    assert (g[~mask] == 0).all(), "a class that is masked on both sides has no gradient"


def test_the_masked_label_has_the_bits_of_a_mask() -> None:
    results = []
    for masked in (mask_label, lambda z, y: mask_logits(z, ~one_hot_mask(y, 4))):
        z = Z.float().requires_grad_()
        term = kl(masked(z, Y), soft_targets(ZG.float(), 1.0, ~one_hot_mask(Y, 4)), 1.0)
        results += [term.detach(), *torch.autograd.grad(term.sum(), z)]
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])


def test_the_term_without_classes_to_distil_is_zero() -> None:
    mask = torch.tensor([[False] * 4, [True, False, False, False]])
    z = Z.clone().requires_grad_()
    term = kl(z, soft_targets(ZG, 1.0, mask), 1.0)
    assert term[0] == 0
    assert term[1] > 0
    (g,) = torch.autograd.grad(term.sum(), z)
    assert (g[0] == 0).all()


def test_the_teacher_gets_no_gradient() -> None:
    zg = ZG.clone().requires_grad_()
    assert not soft_targets(zg, 1.0).requires_grad


def test_class_mean_and_confusion() -> None:
    y = torch.tensor([0, 0, 2, 2, 2])
    z = torch.tensor([[2.0, 1, 0], [0, 2, 1], [0, 1, 2], [0, 1, 2], [2, 1, 0]])
    assert torch.allclose(confusion_matrix(z, y), torch.tensor([[0.5, 0.5, 0], [0, 0, 0], [1 / 3, 0, 2 / 3]]))
    assert torch.allclose(class_mean(z[:, 0], y, 3), torch.tensor([1.0, 0, 2 / 3]))
