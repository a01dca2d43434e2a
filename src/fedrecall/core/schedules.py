"""Schedules of the clients' learning rate: a factor per round."""

from collections.abc import Mapping
from dataclasses import Field, dataclass
from math import cos, pi
from typing import Any, ClassVar, Protocol, runtime_checkable

from fedrecall.constraints import NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval, check_constraints


@runtime_checkable
class Schedule(Protocol):
    """Factor of the learning rate by round. Implementations are frozen dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def factor(self, t: int) -> float:
        """Return the factor of round t, from 0."""
        ...


class _Checked:
    def __post_init__(self) -> None:
        check_constraints(self, "local.schedule")


@dataclass(frozen=True)
class Constant(_Checked):
    """The same learning rate in every round."""

    def factor(self, t: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Decay(_Checked):
    """Exponential decay: the learning rate is multiplied by a factor after every round."""

    rate: PositiveFloat = 0.99
    """Factor per round."""

    def factor(self, t: int) -> float:
        """Return rate^t."""
        return self.rate**t


@dataclass(frozen=True)
class StepDecay(_Checked):
    """Steps: the learning rate is multiplied by a factor after every few rounds."""

    every: PositiveInt = 10
    """Number of rounds between two changes."""
    rate: PositiveFloat = 0.1
    """Factor of a change."""

    def factor(self, t: int) -> float:
        """Return rate^floor(t / every)."""
        return self.rate ** (t // self.every)


@dataclass(frozen=True)
class Warmup(_Checked):
    """Linear warm-up: the learning rate grows in equal steps, and is constant from then on."""

    rounds: PositiveInt = 5
    """Number of the round that is the first with the complete learning rate."""

    def factor(self, t: int) -> float:
        """Return (t + 1) / rounds, at most 1."""
        return min(1.0, (t + 1) / self.rounds)


@dataclass(frozen=True)
class Cosine(_Checked):
    """Half a cosine from the complete learning rate to a final one, after an optional linear warm-up.

    Loshchilov, Hutter, ICLR 2017, https://arxiv.org/abs/1608.03983, Eq. (5) without restarts.
    """

    rounds: PositiveInt | None = None
    """Round at which the final learning rate is reached. None: run.rounds."""
    final: UnitInterval = 0.0
    """Final learning rate, as a fraction of local.lr."""
    warmup: NonNegativeInt = 0
    """Number of rounds of linear warm-up."""

    def factor(self, t: int) -> float:
        """Return final + (1 - final) (1 + cos(pi x)) / 2 with x from 0 after the warm-up to 1."""
        if self.rounds is None:
            raise ValueError("the number of rounds of the schedule is not known")
        if t < self.warmup:
            return (t + 1) / (self.warmup + 1)
        x = min(1.0, (t - self.warmup) / max(1, self.rounds - self.warmup))
        return self.final + (1 - self.final) * (1 + cos(pi * x)) / 2


CONSTANT = Constant()

SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Constant,
    "decay": Decay,
    "cosine": Cosine,
    "warmup": Warmup,
    "step": StepDecay,
}
