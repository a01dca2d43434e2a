"""A configuration with one name a value: method.name, federation.partition.alpha."""

from collections.abc import Mapping
from typing import Any

Value = str | bool | int | float


def dotted(tables: Mapping[str, Any], above: str = "") -> dict[str, Value]:
    """The values of nested tables; what is neither text nor a number is written out.

    >>> dotted({"run": {"rounds": 3, "targets": [0.5]}})
    {'run.rounds': 3, 'run.targets': '[0.5]'}
    """
    out: dict[str, Value] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            out |= dotted(value, f"{above}{key}.")
        else:
            out[above + key] = value if isinstance(value, Value) else str(value)
    return out
