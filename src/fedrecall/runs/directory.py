"""A run directory: what was run, how it went, what came out. JSON, TOML and safetensors only."""

import json
import logging
import os
import platform
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import tomli_w
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from fedrecall._version import __version__
from fedrecall.config.choices import PythonObject
from fedrecall.config.tables import RESULT_NEUTRAL_KEYS, flatten
from fedrecall.errors import UserError
from fedrecall.files import write_atomic
from fedrecall.runs.checkpoints import CHECKPOINT_FOLDER, Checkpoints
from fedrecall.runs.records import RoundRecord
from fedrecall.runs.setup import Setup
from fedrecall.simulation import ClientFailure

log = logging.getLogger(__name__)

SUMMARY = "summary.json"

ROUNDS = "rounds.jsonl"

LOCK_FILE = "run.lock"

RUN_LOCK_TIMEOUT = 3.0  # seconds: the workers of a process that was killed hold its lock until they have noticed

ENVIRONMENT_KEYS = ("fedrecall", "torch", "numpy", "data", "partition", "parameters", "start")  # of the environment


def new_run_path(name: str) -> Path:
    """Where a run goes that is given no folder: named by the time, and by a number if others began in that second."""
    first = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    others = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(path for path in chain([first], others) if not path.exists())


def require_empty(path: Path) -> None:
    """Refuse an output directory that holds anything, or is none."""
    if path.is_file():
        raise UserError(
            "run.not_a_directory", f"{path}: the output directory is a file", str(path), "set another --out"
        )
    if path.exists() and any(inside.name != LOCK_FILE for inside in path.iterdir()):
        what = "holds another run" if (path / "config.toml").exists() else "is not empty"
        how = f"resume its run: --resume {path}" if (path / CHECKPOINT_FOLDER).exists() else "remove it first"
        message = f"{path}: the output directory {what}"
        raise UserError("run.directory_not_empty", message, str(path), f"set another --out, or {how}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """No other process in this run directory, which is made if need be, for as long as the context lasts.

    The lock's file goes when the run is finished. Before, it must stay: whoever waits for a removed file and whoever
    makes a new one would both have the lock.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK_FILE)
        lock.acquire(timeout=RUN_LOCK_TIMEOUT)
    except Timeout:
        message = f"{path}: another process is running in this directory"
        raise UserError("run.directory_in_use", message, str(path), "wait for it, or set another --out") from None
    except OSError as error:
        message = f"{path}: cannot create the output directory: {error.strerror}"
        raise UserError("run.cannot_write", message, str(path), "set another --out") from None
    try:
        yield
    finally:
        if (path / SUMMARY).exists():
            (path / LOCK_FILE).unlink(missing_ok=True)
        lock.release()


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @property
    def checkpoints(self) -> Checkpoints:
        """What an interrupted run goes on from."""
        return Checkpoints(self.path / CHECKPOINT_FOLDER)

    def initialise(self, setup: Setup) -> None:
        """Write down all that is known before the first round."""
        write_atomic(self.path / "config.toml", _toml(setup).encode())
        setup.data.partition.save(self.path, setup.data.client_examples.y.numpy(), setup.data.dataset.num_classes)
        self.write_json("environment.json", describe_environment(setup))  # the last: with it a run can be resumed

    def clear(self) -> None:
        """Leave nothing half-written where a run could not begin."""
        for path in self.path.iterdir():
            if path.name != LOCK_FILE:
                path.unlink()

    def differences(self, setup: Setup) -> list[str]:
        """What differs between the run that was begun here and the one that is set up, key by key."""
        old, now = self._environment(), describe_environment(setup)
        if old.get("cpu") != now["cpu"]:
            log.warning(
                "%s: the run began on a processor with %s, this one has %s: the last digits of the result may differ",
                self.path,
                old.get("cpu"),
                now["cpu"],
            )
        keys = [key for key in {**old["config"], **now["config"]} if not key.startswith(RESULT_NEUTRAL_KEYS)]
        pairs = [(key, old["config"].get(key), now["config"].get(key)) for key in keys]
        pairs += [(f"{key} (environment)", old.get(key), now[key]) for key in ENVIRONMENT_KEYS]
        return [f"{key} was {_short(was)}, is {_short(now)}" for key, was, now in pairs if was != now]

    def record_forced_resume(self, setup: Setup, differences: list[str], after: int) -> None:
        """Say that from here on the run is another one than it was."""
        forced = [*self._environment().get("forced", []), {"after": after, "changed": differences}]
        write_atomic(self.path / "config.toml", _toml(setup).encode())
        self.write_json("environment.json", describe_environment(setup) | {"forced": forced})

    def _environment(self) -> dict[str, Any]:
        try:
            found = json.loads((self.path / "environment.json").read_text())
            if not isinstance(found, dict) or not isinstance(found.get("config"), dict):
                raise ValueError("environment.json is damaged")
        except (OSError, ValueError) as error:
            raise UserError(
                "run.not_a_run",
                f"cannot resume {self.path}: not the directory of an interrupted run: {error}",
                str(self.path),
                "give the directory of one",
            ) from None
        return found

    @property
    def log_files(self) -> list[Path]:
        """The files to which every round adds a line."""
        return [self.path / ROUNDS, *sorted((self.path / "probes").glob("*.jsonl"))]

    def append_record(self, line: RoundRecord, file: str = ROUNDS) -> None:
        """One more round."""
        path = self.path / file
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as out:
            out.write(json.dumps(line) + "\n")

    def truncate_logs(self, rounds: int) -> dict[str, list[RoundRecord]]:
        """Forget what was noted of later rounds; returns the lines that stay, by file."""
        kept = {}
        for path in self.log_files:
            text = path.read_text(errors="replace") if path.exists() else ""
            lines = [_parse_line(line) for line in text.split("\n")]
            whole = [line for line in lines if line is not None and line["round"] <= rounds]
            kept[path.name] = whole
            write_atomic(path, "".join(json.dumps(line) + "\n" for line in whole).encode())
        (self.path / SUMMARY).unlink(missing_ok=True)
        return kept

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do: the summary, which comes last, is there and tells of no failure.

        What is left of checkpoints then is what a process had no time to remove. A run that failed and has none cannot
        go on either.
        """
        try:
            failed = "failed" in json.loads((self.path / SUMMARY).read_text())
        except (OSError, ValueError):
            return False
        return not failed or not self.checkpoints.folder.exists()

    def write_summary(self, summary: Mapping[str, Any], *, resumable: bool) -> None:
        """Say that the run is complete; there is nothing to resume then."""
        self.write_json(SUMMARY, summary)
        if not resumable:
            shutil.rmtree(self.path / CHECKPOINT_FOLDER, ignore_errors=True)

    def save_traceback(self, failure: ClientFailure) -> str:
        """The traceback of a client that failed; returns where it is."""
        folder = self.path / "failures"
        folder.mkdir(exist_ok=True)
        path = folder / f"round-{failure.t + 1}-client-{failure.client}.txt"
        write_atomic(path, failure.traceback.encode())
        return str(path)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """A JSON file, whole or not at all."""
        write_atomic(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Tensors under their names: the global model, for one."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, safetensors.torch.save(dict(tensors)))


def describe_environment(setup: Setup) -> dict[str, Any]:
    """What the result may depend on besides the configuration."""
    return {
        "fedrecall": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "data": setup.data.dataset.fingerprint,
        "partition": setup.data.partition.hash,
        "parameters": len(setup.server.w),
        "config": flatten(tomllib.loads(_toml(setup))),  # config.toml may be edited, and then tells it no more
        "start": sha256(setup.server.w.numpy().tobytes()).hexdigest() if _has_custom_weights(setup) else None,
    }


def _has_custom_weights(setup: Setup) -> bool:
    """Whether the first weights are not the seed's: those of another run, or of a module given in Python."""
    return setup.experiment.run.start is not None or isinstance(setup.experiment.model, PythonObject)


def _toml(setup: Setup) -> str:
    return tomli_w.dumps(setup.experiment.to_tables())


def _parse_line(line: str) -> RoundRecord | None:
    """A line of a file that may have been cut off in the middle of one, or damaged."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("round"), int) else None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}..."
