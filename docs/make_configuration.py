"""Generate the page configuration.md from the JSON schema of the configuration.

mkdocs calls `page` when it builds the site; `python docs/make_configuration.py` writes the page for readers of the
repository.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from fedrecall.config.make_schema import make_schema
from fedrecall.config.schema import (
    Schema,
    choice_members,
    first_paragraph,
    is_choice,
    is_table,
    member_settings,
    valid_values,
)
from fedrecall.data.catalog import DATASETS
from fedrecall.methods.presets import PRESETS

PAGE = Path(__file__).parent / "configuration.md"
HEAD = ("Key", "Type", "Default", "Meaning")
INTRODUCTION = """\
# Configuration

Every table and key, with its type, its default and its meaning. The page is generated from the types of the code by
`python docs/make_configuration.py`.

A configuration is a TOML file with the settings that differ from the quickstart: FedAvg on digits, ten skewed clients.
Any key can be set on the command line, `fedrecall run experiment.toml --set method.tau=3`, and from Python,
`fr.run({"method": {"name": "fedlmd", "tau": 3.0}})`. An unknown or ill-typed key is an error before anything runs. The
`config.toml` of a run directory is complete: every key with the value that was used.

`fedrecall init` writes a file with every key and its meaning. Its first line, `#:schema PATH`, names the JSON schema of
the installed package, so that editors with [Taplo](https://taplo.tamasfe.dev) (Even Better TOML in VS Code) complete
keys, check values and show meanings. The path is relative if the package is installed below the file's folder, such as
in `.venv`, and absent otherwise; `python -c "from fedrecall.config.schema import SCHEMA_FILE; print(SCHEMA_FILE)"`
prints it.

*unset* means that there is no value; the meaning describes the effect."""
MORE = {
    "data": "[Bring your own data](own-data.md) shows folders, tables and arrays.",
    "federation": "`fedrecall show partition experiment.toml` draws the class distribution of every client.",
    "federation.straggler": "More: [dropouts and stragglers](robustness.md#dropouts-and-stragglers).",
    "federation.attack": "More: [attackers](robustness.md#attackers).",
    "server.robust": "[Robust aggregation](robustness.md#robust-aggregation) compares the rules.",
    "server.privacy": "[Differential privacy](privacy.md#differential-privacy) states the guarantee.",
    "local": "[Local training](training.md) explains them.",
    "model": "[Models](models.md) has examples; [bring your own model](own-model.md) shows how to pass a torch module.",
    "method": "Each method has a page with its equations. `preset` names a paper's settings of a method.",
    "engine": "[Engines](engines.md) helps to choose; [device](training.md#device) explains `engine.device`.",
    "run": "[Compare, reproduce, inspect](experiments.md) has more on probes and trackers.",
}
TYPES = {"integer": "integer", "number": "number", "boolean": "true or false", "object": "table"}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for name, node in make_schema()["properties"].items():
        parts += [f"## [{name}]", _cell(first_paragraph(node)), *([MORE[name]] if name in MORE else [])]
        parts += _choice(name, node) if is_choice(node) else _section(name, node)
    return "\n\n".join(parts) + "\n"


def _section(name: str, section: Schema) -> Iterator[str]:
    keys: dict[str, Schema] = section["properties"]
    yield _table(HEAD, (_row(key, node, f"table: [below](#{name}{key})") for key, node in keys.items()))
    if name == "data":
        yield from _data(keys["augment"])
    for key, node in keys.items():
        if is_choice(node):
            path = f"{name}.{key}"
            yield f"### {path}"
            if path in MORE:
                yield MORE[path]
            yield from _choice(path, node)
        elif is_table(node):
            yield f"### {name}.{key}"
            yield from _section(f"{name}.{key}", node)


def _row(key: str, node: Schema, table: str = "table") -> tuple[str, ...]:
    default = node.get("default")
    if is_table(node):
        return f"`{key}`", table, _toml(None), _cell(first_paragraph(node))
    if is_choice(node):
        return f"`{key}`", table, _toml(default and default["name"]), _cell(first_paragraph(node))
    return f"`{key}`", " or ".join(dict.fromkeys(_types(node))), _toml(default), _cell(first_paragraph(node))


def _choice(path: str, node: Schema) -> Iterator[str]:
    rows = []
    for name, member in choice_members(node).items():
        label = f"[`{name}`](methods/{name}.md)" if path == "method" else f"`{name}`"
        settings = "<br>".join(_setting(key, value) for key, value in member_settings(member).items()) or "none"
        rows.append((label, _cell(first_paragraph(member)), settings))
    yield _table(("Name", "Description", "Keys with their defaults"), rows)
    if path == "method":
        presets = [(f"`{preset}`", ", ".join(f"`{name}`" for name in methods)) for preset, methods in PRESETS.items()]
        yield f'`{path} = {{ name = "fedprox", preset = "fedssd-cifar10" }}` takes a paper\'s settings:'
        yield _table(("Preset", "Methods"), presets)


def _setting(key: str, node: Schema) -> str:
    names = [_toml(value) for value in valid_values(node) if not isinstance(value, bool)]
    meaning = " ".join(filter(None, [_cell(first_paragraph(node)), names and f"One of {', '.join(names)}."]))
    return f"`{key}` {_toml(node.get('default'))}" + (f": {meaning}" if meaning else "")


def _data(augment: Schema) -> Iterator[str]:
    named = [(f"`{name}`", source.about) for name, source in DATASETS.items()]
    own = [("`folder`", "your images: `path/<class>/<image>`"), ("`table`", "your CSV or Parquet file")]
    yield "### data.name"
    yield _table(("Name", "Description"), [*named, *own])
    presets, transforms = augment["anyOf"]
    yield "### data.augment"
    yield (
        f"A preset ({', '.join(f'`{name}`' for name in presets['enum'])}; each for the data sets of its paper), "
        "or a table such as `{ pad = 4, flip = true }` with these keys:"
    )
    yield _table(HEAD, (_row(key, node) for key, node in transforms["properties"].items()))


def _types(node: Schema) -> Iterator[str]:
    """Yield the names of the alternatives of a type."""
    if "anyOf" in node:
        for part in node["anyOf"]:
            yield from _types(part)
    elif "enum" in node or "const" in node:
        yield ", ".join(_toml(value) for value in valid_values(node))
    elif node.get("type") == "array":
        items = node.get("items") or next(iter(node.get("prefixItems", [])), {})
        yield f"list: {' or '.join(_types(items))}"
    else:
        bounds = ", ".join(f"{sign} {node[key]:g}" for key, sign in BOUNDS.items() if key in node)
        name = "path" if node.get("format") == "path" else TYPES.get(node["type"], "text")
        yield f"{name} {bounds}".strip()


def _toml(value: Any) -> str:
    """Format a value as in a TOML file."""
    if value is None:
        return "unset"
    text = " ".join(tomli_w.dumps({"x": value}).removeprefix("x = ").split())
    return f"`{text.replace('[ ', '[').replace(', ]', ']')}`"


def _cell(text: str) -> str:
    """Escape text for a cell, and name values as in TOML."""
    text = text.replace("None: ", "Unset: ").replace("False: ", "false: ")
    return text.replace("|", "\\|").replace("<", "&lt;")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in [tuple(head), *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(tuple(head)), *lines[1:]])


if __name__ == "__main__":
    PAGE.write_text(page())
