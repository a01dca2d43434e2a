"""FedNova: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.

Wang, Liu, Liang, Joshi, Poor. NeurIPS 2020. https://arxiv.org/abs/2007.07481

Probabilities are over the participating clients. FedNTD's and FedLMD's code adds a variance reduction whose shared
direction is never updated, so that each client's own last direction is taken from its gradients: `ccvr_code`.
a_k is the norm of the coefficients of the gradients in the update; Adam's update has none, and is refused.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.optim import ClientSGD
from fedrecall.core.reply_validation import Reason
from fedrecall.core.types import Cohort, Local, Payload, Reply, Server


@dataclass(frozen=True)
class FedNova(Method):
    """Updates that are normalised by the effective number of local steps."""

    ccvr_code: bool = False
    """Variance reduction of the public code, for comparison only."""

    @property
    def traits(self) -> Traits:
        """a_k is defined for SGD. Clipped, it would no longer be the divisor of its update."""
        return Traits(needs_sgd=True, excludes=("server.robust.clip",))

    def memory(self, w: Tensor) -> Payload:
        """Return the client's last normalised direction, for ccvr_code."""
        return {"d": torch.zeros_like(w)} if self.ccvr_code else {}

    def correct(self, g: Tensor, r: Local) -> Tensor:
        """Return g, with ccvr_code minus the client's last direction."""
        return g - r.memory["d"] if self.ccvr_code else g

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Send the weights and a_k = ||a_k||_1, Section 3."""
        sgd = r.training.optimiser
        assert isinstance(sgd, ClientSGD)  # `needs_sgd`
        a = sgd.effective_steps(steps, r.training.prox)
        memory = {"d": (r.w - w) / (sgd.lr * a)} if self.ccvr_code and steps else r.memory
        return {"w": w, "a": w.new_tensor(a)}, memory

    def validate_reply(self, reply: Reply) -> str | None:
        """Reject a_k between 0 and 1: one step counts as 1, and a smaller divisor would inflate the direction."""
        a = float(reply.up["a"])
        return None if a >= 1 or a == 0 else Reason("reply.invalid_value", f"a = {a:.3g}: it must be 0 or at least 1")

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """Return w - tau_eff sum_k p_k d_k, without clients that made no step."""

        def normalised() -> Iterator[Reply]:
            for reply in replies:
                w, a = reply.up["w"], reply.up["a"]
                if a > 0:
                    yield reply._replace(up={"d": (server.w - w) / a, "a": a})

        m = server.mean(normalised())
        return server.step(server.w - m["a"] * m["d"]) if m else server
