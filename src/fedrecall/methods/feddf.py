"""FedDF: Ensemble Distillation for Robust Model Fusion in Federated Learning.

Lin, Kong, Stich, Jaggi. NeurIPS 2020. https://arxiv.org/abs/2006.07242

The server trains the mean model on the inputs of its auxiliary examples; their labels are not used. All models of a
round are in the server's memory at once. The official code stops early by the accuracy on a validation set and anneals
the learning rate within a round; here the number of steps and the rate are constant.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedrecall.constraints import NonNegativeInt, PositiveFloat, PositiveInt, Temperature
from fedrecall.core import seeds
from fedrecall.core.losses import kl, soft_targets
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.optim import ClientAdam
from fedrecall.core.training import LocalTraining, train
from fedrecall.core.types import Cohort, Local, Reply, Server, Step


@dataclass(frozen=True)
class MeanLogitsStudent(Method):
    """Distillation of the mean logits of the models in the client state "teachers"."""

    tau: Temperature = 1.0
    """Temperature."""

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return all teachers."""
        return {str(k): state for k, state in enumerate(r.memory["teachers"])}

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return KL(softmax(mean_k z_k / tau) || softmax(z / tau))."""
        mean = torch.stack([teacher.z for teacher in s.frozen.values()]).mean(0)
        return kl(s.z, soft_targets(mean, self.tau), self.tau).mean()


@dataclass(frozen=True)
class FedDF(Method):
    """Server-side distillation of the clients' mean logits on unlabelled data of the server."""

    steps: NonNegativeInt = 200
    """Training steps at the server per round, rounded up to complete passes over its data; 0 is FedAvg."""
    batch: PositiveInt = 64
    """Examples per step."""
    lr: PositiveFloat = 1e-3
    """Learning rate of Adam."""
    tau: Temperature = 1.0
    """Temperature."""

    @property
    def traits(self) -> Traits:
        """The server needs examples; their labels are not used."""
        return Traits(needs_auxiliary_data=self.steps > 0)

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """Average the models, then train the mean with the clients' models as teachers."""
        if not self.steps:
            return super().aggregate(server, replies, cohort)
        teachers = list[Tensor]()

        def kept() -> Iterator[Reply]:
            for reply in replies:
                b = server.b if reply.b is None else reply.b
                teachers.append(server.f.join(reply.up["w"], b))
                yield reply._replace(up=reply.up | {"b": b})

        m = server.mean(kept())
        new = server.step(m["w"])
        data = server.require_auxiliary.precomputed()
        passes = -(-self.steps // -(-len(data) // self.batch))
        r = Local(
            f=server.f,
            w=new.w,
            b=m["b"],
            down={"counters": server.int_buffers} if len(server.int_buffers) else {},
            memory={"teachers": torch.stack(teachers)},
            data=data,
            y=data.y,
            counts=data.y.new_zeros(0),  # labels are unknown to the loss
            training=LocalTraining(passes, self.batch, ClientAdam(self.lr)),
            t=server.t,
            seed=0,
            scratch={},
        )
        up = train(MeanLogitsStudent(self.tau), r, seeds.derive_seed(server.seed, "server", server.t), 0).up
        return replace(new, w=up["w"], b=up.get("b", new.b), int_buffers=up.get("counters", new.int_buffers))
