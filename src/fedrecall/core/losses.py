"""Parts of losses: pure functions without branches on data or boolean indexing, safe to vmap and to compile.

z are logits [B, K], q a distribution [B, K] taken as a constant, tau a temperature; results are per example [B],
summed over classes, so that a loss ends in `.mean()` and nothing else.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

KdScale = Literal["none", "T2", "sum"]


def one_hot_mask(y: Tensor, classes: int) -> Tensor:
    """Return the one-hot encoding of labels as booleans [B, K]."""
    return y[:, None] == torch.arange(classes, device=y.device)


def mask_logits(z: Tensor, mask: Tensor) -> Tensor:
    """Replace the logits of classes outside the mask by a large negative number, before any softmax.

    It gives the class probability 0 and stays finite when divided by any temperature, so that 0 times it is 0: no
    loss needs to handle infinities.
    """
    return torch.where(mask, z, _masked_logit(z))


def mask_label(z: Tensor, y: Tensor) -> Tensor:
    """Mask the logit of the label, to the bits of `mask_logits` in a third of its time."""
    return z.scatter(-1, y[:, None], _masked_logit(z))


def _masked_logit(z: Tensor) -> float:
    return -float(torch.finfo(z.dtype).max ** 0.75)


def _with_temperature(z: Tensor, tau: float) -> Tensor:
    """Return z / tau; at temperature 1 z itself, which has the same bits and saves an operation."""
    return z if tau == 1 else z / tau


def soft_targets(z: Tensor, tau: float, mask: Tensor | None = None) -> Tensor:
    """Return a teacher's distribution: softmax(z / tau) over the classes in the mask, 0 elsewhere; no gradient.

    If the mask has no class, the row is zero: nothing is distilled.
    """
    z = _with_temperature(z.detach(), tau)
    return F.softmax(z, -1) if mask is None else F.softmax(mask_logits(z, mask), -1) * mask


def soft_ce(z: Tensor, q: Tensor, tau: float) -> Tensor:
    """Return -sum_c q_c log softmax(z / tau)_c. A class with q_c = 0 adds exactly 0 for any finite logit."""
    return -(q * F.log_softmax(_with_temperature(z, tau), -1)).sum(-1)


def kl(z: Tensor, q: Tensor, tau: float) -> Tensor:
    """Return KL(q || softmax(z / tau)). A class with q_c = 0 adds exactly 0 for any finite logit."""
    log_q = q.clamp_min(torch.finfo(q.dtype).tiny).log()
    return (q * (log_q - F.log_softmax(_with_temperature(z, tau), -1))).sum(-1)


def label_probability(z: Tensor, y: Tensor, tau: float = 1.0) -> Tensor:
    """Return the probability of the label [B]."""
    return F.softmax(_with_temperature(z, tau), -1).gather(-1, y[:, None])[:, 0]


def class_sum(t: Tensor, y: Tensor, classes: int) -> Tensor:
    """Sum t [B, ...] over the examples of each class: [K, ...]."""
    return torch.einsum("bk,b...->k...", one_hot_mask(y, classes).to(t.dtype), t)


def class_mean(t: Tensor, y: Tensor, classes: int) -> Tensor:
    """Average t [B, ...] over the examples of each class: [K, ...]; 0 for a class without examples."""
    counts = torch.bincount(y, minlength=classes).clamp(min=1)
    return class_sum(t, y, classes) / counts.view(-1, *[1] * (t.ndim - 1))


def confusion_matrix(z: Tensor, y: Tensor) -> Tensor:
    """Return A[a, b], the share of class a with largest logit b [K, K]; 0 for a class without examples."""
    classes = z.shape[-1]
    return class_mean(one_hot_mask(z.argmax(-1), classes).to(z.dtype), y, classes)


def credibility(A: Tensor) -> Tensor:
    """Return FedSSD's M_class [K]: recall of a class times one minus its largest false-positive rate by class."""
    recall = A.diagonal()
    return recall * (1 - (A - recall.diag()).max(0).values)


def cosine(z: Tensor, P: Tensor) -> Tensor:
    """Return the cosine of each z [B, K] and each row of P [C, K]: [B, C]; 0 if either is zero."""
    return F.normalize(z, dim=-1) @ F.normalize(P, dim=-1).T


def kd_factor(kd_scale: KdScale, tau: float, batch: int) -> float:
    """Return the factor of a distillation term: tau^2 for "T2", the number of examples for "sum", else 1."""
    return {"none": 1.0, "T2": tau**2, "sum": float(batch)}[kd_scale]
