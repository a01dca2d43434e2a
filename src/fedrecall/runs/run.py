"""One run, from a configuration to a result."""

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from fedrecall.core.exchange import Diverged
from fedrecall.core.rounds import RoundResult, run_rounds
from fedrecall.core.seeds import single_threaded
from fedrecall.core.types import Server
from fedrecall.errors import UserError
from fedrecall.runs.directory import ROUNDS, RunDirectory, locked, require_empty
from fedrecall.runs.engine import (
    ManagedEngine,
    check_privacy,
    epsilon_spent,
    make_engine,
    make_reply_policy,
    with_unreliable_clients,
)
from fedrecall.runs.probes import ProbeContext, ProbeRecord, feature_tensors, run_probes
from fedrecall.runs.records import RoundRecord, make_record, summarise
from fedrecall.runs.result import Result
from fedrecall.runs.setup import MODEL_FILE, Setup
from fedrecall.runs.trackers import SafeTracker

DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # the disk, the user's share of it, or the largest file allowed


class RunState(NamedTuple):
    """Where a run stands when it begins or goes on."""

    server: Server
    records: list[RoundRecord]
    probes: dict[str, list[ProbeRecord]]
    client_state_files: dict[int, str]  # the clients' memories
    initial: float | None  # accuracy before the first round, once it is known


def execute(
    ready: Setup,
    out: str | Path | None = None,
    watch: Callable[[RoundRecord], None] | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    engine: "Callable[[Setup, RunDirectory | None, RunState], ManagedEngine] | None" = None,
) -> Result:
    """Run what is set up, on the engine that the experiment names or the one that is made here."""
    if out is None and (resume or ready.experiment.run.track is not None):
        key = "resume" if resume else "run.track"
        message = f"{key} = {resume or ready.experiment.run.track}: needs a run directory"
        raise UserError("run.needs_directory", message, key, "set out (--out)")
    check_privacy(ready)
    with ExitStack() as stack:
        tracking = stack.enter_context(SafeTracker(ready.experiment.run.track))
        directory, past = None, RunState(ready.server, [], {}, {}, None)
        if out is not None:
            stack.enter_context(locked(Path(out)))
            directory = RunDirectory(Path(out))
            stack.enter_context(disk_full_as_user_error(directory))
            past = resume_run(directory, ready, past, force=force) if resume else start_run(directory, ready, past)
        stack.enter_context(single_threaded())
        try:
            running = stack.enter_context((engine or make_engine)(ready, directory, past))
        except UserError:
            if directory is not None and not resume:
                directory.clear()
            raise
        if directory is not None:
            tracking.start(ready.experiment.to_tables(), directory.path, past.server.t)
        return _Run(ready, running, directory, tracking, watch).go(past)


def start_run(directory: RunDirectory, ready: Setup, past: RunState) -> RunState:
    """A new run in a free directory."""
    require_empty(directory.path)
    try:
        directory.initialise(ready)
    except OSError as error:
        directory.clear()
        raise UserError(
            "run.cannot_write",
            f"{directory.path}: cannot write the first files of the run: {error.strerror}",
            str(directory.path),
            "free disk space, or set another --out",
        ) from error
    return past


def resume_run(directory: RunDirectory, ready: Setup, past: RunState, *, force: bool) -> RunState:
    """The past of an interrupted run; if it was interrupted before its first checkpoint, there is none."""
    differences = directory.differences(ready)
    if differences and not force:
        raise UserError(
            "run.cannot_resume",
            f"cannot resume {directory.path}: these settings differ from the original run and would change its result: "
            f"{'; '.join(differences)}",
            str(directory.path),
            "restore them, or pass --force",
        )
    if directory.finished:
        raise UserError(
            "run.finished",
            f"cannot resume {directory.path}: the run is finished",
            str(directory.path),
            "set another --out for a new run",
        )
    saved = directory.checkpoints.latest()
    if saved is not None and not saved.matches(ready.server):
        raise UserError(
            "run.other_model",
            f"cannot resume {directory.path}: its checkpoints are of another model",
            str(directory.path),
            "restore the model; --force cannot replace it",
        )
    done = saved.manifest["round"] if saved else 0
    directory.checkpoints.discard_newer(saved)
    kept = directory.truncate_logs(done)
    if differences:
        directory.record_forced_resume(ready, differences, after=done)
    records = kept.pop(ROUNDS)
    seen = {name.removesuffix(".jsonl"): lines for name, lines in kept.items() if lines}
    if saved is None:
        return past
    return RunState(saved.restore_server(ready.server), records, seen, saved.client_state_files, saved.manifest["initial"])


class _Run:
    """Rounds, and everyone who is told of them."""

    def __init__(
        self,
        ready: Setup,
        engine: ManagedEngine,
        directory: RunDirectory | None,
        tracking: SafeTracker,
        watch: Callable[[RoundRecord], None] | None,
    ) -> None:
        self._ready, self._engine, self._directory = ready, engine, directory
        self._tracking, self._watch = tracking, watch
        self._view = ProbeContext(ready.data.client_examples, ready.data.test, ready.data.partition, ready.clients.classes)

    def go(self, past: RunState) -> Result:
        """All rounds that are left, and the result of all of them."""
        run, server, records, seen = self._ready.experiment.run, past.server, list(past.records), dict(past.probes)
        failed, done = None, None
        engine = with_unreliable_clients(self._engine, self._ready)
        initial = past.initial
        if initial is None:
            initial = self._engine.evaluate(server.state).accuracy
        try:
            for done in run_rounds(self._ready.clients.method, server, engine, self._ready.schedule, make_reply_policy(self._ready)):
                server = done.server
                records.append(make_record(done, self._ready.data.dataset, epsilon_spent(self._ready, done.number)))
                lines = run_probes(run.probes, self._view, done)
                for name, line in lines.items():
                    seen.setdefault(name, []).append(line)
                if done.train_loss is None:
                    local = self._ready.experiment.local
                    raise UserError(
                        "round.no_training_step",
                        f"round {done.number}: no client made a training step: with local.batch = {local.batch} and "
                        f"local.drop_last = {str(local.drop_last).lower()} all batches are skipped",
                        "local.drop_last",
                        "set a smaller local.batch, or local.drop_last = false",
                    )
                self._log_round(done, records[-1], lines, initial)
        except UserError as error:
            failed = error
        summary = summarise(records, initial, run.targets)
        if failed is not None:
            summary["failed"] = str(failed)
        path = None if self._directory is None else self._directory.path
        result = Result(self._ready.experiment, records, summary, path, server, seen)
        self._finish(result, done, failed)
        self._tracking.finish(summary)
        if failed is not None:
            raise failed
        return result

    def _log_round(self, done: RoundResult, line: RoundRecord, lines: dict[str, ProbeRecord], initial: float) -> None:
        every = self._ready.experiment.run.checkpoint_every
        if self._directory is not None:
            self._directory.append_record(line)
            for name, probed in lines.items():
                self._directory.append_record(probed, f"probes/{name}.jsonl")
            if done.number % every == 0 and done.number < self._ready.schedule.rounds:
                checkpoints, record = self._directory.checkpoints, self._directory.log_files
                checkpoints.save(done.server, self._engine.client_state, record, {"initial": initial})
        self._tracking.round(line)
        if self._watch is not None:
            self._watch(line)

    def _finish(self, result: Result, done: RoundResult | None, failed: UserError | None) -> None:
        if self._directory is None:
            return
        if not self._ready.clients.method.personal:
            values = {name: t.clone() for name, t in result.model().state_dict().items()}
            self._directory.write_tensors(MODEL_FILE, values)
        if "features" in self._ready.experiment.run.probes and failed is None and done is not None:
            self._directory.write_tensors("probes/features.safetensors", feature_tensors(self._view, done))
        # A simulation that diverged would diverge again; one that lost its clients, say, may be resumed.
        again = isinstance(failed, Diverged) and self._ready.experiment.engine.name != "flower"
        resumable = failed is not None and not again
        self._directory.write_summary(result.summary, resumable=resumable)


@contextmanager
def disk_full_as_user_error(directory: RunDirectory) -> Iterator[None]:
    """A disk that fills up inside is no fault of the code."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL_ERRORS:
            raise
        raise UserError(
            "run.disk_full",
            f"{directory.path}: the disk is full, the run stops; its last checkpoint is complete",
            str(directory.path),
            f"free disk space, then fedrecall run --resume {directory.path}",
        ) from error
