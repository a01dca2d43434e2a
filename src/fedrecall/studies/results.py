"""Results of a study: its finished runs, in the form that tables, figures and reports read."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedrecall.config.tables import RESULT_NEUTRAL_KEYS, Scalar, flatten, read_toml
from fedrecall.errors import UserError
from fedrecall.files import parse_json
from fedrecall.runs.directory import ROUNDS_FILE, SUMMARY_FILE
from fedrecall.runs.records import RoundRecord
from fedrecall.studies.statistics import ACCURACIES, Curve
from fedrecall.studies.study import STUDY_FILE, Cell, Study, slug

SUMMARY_NUMBERS = ("rounds", "seconds", "bytes_up", "bytes_down")  # keys of summary.json that are never null

ModelKind = Literal["global", "personal"]

CLIENT_PARTS = ("client_test", "client_test_personal")  # keys of the scores on clients' held-out examples

RECORD_NUMBERS = ("accuracy", "local_accuracy", "loss", "train_loss", "seconds", "bytes_up", "bytes_down")  # or null


class FinishedRun(NamedTuple):
    """One finished run of a cell; columns that report groups of the test set share a run."""

    cell: Cell
    path: Path
    summary: dict[str, Any]
    records: list[RoundRecord]

    @property
    def diverged(self) -> bool:
        """True if the run failed; the summary has the reason."""
        return "failed" in self.summary

    @property
    def classes(self) -> int | None:
        """The number of classes; None if partition.json lists no counts, because there are too many clients."""
        counts = read_json(self.path / "partition.json").get("counts")
        return len(counts[0]) if counts else None

    @property
    def class_names(self) -> list[str]:
        """The names of the classes; their numbers if the run stored none."""
        manifest = read_json(self.path / "partition.json")
        counts = manifest.get("counts")
        return [str(name) for name in manifest.get("class_names") or range(len(counts[0]) if counts else 0)]

    @property
    def client_names(self) -> list[str]:
        """The names of the clients; their numbers if they have none."""
        manifest = read_json(self.path / "partition.json")
        return [str(name) for name in manifest.get("client_names") or range(len(manifest.get("counts") or ()))]

    def client_name(self, client: int) -> str:
        """Return the name of a client, or its number if it has none."""
        names = self.client_names
        return names[client] if client < len(names) else str(client)

    def curve(self, key: str = "accuracy") -> Curve:
        """Return (round, value) of every round that has the value; the accuracy is that of the cell's group."""
        values = ((record["round"], self._value(record, key)) for record in self.records)
        return [(number, float(value)) for number, value in values if value is not None]

    def probe_records(self, name: str) -> list[dict[str, Any]]:
        """Return the records of a probe, one per round; empty if the run did not have the probe."""
        path = self.path / "probes" / f"{name}.jsonl"
        return _read_lines(path) if path.exists() else []

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics on the complete test set after the last round, by name; empty for a group of the test set."""
        found = {} if self.cell.group is not None else self.summary.get("metrics", {})
        return {name: values["final"] for name, values in found.items() if values["final"] is not None}

    def client_metrics(self, model: ModelKind = "global") -> dict[str, dict[str, float | None]]:
        """Return the means over clients on their held-out examples by metric; empty if there are none."""
        if self.cell.group is not None:
            return {}
        scores = self.summary.get("client_test", {})
        if scores.get("model", "global") != model:  # a method without a global model has personal ones in its place
            scores = self.summary.get("client_test_personal", {}) if model == "personal" else {}
        return {name: values for name, values in scores.items() if isinstance(values, dict)}

    def _value(self, record: RoundRecord, key: str) -> float | None:
        if key != "accuracy" or self.cell.group is None:
            table, _, name = key.rpartition(".")  # "frequency.few" is a value of a table in the record
            value: float | None = (record.get(table) or {}).get(name) if table else record.get(name)
            if value is None and not table:
                value = record.get("metrics", {}).get(name)
            return value
        groups: dict[str, float] | None = record.get("groups")
        if groups is None:
            return None
        if self.cell.group == "mean":  # every group has the same weight, whatever its size
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
    is_single_run: bool = False
    """True if the folder is itself a run directory: a study of one cell."""
    _cache: dict[Path, tuple[dict[str, Any], list[RoundRecord]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def finished_runs(self, row: str | None = None, column: str | None = None) -> list[FinishedRun]:
        """Return the finished runs of a row and a column, or of all of them, in the order of seeds."""
        rows: Iterable[str] = self.study.rows if row is None else [row]
        columns: Iterable[str] = self.study.columns if column is None else [column]
        cells = (self.cell(r, c, seed) for r in rows for c in columns for seed in self.study.seeds)
        return [self._load(cell) for cell in cells if self.finished(cell)]

    def cell(self, row: str, column: str, seed: int) -> Cell:
        """Return one cell of the study, with its folder relative to this one."""
        cell = self.study.cell(row, column, seed)
        return cell._replace(folder=".") if self.is_single_run else cell

    def finished(self, cell: Cell) -> bool:
        """Return True if the run of a cell is finished."""
        return (self.folder / cell.folder / SUMMARY_FILE).exists()

    @property
    def unfinished(self) -> list[Cell]:
        """The cells whose run is not finished."""
        return [] if self.is_single_run else [cell for cell in self.study.cells() if not self.finished(cell)]

    @property
    def command(self) -> str:
        """The command that repeats the study in a new folder.

        A study without a recorded command, made in Python or by an older version, is repeated from its study.toml.
        """
        if self.is_single_run:
            return _repeat_run(self.folder)
        fraction = ["--fraction", f"{self.study.fraction:g}"] if self.study.fraction < 1 else []
        from_file = shlex.join(["fedrecall", "reproduce", str(self.folder / STUDY_FILE), *fraction])
        commands = (self.study.command or from_file).splitlines()
        return "\n".join(f"{command} --out {_new_folder(self.folder)}" for command in commands)

    def _load(self, cell: Cell) -> FinishedRun:
        path = self.folder / cell.folder
        if path not in self._cache:
            rounds = path / ROUNDS_FILE  # does not exist if the first round failed
            self._cache[path] = (read_json(path / SUMMARY_FILE), read_records(rounds) if rounds.exists() else [])
        return FinishedRun(cell, path, *self._cache[path])


def load_results(folder: Path) -> StudyResults:
    """Load the results in a study's folder; a run directory is loaded as a study of one cell."""
    if (folder / STUDY_FILE).exists():
        return StudyResults(Study.load(folder), folder)
    if not (folder / "config.toml").exists():
        raise UserError(
            "study.not_found",
            f"{folder}: neither a run directory nor the folder of a study: it has no {STUDY_FILE} and no config.toml",
            str(folder),
        )
    tables = read_toml(folder / "config.toml")
    method, data = tables.pop("method", {}).copy(), _data_title(tables)
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
    """Read a JSON file of a run directory; raise an error if required keys are missing or have wrong types."""
    content = _parse_object(_read_text(path), path)
    if path.name in FILE_CHECKS and (problem := FILE_CHECKS[path.name](content)):
        raise _damaged_error(path, problem)
    return content


def read_records(path: Path) -> list[RoundRecord]:
    """Read the rounds of a run; raise an error if values have wrong types."""
    records = _read_lines(path)
    for number, record in enumerate(records, 1):
        groups = record.get("groups", {})
        if not isinstance(groups, dict) or not all(map(_is_number, groups.values())):
            raise _damaged_error(path, f"groups in line {number} are not numbers")
        if not _is_table_of_numbers(record.get("metrics", {})):
            raise _damaged_error(path, f"metrics in line {number} are not numbers")
        wrong = [key for key in RECORD_NUMBERS if record.get(key) is not None and not _is_number(record[key])]
        if wrong:
            raise _damaged_error(path, f"{wrong[0]} in line {number} is not a number")
        clients = record.get("clients")
        if not isinstance(clients, list) or not all(isinstance(client, int) for client in clients):
            raise _damaged_error(path, f"line {number} has no list of clients")
    return records


def _summary_error(summary: Mapping[str, Any]) -> str | None:
    missing = [key for key in (*SUMMARY_NUMBERS, *ACCURACIES) if key not in summary]
    if missing:
        return f"no {missing[0]}"
    wrong = [key for key in SUMMARY_NUMBERS if not _is_number(summary[key])]
    wrong += [key for key in ACCURACIES if summary[key] is not None and not _is_number(summary[key])]
    if wrong:
        return f"{wrong[0]} is not a number"
    for key in ("metrics", *CLIENT_PARTS):
        scores = summary.get(key, {})
        if not isinstance(scores, dict):
            return f"{key} are not metrics"
        tables = [values for values in scores.values() if isinstance(values, dict)]
        has_final = key != "metrics" or (len(tables) == len(scores) and all("final" in table for table in tables))
        lists = ("by_client",)  # a value for each client
        if not has_final or not all(_is_table_of_numbers(table, without=lists) for table in tables):
            return f"{key} are not metrics"
    return None


def _partition_error(manifest: Mapping[str, Any]) -> str | None:
    if not isinstance(manifest.get("hash"), str):
        return "no hash"
    counts = manifest.get("counts")
    if counts is None:  # not listed, because there are too many clients
        return None
    rows = counts if isinstance(counts, list) and all(isinstance(row, list) for row in counts) else []
    are_numbers = all(isinstance(count, int) for row in rows for count in row)
    is_table = len({len(row) for row in rows}) == 1
    return None if are_numbers and is_table else "counts are not a table of clients by classes"


def _is_table_of_numbers(table: object, without: Sequence[str] = ()) -> bool:
    """Return True if all values of a table are numbers or null, except those of some keys."""
    if not isinstance(table, dict):
        return False
    return all(value is None or _is_number(value) for key, value in table.items() if key not in without)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# functions that return the problem of a file's content, or None
FILE_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    SUMMARY_FILE: _summary_error,
    "partition.json": _partition_error,
}


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON objects, one per line and round."""
    lines = [_parse_object(line, path, number) for number, line in enumerate(_read_text(path).splitlines(), 1)]
    for number, line in enumerate(lines, 1):
        if not isinstance(line.get("round"), int):
            raise _damaged_error(path, f"line {number} has no round")
    return lines


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged_error(path, str(getattr(error, "strerror", None) or error)) from None


def _parse_object(text: str, path: Path, line: int | None = None) -> dict[str, Any]:
    where = "" if line is None else f"line {line} "
    try:
        value = parse_json(text)
    except ValueError:
        raise _damaged_error(path, f"{where}is not valid JSON".strip()) from None
    if not isinstance(value, dict):
        raise _damaged_error(path, f"{where}is not a JSON object".strip())
    return value


def _damaged_error(path: Path, problem: str) -> UserError:
    hint = "remove its run directory and run it again"
    return UserError("run.damaged_file", f"{path}: the file is damaged: {problem}", str(path), hint)


@dataclass(frozen=True)
class RunCollection(StudyResults):
    """Results of run directories in any place."""

    folders: dict[tuple[str, int], Path] = field(default_factory=dict)
    """Run directory by row and seed."""

    def cell(self, row: str, column: str, seed: int) -> Cell:
        """Return one cell; its folder is empty if the row has no run with this seed."""
        folder = self.folders.get((row, seed))
        return self.study.cell(row, column, seed)._replace(folder="" if folder is None else str(folder.absolute()))

    def finished(self, cell: Cell) -> bool:
        """Return True if the cell has a run directory and the run is finished."""
        return bool(cell.folder) and super().finished(cell)

    @property
    def unfinished(self) -> list[Cell]:
        """The cells whose run was started and is not finished."""
        column = next(iter(self.study.columns))
        cells = (self.cell(row, column, seed) for row, seed in self.folders)
        return [cell for cell in cells if not self.finished(cell)]

    @property
    def command(self) -> str:
        """The commands that repeat the runs, one per line."""
        return "\n".join(_repeat_run(folder) for folder in self.folders.values())


def runs_as_study(folders: Sequence[Path]) -> RunCollection:
    """Make one study of several run directories; runs that differ only in the seed are one row."""
    configs = {folder: read_toml(folder / "config.toml") for folder in folders}
    groups: dict[frozenset[tuple[str, Scalar]], list[Path]] = {}
    for folder, config in configs.items():
        groups.setdefault(_without_seed(config), []).append(folder)
    rows, paths = dict[str, dict[str, Any]](), dict[tuple[str, int], Path]()
    methods = [str(configs[members[0]].get("method", {}).get("name")) for members in groups.values()]
    for method, members in zip(methods, groups.values(), strict=True):
        row = method if methods.count(method) == 1 else members[0].resolve().name
        if row in rows:
            text = f"two run directories have the name {row}"
            raise UserError("report.duplicate_run", text, row, "rename one of them")
        rows[row] = configs[members[0]]
        for folder in members:
            seed = int(configs[folder].get("run", {}).get("seed", 0))
            if (row, seed) in paths:
                text = f"{folder} and {paths[row, seed]} have the same configuration and seed"
                raise UserError("report.duplicate_run", text, str(folder), "name only one of them")
            paths[row, seed] = folder
    data = dict.fromkeys(map(_data_title, configs.values()))
    study = Study(
        id="runs",
        title=f"{len(configs)} runs on {', '.join(data)}",
        rows=rows,
        columns={", ".join(data): {}},
        seeds=tuple(sorted({seed for _, seed in paths})),
    )
    return RunCollection(study, Path(), folders=paths)


def _data_title(config: Mapping[str, Any]) -> str:
    """Return the name of the data, or of its file or folder."""
    data = config.get("data", {})
    return Path(data["path"]).name if "path" in data else str(data.get("name", "data"))


def _without_seed(config: Mapping[str, Any]) -> frozenset[tuple[str, Scalar]]:
    """Return the settings that change a result, without the seed: they identify a row."""
    items = flatten(config).items()
    return frozenset((k, v) for k, v in items if k != "run.seed" and not k.startswith(RESULT_NEUTRAL_KEYS))


def _repeat_run(folder: Path) -> str:
    tables = read_toml(folder / "config.toml")
    if tables.get("engine", {}).get("name") == "flower":
        app = _new_folder(folder)
        code = {str(tables.get(key, {}).get("name", "")).partition(":") for key in ("method", "model", "data")}
        modules = "".join(f" --module {module.partition('.')[0]}" for module, colon, _ in sorted(code) if colon)
        return (
            f"fedrecall flower new {app} --config {shlex.quote(str(folder / 'config.toml'))}{modules}\n"
            f"flwr run {app} CONNECTION --stream  # CONNECTION: in $FLWR_HOME/config.toml; the nodes must be running"
        )
    return f"{shlex.join(['fedrecall', 'run', str(folder / 'config.toml')])} --out {_new_folder(folder)}"


def _new_folder(folder: Path) -> str:
    return shlex.quote(f"{folder.resolve().name}-again")
