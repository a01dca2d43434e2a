"""Tuning of a reproduction: the papers' grids, searched on examples held out from the clients, then the study."""

from math import prod
from pathlib import Path

from rich.console import Console

from fedrecall.config.tables import Tables, merge_tables
from fedrecall.methods.search_spaces import SEARCH_SPACES, GridValues
from fedrecall.studies.study import Study, slug
from fedrecall.studies.tuning.progress import TuningProgress
from fedrecall.studies.tuning.search import Search
from fedrecall.studies.tuning.space import apply_settings

OWN_SPACES = "ours"  # how the source of a space begins that no paper prints


def tuned_study(study: Study, folder: Path, console: Console) -> Study:
    """Search the printed grid of every method in every column; return the study with the best settings.

    Rows whose method has no printed grid, that start from another row or that are run once stay as they are. A search
    uses the study's first seed. Searches are resumed in `folder`.
    """
    rows = dict(study.rows)
    for row, tables in study.rows.items():
        if "start" in tables or tables.get("once"):
            continue
        tuned = {column: found for column in study.columns if (found := _search(study, row, column, folder, console))}
        if tuned:
            rows[row] = tables | {"columns": merge_tables(tables.get("columns", {}), tuned)}
    changes = {
        "rows": rows,
        "title": f"{study.title} (tuned on held-out client data)",
        "command": f"{study.command} --tune",
    }
    return Study(**study.model_dump(exclude_unset=True) | changes)


def _search(study: Study, row: str, column: str, folder: Path, console: Console) -> Tables | None:
    """Return the best settings of a cell as tables; None if no paper prints a grid for its method."""
    cell = study.cell(row, column, study.seeds[0])
    space = SEARCH_SPACES.get(str(cell.config.get("method", {}).get("name", "fedavg")))
    if space is None or space.source.startswith(OWN_SPACES):
        return None
    points = prod(len(values.of) if isinstance(values, GridValues) else 1 for values in space.dimensions.values())
    method, rest = cell.config["method"], {key: value for key, value in cell.config.items() if key != "method"}
    search = Search(method, rest, trials=points + 1, out=folder / slug(row) / slug(column))
    with TuningProgress(search, console) as display, search:
        for event in search:
            display.update(event)
    best = search.result.best
    if best is None:
        return None
    return apply_settings({}, best.settings)
