"""Run a study's cells in its folder, alone or beside other processes that do the same.

A cell is claimed by a lock of the operating system, which is free again the moment its process ends, however it
ends. Who holds the claim finds the cell finished, and leaves it, or runs it; so no cell is run twice, and what a
killed process had begun goes on from its last checkpoint.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedrecall.config.experiment import Experiment
from fedrecall.config.tables import merge_tables
from fedrecall.core.exchange import Diverged
from fedrecall.errors import UserError
from fedrecall.runs.directory import SUMMARY, RunDirectory
from fedrecall.runs.records import RoundRecord
from fedrecall.runs.run import Run
from fedrecall.runs.setup import MODEL_FILE, Setup
from fedrecall.studies.compare import NO_OBJECTS, PythonObjects
from fedrecall.studies.extend import write_or_extend
from fedrecall.studies.results import read_json
from fedrecall.studies.study import Cell, Study

POLL_INTERVAL = 1.0  # seconds between two looks at cells that other processes are running

Summary = dict[str, Any]


class Watch:
    """Hears how a sweep goes on; what it does with it is up to its subclass."""

    def began(self, cell: Cell) -> None:
        """A run starts."""

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """It has made another round."""

    def ended(self, cell: Cell, summary: Summary, here: bool) -> None:
        """A cell is finished: run here, or before, or by another process."""

    def refused(self, cell: Cell, reason: str) -> None:
        """A cell cannot be run."""

    def waits(self, cells: list[Cell]) -> None:
        """Nothing is left but what other processes are running."""


class Refused(dict[str, list[Cell]]):
    """The cells that cannot be run, by the reason."""

    first: UserError | None = None  # the error of the first one

    def add(self, cell: Cell, error: UserError) -> None:
        """Add a cell."""
        self.first = self.first or error
        self.setdefault(str(error), []).append(cell)


def run_study(study: Study, folder: Path, watch: Watch, given: PythonObjects = NO_OBJECTS) -> Refused:
    """Run all cells that are not finished; returns those that cannot be run, by the reason.

    A run that diverges is finished: that is its result. A cell whose data is missing, say, stops no other. What the
    study's tables call "own" is `given`.
    """
    for cell in study.cells():
        Experiment(**cell.config)  # all of it is valid before any of it runs
    write_or_extend(study, folder)
    left, refused = study.cells(), Refused()
    while left:
        before = len(left)
        left = [cell for cell in left if not _try_run(cell, folder, watch, given, refused)]
        if len(left) == before:
            watch.waits(left)
            time.sleep(POLL_INTERVAL)
    return refused


def _try_run(cell: Cell, folder: Path, watch: Watch, given: PythonObjects, refused: Refused) -> bool:
    """Whether nothing more is to be done for a cell; runs it if it can be run now."""
    path = folder / cell.folder
    if (path / SUMMARY).exists():
        given.require_unchanged(cell, path)
        watch.ended(cell, read_json(path / SUMMARY), here=False)
        return True
    start = None if cell.start_from is None else folder / cell.start_from
    reason = None if start is None else _start_error(cell, start, refused)
    if reason is None and start is not None and not (start / SUMMARY).exists():
        return False
    if reason is None:
        with try_lock(path) as ours:
            if not ours:
                return False
            if (path / SUMMARY).exists():  # finished by another process since we looked
                watch.ended(cell, read_json(path / SUMMARY), here=False)
                return True
            watch.began(cell)
            reason = _run(cell, path, start, watch, given)
            if reason is None:
                watch.ended(cell, read_json(path / SUMMARY), here=True)
    if reason is not None:
        refused.add(cell, reason)
        watch.refused(cell, str(reason))
    return True


def _run(cell: Cell, path: Path, start: Path | None, watch: Watch, given: PythonObjects) -> UserError | None:
    """Run or resume a cell; return the error if that is not possible."""
    beginning = {} if start is None else {"run": {"start": str((start / MODEL_FILE).resolve())}}
    try:
        ready = given.setup(cell, Experiment(**merge_tables(cell.config, beginning)))
        with Run(ready, path, resume=_can_resume(path, ready)) as run:
            for record in run:
                watch.round(cell, record)
    except Diverged:
        pass  # the run directory says so
    except UserError as error:
        (path / SUMMARY).unlink(missing_ok=True)  # what can be mended is no result
        return error
    return None


def _can_resume(path: Path, ready: Setup) -> bool:
    """Whether a process left a run unfinished here that can go on; without a checkpoint there is nothing to lose."""
    directory = RunDirectory(path)
    if not directory.checkpoints.folder.exists():
        shutil.rmtree(path, ignore_errors=True)
        return False
    if differences := directory.differences(ready):
        raise UserError(
            "run.cannot_resume",
            f"cannot resume {path}: these settings differ from the original run and would change its result: "
            f"{'; '.join(differences)}",
            str(path),
            "restore them, or remove the directory to run the cell again",
        )
    return True


def _start_error(cell: Cell, start: Path, refused: Refused) -> UserError | None:
    """Return the error if the run that a cell starts from will never have a model."""
    failed = (start / SUMMARY).exists() and "failed" in read_json(start / SUMMARY)
    if not failed and not any(cell.start_from == other.folder for cells in refused.values() for other in cells):
        return None
    message = f"{cell.folder}: it starts from {cell.start_from}, which {'failed' if failed else 'cannot be run'}"
    return UserError("study.start_failed", message, cell.start_from, "fix that run first")


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Whether a run directory is ours alone, for as long as the context lasts.

    The lock's file goes when the cell is finished. Before, it must stay: whoever waits for a removed file and whoever
    makes a new one would both have the lock.
    """
    file = path.with_name(f"{path.name}.lock")
    lock = FileLock(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    except OSError as error:
        message = f"{file.parent}: cannot write to this folder: {error.strerror}"
        raise UserError("study.cannot_write", message, str(file.parent), "check its permissions") from None
    try:
        yield True
        if (path / SUMMARY).exists():
            file.unlink(missing_ok=True)
    finally:
        lock.release()
