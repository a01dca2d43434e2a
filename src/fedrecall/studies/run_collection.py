"""Several run directories seen as one study: a row for each configuration, with the seeds that it was run with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrecall.config.tables import Scalar, flatten
from fedrecall.errors import UserError
from fedrecall.runs.directory import RESULT_NEUTRAL_KEYS
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import Cell, Study, read_toml


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
