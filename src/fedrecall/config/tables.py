"""A configuration with one name a value: method.name, federation.partition.alpha."""

from collections.abc import Mapping
from typing import Any

Scalar = str | bool | int | float


def flatten(tables: Mapping[str, Any], above: str = "") -> dict[str, Scalar]:
    """The values of nested tables; what is neither text nor a number is written out.

    >>> flatten({"run": {"rounds": 3, "targets": [0.5]}})
    {'run.rounds': 3, 'run.targets': '[0.5]'}
    """
    out: dict[str, Scalar] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            out |= flatten(value, f"{above}{key}.")
        else:
            out[above + key] = value if isinstance(value, Scalar) else str(value)
    return out
