"""Constraints on the fields of dataclasses, stated in their annotations: bounds, and the values of a `Literal`.

The same metadata is enforced here when a class is called in Python, and by pydantic when a table is read.
"""

from dataclasses import fields
from functools import cache
from math import isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from fedrecall.errors import UserError, unknown_name

SMALLEST, LARGEST = 1e-30, 1e30  # well inside float32, in which weights and losses are computed

Weight = Annotated[float, Ge(0), Le(LARGEST)]
"""Weight of a term of a loss."""

Temperature = Annotated[float, Ge(SMALLEST), Le(LARGEST)]
"""Temperature of a softmax."""

PositiveFloat = Annotated[float, Ge(SMALLEST), Le(LARGEST)]
"""Number above 0 that float32 can represent."""

NonNegativeFloat = Annotated[float, Ge(0), Le(LARGEST)]
"""Number of at least 0 that float32 can represent."""

Factor = Annotated[float, Ge(-LARGEST), Le(LARGEST)]
"""Number of any sign that float32 can represent."""

LogSpread = Annotated[float, Ge(0), Le(20)]
"""Standard deviation of the logarithm of a quantity."""

UnitInterval = Annotated[float, Ge(0), Le(1)]
"""Number from 0 to 1."""

OpenUnitInterval = Annotated[float, Gt(0), Lt(1)]
"""Number between 0 and 1, both excluded."""

PositiveInt = Annotated[int, Ge(1)]
"""Whole number of at least 1."""

NonNegativeInt = Annotated[int, Ge(0)]
"""Whole number of at least 0."""


def check_constraints(instance: Any, section: str) -> None:
    """Raise a UserError for the first field of a dataclass whose value violates its annotation.

    `section` is the configuration key of the table that describes the instance. Numbers must be finite.
    """
    hints = _type_hints(type(instance))  # type: ignore[arg-type]  # mypy: a class is not Hashable
    for field in fields(instance):
        value, key = getattr(instance, field.name), f"{section}.{field.name}"
        kind = _without_none(hints[field.name])
        if value is None and kind is not hints[field.name]:
            continue
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise unknown_name(key, value, map(str, get_args(kind)), key=key)
        elif problem := _violation(value, kind):
            raise UserError("config.invalid_value", f"{key} = {value}: it must be {problem}", key)


@cache
def _type_hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _without_none(hint: Any) -> Any:
    """Return X for the annotation `X | None`, and any other annotation unchanged."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    others = [kind for kind in get_args(hint) if kind is not NoneType]
    return others[0] if len(others) == 1 else hint


def _violation(value: Any, hint: Any) -> str | None:
    """Return what a number must be according to its annotation, or None if it is."""
    kind, *bounds = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if kind is int and not isinstance(value, Integral):
        return "a whole number"
    if kind is not int and kind is not float:
        return None
    if not isinstance(value, Real):
        return "a number"
    number: Any = value  # bounds are typed by protocols that a Real does not declare
    if not isfinite(number):
        return "finite"
    for bound in bounds:
        if isinstance(bound, Ge) and not number >= bound.ge:
            return f"at least {bound.ge}"
        if isinstance(bound, Gt) and not number > bound.gt:
            return f"above {bound.gt}"
        if isinstance(bound, Le) and not number <= bound.le:
            return f"at most {bound.le}"
        if isinstance(bound, Lt) and not number < bound.lt:
            return f"below {bound.lt}"
    return None
