"""Method: the nine hooks. Every default is FedAvg's, so a method says only what its paper changes."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedrecall.core.types import Cohort, Local, Payload, Reply, Server, Step


@dataclass(frozen=True)
class Method:
    """FedAvg: Communication-Efficient Learning of Deep Networks from Decentralized Data.

    McMahan, Moore, Ramage, Hampson, Aguera y Arcas. AISTATS 2017. https://arxiv.org/abs/1602.05629

    A method is a frozen dataclass: its fields are its hyper-parameters, and that is its configuration.
    """

    # --- server ---------------------------------------------------------------------------
    def init(self, w: Tensor) -> Payload:
        """Extra server state, before the first round."""
        return {}

    def brief(self, server: Server) -> Payload:
        """Work before a round (may look at server.aux); what it returns goes down beside the weights."""
        return {}

    def merge(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """The server after the replies, which are streamed: look at each once."""
        return server.step(server.mean(replies)["w"])

    def round(self, server: Server, cohort: Cohort) -> Server:
        """One communication round; override only if the paper has more than one exchange."""
        return self.merge(server, cohort.run("train", {"w": server.w, **self.brief(server)}), cohort)

    # --- client ---------------------------------------------------------------------------
    def memory(self, w: Tensor) -> Payload:
        """What a client remembers before its first round."""
        return {}

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Weights [d], or complete models [d + e], that the loss wants to hear; the loop runs and caches them."""
        return {}

    def loss(self, s: Step, r: Local) -> Tensor:
        """The local objective on one batch."""
        return F.cross_entropy(s.z, s.y)

    def correct(self, g: Tensor, r: Local) -> Tensor:
        """The gradient, as the optimiser will see it."""
        return g

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """(what goes up, what is remembered) after the last local step."""
        return {"w": w}, r.memory
