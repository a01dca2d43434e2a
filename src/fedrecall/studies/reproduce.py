"""Studies that reproduce a paper's table or figure: complete or in part, with overrides if desired."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedrecall.config.overrides import with_overrides
from fedrecall.config.tables import RESULT_NEUTRAL_KEYS, Tables, flatten
from fedrecall.errors import UserError, unknown_name
from fedrecall.studies import papers
from fedrecall.studies.study import Study, slug


def reproduction_study(
    which: str,
    *,
    fraction: float = 1.0,
    rows: str | None = None,
    columns: str | None = None,
    seeds: int | None = None,
    overrides: Sequence[str] = (),
) -> Study:
    """Make the study of an experiment's ID, or of the path of a definition; its title states the overrides.

    `rows` and `columns` are lists of names with commas.
    """
    if any(text.replace(" ", "").startswith("run.seed=") for text in overrides):
        raise UserError(
            "config.conflict",
            "run.seed: --seeds sets the seeds of a study",
            "run.seed",
            "remove --set run.seed, and set --seeds",
        )
    complete = papers.load_study(which, fraction=fraction, seeds=seeds)
    study = complete.subset(
        None if rows is None else parse_names(rows, complete.rows, "method"),
        None if columns is None else parse_names(columns, complete.columns, "cell"),
    )
    options = {
        "--fraction": None if fraction == 1 else f"{fraction:g}",
        "--methods": rows,
        "--cells": columns,
        "--seeds": None if seeds is None else str(seeds),
    }
    arguments = [argument for option, value in options.items() if value is not None for argument in (option, value)]
    arguments += [argument for text in overrides for argument in ("--set", text)]
    command = shlex.join(["fedrecall", "reproduce", which, *arguments])
    return with_study_overrides(study, overrides).model_copy(update={"command": command})


def parse_names(text: str, names: Iterable[str], kind: str) -> list[str]:
    """Parse a list of names with commas; a name may contain commas itself."""
    known, pieces, parsed = {slug(name): name for name in names}, text.split(","), []
    while pieces:
        sizes = range(len(pieces), 0, -1)
        size = next((n for n in sizes if slug(",".join(pieces[:n])) in known), None)
        if size is None:
            raise unknown_name(kind, pieces[0].strip(), known.values())
        parsed.append(known[slug(",".join(pieces[:size]))])
        pieces = pieces[size:]
    return parsed


def with_study_overrides(study: Study, overrides: Sequence[str]) -> Study:
    """Return the study with keys set in every cell, whatever its row and column set."""
    if not overrides:
        return study
    stated = [text for text in overrides if not text.strip().startswith(RESULT_NEUTRAL_KEYS)]
    return study.model_copy(
        update={
            "title": f"{study.title} (with {', '.join(stated)})" if stated else study.title,
            "base": with_overrides(study.base, overrides),
            "columns": {name: _override_where_set(tables, overrides) for name, tables in study.columns.items()},
            "rows": {name: _override_row(tables, overrides) for name, tables in study.rows.items()},
        }
    )


def default_folder(study: Study) -> Path:
    """Return the default folder of a reproduction; the same command resumes in it."""
    return Path("reproductions") / (study.id if study.fraction == 1 else f"{study.id}-f{study.fraction:g}")


def _override_row(tables: Tables, overrides: Sequence[str]) -> Tables:
    row = _override_where_set({key: value for key, value in tables.items() if key != "columns"}, overrides)
    columns = {name: _override_where_set(inner, overrides) for name, inner in tables.get("columns", {}).items()}
    return row | {"columns": columns} if columns else row


def _override_where_set(tables: Tables, overrides: Sequence[str]) -> Tables:
    """Apply the overrides of keys that the tables set: tables of a row or column take precedence over the base."""
    keys = [f"{key}." for key in flatten(tables)]
    hidden = [text for text in overrides if any(key.startswith(f"{text.partition('=')[0].strip()}.") for key in keys)]
    return with_overrides(tables, hidden)
