"""The command that runs a study again, tried out before it is shown: what it would run is what was run."""

import json
import shlex
from pathlib import Path

from fedrecall.config.tables import Scalar, Tables, flatten
from fedrecall.errors import UserError
from fedrecall.studies import papers
from fedrecall.studies.compare import comparison_study
from fedrecall.studies.reproduce import reproduction_study
from fedrecall.studies.results import RunCollection, StudyResults
from fedrecall.studies.study import STUDY_FILE, Study, slug


def repeat(results: StudyResults) -> str:
    """What to type; every run directory has a command of its own."""
    if results.is_single_run:
        return _run(results.folder)
    if isinstance(results, RunCollection):
        return "\n".join(_run(folder) for folder in results.folders.values())
    study = results.study
    own = ["reproduce", str(results.folder / STUDY_FILE), *_scaled(study)]  # a study's folder says all of it
    words = _reproduce(study) or _compare(study) or own
    return shlex.join(["fedrecall", *words, "--out", _again(results.folder)])


def _run(folder: Path) -> str:
    return shlex.join(["fedrecall", "run", str(folder / "config.toml"), "--out", _again(folder)])


def _again(folder: Path) -> str:
    return f"{folder.resolve().name}-again"


def _reproduce(study: Study) -> list[str] | None:
    """A paper's experiment or a part of it; None if the study is none of those."""
    if study.id not in papers.experiment_ids():
        return None
    whole, words = papers.load_definition(study.id), ["reproduce", study.id, *_scaled(study)]
    rows = None if len(study.rows) == len(whole.rows) else ",".join(slug(name) for name in study.rows)
    columns = None if len(study.columns) == len(whole.columns) else ",".join(slug(name) for name in study.columns)
    words += [] if rows is None else ["--methods", rows]
    words += [] if columns is None else ["--cells", columns]
    words += [] if study.seeds == whole.seeds else ["--seeds", str(len(study.seeds))]
    overrides = _overrides(study.base, whole.base)
    try:
        made = reproduction_study(
            study.id,
            fraction=study.fraction,
            rows=rows,
            columns=columns,
            seeds=len(study.seeds),
            overrides=overrides,
        )
    except UserError:
        return None
    return [*words, *_set(overrides)] if _same(made, study) else None


def _compare(study: Study) -> list[str] | None:
    """A comparison that needs no configuration file; None if the study is no such one."""
    try:
        usual = comparison_study(list(study.rows))
        overrides = _overrides(study.base, usual.base)
        made = comparison_study(list(study.rows), None, overrides, len(study.seeds))
    except UserError:
        return None
    words = ["compare", *study.rows, "--seeds", str(len(study.seeds)), *_set(overrides)]
    return words if _same(made, study) else None


def _scaled(study: Study) -> list[str]:
    return ["--fraction", f"{study.fraction:g}"] if study.fraction < 1 else []


def _overrides(base: Tables, known: Tables) -> list[str]:
    """What was set on top of what is known."""
    there = flatten(known)
    return [f"{key}={_written(value)}" for key, value in flatten(base).items() if there.get(key) != value]


def _written(value: Scalar) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _set(overrides: list[str]) -> list[str]:
    return [word for text in overrides for word in ("--set", text)]


def _same(made: Study, study: Study) -> bool:
    """Whether two studies are the same runs."""
    first, second = ({cell.folder: cell.config for cell in each.cells()} for each in (made, study))
    return first == second
