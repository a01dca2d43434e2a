"""`fedrecall init`: a configuration with every key that it can have, and what each means.

Keys and values come from the configuration itself, what they mean from the comments in its source.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.config import schema
from fedrecall.config.experiment import CHOICES, CHOSEN, DataSection, Experiment, FederationSection, read
from fedrecall.config.tables import Tables
from fedrecall.data.catalog import DATASETS
from fedrecall.data.tabular import read_table
from fedrecall.errors import UserError, unknown_name
from fedrecall.files import write_atomic
from fedrecall.methods.presets import PRESETS

COMMENT_COLUMN = 28  # where comments begin

EXAMPLES_PER_CLIENT = (
    20  # examples for a client of data that is small: twice what the default partition leaves it at least
)

MAX_LISTED_NAMES = 6  # names that a comment lists; of more it says who does


def write_template(
    file: Path,
    *,
    data: str = "digits",
    method: str = "fedavg",
    label: str | None = None,
    client: str | None = None,
    size: int | None = None,
) -> Experiment:
    """Write a commented configuration for some data and a method; what is in the file afterwards."""
    if file.exists():
        raise UserError(
            "cli.file_exists",
            f"{file}: the file exists and is not overwritten",
            str(file),
            "choose another name, or remove it",
        )
    experiment = Experiment(**data_tables_for(data, label, client, size), method={"name": method})
    text = "\n".join(template_lines(experiment, file)) + "\n"
    try:
        write_atomic(file, text.encode())
    except OSError as error:
        raise UserError(
            "cli.cannot_write", f"{file}: cannot write: {error.strerror}", str(file), "choose another path"
        ) from None
    return experiment


def data_tables_for(data: str, label: str | None, client: str | None, size: int | None = None) -> Tables:
    """The tables that a data set's name, a folder of images or a CSV or Parquet file asks for."""
    path = Path(data)
    if data in DATASETS:
        for option, value in (("--label", label), ("--client", client), ("--size", size)):
            if value is not None:
                raise UserError(
                    "cli.conflicting_options",
                    f"{option} = {value}: --label, --client and --size are for your own data, not for --data {data}",
                    option,
                    f"remove {option}",
                )
        return {"data": {"name": data}}
    if path.is_dir():
        if label is not None:
            raise UserError(
                "cli.conflicting_options",
                f"--label = {label}: --label is for a table; in a folder, the names of its folders are the labels",
                "--label",
                "remove --label",
            )
        return _with_num_clients({"name": "folder", "path": data, "client": client, "size": size})
    if size is not None:
        raise UserError(
            "cli.conflicting_options",
            f"--size = {size}: --size is for a folder of images, not for --data {data}",
            "--size",
            "remove --size",
        )
    if path.suffix.lower() in (".csv", ".parquet"):
        columns = list(read_table(path))
        if label is None:
            raise UserError(
                "cli.missing_option",
                f"--label: the label column of {data} is not named",
                "--label",
                f"pass --label with one of {', '.join(columns)}",
            )
        for option, column in (("--label", label), ("--client", client)):
            if column is not None and column not in columns:
                raise unknown_name(f"column of {data}", column, columns, "data.missing_column", option)
        return _with_num_clients({"name": "table", "path": data, "label": label, "client": client})
    near = unknown_name("data set", data, DATASETS, key="--data")
    other = "pass the path of a folder of images, or of a table (.csv, .parquet)"
    raise UserError(near.code, near.message, near.key, f"{near.hint} Or {other}" if near.hint else other)


def _with_num_clients(data: Mapping[str, Any]) -> Tables:
    """Data that names its clients is dealt out to them, other data to as many as there is enough for."""
    tables: Tables = {"data": {key: value for key, value in data.items() if value is not None}}
    found = read(DataSection(**tables["data"]))  # which also shows that it can be read
    if found.train_groups is not None:
        clients = len(np.unique(found.train_groups.numpy()))
        return tables | {"federation": {"clients": clients, "partition": {"name": "groups"}}}
    enough = max(1, len(found.train_y) // EXAMPLES_PER_CLIENT)
    return tables if enough >= FederationSection().clients else tables | {"federation": {"clients": enough}}


def template_lines(experiment: Experiment, file: Path) -> Iterator[str]:
    """The text of the configuration."""
    tables, method = experiment.to_tables(), CHOICES["method"].dump(experiment.method)["name"]
    yield f"# {method} on {experiment.data.name}: fedrecall run {file}"
    yield '# A key behind a # is not set; where its comment says "None: ...", that holds then.'
    for section, about in schema.sections().items():
        yield ""
        if section in CHOICES:
            yield from _choice(section, section, tables.get(section))
            if section == "method":
                yield from _presets(method)
            continue
        yield _line(f"[{section}]", about.about.rstrip("."))
        inner, own = CHOSEN.get(section, ()), tables.get(section, {})
        for key, said in about.keys.items():
            if key not in inner:
                yield _setting(key, own.get(key), said)
        for key in inner:
            yield ""
            yield from _choice(key, f"{section}.{key}", own.get(key))


def _choice(kind: str, path: str, table: Mapping[str, Any] | None) -> Iterator[str]:
    """What is chosen by name, with its settings; or what could be."""
    choice = CHOICES[kind]
    names = list(choice.classes)
    listed = ", ".join(names) if len(names) <= MAX_LISTED_NAMES else f"fedrecall show {kind}s lists all {len(names)}"
    if table is None:
        wait = "what suits the data, unless" if kind == "model" else "none, unless"
        yield _line(f"# [{path}]", f"{wait} a name is set here")
        yield _line(f"# name = {json.dumps(choice.default or names[0])}", listed)
        return
    about = schema.chosen(kind, str(table["name"]))
    yield _line(f"[{path}]", about.about.rstrip("."))
    yield _line(f"name = {json.dumps(table['name'])}", listed)
    for key, said in about.keys.items():
        yield _setting(key, table.get(key), said)


def _presets(method: str) -> Iterator[str]:
    """The papers' settings, which stand in a comment because keys that are set win over them."""
    for name, methods in PRESETS.items():
        if settings := methods.get(method):
            said = ", ".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
            yield _line(f"# preset = {json.dumps(name)}", f"a paper's settings, in place of these lines: {said}")


def _setting(key: str, value: Any, said: schema.KeyInfo) -> str:
    names = [json.dumps(value) for value in said.values if not isinstance(value, bool)]
    of = f"one of {', '.join(names)}" if names else ""
    text = f"# {key} =" if value is None else f"{key} = {json.dumps(value)}"
    return _line(text, "; ".join(part for part in (said.comment, of) if part))


def _line(text: str, comment: str) -> str:
    return f"{text:<{COMMENT_COLUMN}}# {comment}" if comment else text
