"""Trackers: TensorBoard, MLflow and Weights & Biases hear of a run round by round (`run.track`).

A tracker consumes the records that the round loop yields and knows nothing of the loop. Unless the tool's own
environment variables say otherwise, what it writes stays in the run directory. A run that is resumed goes on in the
tool's same run, by the name that the tool gave it, which is kept in the run directory.
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

TRACKER_PROJECT = "fedrecall"  # what MLflow calls an experiment, and Weights & Biases a project

ROUND_METRICS = ("accuracy", "loss", "train_loss", "local_accuracy", "seconds", "bytes_up", "bytes_down")  # of a round

SUMMARY_METRICS = ("initial", "final", "best", "best_round", "last10", "seconds", "bytes_up", "bytes_down")  # of a run

TRACKER_FILE = "tracker.json"  # in the run directory: the run's name in each tool

INVALID_METRIC_CHARACTERS = r"[^\w. -]"  # what MLflow refuses in the name of a metric


class Tracker(Protocol):
    """What hears of a run. Its context is the run; leaving it before `finish` means that the run broke off."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def start(self, tables: Mapping[str, Any], directory: Path, done: int) -> None:
        """A run begins, or goes on after so many rounds, with this complete configuration."""

    def round(self, record: RoundRecord) -> None:
        """A round is done."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run is done."""


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
        """The configuration, as text and as hyper-parameters to sort runs by."""
        folder = directory / "tensorboard"
        # What was written of rounds that are made again is to be forgotten.
        self._writer = self._open(str(folder), purge_step=done + 1 if folder.exists() else None)
        indented = "".join(f"    {line}\n" for line in tomli_w.dumps(tables).splitlines())  # Markdown for: as it is
        self._writer.add_text("configuration", indented)
        for part in self._hparams(flatten(tables), {"accuracy": 0.0}):
            self._writer.file_writer.add_summary(part)
        self._writer.flush()

    def round(self, record: RoundRecord) -> None:
        """Scalars; the writer sends them to the disk from time to time, so at the latest when it is closed."""
        for name, value in _metrics(record).items():
            self._writer.add_scalar(name, value, record["round"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The results as scalars of the last round."""
        for name, value in _results(summary).items():
            self._writer.add_scalar(f"result/{name}", value, summary["rounds"])
        if "failed" in summary:
            self._writer.add_text("failed", str(summary["failed"]))


class MLflow:
    """A run in `<run directory>/mlruns`, or where MLFLOW_TRACKING_URI says."""

    def __init__(self) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        except ImportError as error:
            raise missing_extra("mlflow", "mlflow") from error
        self._connect, self._metric, self._param = MlflowClient, Metric, Param
        self._client: Any = None
        self._run, self._status, self._heard = "", "FAILED", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._run:
            self._client.set_terminated(self._run, self._status)

    def start(self, tables: Mapping[str, Any], directory: Path, done: int) -> None:
        """A new run with the configuration as its parameters, or the one that there is."""
        where = os.environ.get("MLFLOW_TRACKING_URI")
        if where is None:  # files need no server and no database; MLflow wants to be told that they are meant
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            where = (directory / "mlruns").absolute().as_uri()
        self._client = self._connect(where)
        if known := _known(directory).get("mlflow"):
            self._client.update_run(known, status="RUNNING")
            self._run = known
            points = self._client.get_metric_history(known, "bytes_up")  # which every round has
            self._heard = max((point.step for point in points), default=0)
            return
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", TRACKER_PROJECT)
        there = self._client.get_experiment_by_name(project)
        number = there.experiment_id if there else self._client.create_experiment(project)
        self._run = self._client.create_run(number, run_name=_run_name(directory)).info.run_id
        _keep(directory, "mlflow", self._run)
        params = [self._param(name, str(value)) for name, value in flatten(tables).items()]
        for first in range(0, len(params), 100):  # as many as MLflow takes at once
            self._client.log_batch(self._run, params=params[first : first + 100])

    def round(self, record: RoundRecord) -> None:
        """All metrics of the round at once; it has those of a round that is made again."""
        if record["round"] > self._heard:
            self._log(_metrics(record), record["round"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The results as metrics of the last round."""
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
    """A run in `<run directory>/wandb`, to be sent with `wandb sync`; sent at once if WANDB_MODE or a key says so."""

    def __init__(self) -> None:
        try:
            import wandb
        except ImportError as error:
            raise missing_extra("wandb", "wandb") from error
        self._wandb, self._broken = wandb, True
        self._run: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._run is not None:
            self._run.finish(exit_code=int(self._broken))

    def start(self, tables: Mapping[str, Any], directory: Path, done: int) -> None:
        """A new run with the configuration, or the one that there is; offline, its parts have one name."""
        chosen = "WANDB_MODE" in os.environ or "WANDB_API_KEY" in os.environ
        known = _known(directory).get("wandb")
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", TRACKER_PROJECT),
            name=_run_name(directory),
            id=known,
            resume=None if known is None else "allow",
            dir=str(directory),
            config=dict(tables),
            mode=None if chosen else "offline",
            settings=self._wandb.Settings(silent=True, console="off"),  # the console is fedrecall's
        )
        _keep(directory, "wandb", self._run.id)

    def round(self, record: RoundRecord) -> None:
        """One step of its history."""
        self._run.log(_metrics(record), step=record["round"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The results go to the run's summary."""
        self._run.summary.update(_results(summary) | {k: summary[k] for k in ("failed",) if k in summary})
        self._broken = "failed" in summary


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


class SafeTracker:
    """A tracker that cannot end a run: when it fails it is said once, and the run goes on without it."""

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
        """A run begins, or goes on after so many rounds, with this complete configuration."""
        self._do("start", tables, directory, done)

    def round(self, record: RoundRecord) -> None:
        """A round is done."""
        self._do("round", record)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run is done."""
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
                with suppress(Exception):  # it has failed already
                    tracker.__exit__(type(error), error, error.__traceback__)


def _metrics(record: RoundRecord) -> dict[str, float]:
    """What a round measured, without what it did not; accuracies on parts of the test set are named groups/<part>."""
    parts = {
        f"groups/{re.sub(INVALID_METRIC_CHARACTERS, '_', name)}": value
        for name, value in record.get("groups", {}).items()
    }
    return {name: record[name] for name in ROUND_METRICS if record.get(name) is not None} | parts


def _results(summary: Mapping[str, Any]) -> dict[str, float]:
    return {name: summary[name] for name in SUMMARY_METRICS if summary.get(name) is not None}


def _known(directory: Path) -> dict[str, str]:
    """The run's name in each tool that has heard of it."""
    file = directory / TRACKER_FILE
    return {str(tool): str(name) for tool, name in json.loads(file.read_text()).items()} if file.exists() else {}


def _keep(directory: Path, tool: str, name: str) -> None:
    write_atomic(directory / TRACKER_FILE, json.dumps(_known(directory) | {tool: name}).encode())


def _run_name(directory: Path) -> str:
    """A run's name: its directory's; in a study, its cell."""
    parts = directory.absolute().parts
    return "/".join(parts[parts.index("cells") + 1 :]) if "cells" in parts else parts[-1]
