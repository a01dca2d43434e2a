"""Search spaces of the methods' settings, as data: the papers' grids where printed, else our own choice.

Keys are those of a configuration. A method without a weight is tuned by the clients' learning rate.
"""

from dataclasses import dataclass
from typing import NamedTuple

Number = float | int

OWN_CHOICE = "ours: no paper prints a grid"


@dataclass(frozen=True)
class GridValues:
    """Grid of values."""

    of: tuple[Number, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.of

    def __str__(self) -> str:
        return ", ".join(f"{value:g}" for value in self.of)


@dataclass(frozen=True)
class FloatRange:
    """Range from low to high, on a logarithmic scale if they differ by a factor of ten or more."""

    low: float
    high: float

    @property
    def log(self) -> bool:
        """True if the scale is logarithmic."""
        return self.low > 0 and self.high >= 10 * self.low

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Number) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


class SearchSpace(NamedTuple):
    """Settings to search for a method, and their source."""

    source: str
    dimensions: dict[str, GridValues | FloatRange]


_RATE = SearchSpace(OWN_CHOICE, {"local.lr": FloatRange(0.001, 0.3)})

_WEIGHT_AND_TEMPERATURE: dict[str, GridValues | FloatRange] = {
    "method.beta": GridValues((0.1, 0.5, 1.0, 2.0, 5.0)),
    "method.tau": GridValues((0.5, 1.0, 2.0, 3.0, 5.0)),
}

SEARCH_SPACES: dict[str, SearchSpace] = {
    "fedavg": _RATE,
    "fedprox": SearchSpace("FedCAD", {"method.mu": GridValues((0.001, 0.01, 0.1))}),
    "fedavgm": SearchSpace(OWN_CHOICE, {"method.beta_s": GridValues((0.5, 0.7, 0.9, 0.97))}),
    "scaffold": _RATE,
    "fednova": _RATE,
    "feddyn": SearchSpace(OWN_CHOICE, {"method.alpha": GridValues((0.001, 0.01, 0.1, 1.0))}),
    "fedcurv": SearchSpace(OWN_CHOICE, {"method.lam": FloatRange(1e-5, 1.0)}),  # from FedSSD's settings to FedLMD's
    "moon": SearchSpace("MOON", {"method.mu": GridValues((0.1, 1.0, 5.0, 10.0))}),
    "fedproto": SearchSpace(OWN_CHOICE, {"method.lam": GridValues((0.01, 0.1, 1.0, 10.0))}),
    "fedrs": SearchSpace(OWN_CHOICE, {"method.alpha": GridValues((0.0, 0.25, 0.5, 0.75, 1.0))}),
    "fedlc": SearchSpace(OWN_CHOICE, {"method.tau": GridValues((0.1, 0.5, 1.0, 2.0))}),
    "feddecorr": SearchSpace(OWN_CHOICE, {"method.beta": GridValues((0.01, 0.05, 0.1, 0.3))}),
    "fedsam": SearchSpace("FedSAM", {"method.rho": GridValues((0.01, 0.05, 0.1, 0.5))}),
    "fedexp": SearchSpace(OWN_CHOICE, {"method.eps": GridValues((1e-4, 1e-3, 1e-2, 1e-1))}),
    "fedacg": SearchSpace(
        OWN_CHOICE, {"method.lam": GridValues((0.5, 0.7, 0.85)), "method.beta": GridValues((0.001, 0.01, 0.1))}
    ),
    "feddf": SearchSpace(OWN_CHOICE, {"method.lr": FloatRange(1e-5, 1e-2)}),
    "ccvr": SearchSpace(OWN_CHOICE, {"method.lr": FloatRange(1e-4, 0.1)}),
    "fedrep": _RATE,
    "fedbabu": _RATE,
    "ditto": SearchSpace("Ditto", {"method.lam": GridValues((0.1, 1.0, 2.0))}),
    "fedlsd": SearchSpace("FedCAD", {"method.alpha": GridValues((0.1, 0.3, 0.5))}),
    "fedntd": SearchSpace(OWN_CHOICE, _WEIGHT_AND_TEMPERATURE),
    "fedgkd": SearchSpace("FedCSD", {"method.coef": GridValues((0.001, 0.01, 0.1, 1.0))}),
    "fedcad": SearchSpace(
        "FedCAD", {"method.beta": GridValues((0.0, 0.3, 0.5, 0.7)), "method.gamma": GridValues((0.0, 0.3, 0.5, 0.7))}
    ),
    "fedssd": SearchSpace(OWN_CHOICE, {"method.m_max": FloatRange(1e-4, 1.0)}),
    "fedcsd": SearchSpace(
        "FedCSD",
        {
            "method.mu": GridValues((0.001, 0.01, 0.1, 1.0)),
            "method.tau": GridValues((1.0, 4.0, 10.0, 20.0)),
            "method.alpha": GridValues((0.0, 0.8, 0.9, 0.99)),
        },
    ),
    "fedlmd": SearchSpace("ours: the paper draws a grid without its values", _WEIGHT_AND_TEMPERATURE),
    "fedlmd-tf": SearchSpace("ours: the paper draws a grid without its values", _WEIGHT_AND_TEMPERATURE),
    "fedavg-kd": SearchSpace(OWN_CHOICE, _WEIGHT_AND_TEMPERATURE),
    "fedavg-ls": SearchSpace(OWN_CHOICE, {"method.smoothing": GridValues((0.05, 0.1, 0.2, 0.3))}),
    "grid": SearchSpace(OWN_CHOICE, _WEIGHT_AND_TEMPERATURE),
}
