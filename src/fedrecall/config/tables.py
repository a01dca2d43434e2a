"""Configurations as nested tables: reading TOML, merging, flattening to dotted keys, overrides."""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.errors import UserError

Tables = dict[str, Any]  # a configuration or a part of one, as nested dictionaries

Scalar = str | bool | int | float

MAX_CONFIG_BYTES = 4 * 2**20  # the largest study definitions are a hundredth of it

# Tables whose key `name` chooses a class: another name makes the other keys meaningless.
NAMED_TABLES = frozenset(
    {
        "method",
        "model",
        "schedule",
        "partition",
        "straggler",
        "attack",
        "preaggregation",
        "robust",
        "privacy",
        "imbalance",
    }
)

# Prefixes of keys that change no bit of a result. Of the initial weights the values matter, not the path.
RESULT_NEUTRAL_KEYS = ("engine.", "ray.", "data.root", "run.track", "run.checkpoint_every", "run.start")


def read_toml(path: Path) -> Tables:
    """Read the tables of a TOML file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            what = f"{path}: larger than {MAX_CONFIG_BYTES // 2**20} MiB, so not a configuration"
            raise UserError("config.unreadable_file", what, str(path), "give a TOML file")
        return tomllib.loads(content.decode())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        others = [file.name for file in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        near = get_close_matches(path.name, others, n=1)
        hint = f'did you mean "{path.with_name(near[0])}"?' if near else f"fedrecall init {path} writes one"
        raise UserError("config.unreadable_file", f"{path}: {reason}", str(path), hint) from None
    except (ValueError, RecursionError) as error:  # a ValueError is a syntax error, or a number of too many digits
        raise UserError("config.invalid_toml", f"{path}: not valid TOML: {error}", str(path)) from None


def merge_tables(*parts: Mapping[str, Any]) -> Tables:
    """Merge nested tables; later ones win. Another `name` of a method, model or partition drops the former keys.

    Numbers of numpy become Python's, which alone can be written to a file.
    """
    out: Tables = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, Mapping):
                former = out.get(key)
                kept = former if isinstance(former, Mapping) else {}
                renamed = (
                    key in NAMED_TABLES and {"name"} <= kept.keys() & value.keys() and kept["name"] != value["name"]
                )
                out[key] = merge_tables({} if renamed else kept, value)
            else:
                out[key] = value.item() if isinstance(value, np.generic) else value
    return out


def lookup(tables: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key; None if the tables do not have it."""
    found: Any = tables
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Flatten nested tables to dotted keys; a value that is neither text nor a number becomes text.

    >>> flatten({"run": {"rounds": 3, "targets": [0.5]}})
    {'run.rounds': 3, 'run.targets': '[0.5]'}
    """
    out: dict[str, Scalar] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            out |= flatten(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value if isinstance(value, Scalar) else str(value)
    return out
