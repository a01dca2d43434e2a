"""A paper's table or figure, run again: all of it, or a part, with settings changed on purpose."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedrecall.config.tables import RESULT_NEUTRAL_KEYS, Tables, flatten, with_overrides
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
    """The study of an experiment by its ID (or the path of your own definition); its title says what was changed.

    Rows and columns are named in a list with commas.
    """
    if any(text.replace(" ", "").startswith("run.seed=") for text in overrides):
        raise UserError(
            "config.conflict",
            "run.seed: --seeds sets the seeds of a study",
            "run.seed",
            "remove --set run.seed, and set --seeds",
        )
    whole = papers.load_study(which, fraction=fraction, seeds=seeds)
    chosen = whole.subset(
        None if rows is None else parse_names(rows, whole.rows, "method"),
        None if columns is None else parse_names(columns, whole.columns, "cell"),
    )
    return with_study_overrides(chosen, overrides) if overrides else chosen


def parse_names(text: str, names: Iterable[str], kind: str) -> list[str]:
    """The names in a list with commas, some of which have commas themselves."""
    known, pieces, found = {slug(name): name for name in names}, text.split(","), []
    while pieces:
        sizes = range(len(pieces), 0, -1)
        size = next((n for n in sizes if slug(",".join(pieces[:n])) in known), None)
        if size is None:
            raise unknown_name(kind, pieces[0].strip(), known.values())
        found.append(known[slug(",".join(pieces[:size]))])
        pieces = pieces[size:]
    return found


def with_study_overrides(study: Study, overrides: Sequence[str]) -> Study:
    """The same study with keys set in every cell, whatever its row and column say of them."""
    telling = [text for text in overrides if not text.strip().startswith(RESULT_NEUTRAL_KEYS)]
    return study.model_copy(
        update={
            "title": f"{study.title} (with {', '.join(telling)})" if telling else study.title,
            "base": with_overrides(study.base, overrides),
            "columns": {name: _override_where_set(tables, overrides) for name, tables in study.columns.items()},
            "rows": {name: _row(tables, overrides) for name, tables in study.rows.items()},
        }
    )


def default_folder(study: Study) -> Path:
    """Where a reproduction goes unless told otherwise: the same command finds it again."""
    return Path("reproductions") / (study.id if study.fraction == 1 else f"{study.id}-f{study.fraction:g}")


def _row(tables: Tables, overrides: Sequence[str]) -> Tables:
    row = _override_where_set({key: value for key, value in tables.items() if key != "columns"}, overrides)
    inner = {name: _override_where_set(own, overrides) for name, own in tables.get("columns", {}).items()}
    return row | {"columns": inner} if inner else row


def _override_where_set(tables: Tables, overrides: Sequence[str]) -> Tables:
    """Tables that would hide an override from the base have it too."""
    keys = [f"{key}." for key in flatten(tables)]
    hidden = [text for text in overrides if any(key.startswith(f"{text.partition('=')[0].strip()}.") for key in keys)]
    return with_overrides(tables, hidden)
