"""Overrides of a configuration: the `key=value` texts of `--set` and `overrides=`."""

import tomllib
from collections.abc import Iterable
from typing import Any

from fedrecall.config.tables import NAMED_TABLES, Tables, merge_tables
from fedrecall.errors import UserError

ENGINE_KEYS = (("engine", "workers"), ("engine", "timeout"), ("ray", "address"))  # meaningless on another engine

OVERRIDE_HINT = "give the key of a value, such as method.name=fedprox"


def with_overrides(tables: Tables, overrides: Iterable[str]) -> Tables:
    """Return a copy of tables with "key=value" overrides applied."""
    out = merge_tables(tables)
    apply_overrides(out, overrides)
    return out


def apply_overrides(tables: Tables, overrides: Iterable[str]) -> None:
    """Apply "key=value" overrides in place. Names go first, because another name drops the settings of the former."""
    texts = [overrides] if isinstance(overrides, str) else overrides
    for text in sorted(texts, key=lambda text: not text.partition("=")[0].strip().endswith(".name")):
        apply_override(tables, text)


def apply_override(tables: Tables, text: str) -> None:
    """Apply one "key=value" override in place; another `name` of a table drops the keys of the former name."""
    experiment = tables
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
    if [*path, last] == ["engine", "name"] and tables.get("name") != _parse_value(value):
        for section, own in ENGINE_KEYS:
            if isinstance(former := experiment.get(section), dict):
                former.pop(own, None)
    tables[last] = _parse_value(value)


def _parse_value(text: str) -> Any:
    """Parse a TOML value. Other text is a string, so that quotes are optional on the command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text.strip()
