"""One run: start or resume it, iterate over its rounds, log them, save checkpoints, write the result."""

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedrecall.core.client_report import has_global_model
from fedrecall.core.client_state_store import ClientStateStore
from fedrecall.core.exchange import Diverged
from fedrecall.core.failures import ClientFailure, FailurePolicy
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.rounds import RoundResult, run_rounds
from fedrecall.core.seeds import single_threaded
from fedrecall.core.training import smallest_batch
from fedrecall.core.types import Payload, Score
from fedrecall.errors import FULL_ERRORS, UserError
from fedrecall.runs.card import CARD_FILE, model_card
from fedrecall.runs.checkpoints import Checkpoint
from fedrecall.runs.directory import ROUNDS_FILE, RunDirectory, cannot_write, locked, require_empty
from fedrecall.runs.early_stopping import Monitor, monitored_part
from fedrecall.runs.engine import (
    EngineFactory,
    ManagedEngine,
    make_engine,
    make_reply_policy,
    with_simulated_faults,
)
from fedrecall.runs.evaluation import evaluate_clients, server_metrics
from fedrecall.runs.extension import extension_error, final_state, save_final_state
from fedrecall.runs.forgetting import frequency_metrics, measure_forgotten
from fedrecall.runs.inference import PREPROCESS_FILE, model_metadata
from fedrecall.runs.notices import check_own_method, inactive_reason, skipped_last_step, warn_of_untrained_parts
from fedrecall.runs.predictions import make_predictions, save_predictions
from fedrecall.runs.privacy import check_privacy, open_ledger, privacy_summary
from fedrecall.runs.probe_context import ProbeContext, ProbeRecord
from fedrecall.runs.probes import feature_tensors, run_probes
from fedrecall.runs.records import RoundRecord, make_record, summarise
from fedrecall.runs.result import Result
from fedrecall.runs.setup import BEST_MODEL_FILE, MODEL_FILE, Setup, load_weights, weights_to_save
from fedrecall.runs.trackers import SafeTracker


class Run:
    """A context manager that holds the run's directory and engine, and an iterable of its round records.

    Every record is in the run directory before it is yielded. After the last round the summary and the global model
    are written. A loop that is left early, by `break` or an exception, leaves a run that can be resumed.

    >>> from fedrecall import Experiment
    >>> from fedrecall.runs.setup import prepare_run
    >>> with Run(prepare_run(Experiment(run={"rounds": 2}))) as run:
    ...     for record in run:
    ...         print(record["round"], sorted(record)[:2])
    1 ['accuracy', 'bytes_down']
    2 ['accuracy', 'bytes_down']
    >>> run.result.summary["rounds"]
    2
    """

    def __init__(
        self,
        setup: Setup,
        out: str | Path | None = None,
        *,
        resume: bool = False,
        force: bool = False,
        engine: EngineFactory = make_engine,
    ) -> None:
        """Describe a run in the directory `out`; without `out` nothing is written.

        `resume` continues the interrupted run in `out`, unless settings that change its result differ; `force`
        continues it in any case. `engine` makes the engine; by default it is the one that the experiment names.
        """
        track = setup.experiment.run.track
        if out is None and (resume or track is not None):
            key, value = ("resume", resume) if resume else ("run.track", track)
            raise UserError("run.needs_directory", f"{key} = {value}: needs a run directory", key, "set out (--out)")
        self._setup, self._resume, self._force, self._engine_factory = setup, resume, force, engine
        self._directory = None if out is None else RunDirectory(Path(out))
        self._server = setup.server
        self._records: list[RoundRecord] = []
        self._probe_records: dict[str, list[ProbeRecord]] = {}
        self._last_round: RoundResult | None = None
        self._score: Score | None = None  # of self._server, if it was evaluated
        self._stopped: str | None = None
        data = setup.data
        self._monitor = Monitor(setup.experiment, monitored_part(tuple(data.held_out), len(data.test) > 0))
        self._lost: list[ClientFailure] = []  # since the last record
        self._best: Payload = {}  # the model of the best round so far, if there are validation examples
        self._recent = deque[Tensor](maxlen=10)  # right predictions of the last evaluations: bool [n]
        self._probe_context = ProbeContext(data.client_examples, data.test, data.partition, setup.clients.classes)

    def __enter__(self) -> Self:
        check_privacy(self._setup)
        check_own_method(self._setup)
        warn_of_untrained_parts(self._setup)
        self._inactive = inactive_reason(self._setup)
        with ExitStack() as stack:
            self._tracker = stack.enter_context(SafeTracker(self._setup.experiment.run.track))
            checkpoint = None
            if self._directory is not None:
                stack.enter_context(locked(self._directory.path))
                stack.enter_context(os_errors_as_user_errors(self._directory))
                resume = self._resume and not self._directory.start_interrupted
                checkpoint = self._restore(self._directory) if resume else self._initialise(self._directory)
            self._ledger = open_ledger(self._setup, self._directory, self._records)
            stack.enter_context(single_threaded())
            self._engine = stack.enter_context(self._make_engine(checkpoint))
            if self._directory is not None:
                self._tracker.start(self._setup.experiment.to_tables(), self._directory.path, self._server.t)
            self._initial_accuracy: float | None = None
            if checkpoint is not None:
                self._initial_accuracy = checkpoint.manifest["initial"]
            elif self._setup.schedule.has_test:
                self._score = self._engine.evaluate(self._server.state)
                self._initial_accuracy = self._score.accuracy
            self._resources = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.__exit__(kind, error, traceback)

    def __iter__(self) -> Iterator[RoundRecord]:
        setup = self._setup
        engine = with_simulated_faults(self._engine, setup)
        policy = make_reply_policy(setup, self._ledger)
        rounds = run_rounds(setup.clients.method, self._server, engine, setup.schedule, policy)
        try:
            if self._records:  # resumed: the rounds before the interruption may have been the last ones
                self._stopped = self._monitor.stop_reason(self._records)
            while self._stopped is None and (round_result := next(rounds, None)) is not None:
                record = self._log_round(round_result)
                self._stopped = self._monitor.stop_reason(self._records)
                yield record
        except UserError as error:
            self._finish(error)
            raise
        self._inactive = self._inactive or skipped_last_step(setup, self._server.t)
        self._finish()

    def stop(self) -> None:
        """Stop the run after the round that was yielded last: it is finished, as after its last round."""
        self._stopped = self._stopped or "watch"

    @property
    def score(self) -> Score | None:
        """Score of the global model after the last round; None if the round was not evaluated."""
        return self._score

    @property
    def result(self) -> Result:
        """The result of the rounds so far."""
        summary = summarise(self._records, self._initial_accuracy, self._setup.experiment.run.targets)
        if self._inactive is not None:
            summary["inactive"] = self._inactive  # why the method is FedAvg in this run
        summary |= self._monitor.summary(self._records)
        if self._records:
            summary |= privacy_summary(self._setup, self._ledger)
        if not self._setup.schedule.has_test and "client_test" in self._setup.data.held_out:
            summary["accuracy_on"] = "client_test"
        if self._stopped is not None and summary["rounds"] < self._setup.schedule.rounds:
            on = {} if self._stopped == "watch" else {"metric": self._monitor.metric.name, "on": self._monitor.part}
            summary["stopped"] = {"round": summary["rounds"], "reason": self._stopped, **on}
        path = None if self._directory is None else self._directory.path
        data = self._setup.data
        preprocessing = data.dataset.preprocessing(data.test.transform)
        return Result(
            self._setup.experiment,
            self._records,
            summary,
            path,
            self._server,
            preprocessing,
            self._probe_records,
            self._best,
        )

    def _initialise(self, directory: RunDirectory) -> None:
        """Write the first files of a new run."""
        require_empty(directory.path)
        try:
            directory.initialise(self._setup)
        except OSError as error:
            directory.clear()
            raise UserError(
                "run.cannot_write",
                f"{directory.path}: cannot write the first files of the run: {error.strerror}",
                str(directory.path),
                "free disk space, or set another --out",
            ) from error

    def _restore(self, directory: RunDirectory) -> Checkpoint | None:
        """Restore the state of an interrupted run; None if it was interrupted before its first checkpoint."""
        path, server = directory.path, self._setup.server
        differences = directory.differences(self._setup)
        if directory.finished:
            return self._extend(directory, differences)
        if differences and not self._force:
            raise UserError(
                "run.cannot_resume",
                f"cannot resume {path}: these settings differ from the original run and would change its result: "
                f"{'; '.join(differences)}",
                str(path),
                "restore them, or pass --force",
            )
        checkpoint = directory.checkpoints.latest()
        if checkpoint is not None and not checkpoint.matches(server):
            message = f"cannot resume {path}: its checkpoints are of another model"
            raise UserError("run.other_model", message, str(path), "restore the model; --force cannot replace it")
        self._continue_from(checkpoint, directory)
        if differences:
            rounds = checkpoint.manifest["round"] if checkpoint else 0
            directory.record_forced_resume(self._setup, differences, after=rounds)
        return checkpoint

    def _continue_from(self, checkpoint: Checkpoint | None, directory: RunDirectory) -> None:
        """Set the state of the run to that of a checkpoint, and remove later rounds from the logs."""
        directory.checkpoints.discard_newer(checkpoint)
        logs = directory.truncate_logs(checkpoint.manifest["round"] if checkpoint else 0)
        if checkpoint is not None:
            self._server = checkpoint.restore_server(self._setup.server)
            self._best = checkpoint.part("best") or self._best_of_finished_run(directory)
            self._recent.extend(row.bool() for row in checkpoint.part("recent").get("correct", ()))
            self._records = logs.pop(ROUNDS_FILE)
            self._probe_records = {name.removesuffix(".jsonl"): records for name, records in logs.items() if records}

    def _best_of_finished_run(self, directory: RunDirectory) -> Payload:
        """Return the best model that a finished run has kept, which has no checkpoint of it."""
        file, server = directory.path / BEST_MODEL_FILE, self._setup.server
        if not file.exists():
            return {}
        module = server.f.to_module(server.w, server.b, server.int_buffers)
        load_weights(module, file)
        f = FlatModel(module)
        return {"w": f.w, "b": f.b, "counters": f.int_buffers}

    def _extend(self, directory: RunDirectory, differences: list[str]) -> Checkpoint:
        """Restore the state of a finished run, for more rounds; raise an error if that would be another result."""
        path, rounds, others = directory.path, directory.summary["rounds"], differences
        if self._setup.schedule.rounds > rounds:
            others = [text for text in differences if not text.startswith("run.rounds ")]
        elif not differences:
            message, hint = f"cannot resume {path}: the run is finished", "set a larger run.rounds for more rounds"
            raise UserError("run.finished", message, str(path), hint)
        reason = f"these settings differ: {'; '.join(others)}" if others else extension_error(self._setup, directory)
        if reason is not None:
            message = f"cannot add rounds to {path}, which has {rounds}: {reason}"
            raise UserError("run.cannot_extend", message, str(path), "start a new run with another --out")
        checkpoint = final_state(self._setup, directory)
        self._continue_from(checkpoint, directory)
        directory.write_configuration(self._setup)
        return checkpoint

    def _make_engine(self, checkpoint: Checkpoint | None) -> ManagedEngine:
        """Make the engine, which stores client states and tracebacks in the run directory."""
        directory, min_replies = self._directory, self._setup.experiment.engine.min_replies
        failures = FailurePolicy(min_replies, self._record_failure)
        client_state = ClientStateStore(
            directory.checkpoints.client_state_folder if directory else None,
            files=checkpoint.client_state_files if checkpoint else None,
        )
        try:
            return self._engine_factory(self._setup, failures, client_state)
        except UserError:
            if directory is not None and not self._resume:
                directory.clear()
            raise

    def _record_failure(self, failure: ClientFailure) -> str | None:
        """Keep a failure for the record of the round; write its traceback, if there is a directory."""
        self._lost.append(failure)
        return None if self._directory is None else self._directory.save_traceback(failure)

    def _can_train(self) -> bool:
        """Return True if some client has a batch that is not skipped: a cohort of others only trains nothing."""
        setup = self._setup
        fewest = smallest_batch(setup.clients.training, needs_pairs=setup.server.f.needs_two_examples)
        return bool(np.diff(setup.data.partition.offsets).max(initial=0) >= fewest)

    def _log_round(self, round_result: RoundResult) -> RoundRecord:
        """Append a round to the logs, save a checkpoint if one is due, and inform the tracker."""
        setup, directory, run = self._setup, self._directory, self._setup.experiment.run
        if round_result.train_loss is None and not self._can_train():
            local = setup.experiment.local
            raise UserError(
                "round.no_training_step",
                f"round {round_result.number}: no client can train: with local.batch = {local.batch} and "
                f"local.drop_last = {str(local.drop_last).lower()} all batches are skipped",
                "local.drop_last",
                "set a smaller local.batch, or local.drop_last = false; batch normalisation needs two examples",
            )
        round_result = round_result._replace(received=self._score_received(round_result))
        self._server, self._last_round, self._score = round_result.server, round_result, round_result.score
        privacy = setup.experiment.server.privacy
        epsilon = None if privacy is None else self._ledger.epsilon(privacy.delta)
        evaluation = server_metrics(run, round_result.score, setup.clients.classes)
        if setup.data.held_out and setup.schedule.is_evaluated(round_result.number):
            evaluation |= evaluate_clients(self._engine, setup.clients, self._server)
        record = make_record(round_result, setup.data.dataset, epsilon, evaluation, self._lost)
        self._lost.clear()
        record |= self._engine.round_details()
        probe_records = run_probes(run.probes, self._probe_context, round_result)
        if (forgotten := measure_forgotten(self._probe_context, round_result)) is not None:
            record |= forgotten.means()
        if setup.experiment.data.imbalance is not None:
            record |= frequency_metrics(self._probe_context, round_result)
        if "pull" in probe_records:
            record["pull"] = probe_records["pull"]["pull"]
        self._records.append(record)
        self._keep_best()
        if round_result.score is not None:
            self._recent.append(round_result.score.predicted == round_result.score.y)
        for name, probe_record in probe_records.items():
            self._probe_records.setdefault(name, []).append(probe_record)
        if directory is not None:
            directory.append_record(record)
            for name, probe_record in probe_records.items():
                directory.append_record(probe_record, f"probes/{name}.jsonl")
            if round_result.number % run.checkpoint_every == 0 and round_result.number < setup.schedule.rounds:
                tensors = {f"best.{name}": t for name, t in self._best.items()}
                if self._recent:
                    tensors["recent.correct"] = torch.stack(list(self._recent)).to(torch.uint8)
                extra, client_state = {"initial": self._initial_accuracy}, self._engine.client_state
                directory.checkpoints.save(self._server, client_state, directory.log_files, extra, tensors)
        self._tracker.round(record)
        return record

    def _score_received(self, round_result: RoundResult) -> Score | None:
        """Return the score of the model that the clients received, if their own predictions are measured."""
        sent = round_result.tensors_sent
        request = self._setup.clients.report.in_round(round_result.number - 1)
        if not request.predictions or "w" not in sent:
            return None
        was_evaluated = self._score is not None and "evaluated" not in self._server.extra
        if was_evaluated and sent["w"] is self._server.w:
            return self._score
        return self._engine.evaluate(self._server.f.join(sent["w"], sent.get("b", self._server.b)))

    def _keep_best(self) -> None:
        """Keep the model of the round with the best value on the validation examples."""
        best = self._monitor.best(self._records)
        has_model = self._monitor.part == "validation" and has_global_model(self._setup.clients.method, self._server.f)
        if has_model and best is not None and best[0] == self._server.t:
            w, b = self._server.f.split(self._server.evaluated_state)
            self._best = {"w": w, "b": b, "counters": self._server.int_buffers}

    def _save_predictions(self, directory: RunDirectory) -> None:
        """Write the final model's predictions on the test set, if there is one."""
        if not self._setup.schedule.has_test or not self._records:
            return
        score = None if self._last_round is None else self._last_round.score
        if score is None or score.z is None:  # the run was stopped before its last round
            score = self._engine.evaluate(self._server.evaluated_state, logits=True)
        evaluations = min(10, sum(record["loss"] is not None for record in self._records))
        recent = self._recent if len(self._recent) == evaluations else ()  # a continued run may lack some
        save_predictions(directory.path, make_predictions(score, recent, self._setup.data.dataset.test_groups))

    def _finish(self, error: UserError | None = None) -> None:
        """Write the global model, then the summary, which marks the run as finished or failed."""
        result, directory = self.result, self._directory
        if error is not None:
            result.summary["failed"] = str(error)
        if directory is not None:
            if has_global_model(self._setup.clients.method, self._server.f):
                tensors = weights_to_save(result.model(), self._setup.experiment.model)
                directory.write_tensors(MODEL_FILE, tensors, model_metadata(result.preprocessing))
                directory.write_json(PREPROCESS_FILE, result.preprocessing.to_json())
                if self._best:
                    tensors = weights_to_save(result.model(best=True), self._setup.experiment.model)
                    directory.write_tensors(BEST_MODEL_FILE, tensors, model_metadata(result.preprocessing))
                if error is None:
                    self._save_predictions(directory)
            directory.write_text(CARD_FILE, model_card(result, self._setup.data.dataset, self._last_round))
            if "features" in self._setup.experiment.run.probes and error is None and self._last_round is not None:
                features = feature_tensors(self._probe_context, self._last_round)
                directory.write_tensors("probes/features.safetensors", features)
            # A simulation that diverged would diverge again. Other failures, such as lost clients, may not recur.
            diverges_again = isinstance(error, Diverged) and self._setup.experiment.engine.name != "flower"
            if error is None:
                save_final_state(self._server, self._engine.client_state, directory, self._initial_accuracy)
            directory.write_summary(result.summary, resumable=error is not None and not diverges_again)
        self._tracker.finish(result.summary)


@contextmanager
def os_errors_as_user_errors(directory: RunDirectory) -> Iterator[None]:
    """Convert errors of writing the run directory into a UserError, and "disk full" into one that states how to resume.

    Other errors of the operating system, such as those of the user's own method, are bugs and keep their traceback.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_ERRORS:
            if _is_inside(error.filename, directory.path):
                raise cannot_write(directory.path, error) from error
            raise
        raise UserError(
            "run.disk_full",
            f"{directory.path}: the disk is full, the run stops; its last checkpoint is complete",
            str(directory.path),
            f"free disk space, then fedrecall run --resume {directory.path}",
        ) from error


def _is_inside(filename: object, folder: Path) -> bool:
    """Return True if an error's file name is the folder's, or that of a file in it."""
    return isinstance(filename, str) and Path(filename).absolute().is_relative_to(folder.absolute())
