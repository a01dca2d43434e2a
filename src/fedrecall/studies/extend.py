"""A study's folder goes on: with the same study, or with one that has more or other rows, columns and seeds."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedrecall.config.tables import RESULT_NEUTRAL_KEYS, Tables, flatten
from fedrecall.errors import UserError
from fedrecall.studies import papers
from fedrecall.studies.study import STUDY_FILE, Study, Target

LOCK_TIMEOUT = 30.0  # seconds to wait for another process that writes the same file

STUDY_LOCK = ".study.lock"  # it stays: two processes that begin at once must find the same one


def write_or_extend(study: Study, folder: Path) -> None:
    """Write study.toml; in a folder that has one, the two studies together, if they agree on what they share."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{folder}: cannot create the folder: {error.strerror}"
        raise UserError("study.cannot_write", message, str(folder), "set another --out") from None
    try:
        with FileLock(folder / STUDY_LOCK, timeout=LOCK_TIMEOUT):
            known = (folder / STUDY_FILE).exists()
            if not known and any(path.name != STUDY_LOCK for path in folder.iterdir()):
                message = f"{folder}: the folder is not empty and holds no study"
                raise UserError("study.directory_not_empty", message, str(folder), "set another --out")
            (merge_studies(Study.load(folder), study, folder) if known else study).save(folder)
    except Timeout:
        message = f"{folder / STUDY_LOCK}: another process has held the lock for {LOCK_TIMEOUT:g} seconds"
        raise UserError("study.directory_in_use", message, str(folder), "try again") from None
    except OSError as error:
        message = f"{folder}: cannot write to the folder: {error.strerror}"
        raise UserError("study.cannot_write", message, str(folder), "set another --out") from None


def merge_studies(old: Study, new: Study, folder: Path) -> Study:
    """All rows, columns and seeds of two studies that agree on what they share."""
    whole = papers.load_definition(new.id) if new.id in papers.experiment_ids() else None
    rows = _merge_ordered(old.rows, new.rows, whole.rows if whole else {})
    columns = _merge_ordered(old.columns, new.columns, whole.columns if whole else {})
    shared = old.columns.keys() & new.columns.keys()
    pairs: list[tuple[str, Tables, Tables]] = [
        ("", {"id": old.id, "fraction": old.fraction}, {"id": new.id, "fraction": new.fraction}),
        ("", old.base, new.base),
        *((f"columns.{name}.", old.columns[name], new.columns[name]) for name in columns if name in shared),
        *(
            (f"rows.{name}.", _row_in_columns(shared, old.rows[name]), _row_in_columns(shared, new.rows[name]))
            for name in old.rows.keys() & new.rows
        ),
    ]
    for where, before, asked in pairs:
        _require_equal(where, before, asked, folder)
    for row in old.rows.keys() & new.rows:
        if "columns" in old.rows[row]:
            rows[row] = new.rows[row] | {"columns": old.rows[row]["columns"] | new.rows[row].get("columns", {})}
    errata = {(e.row, e.column, e.measure): e for study in (old, new) for e in study.errata}
    changes = {
        "rows": rows,
        "columns": columns,
        "seeds": tuple(dict.fromkeys((*old.seeds, *new.seeds))),
        "printed": _printed(old, new, rows, columns),
        "errata": tuple(errata.values()),
        "target": _targets(old, new),
    }
    return Study(**new.model_dump(exclude_unset=True) | changes)  # checked anew: names may clash


def _targets(old: Study, new: Study) -> Any:
    if isinstance(old.target, dict) and isinstance(new.target, dict):
        return old.target | new.target
    # A row that is added does not move the target of those that are there.
    return old.target if isinstance(old.target, Target) else new.target


def _row_in_columns(columns: Iterable[str], row: Tables) -> Tables:
    """What a row says of these columns."""
    return row | {"columns": {name: t for name, t in row.get("columns", {}).items() if name in columns}}


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


def _merge_ordered(old: Mapping[str, Any], new: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Both: in the order of the whole definition where there is one, else what is new after what is old."""
    both = {**old, **new}
    order = list(both) if both.keys() - whole.keys() else [name for name in whole if name in both]
    return {name: both[name] for name in order}


def _require_equal(where: str, old: Tables, new: Tables, folder: Path) -> None:
    """Refuse two settings that differ in what changes a result, by the first key at which they do."""
    before, asked = flatten(old), flatten(new)
    for key in before | asked:
        if before.get(key) != asked.get(key) and not key.startswith(RESULT_NEUTRAL_KEYS):
            raise UserError(
                "study.other_settings",
                f"{folder}: its runs have {where}{key} = {_format_value(before.get(key))}, not {_format_value(asked.get(key))}",
                where + key,
                "set another --out, or remove the folder first",
            )


def _format_value(value: object) -> str:
    return "(not set)" if value is None else str(value)
