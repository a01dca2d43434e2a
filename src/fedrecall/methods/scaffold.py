"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. ICML 2020. https://arxiv.org/abs/1910.06378

The paper has no momentum. Two consistent ways to have one (`mode`): correct the gradient and divide by the effective
steps ("grad", FedNTD's and FedLMD's code), or correct after the step and divide by the steps ("post_step", NIID-Bench).
Correcting the gradient and dividing by the steps overestimates the variates tenfold at momentum 0.9. The paper averages
models uniformly, these codes by size: `server.weights`; its global step size is `server.lr`. Variates start at zero.

Option II recovers the mean gradient of the round from the displacement of the weights, which is possible for SGD only.
With Adam the gradients are summed up instead: c_k becomes their mean, which is what option II computes for plain SGD.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.optim import ClientSGD
from fedrecall.core.types import Cohort, Local, Payload, Reply, Server


@dataclass(frozen=True)
class Scaffold(Method):
    """Control variates that correct every local step by the difference of the client's and the global gradient."""

    mode: Literal["grad", "post_step"] = "grad"
    """Correct the gradient, or the weights after the step."""

    @property
    def traits(self) -> Traits:
        """A correction of the weights has the units of an SGD step."""
        return Traits(needs_sgd=self.mode == "post_step")

    def init(self, w: Tensor) -> Payload:
        """Return the global control variate, initially 0."""
        return {"c": torch.zeros_like(w)}

    def memory(self, w: Tensor) -> Payload:
        """Return the client's control variate, initially 0."""
        return {"c": torch.zeros_like(w)}

    def broadcast(self, server: Server) -> Payload:
        """Return the global control variate."""
        return {"c": server.extra["c"]}

    def correct(self, g: Tensor, r: Local) -> Tensor:
        """Return g - c_k + c in mode "grad"."""
        if self.mode == "post_step":
            return g
        if not isinstance(r.training.optimiser, ClientSGD):
            r.scratch["sum"] = r.scratch["sum"].add_(g) if "sum" in r.scratch else g.clone()
        return g - r.memory["c"] + r.down["c"]  # Algorithm 1, line 10

    def step_correction(self, r: Local) -> Tensor | None:
        """Return c - c_k in mode "post_step"."""
        return r.down["c"] - r.memory["c"] if self.mode == "post_step" else None

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Send the weights and the change of the variate; without a step the variate does not change."""
        if steps == 0:
            return {"w": w, "dc": torch.zeros_like(w)}, r.memory
        optimiser = r.training.optimiser
        if isinstance(optimiser, ClientSGD):
            k_eff = optimiser.effective_steps(steps) if self.mode == "grad" else steps
            dc = (r.w - w) / (optimiser.lr * k_eff) - r.down["c"]  # line 12, option II
        else:
            dc = r.scratch["sum"] / steps - r.memory["c"]
        return {"w": w, "dc": dc}, {"c": r.memory["c"] + dc}

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """Average the models; move c by the share of participating clients."""
        m = server.mean(replies, unweighted={"dc"})
        c = server.extra["c"] + cohort.size / cohort.population * m["dc"]  # line 17
        return server.step(m["w"]).with_extra(c=c)
