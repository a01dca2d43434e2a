"""Section [local]: settings of the clients' training."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from fedrecall.config.choices import NamedChoice
from fedrecall.config.section import BelowOne, Positive, Rate, Section, unused_key
from fedrecall.constraints import PositiveFloat
from fedrecall.core.optim import ClientAdam, ClientOptimiser, ClientSGD
from fedrecall.core.precision import Precision
from fedrecall.core.schedules import SCHEDULES, Cosine, Decay, Schedule
from fedrecall.core.training import LocalTraining
from fedrecall.errors import UserError, unknown_name

SCHEDULE_CHOICE = NamedChoice("schedule", SCHEDULES, Schedule, section="local")


def _require_class_weights(weights: Any) -> Any:
    key = "local.class_weights"
    if isinstance(weights, str) and weights != "balanced":
        raise unknown_name(key, weights, ["balanced"], key=key)
    if isinstance(weights, str | None):
        return weights
    if not isinstance(weights, list | tuple) or not all(
        isinstance(weight, int | float) and weight > 0 for weight in weights
    ):
        message = f'{key} = {weights}: neither "balanced" nor a list of numbers above 0'
        raise UserError("config.invalid_value", message, key, "set a weight for each class")
    return tuple(map(float, weights))  # TOML has no tuples


ClassWeightsKey = Annotated[
    Literal["balanced"] | tuple[float, ...],
    BeforeValidator(_require_class_weights, json_schema_input_type=Literal["balanced"] | list[PositiveFloat]),
]


class LocalSection(Section):
    """Local training of every client."""

    epochs: Positive = 5
    """Number of passes over the client's data per round."""
    batch: Positive = 50
    """Number of examples per step."""
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    """Client optimiser, with a new state in every round."""
    lr: PositiveFloat = 0.01
    """Learning rate. Default with adam and adamw: 0.001."""
    momentum: BelowOne = 0.9
    """Momentum of sgd."""
    beta1: BelowOne = 0.9
    """First moment's decay of adam and adamw."""
    beta2: BelowOne = 0.999
    """Second moment's decay of adam and adamw."""
    eps: PositiveFloat = 1e-8
    """Constant added to the root of the second moment of adam and adamw."""
    weight_decay: Rate = 0.0
    """L2 penalty, added to the gradient. With adamw: decay of the weights, times the learning rate, in every step."""
    lr_decay: PositiveFloat = 1.0
    """Factor applied to the learning rate after every round."""
    schedule: Annotated[Schedule, SCHEDULE_CHOICE] | None = None
    """Schedule of the learning rate by round, instead of local.lr_decay. None: local.lr_decay decides."""
    clip: PositiveFloat | None = None
    """Largest L2 norm of the gradient of a batch. Longer gradients are scaled down. None: no limit."""
    class_weights: ClassWeightsKey | None = None
    """Class weights of the cross-entropy: "balanced" (by each client's own counts), or a list. None: equal weights."""
    prox: Rate = 0.0
    """Weight mu of FedProx's proximal term, added to the loss of any method."""
    precision: Precision = "fp32"
    """Precision of the client's network and its teachers. Weights, sums and the server are fp32 with "bf16" too."""
    drop_last: bool = False
    """Skip the last batch of an epoch if it is smaller than the others."""

    @model_validator(mode="before")
    @classmethod
    def _default_rate(cls, table: Any) -> Any:
        if isinstance(table, Mapping) and table.get("optimiser") in ("adam", "adamw"):
            return {"lr": ClientAdam.lr, **table}
        return table

    @model_validator(mode="after")
    def _check_keys_of_optimiser(self) -> Self:
        for key in ("beta1", "beta2", "eps") if self.optimiser == "sgd" else ("momentum",):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise unused_key(f"local.{key}", getattr(self, key), "local.optimiser", self.optimiser)
        if self.schedule is not None and self.lr_decay != 1:
            message = f"local.lr_decay = {self.lr_decay}: local.schedule is set too"
            hint = 'remove one of them; the schedule "decay" with this rate is the same'
            raise UserError("config.conflict", message, "local.lr_decay", hint)
        return self

    def to_training(self, rounds: int) -> LocalTraining:
        """Return the settings of the training loop in a run of this number of rounds."""
        schedule = Decay(self.lr_decay) if self.schedule is None else self.schedule
        if isinstance(schedule, Cosine) and schedule.rounds is None:
            schedule = replace(schedule, rounds=rounds)
        return LocalTraining(
            epochs=self.epochs,
            batch=self.batch,
            optimiser=self._to_optimiser(),
            drop_last=self.drop_last,
            prox=self.prox,
            clip=self.clip,
            class_weights=self.class_weights,
            schedule=schedule,
            precision=self.precision,
        )

    def _to_optimiser(self) -> ClientOptimiser:
        if self.optimiser == "sgd":
            return ClientSGD(self.lr, self.momentum, self.weight_decay)
        decoupled = self.optimiser == "adamw"
        return ClientAdam(self.lr, self.beta1, self.beta2, self.eps, self.weight_decay, decoupled)
