"""Ditto: Fair and Robust Federated Learning Through Personalization.

Li, Hu, Beirami, Smith. ICML 2021. https://arxiv.org/abs/2012.04221

The global model is that of FedAvg. Beside it every client trains a model of its own, which it stores, with a penalty on
the distance to the received weights. A client's score (`run.local_accuracy`) is that of its own model.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from fedrecall.constraints import Weight
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.training import train
from fedrecall.core.types import Local, Payload, Step


@dataclass(frozen=True)
class PersonalTraining(Method):
    """Local training with a penalty on the distance to the weights "global" of the payload."""

    lam: Weight = 1.0

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE + lam/2 ||v - w^t||^2."""
        return super().loss(s, r) + self.lam / 2 * (s.w - r.down["global"]).square().sum()

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Return the model as client state."""
        return {}, {"personal": r.state(w)}


@dataclass(frozen=True)
class Ditto(Method):
    """FedAvg, and beside it a personal model of each client near the global one."""

    lam: Weight = 1.0
    """Weight of the distance to the global weights; the paper has 0.1, 1 and 2."""

    @property
    def traits(self) -> Traits:
        """Personal and global model are complete: a private part would belong to both."""
        return Traits(excludes=("federation.private",))

    def memory(self, w: Tensor) -> Payload:
        """Return the personal model before the client's first round: the weights that it receives."""
        return {"personal": w}

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Send the weights; train and store the personal model."""
        v, b = r.f.split(r.memory["personal"])
        own = r._replace(
            w=v,
            b=b if len(b) else r.f.b,
            down={"global": r.w},
            training=replace(r.training, prox=0.0),  # the penalty is the method's own
            scratch={},
        )
        memory = {"personal": train(PersonalTraining(self.lam), own, r.seed, 0).memory["personal"]}
        r.scratch.update(memory)
        return {"w": w}, memory

    def personal_model(self, state: Tensor, r: Local) -> Tensor:
        """Return the personal model."""
        return r.scratch["personal"]
