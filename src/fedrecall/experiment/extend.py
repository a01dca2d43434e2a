"""A study's folder goes on: with the same study, or with one that has more or other rows, columns and seeds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedrecall.errors import UserError
from fedrecall.experiment.study import FILE, Study

FREE = ("engine", "data.root")  # where and how a run is computed, which does not change its result
SETTINGS = ("id", "fraction", "base")  # what all cells share


def settle(study: Study, folder: Path) -> None:
    """Write study.toml; in a folder that has one, the two together, if they agree on what they share."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from None
    if not (folder / FILE).exists() and _foreign(folder):
        raise UserError(f"the folder {folder} exists and holds no study: choose another --out, or empty it first")
    lock = FileLock(folder / "study.lock")
    with lock:
        both = together(Study.load(folder), study, folder) if (folder / FILE).exists() else study
        both.save(folder)


def together(old: Study, new: Study, folder: Path) -> Study:
    """All rows, columns and seeds of two studies that agree on what they share."""
    for name in SETTINGS:
        _require_same(name, getattr(old, name), getattr(new, name), folder)
    for kind in ("rows", "columns"):
        before, asked = getattr(old, kind), getattr(new, kind)
        for name in before.keys() & asked.keys():
            _require_same(f"{kind}.{name}", before[name], asked[name], folder)
    rows, columns = _in_order(old.rows, new.rows), _in_order(old.columns, new.columns)
    found = {(e.row, e.column, e.measure): e for study in (old, new) for e in study.errata}
    return new.model_copy(
        update={
            "rows": rows,
            "columns": columns,
            "seeds": tuple(dict.fromkeys((*old.seeds, *new.seeds))),
            "printed": _printed(old, new, rows, columns),
            "errata": tuple(found.values()),
            "target": old.target if new.target is None else new.target,
        }
    )


def _printed(old: Study, new: Study, rows: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """What was printed, under all of the columns."""
    values = {
        (measure, row, column): value
        for study in (old, new)
        for measure, lines in study.printed.items()
        for row, line in lines.items()
        for column, value in zip(study.columns, line, strict=True)
    }
    printed = {(measure, row) for measure, row, _ in values}
    return {
        measure: {
            row: [values.get((measure, row, column)) for column in columns] for row in rows if (measure, row) in printed
        }
        for measure in dict.fromkeys((*old.printed, *new.printed))
    }


def _in_order(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The larger one first: a part of a study then leaves the order as it was."""
    first, second = (old, new) if len(old) > len(new) else (new, old)
    return {**first, **second}


def _require_same(key: str, old: Any, new: Any, folder: Path) -> None:
    """Refuse two settings that differ, by the innermost key at which they do."""
    free = any(key == f"base.{name}" or key.startswith(f"base.{name}.") for name in FREE)
    if old == new or free:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for inner in (*old, *new):
            _require_same(f"{key}.{inner}", old.get(inner), new.get(inner), folder)
        return
    shown = key.removeprefix("base.")
    raise UserError(
        f"the folder {folder} has runs of this study with {shown} = {_said(old)}, not {_said(new)}: "
        f"choose another --out, or remove it first"
    )


def _said(value: Any) -> str:
    return "(nothing)" if value is None else repr(value)


def _foreign(folder: Path) -> bool:
    return any(path.name != "study.lock" for path in folder.iterdir())
