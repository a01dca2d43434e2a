"""Central differential privacy for clients: a setting of the experiment, for any method.

Learning Differentially Private Recurrent Language Models. McMahan, Ramage, Talwar, Zhang. ICLR 2018.
https://arxiv.org/abs/1710.06963. Here samples have a fixed size, and neighbouring populations differ in the data of
one client.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from annotated_types import Ge, Le

from fedrecall.constraints import LARGEST, OpenUnitInterval, PositiveFloat, check_constraints
from fedrecall.core import seeds
from fedrecall.core.robust import ExchangeInfo, clip_to_norm
from fedrecall.core.types import Reply
from fedrecall.errors import UserError, first_line, missing_extra
from fedrecall.files import naming_file, parse_json

SENSITIVITY = 2.0  # in units of `clip`: one clipped update may be replaced by the opposite one


SMALLEST_NOISE = 0.01  # below it one round has an epsilon above 20,000: no privacy, and the accountant overflows


@dataclass(frozen=True)
class GaussianMechanism:
    """Clipping of every update, and Gaussian noise on their sum."""

    clip: PositiveFloat = 1.0
    """S: maximum L2 norm of an update."""
    noise: Annotated[float, Ge(SMALLEST_NOISE), Le(LARGEST)] = 1.0
    """z: standard deviation of the noise added to the sum of updates, in units of `clip`."""
    delta: OpenUnitInterval = 1e-5
    """Probability that the bound epsilon does not hold. Choose it well below 1 / clients."""
    source: Literal["seed", "system"] = "seed"
    """Source of the noise. Only "system" cannot be predicted from run.seed."""

    def __post_init__(self) -> None:
        check_constraints(self, "server.privacy")


@dataclass(frozen=True)
class Release:
    """One noised mean that left the mechanism."""

    t: int
    """Round, from 0."""
    exchange: int
    """Number of the exchange in its round, from 0."""
    attempt: int
    """Number of forced resumes before it."""
    noise: float
    population: int
    sample: int
    source: str
    seed: int | None = None
    """Seed of the noise; None for noise of the system."""


@dataclass
class PrivacyLedger:
    """All releases of a run. Epsilon is computed from them, not from the settings of the last round.

    A release is in the file before the mean is used, and is never removed. A round that is repeated after an
    interruption has the same noise on the same sum if the noise is computed from the seed: it is one release. Noise of
    the system is new each time: every repetition counts.
    """

    path: Path | None = None
    unbounded: str | None = None
    """Dependence of the model on the clients' data beside these releases; epsilon is infinite. None: there is none."""
    releases: list[Release] = field(default_factory=list)
    attempt: int = 0

    @classmethod
    def load(cls, path: Path) -> "PrivacyLedger":
        """Read the file of an interrupted run. A last line that was cut off is of a mean that was not used."""
        try:
            content = path.read_bytes() if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            entries = [parse_json(line) for line in whole.decode().splitlines()]
            reasons = [str(entry["unbounded"]) for entry in entries if "unbounded" in entry]
            releases = [_parse_release(entry) for entry in entries if "unbounded" not in entry]
        except (OSError, ValueError, TypeError) as error:
            message = f"{path}: the list of private releases is damaged ({first_line(error)}), so epsilon is not known"
            raise UserError("privacy.damaged_ledger", message, str(path), "start a new run") from None
        if whole != content:  # else the next release would be appended to the cut-off line
            os.truncate(path, len(whole))
        return cls(path, reasons[0] if reasons else None, releases)

    def add(self, release: Release) -> None:
        """Record a release, on the disk first."""
        self._append(asdict(release))
        self.releases.append(release)

    def declare_unbounded(self, reason: str) -> None:
        """Record that epsilon is infinite: for this run, however it is resumed, and for runs that start from it."""
        if self.unbounded is None:
            self._append({"unbounded": reason})
            self.unbounded = reason

    def _append(self, entry: dict[str, Any]) -> None:
        if self.path is not None:
            with naming_file(self.path), self.path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def epsilon(self, delta: float) -> float:
        """Compute epsilon of all releases so far; infinite if they are not the only use of the clients' data."""
        if self.unbounded is not None:
            return math.inf
        repeatable = {release for release in self.releases if release.source == "seed"}
        others = [release for release in self.releases if release.source != "seed"]
        counts = Counter((r.noise, r.population, r.sample) for r in [*repeatable, *others])
        return epsilon_of(tuple(EqualReleases(*key, number) for key, number in sorted(counts.items())), delta)


def _parse_release(entry: dict[str, Any]) -> Release:
    """Read a release; raises a ValueError or TypeError for values that no run writes."""
    release = Release(**entry)
    numbers = (release.t, release.exchange, release.attempt, release.population, release.sample)
    is_seeded = release.source == "seed"
    if not all(type(number) is int for number in numbers) or type(release.seed) is not (int if is_seeded else NoneType):
        raise ValueError("a value has another type")
    if not (SMALLEST_NOISE <= release.noise <= LARGEST and 1 <= release.sample <= release.population):
        raise ValueError("noise or sample is out of range")
    return release


@dataclass(frozen=True)
class PrivateAggregation:
    """Aggregation rule of a private run: the method receives only the noised mean."""

    counts_missing_replies: ClassVar[bool] = True

    privacy: GaussianMechanism
    seed: int
    population: int
    ledger: PrivacyLedger = field(default_factory=PrivacyLedger)

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        """Replace the weights of every reply by w^t + (sum of clipped updates + noise) / sampled clients.

        A missing reply counts as a zero update, so the divisor does not reveal it.
        """
        num_replies, total = 0, None
        for reply in replies:
            if set(reply.up) != {"w"} or "w" not in exchange.down:
                others = ", ".join(sorted(set(reply.up) - {"w"})) or "no weights"
                raise UserError(
                    "privacy.not_covered",
                    f"server.privacy covers only the weights w, but replies to the task {exchange.task} have {others}",
                    "server.privacy",
                    "choose a method and a model that send nothing else (see docs/privacy.md)",
                )
            update = clip_to_norm(reply.up["w"] - exchange.down["w"], self.privacy.clip).double()
            total = update if total is None else total + update
            num_replies += 1
        if total is None:
            return
        release = Release(
            exchange.t,
            exchange.number,
            self.ledger.attempt,
            self.privacy.noise,
            self.population,
            exchange.num_sampled,
            self.privacy.source,
            self.seed if self.privacy.source == "seed" else None,
        )
        self.ledger.add(release)
        total += self.privacy.noise * self.privacy.clip * self._normal(len(total), release)
        w = exchange.down["w"] + (total / exchange.num_sampled).to(exchange.down["w"].dtype)
        yield from (Reply({"w": w}, 1, {}, {}) for _ in range(num_replies))  # no client's number, state or report

    def _normal(self, n: int, release: Release) -> torch.Tensor:
        """Draw the noise of a release. Two releases never have the same noise: their difference would have none."""
        if self.privacy.source == "system":
            return seeds.system_normal(n)
        later = [release.exchange, release.attempt] if release.exchange or release.attempt else []
        return torch.randn(n, generator=seeds.generator(self.seed, "noise", release.t, *later), dtype=torch.float64)


PRIVACY: dict[str, type[GaussianMechanism]] = {"gaussian": GaussianMechanism}


class EqualReleases(NamedTuple):
    """A number of equal releases."""

    noise: float
    population: int
    sample: int
    number: int


@cache
def epsilon_of(releases: Iterable[EqualReleases], delta: float) -> float:
    """Compute epsilon of releases, by Renyi differential privacy (the package dp-accounting)."""
    try:
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant
    except ImportError:
        raise missing_extra("dp-accounting", "privacy") from None
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    for noise, population, sample, number in releases:
        event = dp_accounting.GaussianDpEvent(noise / SENSITIVITY)
        if sample < population:
            event = dp_accounting.SampledWithoutReplacementDpEvent(population, sample, event)
        accountant.compose(event, number)
    return float(accountant.get_epsilon(delta))


def epsilon_after(privacy: GaussianMechanism, population: int, sample: int, rounds: int) -> float:
    """Compute epsilon after a number of rounds with one release each."""
    return epsilon_of((EqualReleases(privacy.noise, population, sample, rounds),), privacy.delta)
