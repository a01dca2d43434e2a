"""FedCAD: Class-Wise Adaptive Self Distillation for Heterogeneous Federated Learning.

He, Chen, Yang, Zhang, Zeng. 2022. A two-page version is Class-Wise Adaptive Self Distillation for Federated Learning on
Non-IID Data.

The full version estimates the trust in the teacher on the server's auxiliary data, the short one on the client's data:
`estimate`. Neither states the temperature; 2 is that of FedLSD. The equations print no factor of the distillation; the
algorithm, read literally, adds its sum over the batch to the mean cross-entropy: `kd_scale`.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedrecall.constraints import Temperature, UnitInterval
from fedrecall.core.losses import KdScale, class_mean, kd_factor, label_probability, soft_ce, soft_targets
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import TeacherOutputFn, Traits
from fedrecall.core.types import Local, Payload, Server, Step


@dataclass(frozen=True)
class FedCAD(Method):
    """Distillation with a weight per class, which grows with the teacher's confidence in that label."""

    beta: UnitInterval = 0.25
    """Smallest trust in the teacher, Eq. (6); the full version's grid is 0, 0.3, 0.5, 0.7."""
    gamma: UnitInterval = 0.5
    """Largest trust in the teacher, Eq. (6)."""
    tau: Temperature = 2.0
    """Temperature, Eq. (2)."""
    estimate: Literal["aux", "local"] = "aux"
    """Data on which the trust is estimated: the server's auxiliary examples, or the client's own."""
    kd_scale: KdScale = "none"
    """Factor of the distillation: "T2" is tau^2, "sum" the number of examples in the batch."""
    phi_tau: Temperature | None = None
    """Temperature inside phi. None: tau."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(self.beta <= self.gamma, "gamma", "beta <= gamma")

    @property
    def traits(self) -> Traits:
        """The estimate of the full version needs auxiliary data."""
        return Traits(needs_auxiliary_data=self.estimate == "aux")

    def broadcast(self, server: Server) -> Payload:
        """Return the trust in the teacher per class, estimated on the auxiliary data."""
        if self.estimate == "local":
            return {}
        return {
            "alpha": self.class_trust(
                server.f.outputs(server.state, server.require_auxiliary).z, server.require_auxiliary.y
            )
        }

    def prepare(self, r: Local, teacher_outputs: TeacherOutputFn) -> Payload:
        """Estimate the trust on the client's data. A class without examples gets beta, and no sample uses it."""
        return {"alpha": self.class_trust(teacher_outputs("global").z, r.y)} if self.estimate == "local" else {}

    def class_trust(self, z_g: Tensor, y: Tensor) -> Tensor:
        """Return alpha_y [K], from beta (the teacher is wrong, or the class has no samples) to gamma."""
        phi = 2 * label_probability(z_g, y, self.phi_tau or self.tau) - 1  # p_y - sum_{c != y} p_c
        half = (self.gamma - self.beta) / 2
        return self.beta + half * class_mean(phi + 1, y, z_g.shape[-1])  # Eq. (6)

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return the received model."""
        return {"global": r.w}

    def sample_metrics(self, s: Step, r: Local) -> Payload:
        """Return the weight of the teacher."""
        return {"trust": r.down["alpha"][s.y]}

    def distillation(self, s: Step, r: Local) -> Tensor:
        """Return alpha_y L_d per sample."""
        l_d = soft_ce(s.z, soft_targets(s.frozen["global"].z, self.tau), self.tau)  # Eq. (2)
        return r.down["alpha"][s.y] * (kd_factor(self.kd_scale, self.tau, len(s.y)) * l_d)

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return (1 - alpha_y) CE + alpha_y L_d, with the weight of each sample's label."""
        l_c = r.cross_entropy_terms(s.z, s.y)  # Eq. (3)
        return ((1 - r.down["alpha"][s.y]) * l_c + self.distillation(s, r)).mean()  # Eq. (5)
