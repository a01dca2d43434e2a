"""Where to look for each method's settings, as data: the papers' grids where they print one, else a choice of ours.

Keys are those of a configuration. A method without a weight of its own is tuned by the clients' learning rate.
"""

from dataclasses import dataclass
from typing import NamedTuple

Number = float | int

OURS = "ours: no paper prints a grid"


@dataclass(frozen=True)
class Values:
    """A grid: one of these."""

    of: tuple[Number, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.of

    def __str__(self) -> str:
        return ", ".join(f"{value:g}" for value in self.of)


@dataclass(frozen=True)
class Between:
    """A range: any number from low to high, on a logarithmic scale where they differ by ten times or more."""

    low: float
    high: float

    @property
    def log(self) -> bool:
        """Whether it is orders of magnitude that count."""
        return self.low > 0 and self.high >= 10 * self.low

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Number) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


class Space(NamedTuple):
    """What is tried for a method, and who says so."""

    source: str
    over: dict[str, Values | Between]


_RATE = Space(OURS, {"local.lr": Between(0.001, 0.3)})

_WEIGHT_AND_TEMPERATURE: dict[str, Values | Between] = {
    "method.beta": Values((0.1, 0.5, 1.0, 2.0, 5.0)),
    "method.tau": Values((0.5, 1.0, 2.0, 3.0, 5.0)),
}

SPACES: dict[str, Space] = {
    "fedavg": _RATE,
    "fedprox": Space("FedCAD", {"method.mu": Values((0.001, 0.01, 0.1))}),
    "fedavgm": Space(OURS, {"method.beta_s": Values((0.5, 0.7, 0.9, 0.97))}),
    "scaffold": _RATE,
    "fednova": _RATE,
    "feddyn": Space(OURS, {"method.alpha": Values((0.001, 0.01, 0.1, 1.0))}),
    "fedcurv": Space(OURS, {"method.lam": Between(1e-5, 1.0)}),  # from FedSSD's settings to FedLMD's
    "moon": Space("MOON", {"method.mu": Values((0.1, 1.0, 5.0, 10.0))}),
    "fedproto": Space(OURS, {"method.lam": Values((0.01, 0.1, 1.0, 10.0))}),
    "fedrs": Space(OURS, {"method.alpha": Values((0.0, 0.25, 0.5, 0.75, 1.0))}),
    "fedlsd": Space("FedCAD", {"method.alpha": Values((0.1, 0.3, 0.5))}),
    "fedntd": Space(OURS, _WEIGHT_AND_TEMPERATURE),
    "fedgkd": Space("FedCSD", {"method.coef": Values((0.001, 0.01, 0.1, 1.0))}),
    "fedcad": Space(
        "FedCAD", {"method.beta": Values((0.0, 0.3, 0.5, 0.7)), "method.gamma": Values((0.0, 0.3, 0.5, 0.7))}
    ),
    "fedssd": Space(OURS, {"method.m_max": Between(1e-4, 1.0)}),
    "fedcsd": Space(
        "FedCSD",
        {
            "method.mu": Values((0.001, 0.01, 0.1, 1.0)),
            "method.tau": Values((1.0, 4.0, 10.0, 20.0)),
            "method.alpha": Values((0.0, 0.8, 0.9, 0.99)),
        },
    ),
    "fedlmd": Space("ours: the paper draws a grid without its values", _WEIGHT_AND_TEMPERATURE),
    "fedlmd-tf": Space("ours: the paper draws a grid without its values", _WEIGHT_AND_TEMPERATURE),
    "fedavg-kd": Space(OURS, _WEIGHT_AND_TEMPERATURE),
    "fedavg-ls": Space(OURS, {"method.smoothing": Values((0.05, 0.1, 0.2, 0.3))}),
    "grid": Space(OURS, _WEIGHT_AND_TEMPERATURE),
}
