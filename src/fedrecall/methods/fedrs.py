"""FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data.

Li, Zhan. KDD 2021.

The paper scales the logits of missing classes; the official code scales every class smoothly, by its relative frequency
(`soft`). Its classifier has no bias; with one the complete logit is scaled. Testing uses plain logits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecall.constraints import UnitInterval
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Step


@dataclass(frozen=True)
class FedRS(Method):
    """Cross-entropy with scaled-down logits of classes that the client lacks, so that it does not unlearn them."""

    alpha: UnitInterval = 0.5
    """Scale of a missing class's logit."""
    soft: bool = False
    """Scale by relative frequency."""

    def inactive_reason(self, classes: int, counts: Tensor | None) -> str | None:
        """Return a reason if every client has every class: no logit is scaled."""
        acts = self.soft or counts is None or bool((counts == 0).any())
        return None if acts else "no client lacks a class, so no logit is scaled"

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return the cross-entropy of the restricted logits."""
        counts = r.counts.to(s.z.dtype)
        if self.soft:
            scale = self.alpha + (1 - self.alpha) * counts / counts.max()
        else:
            scale = torch.where(counts > 0, torch.ones_like(counts), self.alpha)
        return r.cross_entropy(scale * s.z, s.y)
