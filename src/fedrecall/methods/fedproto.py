"""FedProto: Federated Prototype Learning across Heterogeneous Clients.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. AAAI 2022. https://arxiv.org/abs/2105.00243

Published with personal models that share prototypes only (`share_weights = False`); FedCSD compares a global model,
which needs averaged weights, the default. Prototypes are averaged uniformly, as in the official code; the paper weights
by class counts. A class that no client holds keeps its old prototype. A row of zeros marks an absent class.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedrecall.constraints import Weight
from fedrecall.core.losses import class_mean, class_sum
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.reply_validation import Reason
from fedrecall.core.types import Cohort, Local, Output, Payload, Reply, Server, Step


@dataclass(frozen=True)
class FedProto(Method):
    """Penalty on the distance of features to the mean feature of the label over all clients."""

    lam: Weight = 1.0
    """Weight of the distance to the prototype; the official code has 0.1 on CIFAR-10."""
    share_weights: bool = True
    """Average the weights. False: personal models, only prototypes are sent."""
    weighting: Literal["uniform", "size"] = "uniform"
    """Weights of the clients' prototypes; "size": class counts."""
    collect: Literal["after", "last_epoch"] = "after"
    """Features of the trained model, or those of the last epoch of training."""
    absent: Literal["keep", "drop"] = "keep"
    """Prototype of a class that no client of the round holds."""

    @property
    def traits(self) -> Traits:
        """Without shared weights there is no global model. Class counts are checked by the number of examples."""
        return Traits(personalised=not self.share_weights, needs_one_label=self.weighting == "size")

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Run the round; weights are broadcast only if they are shared."""
        down = ({"w": server.w} if self.share_weights else {}) | self.broadcast(server)
        return self.aggregate(server, cohort.run("train", down), cohort)

    def broadcast(self, server: Server) -> Payload:
        """Return the global prototypes G [K, D], from the second round on."""
        return dict(server.extra)

    def memory(self, w: Tensor) -> Payload:
        """Return the initial personal model, the same for all clients."""
        return {} if self.share_weights else {"own": w}

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE + lam mean ||h - G_y||^2 / D; a sample whose class has no prototype adds 0."""
        if self.collect == "last_epoch" and s.last:
            r.scratch["sum"] = r.scratch.get("sum", 0) + class_sum(s.h.detach(), s.y, len(r.counts))
            r.scratch["seen"] = r.scratch.get("seen", 0) + torch.bincount(s.y, minlength=len(r.counts))
        ce = r.cross_entropy(s.z, s.y)
        if "G" not in r.down:
            return ce
        target = r.down["G"][s.y]
        known = target.any(-1, keepdim=True)
        return ce + self.lam * torch.where(known, s.h - target, 0.0).square().mean()

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Send the mean feature of each class of the client; send or store the weights."""
        if self.collect == "last_epoch" and "sum" in r.scratch:
            seen = r.scratch["seen"]
            prototypes = r.scratch["sum"] / seen[:, None].clamp(min=1)
        else:
            seen = r.counts
            prototypes = class_mean(r.f.outputs(r.state(w), r.data).h, r.y, len(seen))
        # A row of zeros marks an absent class: a present one must differ even if all its features are 0.
        up = {"G": torch.where(seen[:, None] > 0, prototypes + 1e-30, 0.0)}
        if self.weighting == "size":
            up["counts"] = seen.to(w.dtype)
        return (up | {"w": w}, r.memory) if self.share_weights else (up, {"own": r.state(w)})

    def validate_reply(self, reply: Reply) -> str | None:
        """Reject negative class counts, and counts that add up to more than the client's examples."""
        counts = reply.up.get("counts")
        if counts is None or (counts.min() >= 0 and counts.sum() <= reply.n):
            return None
        return Reason("reply.invalid_value", f"counts must be >= 0 and add up to at most {reply.n} examples")

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """Average the prototypes over the clients that hold the class, and the weights if they are shared."""

        def weighted_prototypes() -> Iterator[Reply]:
            for reply in replies:
                G = reply.up["G"]
                share = reply.up["counts"] if self.weighting == "size" else G.any(-1).to(G.dtype)
                up = {k: t for k, t in reply.up.items() if k == "w"}
                yield reply._replace(up=up | {"rows": share[:, None] * G, "share": share})

        m = server.mean(weighted_prototypes(), unweighted={"rows", "share"})
        G = torch.where(m["share"][:, None] > 0, m["rows"] / m["share"][:, None], 0.0)
        if self.absent == "keep" and "G" in server.extra:
            G = torch.where(m["share"][:, None] > 0, G, server.extra["G"])
        return (server.step(m["w"]) if self.share_weights else server).with_extra(G=G)

    def scoring_logits(self, out: Output, down: Payload, counts: Tensor | None = None) -> Tensor:
        """Return minus the distances to the prototypes for a personal model, else its logits.

        Own held-out examples are classified among the client's own classes, as in the official code.
        """
        if self.share_weights or "G" not in down:
            return out.z
        distance = torch.cdist(out.h, down["G"])
        known = down["G"].any(-1) if counts is None else down["G"].any(-1) & (counts > 0)
        return torch.where(known, -distance, torch.finfo(distance.dtype).min)
