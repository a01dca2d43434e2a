"""Make docs/configuration.md from the types: `python docs/make_configuration.py`. A test compares the two.

Types and defaults are those of the classes; what a key means is the comment beside it in the source.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

import tomli_w
from pydantic import BaseModel, TypeAdapter

from fedrecall.config.choices import NamedChoice
from fedrecall.config.experiment import CHOICES, CHOSEN, Experiment
from fedrecall.config.schema import classes
from fedrecall.data.catalog import DATASETS
from fedrecall.data.transforms import TRANSFORM_PRESETS as AUGMENTATIONS
from fedrecall.data.transforms import Transform

PAGE = Path(__file__).parent / "configuration.md"
HEAD = ("Key", "Type", "Default", "Meaning")
INTRODUCTION = """\
# Configuration

Every table and key, with its type, its default and its meaning. This page is made from the types of the code by
`python docs/make_configuration.py`, and a test compares the two.

A configuration is a TOML file that says what differs from the quickstart: FedAvg on digits, ten skewed clients. Any key
can be set on the command line, `fedrecall run experiment.toml --set method.tau=3`, and from Python,
`fr.run({"method": {"name": "fedlmd", "tau": 3.0}})`. An unknown or ill-typed key is refused before anything runs. The
`config.toml` of a run directory is complete: every key with the value that was used.

*unset* means that there is no value; the meaning says what then happens."""
CHOSEN_FOR = {
    "partition": "who has which examples",
    "straggler": "who answers late; unset: nobody",
    "attack": "who lies; unset: nobody",
    "robust": "how a few hostile replies are kept from doing harm; unset: all count",
    "privacy": "noise, so that no client can be told from the model; unset: none",
}
MORE = {
    "data": "[Bring your own data](own-data.md) shows folders, tables and arrays.",
    "federation": "`fedrecall show partition experiment.toml` draws who has which classes.",
    "federation.straggler": "[Dropouts and stragglers](robustness.md#dropouts-and-stragglers) describes them.",
    "federation.attack": "[Attackers](robustness.md#attackers) describes them.",
    "server.robust": "[Robust aggregation](robustness.md#robust-aggregation) compares them.",
    "server.privacy": "[Differential privacy](privacy.md#differential-privacy) describes the guarantee.",
    "model": "Without one the data decides: `cnn` for images of 16 pixels or more, else `mlp`. A module of your own is "
    "given in Python: [bring your own model](own-model.md).",
    "method": "Each method has a page with its equations. `preset` names a paper's settings of a method.",
    "engine": "[Engines](engines.md) says which one when.",
    "run": "[Compare, reproduce, look](experiments.md) has more on probes and trackers.",
}


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, field in Experiment.model_fields.items():
        chosen = CHOICES.get(name)
        parts += [f"## [{name}]"] + ([] if chosen else [_about(type(field.default))])
        parts += [MORE[name]] if name in MORE else []
        parts += list(_choice(name, chosen) if chosen else _section(name, type(field.default)))
    return "\n\n".join(parts) + "\n"


def _section(name: str, cls: type[BaseModel]) -> Iterator[str]:
    rows = []
    for key, field in cls.model_fields.items():
        if key in CHOSEN.get(name, ()):
            default = _toml(CHOICES[key].dump(field.default)["name"]) if field.default is not None else "unset"
            rows.append((f"`{key}`", f"table: [below](#{name}{key})", default, CHOSEN_FOR[key]))
        else:
            hint = get_type_hints(cls, include_extras=True)[key]
            rows.append((f"`{key}`", _type(hint), _toml(field.default), _comment(cls, key)))
    yield _table(HEAD, rows)
    if name == "data":
        yield from _data()
    for key in CHOSEN.get(name, ()):
        path = f"{name}.{key}"
        yield f"### {path}"
        if path in MORE:
            yield MORE[path]
        yield from _choice(path, CHOICES[key])


def _choice(path: str, choice: NamedChoice) -> Iterator[str]:
    """What can be chosen by name, and the keys of each."""
    rows = []
    for name, cls in choice.classes.items():
        label = f"[`{name}`](methods/{name}.md)" if choice.kind == "method" else f"`{name}`"
        keys = "<br>".join(_keys(cls)) or "none"
        rows.append((label, _about(cls), keys))
    yield _table(("Name", "What it is", "Its keys, with their defaults"), rows)
    if choice.presets:
        named = [(f"`{preset}`", ", ".join(f"`{name}`" for name in of)) for preset, of in choice.presets.items()]
        yield f'`{path} = {{ name = "fedprox", preset = "fedssd-cifar10" }}` takes a paper\'s settings:'
        yield _table(("Preset", "Has settings of"), named)


def _data() -> Iterator[str]:
    named = [(f"`{name}`", source.about) for name, source in DATASETS.items()]
    own = [("`folder`", "your images: `path/<class>/<image>`"), ("`table`", "your CSV or Parquet file")]
    yield "### data.name"
    yield _table(("Name", "What it is"), [*named, *own])
    yield "### data.augment"
    yield (
        f"`none`, a preset ({', '.join(f'`{name}`' for name in AUGMENTATIONS)}; each for the data sets of its paper), "
        "or a table such as `{ pad = 4, flip = true }` with these keys:"
    )
    hints = get_type_hints(Transform)
    rows = [
        (f"`{f.name}`", _type(hints[f.name]), _toml(f.default), _comment(Transform, f.name)) for f in fields(Transform)
    ]
    yield _table(HEAD, rows)


def _keys(cls: type[Any]) -> Iterator[str]:
    hints = get_type_hints(cls)
    for f in fields(cls):
        choices = _type(hints[f.name]) if get_origin(hints[f.name]) is Literal else ""
        meaning = "; ".join(filter(None, [_comment(cls, f.name), choices and f"one of {choices}"]))
        yield f"`{f.name}` {_toml(f.default)}" + (f": {meaning}" if meaning else "")


def _type(hint: Any) -> str:
    """A type, in words."""
    return " or ".join(dict.fromkeys(_words(TypeAdapter(hint).json_schema())))


def _words(schema: dict[str, Any]) -> Iterator[str]:
    if "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _words(part)
    elif "enum" in schema or "const" in schema:
        yield ", ".join(_toml(value) for value in schema.get("enum", [schema.get("const")]))
    elif schema.get("type") == "array":
        inside = schema.get("items") or next(iter(schema.get("prefixItems", [])), {})
        yield f"list: {' or '.join(_words(inside))}"
    elif schema.get("type") != "null":
        bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
        said = ", ".join(f"{sign} {schema[key]:g}" for key, sign in bounds.items() if key in schema)
        words = {"integer": "integer", "number": "number", "boolean": "true or false", "object": "table"}
        plain = "path" if schema.get("format") == "path" else words.get(schema["type"], "text")
        yield f"{plain} {said}".strip()


def _toml(value: Any) -> str:
    """A value, as a file has it."""
    if value is None:
        return "unset"
    plain = list(value) if isinstance(value, tuple) else value
    text = " ".join(tomli_w.dumps({"x": plain}).removeprefix("x = ").split())
    return f"`{text.replace('[ ', '[').replace(', ]', ']')}`"


def _comment(cls: type[Any], key: str) -> str:
    return _cell(classes(Path(str(sys.modules[cls.__module__].__file__)))[cls.__name__].keys[key].comment)


def _about(cls: type[Any]) -> str:
    return _cell((cls.__doc__ or "").splitlines()[0])


def _cell(text: str) -> str:
    """Text in the words of a file, that cannot end a cell, nor be taken for HTML."""
    text = re.sub(r"\bNone\b", "unset", re.sub(r"\bFalse\b", "false", text))
    return text.replace("|", "\\|").replace("<", "&lt;")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in [tuple(head), *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(tuple(head)), *lines[1:]])


if __name__ == "__main__":
    PAGE.write_text(page())
