"""The papers' experiments: every table and computed figure is a definition, a TOML file in `definitions`.

A definition has the fields of a `Study`. A paper's common settings are a file of the same form in
`definitions/settings`, which a definition inherits by `setting = "fedlmd"`. Rows and columns of the setting are
selected by a list of names, or extended by a table with `like = NAME`. `same_as` inherits another definition; keys of
the definition itself take precedence.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedrecall.config.tables import Tables, merge_tables, read_toml
from fedrecall.errors import UserError, unknown_name
from fedrecall.studies.definitions import definitions_folder, experiment_ids
from fedrecall.studies.study import Study

ROMAN_NUMERALS = {"i": "1", "ii": "2", "iii": "3", "iv": "4"}  # in the numbers of FedCSD's tables


def load_definition(name: str) -> Study:
    """Load a paper's experiment as published, with the paper's rounds and repetitions."""
    name = _normalise_id(name)
    return _study(name, _tables(name))


def load_study(
    which: str | Path,
    *,
    fraction: float = 1.0,
    seeds: int | None = None,
    rows: Iterable[str] | None = None,
    columns: Iterable[str] | None = None,
) -> Study:
    """Load a paper's experiment by its ID, or a definition by its path: complete or in part."""
    if seeds is not None and seeds < 1:
        raise UserError("config.invalid_value", f"seeds = {seeds}: less than one", "seeds", "set at least 1")
    is_path = Path(which).suffix == ".toml"
    study = _study(Path(which).stem, read_toml(Path(which))) if is_path else load_definition(str(which))
    changes = {"fraction": fraction} | ({} if seeds is None else {"seeds": tuple(range(seeds))})
    return Study(**study.subset(rows, columns).model_dump(exclude_unset=True) | changes)


def _normalise_id(name: str) -> str:
    """Return the ID of a name: lower case, with Arabic numerals."""
    return re.sub(r"(?<=-table-)[iv]+$", lambda number: ROMAN_NUMERALS.get(number[0], number[0]), name.lower())


def _tables(name: str) -> Tables:
    if name not in experiment_ids():
        raise unknown_name("experiment", name, experiment_ids())
    return read_toml(definitions_folder() / f"{name}.toml")


def _study(name: str, tables: Tables) -> Study:
    """Make the study of a definition's tables."""
    if "same_as" in tables:
        tables = _tables(tables.pop("same_as")) | tables
    setting = _load_setting(tables.pop("setting")) if "setting" in tables else {}
    tables = setting | tables | {"base": merge_tables(setting.get("base", {}), _table(tables.get("base", {}), "base"))}
    for part in ("rows", "columns"):
        if part in tables:
            tables[part] = _inherit_tables(setting.get(part, {}), tables[part], part)
    if isinstance(tables.get("seeds"), int):  # a number of repetitions
        tables["seeds"] = tuple(range(tables["seeds"]))
    return Study(**{"id": name} | tables)


def _load_setting(name: str) -> Tables:
    path = definitions_folder() / "settings" / f"{name}.toml"
    if not path.exists():
        raise unknown_name("setting", name, (file.stem for file in path.parent.glob("*.toml")))
    return read_toml(path)


def _inherit_tables(known: Mapping[str, Tables], wanted: Any, part: str) -> dict[str, Tables]:
    """Return the rows or columns of a definition: names in the setting, or tables, some of which extend one of them."""
    entries = {str(name): {"like": name} for name in wanted} if isinstance(wanted, list) else _table(wanted, part)
    merged = {}
    for name, entry in entries.items():
        tables = _table(entry, f"{part}.{name}")
        like = str(tables.get("like", ""))
        if like and like not in known:
            kind = f"{part.removesuffix('s')} of the setting"
            raise unknown_name(kind, like, known, key=f"{part}.{name}")
        merged[name] = merge_tables(known.get(like, {}), {key: value for key, value in tables.items() if key != "like"})
    return merged


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError("config.invalid_value", f"{name} = {value!r}: not a table", name, "write a table")
    return value
