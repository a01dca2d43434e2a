"""Statistics of accuracy curves, as the papers report them: pure functions of (round, accuracy) lists."""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrecall.core.seeds import numpy_generator

Curve = list[tuple[int, float]]  # (round from 1, value), without the rounds that have no value

CHANCE_MARGIN = 0.03  # a best accuracy this close to chance counts as failed

REPLICATES = 2000  # of a bootstrap

Verdict = Literal["better", "worse", "no difference shown"]

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
    """Compute the speedup `numerator / reached` to two decimals; None for a method that never reaches the target.

    The numerator is the number of all rounds T (FedLMD's definition) or FedAvg's rounds to target. The latter has no
    value if FedAvg never reaches the target, or if both reach it in the first round.

    >>> speedup(200, 38)
    5.26
    """
    if numerator is None or reached is None or numerator == reached == 1:
        return None
    return round(numerator / reached, 2)


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


class ExampleInterval(NamedTuple):
    """A mean difference over seeds, and its interval over test examples."""

    mean: float
    low: float
    high: float


def example_interval(
    differences: Sequence[tuple[str, NDArray[np.float64]]], confidence: float = 0.95
) -> ExampleInterval | None:
    """Bootstrap the test examples of every seed, and average over seeds; None without differences.

    `differences` has for each seed the name of its test set and the difference of each test example. Seeds with the
    same test set have the same draw in a replicate: their errors are of the same examples.
    """
    if not differences:
        return None
    by_set: dict[str, list[NDArray[np.float64]]] = {}
    for name, values in differences:
        by_set.setdefault(name, []).append(values)
    rng, replicates, mean = numpy_generator(0, "bootstrap"), np.zeros(REPLICATES), 0.0
    for group in by_set.values():
        # equal values are drawn together: a replicate is a multinomial draw of their counts
        values, counts = np.unique(np.mean(group, axis=0), return_counts=True)
        share, n = len(group) / len(differences), int(counts.sum())
        replicates += share * (rng.multinomial(n, counts / n, REPLICATES) @ values) / n
        mean += share * float(values @ counts) / n
    low, high = np.quantile(replicates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return ExampleInterval(mean, float(low), float(high))


def verdict(seeds: PairedDifference, examples: ExampleInterval | None) -> Verdict | None:
    """Return the verdict of both intervals; None for one seed or without predictions: then nothing is decided."""
    if seeds.low is None or seeds.high is None or examples is None:
        return None
    if min(seeds.low, examples.low) > 0:
        return "better"
    return "worse" if max(seeds.high, examples.high) < 0 else "no difference shown"
