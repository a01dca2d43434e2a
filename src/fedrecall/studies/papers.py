"""The papers' experiments: every table and computed figure is a definition, a TOML file in `experiments`.

A definition has the fields of a `Study`. What the experiments of a paper share is in `experiments/settings`, a file of
the same form that a definition is laid on: `setting = "fedlmd"`. Its rows and columns are there to be named: in a list,
or by `like` in a table that adds to one. `same_as` takes over another definition, and what stands beside it wins.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedrecall.errors import UserError, unknown
from fedrecall.studies.shipped import folder, ids
from fedrecall.studies.study import Study, Tables, merged, read

__all__ = ["definition", "folder", "ids", "study"]

ROMAN = {"i": "1", "ii": "2", "iii": "3", "iv": "4"}  # FedCSD numbers its tables so


def definition(name: str) -> Study:
    """A paper's experiment as it was published, with the paper's rounds and repetitions."""
    name = _id(name)
    return _study(name, _tables(name))


def study(
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
    chosen = _study(Path(which).stem, read(Path(which))) if own else definition(str(which))
    part = chosen.part(rows, columns)
    changes = {"fraction": fraction} | ({} if seeds is None else {"seeds": tuple(range(seeds))})
    part = Study(**part.model_dump(exclude_unset=True) | changes)
    for cell in part.cells():
        part.experiment(cell)
    return part


def _id(name: str) -> str:
    """A name as it may be typed, as the ID that it means."""
    return re.sub(r"(?<=-table-)[iv]+$", lambda number: ROMAN.get(number[0], number[0]), name.lower())


def _tables(name: str) -> Tables:
    if name not in ids():
        raise unknown("experiment", name, ids())
    return read(folder() / f"{name}.toml")


def _study(name: str, tables: Tables) -> Study:
    """The study that a definition's tables describe."""
    if "same_as" in tables:
        tables = _tables(tables.pop("same_as")) | tables
    setting = _setting(tables.pop("setting")) if "setting" in tables else {}
    tables = setting | tables | {"base": merged(setting.get("base", {}), _table(tables.get("base", {}), "base"))}
    for part in ("rows", "columns"):
        if part in tables:
            tables[part] = _laid_on(setting.get(part, {}), tables[part], part)
    if isinstance(tables.get("seeds"), int):  # the number of repetitions
        tables["seeds"] = tuple(range(tables["seeds"]))
    return Study(**{"id": name} | tables)


def _setting(name: str) -> Tables:
    path = folder() / "settings" / f"{name}.toml"
    if not path.exists():
        raise unknown("setting", name, (place.stem for place in path.parent.glob("*.toml")))
    return read(path)


def _laid_on(known: Mapping[str, Tables], wanted: Any, part: str) -> dict[str, Tables]:
    """Rows or columns of a definition: names of the setting's, or tables of its own, some like one of the setting's."""
    own = {str(name): {"like": name} for name in wanted} if isinstance(wanted, list) else _table(wanted, part)
    out = {}
    for name, given in own.items():
        tables = _table(given, f"{part}.{name}")
        like = str(tables.get("like", ""))
        if like and like not in known:
            what = f"{part.removesuffix('s')} of the setting"
            raise unknown(what, like, known, key=f"{part}.{name}")
        out[name] = merged(known.get(like, {}), {key: value for key, value in tables.items() if key != "like"})
    return out


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError("config.invalid_value", f"{name} = {value!r}: not a table", name, "write a table")
    return value
