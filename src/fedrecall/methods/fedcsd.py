"""FedCSD: Rethinking Client Drift in Federated Learning: A Logit Perspective.

Yan, Feng, Ye, Zuo, Li, Goh, Zhu, Chen. 2023. https://arxiv.org/abs/2308.10162

The released code (of a later version) differs from the text in six ways, each an option here: prototypes of the client
alone (`prototypes`), gradient through the refined target (`grad_through_target`, with KL), the mask on refined logits
(`mask_on`), a convex combination (`convex`), the teacher in training mode (`teacher_bn`), prototypes of augmented
images (`prototype_images`). The text is the default, the code the preset `fedcsd-code`. Refined logits shrink by about
1/K, so with K = 100 and tau = 10 the target is almost uniform, as the equations state: at the text's mu the
distillation is 0.2 to 0.3 % of the gradient at the logits.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedrecall.constraints import Temperature, UnitInterval, Weight
from fedrecall.core.losses import class_mean, cosine, kl, label_probability, soft_ce, soft_targets
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import TeacherOutputFn, Traits
from fedrecall.core.reply_validation import Reason
from fedrecall.core.types import Cohort, Local, Payload, Reply, Server, Step, average_replies


@dataclass(frozen=True)
class FedCSD(Method):
    """Distillation from a moving average of the global models, refined by class prototypes, with a mask of samples."""

    mu: Weight = 0.001
    """Weight of the distillation, Eq. (15); 0.5 on Office-Caltech-10."""
    tau: Temperature = 10.0
    """Temperature, Eq. (11); 4 on Office-Caltech-10."""
    alpha: UnitInterval = 0.9
    """Momentum of the teacher, Eq. (12)."""
    use_similarity: bool = True
    """Refine the teacher by prototypes, Eq. (8)-(10)."""
    use_mask: Literal["adaptive", "hard", "none"] = "adaptive"
    """Mask of samples, Eq. (13); "hard": samples whose label the teacher predicts."""
    use_tma: bool = True
    """Teacher is the moving average of global models. False: the received model."""
    teacher_at: Literal["server", "client"] = "server"
    """Owner of the moving average; a client's own skips the rounds without the client."""
    prototypes: Literal["global", "local"] = "global"
    """Mean over the clients, or the client's own."""
    prototype_images: Literal["plain", "augmented"] = "plain"
    """Images from which prototypes are computed."""
    grad_through_target: bool = False
    """Differentiate through the refined target; the divergence is KL."""
    mask_on: Literal["raw", "refined"] = "raw"
    """Logits that the mask is computed from."""
    convex: bool = False
    """(1 - mu) CE + mu L instead of CE + mu L."""
    teacher_bn: Literal["running", "batch"] = "running"
    """Batch-norm statistics of the teacher."""

    @property
    def traits(self) -> Traits:
        """The task "prototype" runs before training."""
        return Traits(teacher_batch_norm=self.teacher_bn, extra_tasks=("prototype",))

    def memory(self, w: Tensor) -> Payload:
        """Return the initial teacher, if clients store it."""
        return {"teacher": w} if self.use_tma and self.teacher_at == "client" else {}

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Run two exchanges: prototypes, then training."""
        down = {"w": server.w}
        if self.use_tma and self.teacher_at == "server":
            xi = torch.lerp(server.state, server.extra.get("teacher", server.state), self.alpha)  # Eq. (12)
            server, down = server.with_extra(teacher=xi), down | {"teacher": xi}
        if self.use_similarity and self.prototypes == "global":
            m = average_replies(cohort.run("prototype", down), "uniform")
            down["P"] = m["P"] / torch.where(m["has"] > 0, m["has"], 1.0)[:, None]  # Eq. (7), over the holders
        return self.aggregate(server, cohort.run("train", down), cohort)

    def prototype(self, r: Local) -> Payload:
        """Return the client's rows P_k: the teacher's mean logits on each class of the client."""
        rng = Generator().manual_seed(r.seed) if self.prototype_images == "augmented" else None
        teacher = self._teacher_state(r)
        outputs = r.f.outputs(teacher, r.data, rng, batch_statistics=self.teacher_bn == "batch")
        if rng is None:
            r.f.cache_outputs(r.seed, teacher, r.data, outputs)  # training needs the same outputs
        return {"P": class_mean(outputs.z, r.y, len(r.counts)), "has": (r.counts > 0).to(outputs.z.dtype)}  # Eq. (6)

    def validate_reply(self, reply: Reply) -> str | None:
        """Reject values of "has" other than 0 and 1."""
        has = reply.up.get("has")
        if has is None or ((has == 0) | (has == 1)).all():
            return None
        return Reason("reply.invalid_value", "has must be zeros and ones")

    def prepare(self, r: Local, teacher_outputs: TeacherOutputFn) -> Payload:
        """Compute the client's own rows, if prototypes are local."""
        if not self.use_similarity or self.prototypes == "global":
            return {}
        if self.prototype_images == "plain":
            return {"P": class_mean(teacher_outputs("teacher").z, r.y, len(r.counts))}
        return {"P": self.prototype(r)["P"]}

    def frozen(self, r: Local) -> dict[str, Tensor]:
        """Return the moving average of the global models."""
        return {"teacher": self._teacher_state(r)}

    def _teacher_state(self, r: Local) -> Tensor:
        state = r.f.join(r.w, r.down.get("b", r.b))
        if not self.use_tma:
            return state
        if self.teacher_at == "server":
            return r.down["teacher"]
        previous = r.memory["teacher"]
        return torch.lerp(state, previous if len(previous) == len(state) else state, self.alpha)

    def distillation(self, s: Step, r: Local) -> Tensor:
        """Return mu mean(m tau^2 L_csd)."""
        refined = self.refine(s, r)
        if self.grad_through_target:
            csd = kl(s.z, F.softmax(refined / self.tau, -1), self.tau)
        else:
            csd = soft_ce(s.z, soft_targets(refined, self.tau), self.tau)  # Eq. (11)
        csd = csd * self.mask(s, refined)
        return self.mu * self.tau**2 * csd.mean()  # Eq. (14)

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE plus the distillation; with `convex`, (1 - mu) CE."""
        distillation = self.distillation(s, r)
        keep = 1 - self.mu if self.convex else 1
        return keep * r.cross_entropy(s.z, s.y) + distillation  # Eq. (15)

    def refine(self, s: Step, r: Local) -> Tensor:
        """Return the teacher's logits [B, K], weighted by the similarity of the student to each class prototype."""
        z_t = s.frozen["teacher"].z
        if not self.use_similarity:
            return z_t
        z = s.z if self.grad_through_target else s.z.detach()
        return cosine(z, r.down["P"]).softmax(-1) * z_t  # Eq. (8)-(10)

    def mask(self, s: Step, refined: Tensor) -> Tensor:
        """Return the mask of samples [B] that are distilled."""
        masked_logits = (refined if self.mask_on == "refined" else s.frozen["teacher"].z).detach()
        if self.use_mask == "none":
            return torch.ones_like(s.y, dtype=torch.bool)
        if self.use_mask == "hard":
            return masked_logits.argmax(-1) == s.y
        return label_probability(masked_logits, s.y) > 1 / s.z.shape[-1]  # Eq. (13)

    def sample_metrics(self, s: Step, r: Local) -> Payload:
        """Return entropy of the target, its KL from the student, and the share of wrong teachers that are masked."""
        refined = self.refine(s, r)
        q, wrong = soft_targets(refined, self.tau), s.frozen["teacher"].z.argmax(-1) != s.y
        return {
            "target_entropy": soft_ce(refined, q, self.tau),
            "target_kl": kl(s.z, q, self.tau),
            "filter_rate": torch.where(wrong, (~self.mask(s, refined)).to(q.dtype), torch.nan),
        }

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """Send the weights; store the teacher, if clients store it."""
        return {"w": w}, {"teacher": self._teacher_state(r)} if self.memory(w) else {}
