"""FedCurv: Overcoming Forgetting in Federated Learning on Non-IID Data.

Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak. 2019. https://arxiv.org/abs/1910.07796

Sums are over the last values of all clients that have participated, without the client itself. A client stores its own
values and sends their change, so that the server stores two sums for any population (3 models up, 3 down). The
Fisher is of per-sample gradients; public code squares batch means, which is smaller by about the batch size: `fisher`.
That code also drops the contributions of clients trained earlier in the round, which parallel engines cannot reproduce.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedrecall.constraints import PositiveInt, Weight
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import TeacherOutputFn
from fedrecall.core.types import Cohort, Local, Payload, Reply, Server, Step


@dataclass(frozen=True)
class FedCurv(Method):
    """Quadratic penalty on the weights, with the Fisher information of the other clients."""

    lam: Weight = 1e-3
    """Weight of the penalty; 1e-4 on CIFAR-100, 1e-5 on Tiny-ImageNet (FedSSD); 1.0 per batch (FedLMD)."""
    fisher: Literal["per_sample", "per_batch"] = "per_sample"
    """Gradients that are squared: of samples, or of batch means."""
    size: PositiveInt = 500
    """Largest number of samples in the estimate."""

    def init(self, w: Tensor) -> Payload:
        """Return zero sums over clients of u = diag(Fisher) and v = u w."""
        return {"u": torch.zeros_like(w), "v": torch.zeros_like(w)}

    def memory(self, w: Tensor) -> Payload:
        """Return the client's own part of the sums."""
        return self.init(w)

    def broadcast(self, server: Server) -> Payload:
        """Return both sums."""
        return dict(server.extra)

    def prepare(self, r: Local, teacher_outputs: TeacherOutputFn) -> Payload:
        """Compute P_k and Q_k, the sums over all other clients."""
        return {"P": r.down["u"] - r.memory["u"], "Q": r.down["v"] - r.memory["v"]}

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE + lam (<P, w w> - 2 <Q, w>): the quadratic penalties without their constant."""
        P, Q = r.down["P"], r.down["Q"]
        return r.cross_entropy(s.z, s.y) + self.lam * ((P * s.w * s.w).sum() - 2 * (Q * s.w).sum())

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Send the weights and the changes of u and v; store u and v."""
        group_size = 1 if self.fisher == "per_sample" else r.training.batch
        u = r.f.fisher(r.state(w), r.data, self.size, group_size)
        v = u * w
        return {"w": w, "u": u - r.memory["u"], "v": v - r.memory["v"]}, {"u": u, "v": v}

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """Average the weights, add the changes to the sums."""
        m = server.mean(replies, unweighted={"u", "v"})
        sums = {name: server.extra[name] + cohort.size * m[name] for name in ("u", "v")}
        return server.step(m["w"]).with_extra(**sums)
