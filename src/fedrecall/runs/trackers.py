"""Experiment trackers: TensorBoard, MLflow and Weights & Biases (`run.track`).

A tracker receives the record of every round and does not depend on the round loop. Its files are in the run directory,
unless the tool's own environment variables set another place. A resumed run continues the tool's run, whose ID is
stored in the run directory.
"""

import json
import logging
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import tomli_w

from fedrecall.config.tables import flatten
from fedrecall.errors import missing_extra, unknown_name
from fedrecall.files import write_atomic
from fedrecall.runs.records import RoundRecord

log = logging.getLogger(__name__)

TRACKER_PROJECT = "fedrecall"  # the experiment in MLflow, the project in Weights & Biases

ROUND_METRICS = ("accuracy", "loss", "train_loss", "local_accuracy", "seconds", "bytes_up", "bytes_down")  # of a round

SUMMARY_METRICS = ("initial", "final", "best", "best_round", "last10", "seconds", "bytes_up", "bytes_down")  # of a run

CLIENT_MEANS = ("mean", "weighted", "worst_tenth")  # of a metric on the clients' own test examples

TRACKER_FILE = "tracker.json"  # in the run directory: the ID of the run in each tool

INVALID_METRIC_CHARACTERS = r"[^\w. -]"  # not accepted by MLflow


class Tracker(Protocol):
    """A context manager that receives a run's metrics. If it exits before `finish`, the run was interrupted."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def start(self, tables: Mapping[str, Any], directory: Path, done: int) -> None:
        """Start tracking a run with a complete configuration; `done` rounds were run before a resume."""

    def round(self, record: RoundRecord) -> None:
        """Log a round."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the summary of the run."""


class TensorBoard:
    """Event files in `<run directory>/tensorboard`: `tensorboard --logdir <any folder above>`."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
            from torch.utils.tensorboard.summary import hparams
        except ImportError as error:
            raise missing_extra("tensorboard", "tensorboard") from error
        self._open, self._hparams = SummaryWriter, hparams
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def start(self, tables: Mapping[str, Any], directory: Path, done: int) -> None:
        """Write the configuration, as text and as hyper-parameters to sort runs by."""
        folder = directory / "tensorboard"
        # Discard the values of rounds that are run again.
        self._writer = self._open(str(folder), purge_step=done + 1 if folder.exists() else None)
        indented = "".join(
            f"    {line}\n" for line in tomli_w.dumps(tables).splitlines()
        )  # Markdown for preformatted text
        self._writer.add_text("configuration", indented)
        for part in self._hparams(flatten(tables), {"accuracy": 0.0}):
            self._writer.file_writer.add_summary(part)
        self._writer.flush()

    def round(self, record: RoundRecord) -> None:
        """Write scalars, which the writer flushes at intervals and when it is closed."""
        for name, value in _metrics(record).items():
            self._writer.add_scalar(name, value, record["round"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the results as scalars of the last round."""
        for name, value in _results(summary).items():
            self._writer.add_scalar(f"result/{name}", value, summary["rounds"])
        if "failed" in summary:
            self._writer.add_text("failed", str(summary["failed"]))


class MLflow:
    """A run in `<run directory>/mlruns`, or in the store of MLFLOW_TRACKING_URI."""

    def __init__(self) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        except ImportError as error:
            raise missing_extra("mlflow", "mlflow") from error
        self._connect, self._metric, self._param = MlflowClient, Metric, Param
        self._client: Any = None
        self._run, self._status, self._last_logged = "", "FAILED", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._run:
            self._client.set_terminated(self._run, self._status)

    def start(self, tables: Mapping[str, Any], directory: Path, done: int) -> None:
        """Create a run with the configuration as its parameters, or continue the existing one."""
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:  # files need no server and no database; MLflow requires consent to them
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (directory / "mlruns").absolute().as_uri()
        self._client = self._connect(uri)
        if run_id := _run_ids(directory).get("mlflow"):
            self._client.update_run(run_id, status="RUNNING")
            self._run = run_id
            points = self._client.get_metric_history(run_id, "bytes_up")  # which every round has
            self._last_logged = max((point.step for point in points), default=0)
            return
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", TRACKER_PROJECT)
        existing = self._client.get_experiment_by_name(project)
        experiment_id = existing.experiment_id if existing else self._client.create_experiment(project)
        self._run = self._client.create_run(experiment_id, run_name=_run_name(directory)).info.run_id
        _save_run_id(directory, "mlflow", self._run)
        params = [self._param(name, str(value)) for name, value in flatten(tables).items()]
        for first in range(0, len(params), 100):  # MLflow's limit
            self._client.log_batch(self._run, params=params[first : first + 100])

    def round(self, record: RoundRecord) -> None:
        """Log all metrics of the round in one batch, unless a run before the resume logged them."""
        if record["round"] > self._last_logged:
            self._log(_metrics(record), record["round"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the results as metrics of the last round."""
        self._log({f"result/{name}": value for name, value in _results(summary).items()}, summary["rounds"])
        if "failed" in summary:
            self._client.set_tag(self._run, "failed", str(summary["failed"]))
        else:
            self._status = "FINISHED"

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)


class WeightsAndBiases:
    """A run in `<run directory>/wandb`, uploaded by `wandb sync`, or at once if WANDB_MODE or WANDB_API_KEY is set."""

    def __init__(self) -> None:
        try:
            import wandb
        except ImportError as error:
            raise missing_extra("wandb", "wandb") from error
        self._wandb, self._failed = wandb, True
        self._run: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._run is not None:
            self._run.finish(exit_code=int(self._failed))

    def start(self, tables: Mapping[str, Any], directory: Path, done: int) -> None:
        """Create a run with the configuration, or continue the existing one; its offline parts share an ID."""
        has_mode = "WANDB_MODE" in os.environ or "WANDB_API_KEY" in os.environ
        run_id = _run_ids(directory).get("wandb")
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", TRACKER_PROJECT),
            name=_run_name(directory),
            id=run_id,
            resume=None if run_id is None else "allow",
            dir=str(directory),
            config=dict(tables),
            mode=None if has_mode else "offline",
            settings=self._wandb.Settings(silent=True, console="off"),  # no output between the progress lines
        )
        _save_run_id(directory, "wandb", self._run.id)

    def round(self, record: RoundRecord) -> None:
        """Log a step of the run's history."""
        self._run.log(_metrics(record), step=record["round"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the results to the run's summary."""
        self._run.summary.update(_results(summary) | {k: summary[k] for k in ("failed",) if k in summary})
        self._failed = "failed" in summary


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


class SafeTracker:
    """A tracker that cannot stop a run: if it fails, a warning is logged and the run continues without it."""

    def __init__(self, name: str | None) -> None:
        if name is not None and name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS, key="run.track")
        self._name = name
        self._tracker = None if name is None else TRACKERS[name]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do("__exit__", kind, error, trace)

    def start(self, tables: Mapping[str, Any], directory: Path, done: int = 0) -> None:
        """Start tracking a run with a complete configuration; `done` rounds were run before a resume."""
        self._do("start", tables, directory, done)

    def round(self, record: RoundRecord) -> None:
        """Log a round."""
        self._do("round", record)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the summary of the run."""
        self._do("finish", summary)

    def _do(self, hook: str, *args: object) -> None:
        if self._tracker is None:
            return
        try:
            getattr(self._tracker, hook)(*args)
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            log.warning("run.track = %s: the tracker failed, the run continues without it: %s", self._name, reason)
            tracker, self._tracker = self._tracker, None
            if hook != "__exit__":
                with suppress(Exception):  # it has failed before
                    tracker.__exit__(type(error), error, error.__traceback__)


def _metrics(record: RoundRecord) -> dict[str, float]:
    """Return the metrics that a round has.

    The accuracy of a group of the test set is groups/<group>, a metric on the test set metrics/<name>, on validation
    examples validation/<name>, and a mean over the clients' own test examples client_test/<name>/<mean>.
    """
    groups = {
        f"groups/{re.sub(INVALID_METRIC_CHARACTERS, '_', name)}": value
        for name, value in record.get("groups", {}).items()
    }
    found = {name: record[name] for name in ROUND_METRICS if record.get(name) is not None} | groups
    found |= _prefixed("metrics", record.get("metrics", {})) | _prefixed("validation", record.get("validation", {}))
    for part in ("client_test", "client_test_personal"):
        scores = {name: values for name, values in record.get(part, {}).items() if isinstance(values, dict)}
        for name, values in scores.items():
            found |= _prefixed(f"{part}/{name}", {mean: values[mean] for mean in CLIENT_MEANS})
    return found


def _prefixed(prefix: str, values: Mapping[str, float | None]) -> dict[str, float]:
    named = ((re.sub(INVALID_METRIC_CHARACTERS, "_", name), value) for name, value in values.items())
    return {f"{prefix}/{name}": value for name, value in named if value is not None}


def _results(summary: Mapping[str, Any]) -> dict[str, float]:
    return {name: summary[name] for name in SUMMARY_METRICS if summary.get(name) is not None}


def _run_ids(directory: Path) -> dict[str, str]:
    """Return the ID of the run by tool."""
    file = directory / TRACKER_FILE
    return {str(tool): str(run_id) for tool, run_id in json.loads(file.read_text()).items()} if file.exists() else {}


def _save_run_id(directory: Path, tool: str, run_id: str) -> None:
    write_atomic(directory / TRACKER_FILE, json.dumps(_run_ids(directory) | {tool: run_id}).encode())


def _run_name(directory: Path) -> str:
    """Return the name of a run: its directory, or its cell in a study."""
    parts = directory.absolute().parts
    return "/".join(parts[parts.index("cells") + 1 :]) if "cells" in parts else parts[-1]
