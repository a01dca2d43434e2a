"""Method: the hooks. Every default is FedAvg's, so a method says only what its paper changes.

Nine hooks make almost every method; `prepare`, `drift` and `judge` are for the few that need more, `observe` tells
probes what a loss does, and `doubt` which replies are lies.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from math import isfinite
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from fedrecall.core.types import Cohort, Local, Output, Payload, Reply, Server, Step
from fedrecall.errors import UserError

TeacherOutputFn = Callable[[str], Output]

WEIGHTS = frozenset({"alpha", "beta", "gamma", "mu", "lam", "coef", "m_max", "smoothing", "beta_s", "eta_s"})

TEMPERATURES = frozenset({"tau", "phi_tau"})


@dataclass(frozen=True)
class Method:
    """FedAvg: every client trains on its own data, the server averages what they learned.

    Communication-Efficient Learning of Deep Networks from Decentralized Data.
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas. AISTATS 2017. https://arxiv.org/abs/1602.05629

    A method is a frozen dataclass: its fields are its hyper-parameters, and that is its configuration.

    >>> @dataclass(frozen=True)
    ... class Calm(Method):
    ...     weight: float = 0.1
    ...
    ...     def loss(self, s, r):
    ...         return super().loss(s, r) + self.weight * s.z.square().mean()
    >>> Calm(weight=0.5)
    Calm(weight=0.5)
    """

    def __post_init__(self) -> None:
        """Numbers are finite, the papers' letters for weights not negative, temperatures positive."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, int | float):
                self._require(isfinite(value), f.name, f"{f.name} must be finite")
                self._require(value >= 0 or f.name not in WEIGHTS, f.name, f"{f.name} must be >= 0")
                self._require(value > 0 or f.name not in TEMPERATURES, f.name, f"{f.name} must be > 0")

    def _require(self, holds: bool, name: str, what: str) -> None:
        """Raise an error for the hyper-parameter `name` if `what` does not hold."""
        if not holds:
            key = f"method.{name}"
            raise UserError("config.invalid_value", f"{key} = {getattr(self, name)}: {what} in {self}", key)

    # --- server ---------------------------------------------------------------------------
    def init(self, w: Tensor) -> Payload:
        """Extra server state, before the first round."""
        return {}

    def broadcast(self, server: Server) -> Payload:
        """Work before a round (may look at server.aux); what it returns goes down beside the weights."""
        return {}

    def aggregate(self, server: Server, replies: Iterable[Reply], cohort: Cohort) -> Server:
        """The server after the replies, which are streamed: look at each once."""
        return server.step(server.mean(replies)["w"])

    def round(self, server: Server, cohort: Cohort) -> Server:
        """One communication round; override only if the paper has more than one exchange."""
        return self.aggregate(server, cohort.run("train", {"w": server.w, **self.broadcast(server)}), cohort)

    # --- client ---------------------------------------------------------------------------
    def memory(self, w: Tensor) -> Payload:
        """What a client remembers before its first round."""
        return {}

    @property
    def tasks(self) -> tuple[str, ...]:
        """The method's own tasks, beside "train": names of functions from a Local to a Payload. No other is run."""
        return ()

    def prepare(self, r: Local, teacher_outputs: TeacherOutputFn) -> Payload:
        """What a client works out once, before its first step; the loss finds it in `r.down`.

        `hear` says what one of the frozen models makes of all the client's examples.
        """
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

    def step_correction(self, r: Local) -> Tensor | None:
        """A constant direction beside the optimiser's: each step ends with w <- w - lr * drift."""
        return None

    def reply(self, w: Tensor, steps: int, r: Local) -> tuple[Payload, Payload]:
        """(what goes up, what is remembered) after the last local step."""
        return {"w": w}, r.memory

    def sample_metrics(self, s: Step, r: Local) -> Payload:
        """What the distillation does to this batch: named values, one a sample, NaN where there is none.

        Asked for only by a probe, which averages them over the round.
        """
        return {}

    def validate_reply(self, reply: Reply) -> str | None:
        """Return the reason for rejecting a reply by the method's own rules, or None if the reply is valid.

        The core has validated names, types, shapes, finiteness and norms before. Called only where a round may continue
        without a reply, or replies come from other machines. A `Reason` has a code; a plain text gets `reply.rejected`.
        """
        return None

    # --- evaluation -----------------------------------------------------------------------
    @property
    def needs_aux(self) -> bool:
        """Whether the server needs labelled examples of its own."""
        return False

    @property
    def personal(self) -> bool:
        """Whether clients keep models of their own and there is no global one to test."""
        return False

    @property
    def teacher_mode(self) -> Literal["running", "batch"]:
        """The statistics with which frozen models normalise: their own, or those of the batch at hand."""
        return "running"

    def scoring_logits(self, out: Output, down: Payload) -> Tensor:
        """The logits by which a client's model is scored."""
        return out.z
