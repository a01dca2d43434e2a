"""Runs of a study's cells, by one process or by several processes that share the study's folder.

A process claims a cell by a lock of the operating system, which is released when the process exits. A finished cell is
kept. A cell that a process left unfinished is resumed from its last checkpoint, so no cell is run twice.
"""

import logging
import shutil
import time
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from fedrecall.config.experiment import Experiment
from fedrecall.config.sources import import_own_code, own_code, require_section_objects
from fedrecall.core.exchange import Diverged
from fedrecall.errors import UserError
from fedrecall.runs.directory import SUMMARY_FILE, RunDirectory
from fedrecall.runs.records import RoundRecord
from fedrecall.runs.run import Run
from fedrecall.runs.setup import MODEL_FILE, Setup
from fedrecall.studies.baselines import write_baseline
from fedrecall.studies.compare import StudyObjects
from fedrecall.studies.extend import write_or_extend
from fedrecall.studies.results import read_json
from fedrecall.studies.store import RunStore
from fedrecall.studies.study import Cell, Study

log = logging.getLogger(__name__)

POLL_INTERVAL = 1.0  # seconds between two checks of the cells that other processes run

Summary = dict[str, Any]


@dataclass(frozen=True)
class StudyEvent:
    """A change of state of one cell."""

    kind: Literal["started", "round", "finished", "kept", "rejected", "waiting"]
    """`finished`: the run ended in this process; `kept`: it was finished before, or by another process; `rejected`: it
    cannot be run; `waiting`: all remaining cells are run by other processes, and this is the first of them."""
    cell: Cell
    record: RoundRecord | None = None
    """Record of the round, for `round`."""
    summary: Summary | None = None
    """Summary of the run, for `finished` and `kept`."""
    error: UserError | None = None
    """Reason, for `rejected`."""


def run_study(
    study: Study, folder: Path, objects: StudyObjects | None = None, *, store: RunStore | None = None
) -> Generator[StudyEvent, None, None]:
    """Run all cells that are not finished; yield every change of a cell's state.

    A run that diverges is finished: the failure is its result. A cell that cannot be run, because its data set is
    missing for example, does not stop the others. `objects` are those that the study's tables name "own". User code
    that the study names is imported. A run that `store` has is copied from it, and a finished one is copied to it.
    """
    # validated before the first run
    objects = objects or StudyObjects()
    experiments = {
        name: import_own_code(objects.with_functions(experiment)) for name, experiment in study.experiments.items()
    }
    for experiment in experiments.values():
        require_section_objects(experiment)
    write_or_extend(study, folder)
    # the settings of the user's own code and objects do not determine the result
    experiments_by_name = study.experiments.items()
    not_stored = {name for name, experiment in experiments_by_name if not objects.is_empty or own_code(experiment)}
    not_stored |= {cell.folder for cell in study.cells() if cell.baseline is not None}
    runner, remaining = _CellRunner(experiments, folder, objects, store, not_stored), study.cells()
    while remaining:
        before = len(remaining)
        for cell in tuple(remaining):
            if (yield from runner.try_run(cell)):
                remaining.remove(cell)
        if len(remaining) == before:
            yield StudyEvent("waiting", remaining[0])
            time.sleep(POLL_INTERVAL)


class _MadeElsewhere(Exception):
    """Another process makes the same run, for another study."""


class _CellRunner:
    """Runs single cells of a study; a cell that starts from a rejected cell is rejected too."""

    def __init__(
        self,
        experiments: Mapping[str, Experiment],
        folder: Path,
        objects: StudyObjects,
        store: RunStore | None,
        not_stored: Collection[str],
    ) -> None:
        self._experiments, self._folder, self._objects = experiments, folder, objects
        self._store, self._not_stored = store, not_stored  # folders of cells that the store must not have
        self._rejected: set[str] = set()

    def try_run(self, cell: Cell) -> Generator[StudyEvent, None, bool]:
        """Run a cell unless it has to wait for another process; return True if it is finished, kept or rejected."""
        path = self._folder / cell.folder
        if (path / SUMMARY_FILE).exists():
            self._objects.require_unchanged(cell, self._experiments[cell.folder], path)
            yield StudyEvent("kept", cell, summary=read_json(path / SUMMARY_FILE))
            return True
        error = self._start_error(cell)
        if error is None:
            if cell.start_from is not None and not (self._folder / cell.start_from / SUMMARY_FILE).exists():
                return False
            with try_lock(path) as acquired:
                if not acquired:
                    return False
                if (path / SUMMARY_FILE).exists():  # finished by another process since the first check
                    yield StudyEvent("kept", cell, summary=read_json(path / SUMMARY_FILE))
                    return True
                try:
                    error = yield from self._run(cell, path)
                except _MadeElsewhere:
                    return False
        if error is not None:
            self._rejected.add(cell.folder)
            yield StudyEvent("rejected", cell, error=error)
        return True

    def _run(self, cell: Cell, path: Path) -> Generator[StudyEvent, None, UserError | None]:
        """Run or resume a cell, or copy the same run of another study; return the error if that is not possible."""
        experiment = self._experiments[cell.folder]
        if cell.start_from is not None:
            start = (self._folder / cell.start_from / MODEL_FILE).resolve()
            run_section = experiment.run.model_copy(update={"start": start})
            experiment = experiment.model_copy(update={"run": run_section})
        try:
            setup = self._objects.setup(cell, experiment)
            if cell.baseline in ("local", "majority"):
                yield StudyEvent("started", cell)
                shutil.rmtree(path, ignore_errors=True)  # of a process that was killed
                write_baseline(cell.baseline, setup, path, self._objects.model)
                yield StudyEvent("finished", cell, summary=read_json(path / SUMMARY_FILE))
                return None
            store = None if cell.folder in self._not_stored else self._store
            with nullcontext(True) if store is None else try_lock(store.path_of(setup)) as acquired:
                if not acquired:
                    raise _MadeElsewhere
                if store is not None and store.fetch(setup, path):
                    yield StudyEvent("kept", cell, summary=read_json(path / SUMMARY_FILE))
                    return None
                yield StudyEvent("started", cell)
                yield from self._run_rounds(cell, setup, path)
                if store is not None:
                    _keep(store, setup, path)
        except UserError as error:
            return error
        yield StudyEvent("finished", cell, summary=read_json(path / SUMMARY_FILE))
        return None

    def _run_rounds(self, cell: Cell, setup: Setup, path: Path) -> Generator[StudyEvent, None, None]:
        try:
            with Run(setup, path, resume=_can_resume(path, setup)) as run:
                for record in run:
                    yield StudyEvent("round", cell, record=record)
        except Diverged:
            pass  # recorded in the run's summary
        except UserError:
            (path / SUMMARY_FILE).unlink(missing_ok=True)  # the user can fix the cause: this is not a result
            raise

    def _start_error(self, cell: Cell) -> UserError | None:
        """Return an error if the run that a cell starts from failed or cannot be run."""
        if cell.start_from is None:
            return None
        summary = self._folder / cell.start_from / SUMMARY_FILE
        failed = summary.exists() and "failed" in read_json(summary)
        if not failed and cell.start_from not in self._rejected:
            return None
        message = f"{cell.folder}: it starts from {cell.start_from}, which {'failed' if failed else 'cannot be run'}"
        return UserError("study.start_failed", message, cell.start_from, "fix that run first")


def _keep(store: RunStore, setup: Setup, path: Path) -> None:
    """Copy a finished run into the store; a copy that fails is a warning, because the run itself is complete."""
    try:
        store.keep(setup, path)
    except UserError as error:
        log.warning("the finished run is not in the store, so other studies run it again: %s", error)


def _can_resume(path: Path, setup: Setup) -> bool:
    """Return True if the directory has an unfinished run with a checkpoint; remove a run without one."""
    directory = RunDirectory(path)
    if not any(directory.checkpoints.folder.glob("round-*.json")):
        shutil.rmtree(path, ignore_errors=True)
        return False
    if differences := directory.differences(setup):
        raise UserError(
            "run.cannot_resume",
            f"cannot resume {path}: these settings differ from the original run and would change its result: "
            f"{'; '.join(differences)}",
            str(path),
            "restore them, or remove the directory to run the cell again",
        )
    return True


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Try to lock a run directory for this process; the context's value is True if that succeeded.

    The lock file is removed once the cell is finished, not before: a process that waits for a removed file and one
    that makes a new file would both hold the lock.
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
        if (path / SUMMARY_FILE).exists():
            file.unlink(missing_ok=True)
    finally:
        lock.release()
