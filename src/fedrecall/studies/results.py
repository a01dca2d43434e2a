"""What came of a study: its finished runs, in the form that tables, figures and reports read."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedrecall.config.tables import RESULT_NEUTRAL_KEYS, Scalar, flatten, read_toml
from fedrecall.errors import UserError
from fedrecall.runs.directory import ROUNDS, SUMMARY
from fedrecall.runs.records import RoundRecord
from fedrecall.studies.statistics import ACCURACIES, Curve
from fedrecall.studies.study import STUDY_FILE, Cell, Study, slug

SUMMARY_NUMBERS = ("rounds", "seconds", "bytes_up", "bytes_down")  # of a run

RECORD_NUMBERS = ("accuracy", "local_accuracy", "loss", "train_loss", "seconds", "bytes_up", "bytes_down")  # of a round


class FinishedRun(NamedTuple):
    """One finished run, as one cell of the study sees it: columns that are groups of the test set share a run."""

    cell: Cell
    path: Path
    summary: dict[str, Any]
    records: list[RoundRecord]  # the lines of rounds.jsonl

    @property
    def diverged(self) -> bool:
        """The run broke off; the summary says why."""
        return "failed" in self.summary

    @property
    def classes(self) -> int | None:
        """How many classes the data has; None where the partition has too many clients to be listed."""
        counts = read_json(self.path / "partition.json").get("counts")
        return len(counts[0]) if counts else None

    def curve(self, key: str = "accuracy") -> Curve:
        """(round, value) of every round that has the value; the accuracy is that on the cell's group."""
        values = ((line["round"], self._value(line, key)) for line in self.records)
        return [(number, float(value)) for number, value in values if value is not None]

    def probe_records(self, name: str) -> list[dict[str, Any]]:
        """The lines of a probe's file, one a round; none if it was not asked for."""
        path = self.path / "probes" / f"{name}.jsonl"
        return _lines(path) if path.exists() else []

    def _value(self, line: RoundRecord, key: str) -> float | None:
        if key != "accuracy" or self.cell.group is None:
            value: float | None = line.get(key)
            return value
        groups: dict[str, float] | None = line.get("groups")
        if groups is None:
            return None
        if self.cell.group == "mean":  # every group counts the same, large or small
            return sum(groups.values()) / len(groups)
        if self.cell.group not in groups:
            raise UserError(
                "study.unknown_group",
                f"{self.path}: the test set has no group {self.cell.group!r}, it has {', '.join(groups)}",
                f"columns.{self.cell.column}.group",
                "set one of these",
            )
        return groups[self.cell.group]


@dataclass(frozen=True)
class StudyResults:
    """The finished runs of one study's folder."""

    study: Study
    folder: Path
    is_single_run: bool = False  # the folder is itself a run directory: a study of one cell
    _seen: dict[Path, tuple[dict[str, Any], list[RoundRecord]]] = field(default_factory=dict, repr=False, compare=False)

    def finished_runs(self, row: str | None = None, column: str | None = None) -> list[FinishedRun]:
        """The finished cells of a row and a column, or of all of them, each in the order of seeds."""
        rows: Iterable[str] = self.study.rows if row is None else [row]
        columns: Iterable[str] = self.study.columns if column is None else [column]
        cells = (self.cell(r, c, seed) for r in rows for c in columns for seed in self.study.seeds)
        return [self._outcome(cell) for cell in cells if self.finished(cell)]

    def cell(self, row: str, column: str, seed: int) -> Cell:
        """One cell of the study, with its place in this folder."""
        cell = self.study.cell(row, column, seed)
        return cell._replace(folder=".") if self.is_single_run else cell

    def finished(self, cell: Cell) -> bool:
        """Whether a cell has been run."""
        return (self.folder / cell.folder / SUMMARY).exists()

    @property
    def unfinished(self) -> list[Cell]:
        """The runs that are still to be made."""
        return [] if self.is_single_run else [cell for cell in self.study.cells() if not self.finished(cell)]

    def _outcome(self, cell: Cell) -> FinishedRun:
        path = self.folder / cell.folder
        if path not in self._seen:
            rounds = path / ROUNDS  # is not there if the first round failed
            self._seen[path] = (read_json(path / SUMMARY), read_records(rounds) if rounds.exists() else [])
        return FinishedRun(cell, path, *self._seen[path])


def load_results(folder: Path) -> StudyResults:
    """The results in a study's folder; a plain run directory is seen as a study of one cell."""
    if (folder / STUDY_FILE).exists():
        return StudyResults(Study.load(folder), folder)
    if not (folder / "config.toml").exists():
        raise UserError(
            "study.not_found",
            f"{folder}: neither a run directory nor the folder of a study: no {STUDY_FILE} and no config.toml in it",
            str(folder),
        )
    tables = read_toml(folder / "config.toml")
    method, data = tables.pop("method", {}).copy(), tables.get("data", {}).get("name", "data")
    seed = tables.get("run", {}).get("seed", 0)
    name = method.get("name", "fedavg")
    study = Study(
        id=slug(folder.resolve().name),
        title=f"{name} on {data}",
        base=tables,
        rows={name: {"method": method}},
        columns={data: {}},
        seeds=(seed,),
    )
    return StudyResults(study, folder, is_single_run=True)


def read_json(path: Path) -> dict[str, Any]:
    """A file of a run directory that holds one JSON object; what everyone relies on in it is there."""
    found = _object(_text(path), path)
    if path.name in FILE_CHECKS and (wrong := FILE_CHECKS[path.name](found)):
        raise _damaged_error(path, wrong)
    return found


def read_records(path: Path) -> list[RoundRecord]:
    """The rounds of a run."""
    found = _lines(path)
    for number, line in enumerate(found, 1):
        groups = line.get("groups", {})
        if not isinstance(groups, dict) or not all(map(_number, groups.values())):
            raise _damaged_error(path, f"groups in line {number} are not numbers")
        wrong = [key for key in RECORD_NUMBERS if line.get(key) is not None and not _number(line[key])]
        if wrong:
            raise _damaged_error(path, f"{wrong[0]} in line {number} is not a number")
        clients = line.get("clients")
        if not isinstance(clients, list) or not all(isinstance(client, int) for client in clients):
            raise _damaged_error(path, f"line {number} has no list of clients")
    return found


def _summary_error(found: Mapping[str, Any]) -> str | None:
    missing = [key for key in (*SUMMARY_NUMBERS, *ACCURACIES) if key not in found]
    if missing:
        return f"no {missing[0]}"
    wrong = [key for key in SUMMARY_NUMBERS if not _number(found[key])]
    wrong += [key for key in ACCURACIES if found[key] is not None and not _number(found[key])]
    return f"{wrong[0]} is not a number" if wrong else None


def _partition_error(found: Mapping[str, Any]) -> str | None:
    if not isinstance(found.get("hash"), str):
        return "no hash"
    counts = found.get("counts")
    if counts is None:  # there are too many clients
        return None
    rows = counts if isinstance(counts, list) and all(isinstance(row, list) for row in counts) else []
    numbers = all(isinstance(count, int) for row in rows for count in row)
    even = len({len(row) for row in rows}) == 1
    return None if numbers and even else "counts are not a table of clients by classes"


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


FILE_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {  # file -> what is wrong with it
    SUMMARY: _summary_error,
    "partition.json": _partition_error,
}


def _lines(path: Path) -> list[dict[str, Any]]:
    """A file of JSON objects, one a line, each about one round."""
    found = [_object(line, path, number) for number, line in enumerate(_text(path).splitlines(), 1)]
    for number, line in enumerate(found, 1):
        if not isinstance(line.get("round"), int):
            raise _damaged_error(path, f"line {number} has no round")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged_error(path, str(getattr(error, "strerror", None) or error)) from None


def _object(text: str, path: Path, line: int | None = None) -> dict[str, Any]:
    where = "" if line is None else f"line {line} "
    try:
        found = json.loads(text)
    except ValueError:
        raise _damaged_error(path, f"{where}is not valid JSON".strip()) from None
    if not isinstance(found, dict):
        raise _damaged_error(path, f"{where}is not a JSON object".strip())
    return found


def _damaged_error(path: Path, why: str) -> UserError:
    hint = "remove its run directory and run it again"
    return UserError("run.damaged_file", f"{path}: the file is damaged: {why}", str(path), hint)


@dataclass(frozen=True)
class RunCollection(StudyResults):
    """Results that lie wherever their runs are."""

    folders: dict[tuple[str, int], Path] = field(default_factory=dict)  # row and seed -> run directory

    def cell(self, row: str, column: str, seed: int) -> Cell:
        """One run; rows need not have all seeds, and what is not there is nowhere."""
        place = self.folders.get((row, seed))
        return self.study.cell(row, column, seed)._replace(folder="" if place is None else str(place.absolute()))

    def finished(self, cell: Cell) -> bool:
        """Whether a run is there and done."""
        return bool(cell.folder) and super().finished(cell)

    @property
    def unfinished(self) -> list[Cell]:
        """The runs that were begun."""
        column = next(iter(self.study.columns))
        cells = (self.cell(row, column, seed) for row, seed in self.folders)
        return [cell for cell in cells if not self.finished(cell)]


def runs_as_study(folders: Sequence[Path]) -> RunCollection:
    """One study of several run directories."""
    tables = {folder: read_toml(folder / "config.toml") for folder in folders}
    groups: dict[frozenset[tuple[str, Scalar]], list[Path]] = {}
    for folder, given in tables.items():
        groups.setdefault(_without_seed(given), []).append(folder)
    rows, places = dict[str, dict[str, Any]](), dict[tuple[str, int], Path]()
    methods = [str(tables[members[0]].get("method", {}).get("name")) for members in groups.values()]
    for method, members in zip(methods, groups.values(), strict=True):
        row = method if methods.count(method) == 1 else members[0].resolve().name
        if row in rows:
            text = f"two run directories have the name {row}"
            raise UserError("report.duplicate_run", text, row, "rename one of them")
        rows[row] = tables[members[0]]
        for folder in members:
            seed = int(tables[folder].get("run", {}).get("seed", 0))
            if (row, seed) in places:
                text = f"{folder} and {places[row, seed]} have the same configuration and seed"
                raise UserError("report.duplicate_run", text, str(folder), "name only one of them")
            places[row, seed] = folder
    data = dict.fromkeys(str(given.get("data", {}).get("name")) for given in tables.values())
    study = Study(
        id="runs",
        title=f"{len(tables)} runs",
        rows=rows,
        columns={", ".join(data): {}},
        seeds=tuple(sorted({seed for _, seed in places})),
    )
    return RunCollection(study, Path(), folders=places)


def _without_seed(tables: dict[str, Any]) -> frozenset[tuple[str, Scalar]]:
    """What makes a row: all settings that matter, but for the seed."""
    kept = (
        item
        for item in flatten(tables).items()
        if item[0] != "run.seed" and not item[0].startswith(RESULT_NEUTRAL_KEYS)
    )
    return frozenset(kept)
