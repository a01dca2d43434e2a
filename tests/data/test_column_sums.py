"""Exact sums of a column: independent of order and division, equal to numpy's statistics but for rounding."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedrecall.data.column_sums import ColumnSums

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)


@settings(deadline=None)
@given(arrays(np.float64, st.integers(0, 30), elements=FLOATS), st.randoms())
def test_sums_are_exact_and_do_not_depend_on_the_division(x: np.ndarray, random: object) -> None:
    exact = [Fraction(value) for value in x.tolist()]
    meant = (len(x), sum(exact, Fraction(0)), sum((value**2 for value in exact), Fraction(0)))
    whole = ColumnSums.of(x)
    assert whole == meant
    at = random.randint(0, len(x))
    parts = [ColumnSums.of(x[at:]), ColumnSums.of(x[:at])]
    assert ColumnSums.merge(ColumnSums.from_json(json.loads(json.dumps(part.to_json()))) for part in parts) == whole


def test_mean_and_deviation_of_large_numbers_with_small_differences() -> None:
    x = 1.7e9 + np.random.default_rng(0).normal(size=10_000)
    mean, std = ColumnSums.of(x).mean_and_std()
    assert mean == pytest.approx(x.mean(), abs=1e-6)
    assert std == pytest.approx((x - x.mean()).std(), abs=1e-9)
    assert ColumnSums.of(np.full(7, 0.1)).mean_and_std() == (0.1, 1.0)


@pytest.mark.parametrize(
    "content",
    [
        [1, "1e999999999", "1"],
        [1, "1" * 3000, "1"],
        [1.5, "1", "1"],
        [True, "1", "1"],
        [1, "3", "1"],
        [-1, "0", "0"],
        [0, "1", "1"],
        [1, "1/0", "1"],
        [1, "1"],
        [],
        None,
    ],
)
def test_other_content_is_refused(content: object) -> None:
    with pytest.raises((ValueError, TypeError, ZeroDivisionError)):
        ColumnSums.from_json(content)
