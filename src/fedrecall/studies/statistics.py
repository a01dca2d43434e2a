"""Statistics of accuracy curves, as the papers report them: pure functions of (round, accuracy) lists."""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

Curve = list[tuple[int, float]]  # (round from 1, value), rounds without a value left out

CHANCE_MARGIN = 0.03  # a best accuracy this near to chance is not learning

TOLERANCE = 1e-9  # two accuracies nearer than this are the same share of right answers


def final(curve: Curve) -> float:
    """The value after the last round."""
    return curve[-1][1]


def best(curve: Curve) -> float:
    """The highest value of all rounds."""
    return max(value for _, value in curve)


def last10(curve: Curve) -> float:
    """The mean of the last ten values."""
    return fmean(value for _, value in curve[-10:])


ACCURACIES: Mapping[str, Callable[[Curve], float]] = {"final": final, "best": best, "last10": last10}


def rounds_to_target(curve: Curve, target: float) -> int | None:
    """R(target): the first round at the target or above, on the raw curve; later drops are ignored; None: never."""
    return next((number for number, value in curve if value >= target - TOLERANCE), None)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """What is compared when there are several seeds: the mean at every round that all curves have."""
    by_round = [dict(curve) for curve in curves]
    shared = set.intersection(*map(set, by_round)) if by_round else set()
    return [(number, fmean(values[number] for values in by_round)) for number in sorted(shared)]


def speedup(numerator: int | None, reached: int | None) -> float | None:
    """How much sooner the target is reached, to two decimals; 1.00 for a method that never does.

    With all T rounds as numerator it is FedLMD's definition, with R of FedAvg the other one, which has no value
    where FedAvg itself never reaches the target.

    >>> speedup(200, 38)
    5.26
    """
    if reached is None:
        return 1.0
    return None if numerator is None else round(numerator / reached, 2)


def has_failed(best_accuracy: float | None, classes: int | None, diverged: bool = False) -> bool:
    """Whether a method did not learn: its run broke off, or its best accuracy is within three points of chance."""
    if diverged or best_accuracy is None:
        return True
    return classes is not None and best_accuracy <= 1 / classes + CHANCE_MARGIN + TOLERANCE


class MeanStd(NamedTuple):
    """Several seeds' values of one thing."""

    mean: float
    deviation: float | None  # of the sample; None for one seed
    seeds: int


def mean_std(values: Sequence[float]) -> MeanStd | None:
    """Mean and sample standard deviation; None of no values."""
    if not values:
        return None
    return MeanStd(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


class PairedDifference(NamedTuple):
    """A mean difference and the interval that holds the true one with the given confidence."""

    mean: float
    low: float | None  # no interval from one pair
    high: float | None
    seeds: int


def paired_difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], confidence: float = 0.95
) -> PairedDifference | None:
    """The mean of the differences seed by seed, with Student's interval; None if they share no seed.

    Runs of one seed have the same federation, cohorts and first weights, so what is common to them cancels.
    """
    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not differences:
        return None
    mean, n = fmean(differences), len(differences)
    if n == 1:
        return PairedDifference(mean, None, None, n)
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * stdev(differences) / sqrt(n)
    return PairedDifference(mean, mean - half, mean + half, n)
