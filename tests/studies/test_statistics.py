"""Statistics of curves made by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecall.studies.statistics import (
    Curve,
    ExampleInterval,
    MeanStd,
    PairedDifference,
    best,
    example_interval,
    final,
    has_failed,
    last10,
    mean_curve,
    mean_std,
    paired_difference,
    rounds_to_target,
    speedup,
    verdict,
)


def curve(*values: float, every: int = 1) -> Curve:
    return [(every * i, value) for i, value in enumerate(values, 1)]


RISES_AND_FALLS = curve(0.1, 0.5, 0.7, 0.4, 0.6)


def test_final_best_last10() -> None:
    assert final(RISES_AND_FALLS) == 0.6
    assert best(RISES_AND_FALLS) == 0.7
    assert last10(RISES_AND_FALLS) == pytest.approx(0.46)
    assert last10(curve(*[0.0] * 5, *[1.0] * 5, *[0.5] * 5)) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (0.05, 1),  # the first round is 1
        (0.1, 1),
        (0.5, 2),  # exactly at the target counts
        (0.6, 3),  # reached and lost again: the first time counts
        (0.7, 3),
        (0.71, None),
    ],
)
def test_rounds_to_target(target: float, expected: int | None) -> None:
    assert rounds_to_target(RISES_AND_FALLS, target) == expected


def test_rounds_to_target_of_a_sparsely_evaluated_curve() -> None:
    assert rounds_to_target(curve(0.2, 0.4, 0.6, every=5), 0.3) == 10
    assert rounds_to_target([], 0.1) is None


def test_a_mean_of_equal_values_reaches_them() -> None:
    """0.1 + 0.1 + 0.1 is more than 0.3 in binary: rounding decides nothing."""
    third = mean_curve([curve(0.1), curve(0.1), curve(0.1)])
    assert rounds_to_target(third, 0.1) == 1
    assert rounds_to_target(curve(0.1 + 0.2), 0.3) == rounds_to_target(curve(0.3), 0.1 + 0.2) == 1


def test_the_mean_curve_has_the_rounds_that_all_seeds_have() -> None:
    assert mean_curve([curve(0.2, 0.4, 0.9), curve(0.4, 0.6)]) == [(1, pytest.approx(0.3)), (2, pytest.approx(0.5))]
    assert mean_curve([]) == []


def test_mean_curves_are_compared_not_mean_rounds() -> None:
    """One seed reaches 0.5 at round 1 and one at round 3; their mean curve does at round 2."""
    seeds = [curve(0.5, 0.8, 0.8), curve(0.1, 0.2, 0.5)]
    assert rounds_to_target(mean_curve(seeds), 0.5) == 2


@pytest.mark.parametrize(
    ("reached", "printed"), [(38, "5.26"), (39, "5.13"), (40, "5.00"), (60, "3.33"), (85, "2.35"), (200, "1.00")]
)
def test_the_speedups_that_fedlmd_prints(reached: int, printed: str) -> None:
    assert f"{speedup(200, reached):.2f}" == printed


def test_both_definitions_of_speedup_agree_when_fedavg_peaks_in_the_last_round() -> None:
    fedavg, method = curve(0.1, 0.2, 0.3, 0.4), curve(0.2, 0.45, 0.3, 0.3)
    target = best(fedavg)
    assert (
        speedup(4, rounds_to_target(method, target))
        == speedup(rounds_to_target(fedavg, target), rounds_to_target(method, target))
        == 2.0
    )
    early = curve(0.1, 0.4, 0.3, 0.3)
    assert speedup(4, rounds_to_target(method, 0.4)) == 2.0
    assert speedup(rounds_to_target(early, 0.4), rounds_to_target(method, 0.4)) == 1.0


def test_a_speedup_over_an_unreached_target_is_unknown() -> None:
    assert speedup(None, 3) is None
    assert speedup(200, None) is None, "FedLMD prints 1.00"
    assert speedup(None, None) is None
    assert speedup(1, 1) is None, "both reach it in the first round"


@pytest.mark.parametrize(
    ("accuracy", "classes", "expected"),
    [
        (0.1271, 10, True),  # FedNova and SCAFFOLD in FedLMD's table 3
        (0.1234, 10, True),
        (0.13, 10, True),
        (0.131, 10, False),
        (0.2518, 10, False),
        (0.04, 100, True),
        (0.041, 100, False),
        (0.02, 10, True),  # worse than chance is not learning either
        (None, 10, True),
        (0.05, None, False),  # nobody knows what chance is
    ],
)
def test_failed_is_within_three_points_of_chance(accuracy: float | None, classes: int, expected: bool) -> None:
    assert has_failed(accuracy, classes) is expected


def test_an_interrupted_run_has_failed_at_any_accuracy() -> None:
    assert has_failed(0.9, 10, diverged=True)


def test_spread_has_the_deviation_of_a_sample() -> None:
    assert mean_std([1.0, 2.0, 3.0, 4.0]) == MeanStd(2.5, pytest.approx(1.2909944), 4)
    assert mean_std([0.7]) == MeanStd(0.7, None, 1)
    assert mean_std([]) is None


def test_a_paired_difference_and_its_interval() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1, and t(2 degrees, 97.5 %) = 4.302653."""
    found = paired_difference({0: 11.0, 1: 22.0, 2: 33.0}, {0: 10.0, 1: 20.0, 2: 30.0})
    half = 4.302653 / 3**0.5
    assert found == PairedDifference(2.0, pytest.approx(2 - half, abs=1e-6), pytest.approx(2 + half, abs=1e-6), 3)


def test_only_shared_seeds_are_paired() -> None:
    assert paired_difference({0: 0.5, 7: 0.9}, {0: 0.25, 3: 0.1}) == PairedDifference(0.25, None, None, 1)
    assert paired_difference({0: 0.5}, {1: 0.5}) is None


def test_a_shift_that_all_seeds_share_is_certain() -> None:
    assert paired_difference({0: 0.75, 1: 0.5}, {0: 0.5, 1: 0.25}) == PairedDifference(0.25, 0.25, 0.25, 2)


ACCURACY = st.floats(0, 1)


@given(st.lists(ACCURACY, min_size=1, max_size=20), ACCURACY, ACCURACY)
def test_a_higher_target_is_not_reached_sooner(values: list[float], a: float, b: float) -> None:
    low, high = sorted((a, b))
    first, second = rounds_to_target(curve(*values), low), rounds_to_target(curve(*values), high)
    assert second is None or (first is not None and first <= second)


@given(st.lists(ACCURACY, min_size=1, max_size=20))
def test_every_curve_reaches_its_own_best(values: list[float]) -> None:
    assert rounds_to_target(curve(*values), best(curve(*values))) is not None


@given(st.dictionaries(st.integers(0, 9), ACCURACY, min_size=2, max_size=10), st.floats(-0.5, 0.5))
def test_the_interval_is_around_the_mean(values: dict[int, float], shift: float) -> None:
    found = paired_difference({seed: value + shift for seed, value in values.items()}, values)
    assert found is not None
    assert found.low <= found.mean <= found.high
    assert found.mean == pytest.approx(shift, abs=1e-9)


def test_the_interval_over_test_examples_is_that_of_their_mean() -> None:
    values = np.repeat([-100.0, 0.0, 100.0], [15, 375, 10])  # of 400 examples 15 are lost and 10 won: -1.25 points
    half = 1.96 * values.std() / np.sqrt(400)
    alone, twice = example_interval([("a", values)]), example_interval([("a", values), ("a", values)])
    apart = example_interval([("a", values), ("b", values)])
    assert example_interval([]) is None
    assert alone.mean == twice.mean == apart.mean == pytest.approx(-1.25)
    assert (alone.low, alone.high) == pytest.approx((-1.25 - half, -1.25 + half), abs=0.4)
    assert (alone.low, alone.high) == (twice.low, twice.high), "a second seed has no further examples"
    assert apart.high - apart.low == pytest.approx(2 * half / np.sqrt(2), abs=0.4), "other examples: a narrower one"


@pytest.mark.parametrize(
    ("seeds", "examples", "expected"),
    [
        ((0.2, 1.0), (0.1, 2.0), "better"),
        ((-2.13, -0.68), (-3.67, 1.09), "no difference shown"),
        ((-0.1, 1.0), (0.1, 2.0), "no difference shown"),
        ((-2.0, -1.0), (-3.0, -0.5), "worse"),
        ((-2.0, -1.0), (0.5, 3.0), "no difference shown"),
        ((-2.0, -1.0), None, None),
        ((None, None), (0.1, 2.0), None),
    ],
)
def test_a_verdict_needs_both_intervals(seeds: tuple, examples: tuple | None, expected: str | None) -> None:
    over_seeds = PairedDifference(0.0, *seeds, 3)
    assert verdict(over_seeds, None if examples is None else ExampleInterval(0.0, *examples)) == expected
