"""A study: one experiment in many variants, rows (usually methods) by columns (settings) by seeds.

A paper's table, a paper's figure and `fedrecall compare` are studies. Its folder holds `study.toml`, which says all
that is to be run and what a paper printed, and one run directory for each cell.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import product
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import tomli_w
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedrecall.config.experiment import Experiment, Fraction, Section
from fedrecall.config.tables import Tables, merge_tables, read_toml
from fedrecall.config.validation import to_user_error
from fedrecall.errors import UserError, unknown_name
from fedrecall.files import write_atomic
from fedrecall.methods.presets import PRESETS

STUDY_FILE = "study.toml"

SCALED_KEYS = (("run", "rounds"), ("method", "switch"))  # what a fraction of a study has less of

# keys of a row or a column that are the study's, not the configuration's
STUDY_KEYS: dict[str, type[Any]] = {"start": str, "once": bool, "columns": Mapping, "group": str}

Measure = Literal["final", "best", "last10", "rounds_to_target", "speedup"]

Printed = Measure | Literal["deviation"]  # that of the accuracy over seeds

# A printed value; in TOML, which has no null, "" stands for a cell that the paper leaves empty.
PrintedValue = Annotated[float | str | None, BeforeValidator(lambda value: None if value == "" else value)]


class Target(Section):
    """An accuracy that another row sets: "the first round at FedAvg's best"."""

    of: str
    measure: Literal["final", "best"]


class Erratum(Section):
    """A printed number that contradicts its own paper."""

    row: str
    column: str
    measure: Measure
    consistent: float | None = None  # the number that fits the rest, if there is one
    why: str


class FigureSpec(Section):
    """One figure to draw from the runs; `form` chooses the drawing, the rest is for it."""

    form: str
    title: str = ""
    options: Tables = Field(default_factory=dict)


class Cell(NamedTuple):
    """One run of a study."""

    row: str
    column: str
    seed: int
    config: Tables  # its configuration
    folder: str  # relative to the study's
    group: str | None  # the part of the test set that the column is about; None: all of it
    start_from: str | None  # folder of the cell from whose final model it starts


class Study(Section):
    """What is to be run, and what others found."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]  # part of a path
    title: str
    paper: str | None = None  # fedcad, fedcad-sa, fedssd, fedcsd or fedlmd
    about: str = ""  # what the paper leaves open, and how it is completed here
    base: Tables = Field(default_factory=dict)
    # name -> tables; "start": the row it goes on from; "once": it is run without any column's tables, for all of them;
    # "columns": name of a column -> tables for this row in that column
    rows: Annotated[dict[str, Tables], Field(min_length=1)]
    columns: Annotated[dict[str, Tables], Field(min_length=1)]  # "group": the part of the test set it is about
    seeds: Annotated[tuple[int, ...], Field(strict=False, min_length=1)] = (0,)
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0  # of the rounds
    measure: Literal["final", "best", "last10"] = "final"  # the accuracy that the table shows
    target: dict[str, Fraction] | Fraction | Target | None = (
        None  # for rounds to target and speedup; a dict goes by column
    )
    # row -> a value a column, as the paper prints it: accuracies in per cent, words such as "Failed"
    printed: dict[Printed, dict[str, list[PrintedValue]]] = Field(default_factory=dict)
    errata: Annotated[tuple[Erratum, ...], Field(strict=False)] = ()
    figures: Annotated[tuple[FigureSpec, ...], Field(strict=False)] = ()

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise to_user_error(error, type(self), top="key") from None

    @model_validator(mode="before")
    @classmethod
    def _tables(cls, given: Any) -> Any:
        parts = {"base": {"base": given.get("base", {})}} | {kind: given.get(kind, {}) for kind in ("rows", "columns")}
        for kind, named in parts.items():
            if isinstance(named, Mapping):  # else the types below say what is wrong
                for name, tables in named.items():
                    _require_tables(kind if kind == "base" else f"{kind}.{name}", tables)
        return given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds):
            seeds = ", ".join(map(str, self.seeds))
            raise self._invalid("seeds", f"a seed is there twice: {seeds}", "name each seed once")
        for measure, values in self.printed.items():
            for row, line in values.items():
                if row not in self.rows or len(line) != len(self.columns):
                    wrong = f"{len(line)} values" if row in self.rows else "the study has no row of this name"
                    hint = f"give each row one value for each of the {len(self.columns)} columns"
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
    def _connected(self) -> Self:
        for row, tables in self.rows.items():
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
        """Return the error for a part of the definition that does not fit the rest."""
        return UserError("study.invalid_definition", f"study {self.id}: {key}: {wrong}", key, hint)

    def cells(self) -> list[Cell]:
        """All runs: seed by seed, so that an interrupted study has whole tables; what others start from comes first.

        Columns that differ in their group alone are about the same runs.
        """
        order = sorted(self.rows, key=lambda row: "start" in self.rows[row])
        found: dict[str, Cell] = {}
        for seed, column, row in product(self.seeds, self.columns, order):
            cell = self.cell(row, column, seed)
            found.setdefault(cell.folder, cell)
        return list(found.values())

    def cell(self, row: str, column: str, seed: int) -> Cell:
        """One run."""
        own, start, group = self.rows[row], self.rows[row].get("start"), self.columns[column].get("group")
        of_column = () if own.get("once") else (self.columns[column],)
        parts = (self.base, *of_column, own, own.get("columns", {}).get(column, {}))
        tables = merge_tables(*({k: v for k, v in part.items() if k not in STUDY_KEYS} for part in parts))
        tables = merge_tables(tables, {"run": {"seed": seed}})
        _drop_foreign_preset(tables)
        for section, key in SCALED_KEYS:
            if isinstance(tables.get(section, {}).get(key), int):
                least = 1 if section == "run" else 0
                tables[section][key] = max(least, ceil(self.fraction * tables[section][key] - 1e-9))
        after = None if start is None else self._place(start, column, seed)
        return Cell(row, column, seed, tables, self._place(row, column, seed), group, after)

    def _place(self, row: str, column: str, seed: int) -> str:
        shared = "group" in self.columns[column] or self.rows[row].get("once")
        return cell_path(row, "" if shared else column, seed)

    def experiment(self, cell: Cell) -> Experiment:
        """A cell's configuration, checked."""
        return Experiment(**cell.config)

    def subset(self, rows: Iterable[str] | None = None, columns: Iterable[str] | None = None) -> "Study":
        """The same study with some of its rows and columns, which keep their order."""
        keep_rows = _select(rows, self.rows, "row")
        keep_rows |= {str(self.rows[row]["start"]) for row in keep_rows if "start" in self.rows[row]}
        keep_columns = _select(columns, self.columns, "column")
        if isinstance(self.target, Target):
            keep_rows |= {self.target.of}
        at = [i for i, name in enumerate(self.columns) if name in keep_columns]
        changes: dict[str, Any] = {
            "rows": {name: _in_columns(t, keep_columns) for name, t in self.rows.items() if name in keep_rows},
            "columns": {name: t for name, t in self.columns.items() if name in keep_columns},
            "printed": {
                measure: {row: [line[i] for i in at] for row, line in values.items() if row in keep_rows}
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
        # TOML has no null: a missing value is an empty string there
        for values in plain.get("printed", {}).values():
            for row, line in values.items():
                values[row] = ["" if value is None else value for value in line]
        write_atomic(folder / STUDY_FILE, tomli_w.dumps(plain).encode())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a folder's study.toml."""
        return cls(**read_toml(folder / STUDY_FILE))


def _require_tables(where: str, tables: Any) -> None:
    """Refuse what cannot be laid on a configuration: all but a study's own keys must be tables."""
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
    """Where a cell's run directory is, in its study's folder."""
    return f"cells/{slug(row)}/{slug(column)}/seed-{seed}"


def slug(name: str) -> str:
    """A name as part of a path."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower().replace("+", " plus ")).strip("-.") or "all"


def _drop_foreign_preset(tables: Tables) -> None:
    """A study names its paper's preset once, for all rows: it is none of a method that the preset does not speak of."""
    method = tables.get("method", {})
    if method.get("preset") in PRESETS and method.get("name", "fedavg") not in PRESETS[method["preset"]]:
        del method["preset"]


def _in_columns(row: Tables, names: set[str]) -> Tables:
    """A row of a study that has these columns only."""
    if "columns" not in row:
        return row
    return row | {"columns": {name: tables for name, tables in row["columns"].items() if name in names}}


def _select(wanted: Iterable[str] | None, names: Mapping[str, Any], kind: str) -> set[str]:
    """The wanted of the names, known by themselves or by their slugs."""
    if wanted is None:
        return set(names)
    by_slug = {slug(name): name for name in names}
    found = set()
    for name in wanted:
        if slug(name) not in by_slug:
            raise unknown_name(kind, name, names)
        found.add(by_slug[slug(name)])
    return found


def scaled(study: Study, *, lengths: bool = False) -> list[str]:
    """What is to be said of a study with fewer rounds than the paper's; nothing of a whole one."""
    if study.fraction == 1:
        return []
    said = f"rounds scaled to {100 * study.fraction:g} %"
    if not lengths:
        return [said]
    full = study.model_copy(update={"fraction": 1.0})
    pairs = dict.fromkeys((_rounds(cell), _rounds(full.cell(*cell[:3]))) for cell in study.cells())
    return [f"{said}: {', '.join(f'{some} of {whole}' for some, whole in pairs)}"]


def _rounds(cell: Cell) -> int:
    return Experiment(**cell.config).run.rounds
