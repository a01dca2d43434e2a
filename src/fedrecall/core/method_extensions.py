"""Hooks that few methods need, and the constant properties of a method."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedrecall.constraints import check_constraints
from fedrecall.core.types import Cohort, Local, Output, Payload, Reply, Server, Step
from fedrecall.errors import UserError

TeacherOutputFn = Callable[[str], Output]  # name of a frozen model -> its outputs on all examples of the client


@dataclass(frozen=True)
class Traits:
    """Constant properties of a configured method."""

    needs_auxiliary_data: bool = False
    """The server needs labelled examples of its own (`Server.require_auxiliary`)."""
    needs_global_model: bool = False
    """The server needs the complete model. Implied by auxiliary data; with federation.private it has only a part."""
    private: Literal["head"] | None = None
    """Part of the model that the method keeps at the clients, where federation.private is not set."""
    personalised: bool = False
    """Clients keep their own models; there is no global model to evaluate."""
    teacher_batch_norm: Literal["running", "batch"] = "running"
    """Statistics with which frozen models normalise: their own running ones, or those of the current batch."""
    needs_sgd: bool = False
    """The method needs updates that are linear combinations of gradients: local.optimiser = "sgd"."""
    min_epochs: int = 1
    """Smallest local.epochs with which the method trains every part of the model."""
    needs_one_label: bool = False
    """The method needs one label for each example: it does not train on labels of tokens."""
    needs_linear_head: bool = False
    """The method needs logits that are a linear layer of the features: the layer that is registered last."""
    excludes: tuple[str, ...] = ()
    """Settings with which the method is not defined: "federation.private", "server.robust" or, of its rules, one such
    as "server.robust.clip"."""
    extra_tasks: tuple[str, ...] = ()
    """Names of methods `(Local) -> Payload` that `cohort.run` may call besides "train"."""


class MethodExtensions:
    """Hooks that few methods need. Each has a default that does nothing."""

    def __post_init__(self) -> None:
        """Check the hyper-parameters against the constraints in their annotations."""
        check_constraints(self, "method")

    def _check(self, holds: bool, name: str, condition: str) -> None:
        """Raise an error for the hyper-parameter `name` if a condition on several fields does not hold."""
        if not holds:
            key = f"method.{name}"
            message = f"{key} = {getattr(self, name)}: {condition} must hold in {self}"
            raise UserError("config.invalid_value", message, key)

    @property
    def traits(self) -> Traits:
        """Constant properties of the method."""
        return Traits()

    def finish(self, server: Server, cohort: Cohort) -> Server:
        """Return the server after training. Called once, after the last round, with a cohort of all clients."""
        return server

    def prepare(self, r: Local, teacher_outputs: TeacherOutputFn) -> Payload:
        """Compute tensors once per client and round, before the first step; `loss` finds them in `r.down`.

        `teacher_outputs(name)` returns the outputs of a frozen model on all examples of the client.
        """
        return {}

    def step_correction(self, r: Local) -> Tensor | None:
        """Return a constant direction d [d], or None: every step ends with w <- w - lr d."""
        return None

    def perturbation(self, g: Tensor, w: Tensor, r: Local) -> Tensor | None:
        """Return an offset [d] of the weights at which the gradient is computed again and used, or None: g is used.

        g is the gradient at w. The second pass leaves batch-norm statistics as the first pass made them.
        """
        return None

    def distillation(self, s: Step, r: Local) -> Tensor | None:
        """Return the distillation term D of a loss a CE + D, as a scalar or per sample [B]; None without such a term.

        `loss` uses it, and the probe "pull" measures its share of the gradient at the logits.
        """
        return None

    def trained_part(self, epoch: int, r: Local) -> Literal["all", "shared", "private"]:
        """Return the part of the model that the steps of a local epoch, from 0, change."""
        return "all"

    def personal_model(self, state: Tensor, r: Local) -> Tensor:
        """Return the complete model by which a client is scored, in place of its trained model."""
        return state

    def inactive_reason(self, classes: int, counts: Tensor | None) -> str | None:
        """Return why the method equals FedAvg on some data, or None if it acts.

        `counts` [N, K] are the examples of every client and class; None if they are not known.
        """
        return None

    def scoring_logits(self, out: Output, down: Payload, counts: Tensor | None = None) -> Tensor:
        """Return the logits by which a client's model is evaluated.

        `counts` [K] are the client's training examples by class where its own held-out examples are evaluated, after
        aggregation; None on the test set of all clients, where `down` is what the client received before training.
        """
        return out.z

    def sample_metrics(self, s: Step, r: Local) -> Payload:
        """Return values per sample [B] by name, NaN where a sample has none, for the probe "distillation"."""
        return {}

    def validate_reply(self, reply: Reply) -> str | None:
        """Return an error message if a reply violates a rule of the method, or None if the reply is valid.

        Names, types, shapes, finiteness and norms are validated before. Called only where a round may continue without
        a reply, or where replies come from other machines. A `Reason` has a code; a plain text gets `reply.rejected`.
        """
        return None
