"""Exact sums of a column's numbers: they do not depend on how the rows are divided among clients, or on their order.

A node sends the sums of its rows, the server adds them up, and the mean and the standard deviation have the same bits
as those of a simulation that has all rows.
"""

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NamedTuple, Self

import numpy as np

LIMB_BITS = 18  # a mantissa has three limbs, and products of limbs can be added 2**27 times in int64

EXACT_NUMBER = re.compile(r"-?[0-9]{1,2000}(/[0-9]{1,2000})?")  # sums of numbers in float64 have fewer digits


class ColumnSums(NamedTuple):
    """Number, sum and sum of squares of some numbers."""

    number: int
    total: Fraction
    squares: Fraction

    @classmethod
    def of(cls, numbers: np.ndarray[Any, np.dtype[np.float64]]) -> Self:
        """Add up finite numbers, without rounding."""
        fraction, exponent = np.frexp(numbers)
        mantissa = (fraction * 2.0**53).astype(np.int64)
        total, squares = Fraction(0), Fraction(0)
        for e in np.unique(exponent):
            part, mask = mantissa[exponent == e], (1 << LIMB_BITS) - 1
            limbs = np.stack([part & mask, (part >> LIMB_BITS) & mask, part >> 2 * LIMB_BITS])  # the lowest first
            unit, products = Fraction(2) ** (int(e) - 53), limbs @ limbs.T
            total += unit * sum(int(limbs[i].sum()) << LIMB_BITS * i for i in range(3))
            squares += unit**2 * sum(int(products[i, j]) << LIMB_BITS * (i + j) for i in range(3) for j in range(3))
        return cls(len(numbers), total, squares)

    @classmethod
    def merge(cls, parts: Iterable[Self]) -> Self:
        """Return the sums of several sets of numbers together."""
        found = list(parts)
        return cls(
            sum(part.number for part in found),
            sum((part.total for part in found), Fraction(0)),
            sum((part.squares for part in found), Fraction(0)),
        )

    def mean_and_std(self) -> tuple[float, float]:
        """Return mean and standard deviation, each rounded once. The deviation of equal numbers is 1."""
        mean = self.total / self.number
        return float(mean), math.sqrt(float(self.squares / self.number - mean**2)) or 1.0

    @property
    def is_possible(self) -> bool:
        """True if there are numbers with these sums: by the Cauchy-Schwarz inequality."""
        is_possible = self.number >= 0 and self.squares >= 0 and self.number * self.squares >= self.total**2
        return is_possible and (self.number > 0 or self.squares == 0)

    def to_json(self) -> list[Any]:
        """Return the content as JSON's types."""
        return [self.number, str(self.total), str(self.squares)]

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read what `to_json` returned, on another machine. Raises ValueError for anything else."""
        number, *sums = content
        if type(number) is not int or len(sums) != 2 or not all(EXACT_NUMBER.fullmatch(str(text)) for text in sums):
            raise ValueError("not the sums of a column")
        out = cls(number, *(Fraction(text) for text in sums))
        if not out.is_possible:
            raise ValueError("no numbers have these sums")
        return out
