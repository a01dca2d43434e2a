"""Plans: lists of studies to reproduce in order, as a TOML file with a table [[plan]] for each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from fedrecall.config.section import Positive, Section
from fedrecall.config.tables import read_toml
from fedrecall.config.validation import to_user_error
from fedrecall.errors import UserError


class PlannedStudy(Section):
    """One study of a plan, with the options of `fedrecall reproduce`; several entries of one ID are parts of it."""

    id: str
    """ID of a table or figure, or path of a definition."""
    methods: str | None = None
    """Rows, separated by commas. None: all."""
    cells: str | None = None
    """Columns, separated by commas. None: all."""
    seeds: Positive | None = None
    """Number of repetitions. None: the paper's."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the rounds."""
    overrides: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Keys that are set in every cell, such as "data.partial=true"."""


def read_plan(which: Sequence[str]) -> list[PlannedStudy]:
    """Return the studies of IDs, paths of definitions and paths of plans, in order."""
    planned: list[PlannedStudy] = []
    for name in which:
        entries = read_toml(Path(name)).get("plan") if Path(name).suffix == ".toml" else None
        planned += [PlannedStudy(id=name)] if entries is None else [_entry(name, entry) for entry in entries]
    return planned


def _entry(path: str, entry: object) -> PlannedStudy:
    if not isinstance(entry, dict):
        raise UserError(
            "config.invalid_value", f"{path}: plan = {entry!r}: not a table", "plan", "write [[plan]] tables"
        )
    try:
        return PlannedStudy(**entry)
    except ValidationError as error:
        raise to_user_error(error, PlannedStudy, top="plan") from None
