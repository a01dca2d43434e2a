"""Study folders that grow: the same study again, or one with more or other rows, columns and seeds.

Parts of a study that are run one after another, or by several machines, fill one folder. Settings of the parts that
would mix two experiments in one table are errors.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedrecall.config.tables import RESULT_NEUTRAL_KEYS, Tables, flatten
from fedrecall.errors import UserError
from fedrecall.files import remove_temporary_files
from fedrecall.studies import papers
from fedrecall.studies.definitions import experiment_ids
from fedrecall.studies.study import STUDY_FILE, Study, Target, row_in_columns

STUDY_LOCK_TIMEOUT = 30.0  # seconds to wait for another process that writes the same study.toml

STUDY_LOCK = ".study.lock"  # never removed: two processes that start at once must lock the same file


def write_or_extend(study: Study, folder: Path) -> None:
    """Write study.toml; if the folder has one, write the merged study, provided that the shared settings agree."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / STUDY_LOCK, timeout=STUDY_LOCK_TIMEOUT):
            remove_temporary_files(folder, STUDY_FILE)
            exists = (folder / STUDY_FILE).exists()
            if not exists and any(path.name != STUDY_LOCK for path in folder.iterdir()):
                message = f"{folder}: the folder is not empty and contains no study"
                raise UserError("study.directory_not_empty", message, str(folder), "set another --out")
            (merge_studies(Study.load(folder), study, folder) if exists else study).save(folder)
    except Timeout:
        message = f"{folder / STUDY_LOCK}: another process has held the lock for {STUDY_LOCK_TIMEOUT:g} seconds"
        raise UserError("study.directory_in_use", message, str(folder), "try again") from None
    except OSError as error:
        message = f"{folder}: cannot write to the folder: {error.strerror}"
        raise UserError("study.cannot_write", message, str(folder), "set another --out") from None


def merge_studies(old: Study, new: Study, folder: Path) -> Study:
    """Return all rows, columns and seeds of two studies; raise an error if shared settings differ."""
    _require_equal(folder, "", *({"id": study.id, "fraction": study.fraction, **study.base} for study in (old, new)))
    shared_columns = [name for name in old.columns if name in new.columns]
    for name in shared_columns:
        _require_equal(folder, f"columns.{name}.", old.columns[name], new.columns[name])
    paper = papers.load_definition(new.id) if new.id in experiment_ids() else None
    rows = _merge_ordered(old.rows, new.rows, paper.rows if paper else {})
    rows = dict(sorted(rows.items(), key=lambda item: "baseline" in item[1]))  # baselines stay below the methods
    for name in [name for name in old.rows if name in new.rows]:
        before, after = old.rows[name], new.rows[name]
        _require_equal(folder, f"rows.{name}.", *(row_in_columns(row, shared_columns) for row in (before, after)))
        if "columns" in before:
            rows[name] = after | {"columns": before["columns"] | after.get("columns", {})}
    columns = _merge_ordered(old.columns, new.columns, paper.columns if paper else {})
    errata = {(e.row, e.column, e.measure): e for study in (old, new) for e in study.errata}
    changes = {
        "command": "\n".join(dict.fromkeys([*old.command.splitlines(), *new.command.splitlines()])),
        "rows": rows,
        "columns": columns,
        "seeds": tuple(dict.fromkeys((*old.seeds, *new.seeds))),
        "printed": _merge_printed(old, new, rows, columns),
        "errata": tuple(errata.values()),
        "target": _merge_targets(old, new),
    }
    return Study(**new.model_dump(exclude_unset=True) | changes)  # validated again: names may clash


def _merge_targets(old: Study, new: Study) -> Any:
    if isinstance(old.target, dict) and isinstance(new.target, dict):
        return old.target | new.target
    # A method that is added must not change the target of the methods before it.
    return old.target if isinstance(old.target, Target) else new.target


def _merge_printed(old: Study, new: Study, rows: Iterable[str], columns: Iterable[str]) -> dict[str, Any]:
    """Return the printed values of both studies, one per column of the merged study."""
    values: dict[str, dict[str, dict[str, Any]]] = {}
    for study in (old, new):
        for measure, lines in study.printed.items():
            for row, line in lines.items():
                values.setdefault(measure, {}).setdefault(row, {}).update(zip(study.columns, line, strict=True))
    return {
        measure: {row: [lines[row].get(column) for column in columns] for row in rows if row in lines}
        for measure, lines in values.items()
    }


def _merge_ordered(old: Mapping[str, Any], new: Mapping[str, Any], paper: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of both, in the order of the paper if it has all of them, else new after old."""
    both = {**old, **new}
    order = list(both) if both.keys() - paper.keys() else [name for name in paper if name in both]
    return {name: both[name] for name in order}


def _require_equal(folder: Path, prefix: str, old: Tables, new: Tables) -> None:
    """Raise an error at the first key that differs and changes a result."""
    before, after = flatten(old), flatten(new)
    for key in before | after:
        if before.get(key) != after.get(key) and not key.startswith(RESULT_NEUTRAL_KEYS):
            was, now = ("(not set)" if value is None else value for value in (before.get(key), after.get(key)))
            raise UserError(
                "study.other_settings",
                f"{folder}: its runs have {prefix}{key} = {was}, not {now}",
                prefix + key,
                "set another --out, or remove the folder first",
            )
