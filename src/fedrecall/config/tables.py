"""A configuration with one name a value: method.name, federation.partition.alpha."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrecall.errors import UserError

Tables = dict[str, Any]  # a configuration, or a part of one

OVERRIDE_HINT = "give the key of a value, such as method.name=fedprox"

# Tables whose key `name` chooses a class: another name makes the other keys meaningless.
NAMED_TABLES = frozenset({"method", "model", "partition", "straggler", "attack", "robust", "privacy"})


def read_toml(path: Path) -> Tables:
    """The tables of a study's TOML file."""
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError("config.unreadable_file", f"{path}: {reason}", str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise UserError("config.invalid_toml", f"{path}: not valid TOML: {error}", str(path)) from None
    printed = tables.get("printed", {})
    for values in printed.values() if isinstance(printed, dict) else ():
        for row, line in values.items() if isinstance(values, dict) else ():
            values[row] = [None if value == "" else value for value in line] if isinstance(line, list) else line
    return tables


def merge_tables(*parts: Mapping[str, Any]) -> Tables:
    """Nested tables on top of one another; naming another method, model or partition drops the old one's keys."""
    out: Tables = {}
    for part in parts:
        for key, value in part.items():
            old = out.get(key)
            if isinstance(value, Mapping):
                kept = old if isinstance(old, Mapping) else {}
                renamed = key in NAMED_TABLES and kept.get("name", value.get("name")) != value.get(
                    "name", kept.get("name")
                )
                out[key] = merge_tables({} if renamed else kept, value)
            else:
                out[key] = value
    return out


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


def apply_overrides(tables: dict[str, Any], texts: Iterable[str]) -> None:
    """Apply several: names first, for another method drops the settings of the old one, not those given beside it."""
    for text in sorted(texts, key=lambda text: not text.partition("=")[0].strip().endswith(".name")):
        apply_override(tables, text)


def apply_override(tables: dict[str, Any], text: str) -> None:
    """Apply one "a.b=value" to nested tables; naming another method, model or partition drops the old one's keys."""
    key, equals, value = text.partition("=")
    *path, last = key.strip().split(".")
    if not equals or not all([*path, last]):
        raise UserError("config.invalid_override", f'"{text}": not of the form key=value', text, OVERRIDE_HINT)
    for part in path:
        inner = tables.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UserError("config.invalid_override", f'"{text}": {part} is a value, not a table', text, OVERRIDE_HINT)
        tables = inner
    chooses = last == "name" and path != [] and path[-1] in NAMED_TABLES
    if chooses and tables.get("name") != _parse_value(value):
        tables.clear()
    tables[last] = _parse_value(value)


def _parse_value(text: str) -> Any:
    """A TOML value; what is none is a string, so that quotes can be left out."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text.strip()


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# Keys that change no bit of the result; of a model to start with the values count, not the path.
RESULT_NEUTRAL_KEYS = ("engine.", "ray.", "data.root", "run.track", "run.checkpoint_every", "run.start")


def with_overrides(tables: Tables, overrides: Sequence[str]) -> Tables:
    """Tables with "key=value" texts on top."""
    out = merge_tables(tables)
    apply_overrides(out, overrides)
    return out
