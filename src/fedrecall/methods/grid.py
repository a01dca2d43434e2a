"""Grid: teacher x trust x mask x divergence, for ablations.

The named methods have their own files; tests prove that they are points of the grid.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.constraints import Temperature, UnitInterval, Weight
from fedrecall.core.losses import (
    KdScale,
    class_mean,
    confusion_matrix,
    credibility,
    kd_factor,
    label_probability,
    mask_logits,
    one_hot_mask,
    soft_targets,
)
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.types import Local, Output, Payload, Server, Step


def _kl(z: Tensor, z_t: Tensor, tau: float, masks: tuple[Tensor, Tensor]) -> Tensor:
    q = soft_targets(z_t, tau, masks[0])
    log_q = q.clamp_min(torch.finfo(q.dtype).tiny).log()
    return q * (log_q - F.log_softmax(mask_logits(z, masks[1]) / tau, -1))


def _ce(z: Tensor, z_t: Tensor, tau: float, masks: tuple[Tensor, Tensor]) -> Tensor:
    q = soft_targets(z_t, tau, masks[0])
    return -(q * F.log_softmax(mask_logits(z, masks[1]) / tau, -1))


def _l2(z: Tensor, z_t: Tensor, _: float, masks: tuple[Tensor, Tensor]) -> Tensor:
    return (z_t.detach() - z).square() * masks[0]


DIVERGENCE: dict[str, Callable[[Tensor, Tensor, float, tuple[Tensor, Tensor]], Tensor]] = {  # per class [B, K]
    "kl": _kl,
    "ce": _ce,
    "l2": _l2,
}

MASK: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {  # (not true, minority) -> teacher's, student's
    "all": lambda nt, _: (torch.ones_like(nt), torch.ones_like(nt)),
    "not-true": lambda nt, _: (nt, nt),
    "minority": lambda nt, few: (nt & few, nt),
}

TRUST: dict[str, Callable[[Tensor, Tensor, Payload], Tensor]] = {  # (z_t, y, down) -> weights [B, 1] or [B, K]
    "one": lambda z, *_: torch.ones_like(z[:, :1]),
    "class": lambda _, y, down: down["alpha"][y][:, None],
    "sample": lambda z, y, _: _sample_confidence(z, y),
    "channel": lambda z, y, down: F.relu(credibility(down["A"]) * _sample_confidence(z, y) - 0.1),
    "gate": lambda z, y, _: (label_probability(z, y) > 1 / z.shape[-1])[:, None].to(z.dtype),
}


def _sample_confidence(z: Tensor, y: Tensor) -> Tensor:
    return 1 - (1 - label_probability(z, y)).clamp_min(0).sqrt()[:, None]


@dataclass(frozen=True)
class Grid(Method):
    """Any combination of teacher, trust, mask and divergence, for ablation tables."""

    teacher: Literal["global", "uniform"] = "global"
    """Received model, or equal logits."""
    trust: Literal["one", "class", "sample", "channel", "gate"] = "one"
    """Weight of the teacher: constant, per class (FedCAD), per sample, per logit (FedSSD), or a gate (FedCSD)."""
    mask: Literal["all", "not-true", "minority"] = "all"
    """Classes that are distilled."""
    divergence: Literal["kl", "ce", "l2", "features"] = "kl"
    """Distance; "features": squared distance of features, mean over dimensions."""
    convex: bool = False
    """(1 - a) CE + a KD instead of CE + a KD."""
    beta: Weight = 1.0
    """Weight of the distillation, times the trust."""
    tau: Temperature = 1.0
    """Temperature of "kl" and "ce"."""
    kd_scale: KdScale = "T2"
    """Factor of "kl" and "ce": "T2" is tau^2, "sum" the number of examples in the batch."""
    low: UnitInterval = 0.0
    """Trust "class": FedCAD's beta."""
    high: UnitInterval = 1.0
    """Trust "class": FedCAD's gamma."""

    @property
    def traits(self) -> Traits:
        """A measured trust needs auxiliary data."""
        return Traits(needs_auxiliary_data=self.trust in {"class", "channel"})

    def broadcast(self, server: Server) -> Payload:
        """Return the statistics of the auxiliary data that the trust needs."""
        if not self.traits.needs_auxiliary_data:
            return {}
        z, y = server.f.outputs(server.state, server.require_auxiliary).z, server.require_auxiliary.y
        if self.trust == "channel":
            return {"A": confusion_matrix(z, y)}
        return {
            "alpha": self.low + (self.high - self.low) * class_mean(label_probability(z, y, self.tau), y, z.shape[-1])
        }

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return the received model, if the loss uses it."""
        teacher_unused = self.teacher == "uniform" and self.trust in {"one", "class"} and self.divergence != "features"
        return {} if teacher_unused else {"global": r.w}

    def distillation(self, s: Step, r: Local) -> Tensor | None:
        """Return a KD per sample, with a = beta times the trust; None if features are distilled, not logits."""
        return None if self.divergence == "features" else self._weighted_terms(s, r)

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE + a KD, or (1 - a) CE + a KD."""
        ce = r.cross_entropy_terms(s.z, s.y)
        if self.convex:
            return ((1 - self._trust(s, r).mean(-1)) * ce + self._weighted_terms(s, r)).mean()
        return ce.mean() + self._weighted_terms(s, r).mean()

    def _weighted_terms(self, s: Step, r: Local) -> Tensor:
        """Return a KD [B]; with `convex` there is one weight per sample."""
        trust, terms = self._trust(s, r), self._terms(s, r, self._teacher(s))
        return trust.mean(-1) * terms.sum(-1) if self.convex else (trust * terms).sum(-1)

    def _trust(self, s: Step, r: Local) -> Tensor:
        return self.beta * TRUST[self.trust](self._teacher(s).z, s.y, r.down)

    def _teacher(self, s: Step) -> Output:
        return s.frozen.get("global", Output(s.h.detach(), torch.zeros_like(s.z)))

    def _terms(self, s: Step, r: Local, g: Output) -> Tensor:
        if self.divergence == "features":
            return (s.h - g.h).square().mean(-1, keepdim=True)
        z_t = g.z if self.teacher == "global" else torch.zeros_like(g.z)
        majority = r.counts > len(r.y) / len(r.counts)
        masks = MASK[self.mask](~one_hot_mask(s.y, s.z.shape[-1]), ~majority)
        factor = kd_factor(self.kd_scale, self.tau, len(s.y)) if self.divergence != "l2" else 1.0
        return factor * DIVERGENCE[self.divergence](s.z, z_t, self.tau, masks)
