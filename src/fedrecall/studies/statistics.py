"""Statistics of accuracy curves, as the papers report them: pure functions of (round, accuracy) lists."""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

Curve = list[tuple[int, float]]  # (round from 1, value), without the rounds that have no value

CHANCE_MARGIN = 0.03  # a best accuracy this close to chance counts as failed

TOLERANCE = 1e-9  # accuracies that differ by less are equal up to rounding


def final(curve: Curve) -> float:
    """Return the value after the last round."""
    return curve[-1][1]


def best(curve: Curve) -> float:
    """Return the highest value of all rounds."""
    return max(value for _, value in curve)


def last10(curve: Curve) -> float:
    """Return the mean of the last ten values."""
    return fmean(value for _, value in curve[-10:])


ACCURACIES: Mapping[str, Callable[[Curve], float]] = {"final": final, "best": best, "last10": last10}


def rounds_to_target(curve: Curve, target: float) -> int | None:
    """Return the first round at or above the target, on the raw curve; later drops are ignored. None: never."""
    return next((number for number, value in curve if value >= target - TOLERANCE), None)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Average the curves of several seeds, at every round that all of them have."""
    by_round = [dict(curve) for curve in curves]
    shared = set.intersection(*map(set, by_round)) if by_round else set()
    return [(number, fmean(values[number] for values in by_round)) for number in sorted(shared)]


def speedup(numerator: int | None, reached: int | None) -> float | None:
    """Compute the speedup `numerator / reached` to two decimals; 1.00 for a method that never reaches the target.

    The numerator is the number of all rounds T (FedLMD's definition) or FedAvg's rounds to target. The latter has no
    value if FedAvg never reaches the target.

    >>> speedup(200, 38)
    5.26
    """
    if reached is None:
        return 1.0
    return None if numerator is None else round(numerator / reached, 2)


def has_failed(best_accuracy: float | None, classes: int | None, diverged: bool = False) -> bool:
    """Return True if the run diverged or its best accuracy is within three points of chance."""
    if diverged or best_accuracy is None:
        return True
    return classes is not None and best_accuracy <= 1 / classes + CHANCE_MARGIN + TOLERANCE


class MeanStd(NamedTuple):
    """Mean and standard deviation of one quantity over seeds."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None for one seed."""
    seeds: int


def mean_std(values: Sequence[float]) -> MeanStd | None:
    """Compute mean and sample standard deviation; None without values."""
    if not values:
        return None
    return MeanStd(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


class PairedDifference(NamedTuple):
    """A mean difference and its confidence interval."""

    mean: float
    low: float | None
    """Lower end of the interval; None for one seed."""
    high: float | None
    seeds: int


def paired_difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], confidence: float = 0.95
) -> PairedDifference | None:
    """Compute the mean of the differences seed by seed, with Student's interval; None without a common seed.

    Runs with the same seed have the same federation, cohorts and initial weights, so common effects cancel.
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
