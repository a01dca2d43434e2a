"""`fedrecall init`: a configuration file with every key, its value and its description."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.config.data_section import DataSection
from fedrecall.config.experiment import Experiment, FederationSection
from fedrecall.config.schema import (
    SCHEMA_FILE,
    Schema,
    choice_members,
    first_paragraph,
    is_choice,
    is_table,
    member_settings,
    read_schema,
    valid_values,
)
from fedrecall.config.tables import Tables
from fedrecall.data.catalog import DATASETS
from fedrecall.data.preprocessing import has_too_many_texts
from fedrecall.data.tabular import read_table
from fedrecall.errors import UserError, unknown_name
from fedrecall.files import write_atomic
from fedrecall.methods.presets import PRESETS

COMMENT_COLUMN = 28  # column of the descriptions
TEMPLATE_WIDTH = 120  # at which they are wrapped
EXAMPLES_PER_CLIENT = 20  # for small data: twice the minimum size of the default partition
MAX_LISTED_NAMES = 6  # longer lists of names are replaced by the command that prints them


def write_template(
    file: Path,
    *,
    data: str = "digits",
    method: str = "fedavg",
    label: str | None = None,
    client: str | None = None,
    size: int | None = None,
) -> Experiment:
    """Write a commented configuration file for some data and a method. Return its content."""
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
    """Return the tables for the name of a data set, a folder of images, or a CSV or Parquet file."""
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
        columns = read_table(path)
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
        features = {name: values for name, values in columns.items() if name not in (label, client)}
        drop = [name for name, values in features.items() if has_too_many_texts(values)]
        has_gaps = any(values.null_count for name, values in features.items() if name not in drop)
        found = {"name": "table", "path": data, "label": label, "client": client, "drop": drop or None}
        return _with_num_clients(found | {"missing": "category" if has_gaps else None})
    near = unknown_name("data set", data, DATASETS, key="--data")
    other = "pass the path of a folder of images, or of a table (.csv, .parquet)"
    raise UserError(near.code, near.message, near.key, f"{near.hint} Or {other}" if near.hint else other)


def _with_num_clients(data: Mapping[str, Any]) -> Tables:
    """Set the number of clients: that of the data if it has groups, otherwise as many as it has examples for."""
    tables: Tables = {"data": {key: value for key, value in data.items() if value is not None}}
    dataset = DataSection(**tables["data"]).load()
    if dataset.train_groups is not None:
        clients = len(np.unique(dataset.train_groups.numpy()))
        return tables | {"federation": {"clients": clients, "partition": {"name": "groups"}}}
    clients = min(FederationSection().clients, max(1, len(dataset.train_y) // EXAMPLES_PER_CLIENT))
    return tables | {"federation": {"clients": clients}}


def template_lines(experiment: Experiment, file: Path) -> Iterator[str]:
    """Yield the lines of the configuration file: every key with its value and its description."""
    tables = experiment.to_tables()
    if (schema := schema_reference(file)) is not None:
        yield f"#:schema {schema}"
    yield f"# {tables['method']['name']} on {experiment.data.name}: fedrecall run {file}"
    yield '# A key after # is not set. "None: ..." in its description is the effect.'
    for section, node in read_schema()["properties"].items():
        table = tables.get(section, {})
        yield ""
        if is_choice(node):
            yield from _choice_lines(section, node, table)
            continue
        yield _line(f"[{section}]", first_paragraph(node))
        for key, value in node["properties"].items():
            if not is_choice(value) and not is_table(value):
                yield _setting_line(key, table.get(key), value)
        for key, value in node["properties"].items():
            if is_choice(value):
                yield ""
                yield from _choice_lines(f"{section}.{key}", value, table.get(key, {}))
            elif is_table(value):
                yield ""
                yield from _table_lines(f"{section}.{key}", value, table.get(key))


def schema_reference(file: Path) -> str | None:
    """Return the path of the JSON schema for the `#:schema` line, which Taplo and Even Better TOML read.

    The path is relative if the installation is below the folder of the file or one of two folders above it, such as in
    .venv, so that a copy of the project works elsewhere. Otherwise there is none: elsewhere the path does not exist.
    """
    folder = file.absolute().parent
    for up, parent in enumerate([folder, *folder.parents[:2]]):
        if len(parent.parts) > 2 and SCHEMA_FILE.is_relative_to(parent):
            return "../" * up + SCHEMA_FILE.relative_to(parent).as_posix()
    return None


def _choice_lines(path: str, node: Schema, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a choice with its settings, or commented lines if nothing is chosen."""
    members = choice_members(node)
    many = f"`fedrecall show {path.rpartition('.')[2]}s` lists all {len(members)}"
    names = ", ".join(members) if len(members) <= MAX_LISTED_NAMES else many
    if not table:
        yield _line(f"# [{path}]", first_paragraph(node))
        default = next((name for name, member in members.items() if "required" not in member), next(iter(members)))
        yield _line(f"# name = {json.dumps(default)}", names)
        return
    member = members[table["name"]]
    yield _line(f"[{path}]", first_paragraph(member))
    yield _line(f"name = {json.dumps(table['name'])}", names)
    for key, value in member_settings(member).items():
        yield _setting_line(key, table.get(key), value)
    if path == "method":
        yield from _preset_lines(table["name"])


def _table_lines(path: str, node: Schema, table: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the lines of a table with its settings, commented if the table is not set."""
    yield _line(f"[{path}]" if table is not None else f"# [{path}]", first_paragraph(node))
    for key, value in node["properties"].items():
        yield _setting_line(key, None if table is None else table.get(key), value)


def _preset_lines(method: str) -> Iterator[str]:
    """Yield the papers' settings of a method as comments, because keys that are set win over a preset."""
    for name, methods in PRESETS.items():
        if settings := methods.get(method):
            listed = ", ".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
            yield _line(f"# preset = {json.dumps(name)}", f"A paper's settings, instead of these lines: {listed}")


def _setting_line(key: str, value: Any, node: Schema) -> str:
    names = [json.dumps(name) for name in valid_values(node) if not isinstance(name, bool)]
    listed = f"One of {', '.join(names)}." if names else ""
    text = f"# {key} =" if value is None else f"{key} = {json.dumps(value)}"
    return _line(text, " ".join(part for part in (first_paragraph(node), listed) if part))


def _line(text: str, comment: str) -> str:
    if not comment:
        return text
    wrapped = textwrap.wrap(
        comment, TEMPLATE_WIDTH - COMMENT_COLUMN - 2, break_long_words=False, break_on_hyphens=False
    )
    lines = zip_longest([text], wrapped, fillvalue="")
    return "\n".join(f"{before:<{COMMENT_COLUMN}}# {part}" for before, part in lines)
