"""FedGKD: Local-Global Knowledge Distillation in Heterogeneous Federated Learning with Non-IID Data.

Yao, Pan, Dai, Wan, Ding, Jin, Xu, Sun. 2021. https://arxiv.org/abs/2107.00051

`coef` is the paper's gamma / 2. As in the official code the first round does not distil. The official vote variant
computes its loss without a gradient; here it has one.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.constraints import PositiveInt, Temperature, Weight
from fedrecall.core.losses import kl, soft_targets
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.types import Cohort, Local, Payload, Server, Step


@dataclass(frozen=True)
class FedGKD(Method):
    """Distillation from the mean of the last global models."""

    buffer: PositiveInt = 5
    """M: number of global models that are fused."""
    coef: Weight = 0.1
    """Weight of the distillation, gamma / 2."""
    tau: Temperature = 1.0
    """Temperature."""
    vote: bool = False
    """Send all M models, each weighted by its loss on the auxiliary data."""

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Add the current global model to the buffer, then run the round. The initial model is not buffered."""
        if server.t > 0:
            past = [server.extra["buffer"]] if "buffer" in server.extra else []
            server = server.with_extra(buffer=torch.cat([*past, server.state[None]])[-self.buffer :])
        return super().round(server, cohort)

    @property
    def traits(self) -> Traits:
        """The vote needs auxiliary data."""
        return Traits(needs_auxiliary_data=self.vote)

    def broadcast(self, server: Server) -> Payload:
        """Return the fused teacher, or nothing if it equals the broadcast model."""
        models = server.extra.get("buffer")
        if models is None or len(models) < 2:
            return {}
        if not self.vote:
            return {"teacher": models.mean(0)}
        aux = server.require_auxiliary
        losses = torch.stack([F.cross_entropy(server.f.outputs(model, aux).z, aux.y) for model in models])
        return {"teachers": models, "votes": F.softmax(-losses, 0)}

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return no teacher in the first round, then the fused one, or all models that vote."""
        if r.t == 0:
            return {}
        if "teachers" in r.down:
            return {f"teacher {m}": w for m, w in enumerate(r.down["teachers"])}
        return {"teacher": r.down.get("teacher", r.w)}

    def distillation(self, s: Step, r: Local) -> Tensor | None:
        """Return coef tau^2 KL(teacher || student), summed over the teachers; None in the first round."""
        return torch.stack(self._terms(s, r)).sum() if s.frozen else None

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE plus the distillation."""
        ce = r.cross_entropy(s.z, s.y)
        return sum(self._terms(s, r), start=ce)

    def _terms(self, s: Step, r: Local) -> list[Tensor]:
        """Return the distillation from each teacher."""
        votes = r.down["votes"].tolist() if "votes" in r.down else [1.0] * len(s.frozen)
        return [
            vote * self.coef * self.tau**2 * kl(s.z, soft_targets(teacher.z, self.tau), self.tau).mean()
            for teacher, vote in zip(s.frozen.values(), votes, strict=True)
        ]
