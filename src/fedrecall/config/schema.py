"""JSON schema of the configuration: types, bounds, defaults and descriptions of every key.

`schema.json` is a snapshot of the schema, for editors and for shell completion, which must import neither torch nor
pydantic. `python -m fedrecall.config.schema` rewrites it after a change of the types (make_schema.py), and a test
compares the two.
"""

import json
from functools import cache
from pathlib import Path
from runpy import run_module
from typing import Any, NamedTuple

SCHEMA_FILE = Path(__file__).with_name("schema.json")

Schema = dict[str, Any]


class KeyInfo(NamedTuple):
    """Description of a configuration key."""

    description: str
    values: tuple[object, ...]  # all valid values, if they can be listed


@cache
def read_schema() -> Schema:
    """Read the snapshot."""
    schema: Schema = json.loads(SCHEMA_FILE.read_text())
    return schema


def is_choice(node: Schema) -> bool:
    """Return True if the value of a key is an object chosen by name."""
    return "oneOf" in node


def is_table(node: Schema) -> bool:
    """Return True if the value of a key is a table with keys of its own, without a name."""
    return "properties" in node


def choice_members(node: Schema) -> dict[str, Schema]:
    """Return the schema of every named table of a choice."""
    tables = [table for table in node["oneOf"] if table.get("title") not in (None, "PythonObject", "OwnCode")]
    return {table["properties"]["name"]["const"]: table for table in tables}


def member_settings(member: Schema) -> dict[str, Schema]:
    """Return the schemas of a named table's own keys."""
    return {key: node for key, node in member["properties"].items() if key not in ("name", "preset")}


def choice_schema(key: str) -> Schema:
    """Return the schema of a choice by its configuration key, such as "method" or "federation.partition"."""
    node = read_schema()
    for part in key.split("."):
        node = node["properties"][part]
    return node


def first_paragraph(node: Schema) -> str:
    """Return the first paragraph of a description, as one line."""
    return " ".join(str(node.get("description", "")).partition("\n\n")[0].split())


def valid_values(node: Schema) -> tuple[object, ...]:
    """Return all valid values of a key, if they can be listed."""
    if node.get("type") == "boolean":
        return (False, True)
    listed = [value for part in node.get("anyOf", []) for value in valid_values(part)]
    return (*node.get("enum", [node["const"]] if "const" in node else listed),)


@cache
def key_infos() -> dict[str, KeyInfo]:
    """Return the description of every dotted key of the configuration, e.g. "federation.partition.alpha"."""
    out: dict[str, KeyInfo] = {}
    for section, node in read_schema()["properties"].items():
        for path, key in _section_keys(section, node):
            if is_choice(key):
                members = choice_members(key)
                out[f"{path}.name"] = KeyInfo(first_paragraph(key), (*members,))
                for member in members.values():
                    settings = member_settings(member)
                    out |= {
                        f"{path}.{name}": KeyInfo(first_paragraph(s), valid_values(s)) for name, s in settings.items()
                    }
            elif is_table(key):
                out |= {
                    f"{path}.{k}": KeyInfo(first_paragraph(n), valid_values(n)) for k, n in key["properties"].items()
                }
            else:
                out[path] = KeyInfo(first_paragraph(key), valid_values(key))
    return out


def _section_keys(section: str, node: Schema) -> list[tuple[str, Schema]]:
    return [(section, node)] if is_choice(node) else [(f"{section}.{key}", n) for key, n in node["properties"].items()]


if __name__ == "__main__":
    run_module("fedrecall.config.make_schema", run_name="__main__")  # not imported: it imports every section
