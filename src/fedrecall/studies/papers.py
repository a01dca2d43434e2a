"""The papers' experiments: every table and computed figure is a definition, a TOML file in `definitions`.

A definition has the fields of a `Study`. What the experiments of a paper share is in `definitions/settings`, a file of
the same form that a definition is laid on: `setting = "fedlmd"`. Its rows and columns are there to be named: in a list,
or by `like` in a table that adds to one. `same_as` takes over another definition, and what stands beside it wins.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedrecall.config.tables import Tables, merge_tables, read_toml
from fedrecall.errors import UserError, unknown_name
from fedrecall.studies.definitions import definitions_folder, experiment_ids
from fedrecall.studies.study import Study

__all__ = ["definitions_folder", "experiment_ids", "load_definition", "load_study"]

ROMAN_NUMERALS = {"i": "1", "ii": "2", "iii": "3", "iv": "4"}  # FedCSD numbers its tables so


def load_definition(name: str) -> Study:
    """A paper's experiment as it was published, with the paper's rounds and repetitions."""
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
    """A paper's experiment by its ID, or your own by the path of its definition; all of it, or a part.

    Every cell's configuration has been checked.
    """
    if seeds is not None and seeds < 1:
        raise UserError("config.invalid_value", f"seeds = {seeds}: less than one", "seeds", "set at least 1")
    own = Path(which).suffix == ".toml"
    chosen = _study(Path(which).stem, read_toml(Path(which))) if own else load_definition(str(which))
    part = chosen.subset(rows, columns)
    changes = {"fraction": fraction} | ({} if seeds is None else {"seeds": tuple(range(seeds))})
    part = Study(**part.model_dump(exclude_unset=True) | changes)
    for cell in part.cells():
        part.experiment(cell)
    return part


def _normalise_id(name: str) -> str:
    """A name as it may be typed, as the ID that it means."""
    return re.sub(r"(?<=-table-)[iv]+$", lambda number: ROMAN_NUMERALS.get(number[0], number[0]), name.lower())


def _tables(name: str) -> Tables:
    if name not in experiment_ids():
        raise unknown_name("experiment", name, experiment_ids())
    return read_toml(definitions_folder() / f"{name}.toml")


def _study(name: str, tables: Tables) -> Study:
    """The study that a definition's tables describe."""
    if "same_as" in tables:
        tables = _tables(tables.pop("same_as")) | tables
    setting = _load_setting(tables.pop("setting")) if "setting" in tables else {}
    tables = setting | tables | {"base": merge_tables(setting.get("base", {}), _table(tables.get("base", {}), "base"))}
    for part in ("rows", "columns"):
        if part in tables:
            tables[part] = _inherit_tables(setting.get(part, {}), tables[part], part)
    if isinstance(tables.get("seeds"), int):  # the number of repetitions
        tables["seeds"] = tuple(range(tables["seeds"]))
    return Study(**{"id": name} | tables)


def _load_setting(name: str) -> Tables:
    path = definitions_folder() / "settings" / f"{name}.toml"
    if not path.exists():
        raise unknown_name("setting", name, (place.stem for place in path.parent.glob("*.toml")))
    return read_toml(path)


def _inherit_tables(known: Mapping[str, Tables], wanted: Any, part: str) -> dict[str, Tables]:
    """Rows or columns of a definition: names of the setting's, or tables of its own, some like one of the setting's."""
    own = {str(name): {"like": name} for name in wanted} if isinstance(wanted, list) else _table(wanted, part)
    out = {}
    for name, given in own.items():
        tables = _table(given, f"{part}.{name}")
        like = str(tables.get("like", ""))
        if like and like not in known:
            what = f"{part.removesuffix('s')} of the setting"
            raise unknown_name(what, like, known, key=f"{part}.{name}")
        out[name] = merge_tables(known.get(like, {}), {key: value for key, value in tables.items() if key != "like"})
    return out


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError("config.invalid_value", f"{name} = {value!r}: not a table", name, "write a table")
    return value
