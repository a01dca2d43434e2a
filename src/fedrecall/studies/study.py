"""A study: one experiment in many variants, rows (usually methods) by columns (settings) by seeds.

A paper's table, a paper's figure and `fedrecall compare` are studies. A study's folder contains `study.toml` (the runs
and the paper's printed values) and one run directory per cell.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import product
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

import tomli_w
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedrecall.config.experiment import Experiment
from fedrecall.config.section import Fraction, Section
from fedrecall.config.tables import Tables, merge_tables, read_toml
from fedrecall.config.validation import to_user_error
from fedrecall.errors import UserError, unknown_name
from fedrecall.files import write_atomic
from fedrecall.methods.presets import PRESETS

STUDY_FILE = "study.toml"

SCALED_KEYS = (("run", "rounds"), ("method", "switch"))  # numbers of rounds, multiplied by Study.fraction

# keys of a row or a column that belong to the study, not to the configuration
STUDY_KEYS: dict[str, type[Any]] = {"start": str, "once": bool, "columns": Mapping, "group": str, "baseline": str}

Baseline = Literal["central", "local", "majority"]

Measure = Literal["final", "best", "last10", "rounds_to_target", "speedup"]

Printed = Measure | Literal["deviation"]  # standard deviation of the accuracy over seeds

# A printed value; in TOML, which has no null, "" stands for a cell that the paper leaves empty.
PaperValue = Annotated[float | str | None, BeforeValidator(lambda value: None if value == "" else value)]


class Target(Section):
    """A target accuracy that a row reaches, such as FedAvg's best."""

    of: str
    measure: Literal["final", "best", "last10"]


class Erratum(Section):
    """A printed number that contradicts its own paper."""

    row: str
    column: str
    measure: Measure
    consistent: float | None = None
    """The number that agrees with the rest of the paper, if there is one."""
    why: str


class FigureSpec(Section):
    """One figure to draw from the runs: its form and the options of the form."""

    form: str
    title: str = ""
    options: Tables = Field(default_factory=dict)


class Cell(NamedTuple):
    """One run of a study."""

    row: str
    column: str
    seed: int
    config: Tables
    folder: str
    """Run directory, relative to the study's folder."""
    group: str | None
    """Group of the test set that the column reports; None: the complete test set."""
    start_from: str | None
    """Run directory of the cell whose final model is the initial model."""
    baseline: Baseline | None = None
    """Baseline that the row is; None: a method."""


class Study(Section):
    """Runs to make, and the values that a paper printed for them."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
    """Name of the study; part of a path."""
    title: str
    paper: str | None = None
    """fedcad, fedcad-sa, fedssd, fedcsd or fedlmd."""
    about: str = ""
    """Settings that the paper does not state, and the values chosen for them."""
    command: str = ""
    """Commands that made the study, one per line, without --out; empty if it was made in Python."""
    base: Tables = Field(default_factory=dict)
    rows: Annotated[dict[str, Tables], Field(min_length=1)]
    """Tables by name. Keys of the study: `start` (row whose final model is the initial model), `once` (the row is run
    once, without the tables of a column), `columns` (tables of this row in single columns), `baseline` (the row is this
    baseline)."""
    columns: Annotated[dict[str, Tables], Field(min_length=1)]
    """Tables by name. Key of the study: `group` (group of the test set that the column reports)."""
    seeds: Annotated[tuple[int, ...], Field(strict=False, min_length=1)] = (0,)
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the paper's rounds."""
    measure: Literal["final", "best", "last10"] = "final"
    """Accuracy that the table shows."""
    target: dict[str, Fraction] | Fraction | Target | None = None
    """Accuracy for rounds to target and speedup, for all columns or by column."""
    printed: dict[Printed, dict[str, list[PaperValue]]] = Field(default_factory=dict)
    """Values of the paper by measure and row, one per column: accuracies in per cent, text such as "Failed"."""
    errata: Annotated[tuple[Erratum, ...], Field(strict=False)] = ()
    figures: Annotated[tuple[FigureSpec, ...], Field(strict=False)] = ()

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise to_user_error(error, type(self), top="key") from None

    @model_validator(mode="before")
    @classmethod
    def _check_tables(cls, values: Any) -> Any:
        if "base" in values:
            _require_tables("base", values["base"])
        for kind in ("rows", "columns"):
            if isinstance(values.get(kind), Mapping):  # else the validation of the field raises the error
                for name, tables in values[kind].items():
                    _require_tables(f"{kind}.{name}", tables)
        return values

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            seeds = ", ".join(map(str, self.seeds))
            raise self._invalid("seeds", f"a seed is listed twice: {seeds}", "name each seed once")
        for measure, values in self.printed.items():
            for row, line in values.items():
                if row not in self.rows or len(line) != len(self.columns):
                    wrong = f"{len(line)} values" if row in self.rows else "the study has no row of this name"
                    hint = f"write one value for each of the {len(self.columns)} columns"
                    raise self._invalid(f"printed.{measure}.{row}", wrong, hint)
        for erratum in self.errata:
            if erratum.row not in self.rows or erratum.column not in self.columns:
                wrong = f"the study has no cell {erratum.row} / {erratum.column}"
                raise self._invalid("errata", wrong, "name a row and a column of the study")
        for kind, names in (("rows", self.rows), ("columns", self.columns)):
            if len({slug(name) for name in names}) < len(names):
                wrong = f"two of the names would have the same folder: {', '.join(names)}"
                raise self._invalid(kind, wrong, "rename one of them")
        return self

    @model_validator(mode="after")
    def _check_references(self) -> Self:
        for row, tables in self.rows.items():
            if tables.get("baseline", "central") not in get_args(Baseline):
                hint = f"use one of {', '.join(get_args(Baseline))}"
                raise self._invalid(f"rows.{row}.baseline", f"unknown baseline {tables['baseline']!r}", hint)
            start = tables.get("start")
            if start is not None and (start not in self.rows or "start" in self.rows[start]):
                wrong = f"{start!r} is not a row of the study, or has a start itself"
                raise self._invalid(f"rows.{row}.start", wrong, "name a row without start")
            for column in tables.get("columns", {}):
                self._require_column(column, f"rows.{row}.columns.{column}")
        for column in self.target if isinstance(self.target, dict) else ():
            self._require_column(column, f"target.{column}")
        if isinstance(self.target, Target) and self.target.of not in self.rows:
            raise self._invalid("target.of", f"{self.target.of!r} is not a row of the study", "name a row")
        return self

    def _require_column(self, column: str, key: str) -> None:
        if column not in self.columns:
            wrong = f"the study has no column of this name (it has {', '.join(self.columns)})"
            raise self._invalid(key, wrong, "name a column of the study")

    def _invalid(self, key: str, wrong: str, hint: str) -> UserError:
        """Return the error for a key that contradicts another part of the definition."""
        return UserError("study.invalid_definition", f"study {self.id}: {key}: {wrong}", key, hint)

    def cells(self) -> list[Cell]:
        """Return all runs, seed by seed, so that an interrupted study has complete tables of its first seeds.

        Cells that others start from precede them. Columns that differ only in their group share their runs.
        """
        order = sorted(self.rows, key=lambda row: "start" in self.rows[row])
        cells: dict[str, Cell] = {}
        for seed, column, row in product(self.seeds, self.columns, order):
            cell = self.cell(row, column, seed)
            cells.setdefault(cell.folder, cell)
        return list(cells.values())

    def cell(self, row: str, column: str, seed: int) -> Cell:
        """Return one run."""
        row_tables, start, group = self.rows[row], self.rows[row].get("start"), self.columns[column].get("group")
        column_tables = () if row_tables.get("once") else (self.columns[column],)
        parts = (self.base, *column_tables, row_tables, row_tables.get("columns", {}).get(column, {}))
        tables = merge_tables(*({k: v for k, v in part.items() if k not in STUDY_KEYS} for part in parts))
        tables = merge_tables(tables, {"run": {"seed": seed}})
        _drop_foreign_preset(tables)
        for section, key in SCALED_KEYS:
            if isinstance(tables.get(section, {}).get(key), int):
                minimum = 1 if section == "run" else 0
                tables[section][key] = max(minimum, ceil(self.fraction * tables[section][key] - 1e-9))
        start_from = None if start is None else self._cell_path(start, column, seed)
        baseline = row_tables.get("baseline")
        if baseline is not None:
            tables = _without_federation(tables, pooled=baseline != "local")
        return Cell(row, column, seed, tables, self._cell_path(row, column, seed), group, start_from, baseline)

    @property
    def methods(self) -> list[str]:
        """The rows that are methods."""
        return [row for row in self.rows if row not in self.baselines]

    @property
    def baselines(self) -> list[str]:
        """The rows that are baselines."""
        return [row for row, tables in self.rows.items() if "baseline" in tables]

    def _cell_path(self, row: str, column: str, seed: int) -> str:
        shared = "group" in self.columns[column] or self.rows[row].get("once")
        return cell_path(row, "" if shared else column, seed)

    @cached_property
    def experiments(self) -> dict[str, Experiment]:
        """The validated configuration of every cell, by the cell's folder."""
        return {cell.folder: Experiment(**cell.config) for cell in self.cells()}

    def experiment(self, cell: Cell) -> Experiment:
        """Return the validated configuration of a cell."""
        return self.experiments[self._cell_path(cell.row, cell.column, cell.seed)]

    def scale_note(self, *, lengths: bool = False) -> list[str]:
        """Describe the reduction of the rounds and of the data, a line each; `lengths` adds the numbers of rounds."""
        partial = dict.fromkeys(e.data.name for e in self.experiments.values() if e.data.partial)
        notes = [f"incomplete data, not comparable with printed numbers: {', '.join(partial)}"] if partial else []
        if self.fraction == 1:
            return notes
        note = f"rounds scaled to {100 * self.fraction:g} %"
        if not lengths:
            return [note, *notes]
        full = self.model_copy(update={"fraction": 1.0}).experiments
        pairs = dict.fromkeys((e.run.rounds, full[folder].run.rounds) for folder, e in self.experiments.items())
        return [f"{note}: {', '.join(f'{scaled} of {complete}' for scaled, complete in pairs)}", *notes]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the study with some fields changed; the cached configurations of the original are not copied."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("experiments", None)
        return copy

    def subset(self, rows: Iterable[str] | None = None, columns: Iterable[str] | None = None) -> "Study":
        """Return the study with some of its rows and columns, in the order of the study."""
        keep_rows = _select(rows, self.rows, "row")
        keep_rows |= {str(self.rows[row]["start"]) for row in keep_rows if "start" in self.rows[row]}
        keep_columns = _select(columns, self.columns, "column")
        if isinstance(self.target, Target):
            keep_rows |= {self.target.of}
        positions = [i for i, name in enumerate(self.columns) if name in keep_columns]
        changes: dict[str, Any] = {
            "rows": {name: row_in_columns(t, keep_columns) for name, t in self.rows.items() if name in keep_rows},
            "columns": {name: t for name, t in self.columns.items() if name in keep_columns},
            "printed": {
                measure: {row: [line[i] for i in positions] for row, line in values.items() if row in keep_rows}
                for measure, values in self.printed.items()
            },
            "errata": tuple(e for e in self.errata if e.row in keep_rows and e.column in keep_columns),
        }
        if isinstance(self.target, dict):
            changes["target"] = {name: share for name, share in self.target.items() if name in keep_columns}
        return self.model_copy(update=changes)

    def save(self, folder: Path) -> None:
        """Write study.toml."""
        plain = self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        # TOML has no null: a missing value is written as an empty string
        for values in plain.get("printed", {}).values():
            for row, line in values.items():
                values[row] = ["" if value is None else value for value in line]
        write_atomic(folder / STUDY_FILE, tomli_w.dumps(plain).encode())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the study.toml of a folder."""
        return cls(**read_toml(folder / STUDY_FILE))


def _without_federation(tables: Tables, *, pooled: bool) -> Tables:
    """Return the tables of a baseline: plain training without what methods add; `pooled`: of one client.

    Clients that train alone have no round in common at which they could stop.
    """
    unused = {"probes", "local_accuracy", "start", "track"} | (set() if pooled else {"stop"})
    run = {k: v for k, v in tables.get("run", {}).items() if k not in unused}
    local = {k: v for k, v in tables.get("local", {}).items() if k != "prox"}
    federation = {k: v for k, v in tables.get("federation", {}).items() if k in ("clients", "partition")}
    if pooled:
        federation = {"clients": 1, "partition": {"name": "iid"}}
    engine = {k: v for k, v in tables.get("engine", {}).items() if k != "min_replies"}
    left_out = ("server", "method")
    kept = {section: values for section, values in tables.items() if section not in left_out}
    kept |= {"federation": federation, "local": local, "engine": engine, "run": run}
    return kept | {"method": {"name": "fedavg"}}


def _require_tables(where: str, tables: Any) -> None:
    """Raise an error unless every key but those of the study is a table, as in a configuration."""
    if not isinstance(tables, Mapping):
        hint = "write a table of tables, such as { local = { lr = 0.1 } }"
        raise UserError("config.invalid_value", f"{where} = {tables!r}: not a table of tables", where, hint)
    for key, value in tables.items():
        kind: type[Any] = STUDY_KEYS.get(key, Mapping)
        if not isinstance(value, kind):
            what = "a table" if kind is Mapping else f"of type {kind.__name__}"
            message = f"{where}.{key} = {value!r}: not {what}"
            raise UserError("config.invalid_value", message, f"{where}.{key}", f"write a value that is {what}")
        if key == "columns":
            for column, inner in value.items():
                _require_tables(f"{where}.columns.{column}", inner)


def cell_path(row: str, column: str, seed: int) -> str:
    """Return the run directory of a cell, relative to the study's folder."""
    return f"cells/{slug(row)}/{slug(column)}/seed-{seed}"


def slug(name: str) -> str:
    """Return a name as part of a path."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower().replace("+", " plus ")).strip("-.") or "all"


def _drop_foreign_preset(tables: Tables) -> None:
    """Remove a preset that does not contain the method: a study names the preset of its paper for all rows."""
    method = tables.get("method", {})
    if method.get("preset") in PRESETS and method.get("name", "fedavg") not in PRESETS[method["preset"]]:
        del method["preset"]


def row_in_columns(row: Tables, names: Iterable[str]) -> Tables:
    """Return a row's tables, restricted to some columns."""
    if "columns" not in row:
        return row
    return row | {"columns": {name: row["columns"][name] for name in row["columns"] if name in set(names)}}


def _select(wanted: Iterable[str] | None, names: Mapping[str, Any], kind: str) -> set[str]:
    """Select names, written in full or as slugs; None selects all."""
    if wanted is None:
        return set(names)
    by_slug = {slug(name): name for name in names}
    selected = set()
    for name in wanted:
        if slug(name) not in by_slug:
            raise unknown_name(kind, name, names)
        selected.add(by_slug[slug(name)])
    return selected
