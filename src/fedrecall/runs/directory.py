"""The run directory: configuration, logs, checkpoints and results, as JSON, TOML and safetensors only."""

import json
import logging
import os
import platform
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
from fedrecall.config.experiment import default_settings
from fedrecall.config.tables import RESULT_NEUTRAL_KEYS, flatten
from fedrecall.errors import UserError
from fedrecall.files import TEMPORARY_NAME, naming_file, parse_json, remove_temporary_files, write_atomic
from fedrecall.runs.checkpoints import CHECKPOINT_FOLDER, Checkpoints
from fedrecall.runs.records import RoundRecord
from fedrecall.runs.setup import MODEL_FILE, Setup
from fedrecall.simulation import ClientFailure

log = logging.getLogger(__name__)

SUMMARY_FILE = "summary.json"

ROUNDS_FILE = "rounds.jsonl"

CONFIG_FILE = "config.toml"

ENVIRONMENT_FILE = "environment.json"

START_FILES = (CONFIG_FILE, "partition.safetensors", "partition.json", ENVIRONMENT_FILE)  # in the order of writing

STATE_FILES = (None, MODEL_FILE, CHECKPOINT_FOLDER)  # what may have the complete state of a finished run

LOCK_FILE = "run.lock"

STATUS_FILE = "status.json"  # state of a federation on Flower, written since before its first round

RUN_LOCK_TIMEOUT = 3.0  # seconds: the workers of a killed process hold its lock until they exit

ENVIRONMENT_KEYS = ("fedrecall", "torch", "numpy", "data", "partition", "parameters", "start")  # of the environment


def new_run_directory(name: str) -> Path:
    """Create the default directory of a new run, named by time and name, and a number if that name is taken.

    Creating it claims the name: of several processes that start at the same time each one gets its own directory.
    """
    first = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    for path in chain([first], (first.with_name(f"{first.name}-{number}") for number in count(2))):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise cannot_write(path, error) from None
        return path
    raise AssertionError("unreachable: the numbers do not end")


def remove_if_unused(path: Path) -> None:
    """Remove the directory of a run that wrote no file into it, and its parent if it is empty then."""
    with suppress(OSError):
        if all(entry.name == LOCK_FILE for entry in path.iterdir()):
            shutil.rmtree(path)
            path.parent.rmdir()


def cannot_write(path: Path, error: OSError) -> UserError:
    """Return the error for a run directory that cannot be created or written."""
    message = f"{path}: cannot write the run directory: {error.strerror}"
    return UserError("run.cannot_write", message, str(path), "check the path and its permissions, or set another --out")


def require_empty(path: Path) -> None:
    """Raise an error if the output directory is not empty, or is a file.

    The first files of a run that was killed before it had written all of them do not count.
    """
    try:
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    except NotADirectoryError:
        raise UserError(
            "run.not_a_directory", f"{path}: the output directory is a file", str(path), "set another --out"
        ) from None
    except OSError as error:
        raise cannot_write(path, error) from None
    if not all(name in {LOCK_FILE, STATUS_FILE, *START_FILES[:-1]} or TEMPORARY_NAME.fullmatch(name) for name in names):
        what = "holds another run" if CONFIG_FILE in names else "is not empty"
        how = f"resume its run: --resume {path}" if (path / CHECKPOINT_FOLDER).exists() else "remove it first"
        message = f"{path}: the output directory {what}"
        raise UserError("run.directory_not_empty", message, str(path), f"set another --out, or {how}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Create the run directory if it does not exist, and lock it against other processes.

    The lock file is removed when the run is finished, not before: of two processes, one that waits for the removed
    file and one that creates a new file would both hold a lock.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK_FILE)
        lock.acquire(timeout=RUN_LOCK_TIMEOUT)
    except Timeout:
        message = f"{path}: another process is running in this directory"
        raise UserError("run.directory_in_use", message, str(path), "wait for it, or set another --out") from None
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        yield
    finally:
        with suppress(OSError):  # the directory may be gone
            if (path / SUMMARY_FILE).exists():
                (path / LOCK_FILE).unlink(missing_ok=True)
        lock.release()


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @property
    def checkpoints(self) -> Checkpoints:
        """Checkpoints, from which an interrupted run is resumed."""
        return Checkpoints(self.path / CHECKPOINT_FOLDER)

    def initialise(self, setup: Setup) -> None:
        """Write the configuration, the partition and the environment."""
        remove_temporary_files(self.path)
        write_atomic(self.path / CONFIG_FILE, _toml(setup).encode())
        data = setup.data
        names = {"class_names": data.dataset.classes, "client_names": data.client_names or ()}
        labels = data.client_examples.example_labels.numpy()
        data.partition.save(self.path, labels, data.dataset.num_classes, names)
        self.write_json(ENVIRONMENT_FILE, describe_environment(setup))  # last: it marks the start as complete

    @property
    def start_interrupted(self) -> bool:
        """True if the process that started the run was killed before it had written the first files."""
        return (self.path / CONFIG_FILE).exists() and not (self.path / ENVIRONMENT_FILE).exists()

    def clear(self) -> None:
        """Remove the files of a run that could not start."""
        for path in self.path.iterdir():
            if path.name != LOCK_FILE:
                path.unlink()

    def differences(self, setup: Setup) -> list[str]:
        """Return the settings that differ between the run here and a setup, and would change its result.

        A key that an earlier version did not have, and did not record, had its default.
        """
        old, now = self._environment(), describe_environment(setup)
        if old.get("cpu") != now["cpu"]:
            log.warning(
                "%s: the run started on a processor with %s, this one has %s: the last digits of the result may differ",
                self.path,
                old.get("cpu"),
                now["cpu"],
            )
        keys = [key for key in {**old["config"], **now["config"]} if not key.startswith(RESULT_NEUTRAL_KEYS)]
        defaults = default_settings(setup.experiment.to_tables())
        pairs = [(key, old["config"].get(key, defaults.get(key)), now["config"].get(key)) for key in keys]
        pairs += [(f"{key} (environment)", old.get(key), now[key]) for key in ENVIRONMENT_KEYS]
        return [f"{key} was {_short(was)}, is {_short(now)}" for key, was, now in pairs if was != now]

    def record_forced_resume(self, setup: Setup, differences: list[str], after: int) -> None:
        """Record a forced resume: save the new configuration and the list of changed settings."""
        forced = [*self._environment().get("forced", []), {"after": after, "changed": differences}]
        write_atomic(self.path / CONFIG_FILE, _toml(setup).encode())
        self.write_json(ENVIRONMENT_FILE, describe_environment(setup) | {"forced": forced})

    @property
    def num_forced_resumes(self) -> int:
        """Number of times that the run was resumed with settings that change its result."""
        return len(self._environment().get("forced", []))

    def _environment(self) -> dict[str, Any]:
        try:
            found = parse_json((self.path / ENVIRONMENT_FILE).read_text())
            is_whole = isinstance(found, dict) and isinstance(found.get("config"), dict)
            if not is_whole or not isinstance(found.get("forced", []), list) or found.get("state") not in STATE_FILES:
                raise ValueError(f"{ENVIRONMENT_FILE} is damaged")
        except (OSError, ValueError) as error:
            raise UserError(
                "run.not_a_run",
                f"cannot resume {self.path}: not the directory of an interrupted run: {error}",
                str(self.path),
                "give the directory of one",
            ) from None
        content: dict[str, Any] = found
        return content

    @property
    def log_files(self) -> list[Path]:
        """Files to which every round appends a line."""
        return [self.path / ROUNDS_FILE, *sorted((self.path / "probes").glob("*.jsonl"))]

    def append_record(self, record: RoundRecord, file: str = ROUNDS_FILE) -> None:
        """Append a record to a log file."""
        path = self._file(file)
        with naming_file(path), path.open("a") as out:
            out.write(json.dumps(record) + "\n")

    def _file(self, name: str) -> Path:
        """Return the path of a file, in an existing folder. A run directory that is gone is not created again."""
        path = self.path / name
        if path.parent != self.path:
            path.parent.mkdir(exist_ok=True)
        return path

    def records(self) -> list[RoundRecord]:
        """Return the records of the rounds so far, without a last line that is being written."""
        path = self.path / ROUNDS_FILE
        lines = path.read_text(errors="replace").split("\n") if path.exists() else []
        return [record for line in lines if (record := _parse_line(line)) is not None]

    def truncate_logs(self, rounds: int) -> dict[str, list[RoundRecord]]:
        """Remove the records of later rounds from the logs; return the others by file name."""
        remove_temporary_files(self.path)
        kept = {}
        for path in self.log_files:
            text = path.read_text(errors="replace") if path.exists() else ""
            lines = [_parse_line(line) for line in text.split("\n")]
            records = [line for line in lines if line is not None and line["round"] <= rounds]
            kept[path.name] = records
            write_atomic(path, "".join(json.dumps(record) + "\n" for record in records).encode())
        (self.path / SUMMARY_FILE).unlink(missing_ok=True)
        return kept

    @property
    def finished(self) -> bool:
        """True if the run cannot be resumed: its summary, the last file written, exists and reports no failure.

        Checkpoints beside such a summary are remains of a killed process. A failed run without checkpoints cannot be
        resumed either.
        """
        try:
            failed = "failed" in parse_json((self.path / SUMMARY_FILE).read_text())
        except (OSError, ValueError):
            return False
        return not failed or not self.checkpoints.folder.exists()

    def write_summary(self, summary: Mapping[str, Any], *, resumable: bool) -> None:
        """Write the summary, which ends the run; remove the checkpoints unless the run can be resumed.

        A failed run whose folder of checkpoints exists can be resumed, also if it failed before its first checkpoint.
        """
        if resumable:
            self.checkpoints.folder.mkdir(exist_ok=True)
        self.write_json(SUMMARY_FILE, summary)
        if not resumable and self.state_file() != CHECKPOINT_FOLDER:
            shutil.rmtree(self.path / CHECKPOINT_FOLDER, ignore_errors=True)

    @property
    def summary(self) -> dict[str, Any]:
        """Summary of a finished run."""
        found: Any = None
        with suppress(OSError, ValueError):
            found = parse_json((self.path / SUMMARY_FILE).read_text())
        if not isinstance(found, dict) or type(found.get("rounds")) is not int or "initial" not in found:
            message = f"{self.path / SUMMARY_FILE}: the file is damaged"
            raise UserError("run.damaged_file", message, str(self.path / SUMMARY_FILE), "start a new run")
        return found

    def state_file(self) -> str | None:
        """Return the file or folder that has the complete state of the finished run; None if there is none."""
        name: str | None = self._environment().get("state")
        return name

    def record_state_file(self, name: str | None) -> None:
        """Record the file or folder that has the complete state of the finished run."""
        self.write_json(ENVIRONMENT_FILE, self._environment() | {"state": name})

    def write_configuration(self, setup: Setup) -> None:
        """Write the configuration of a run that is extended."""
        forced = {"forced": old} if (old := self._environment().get("forced")) else {}
        write_atomic(self.path / CONFIG_FILE, _toml(setup).encode())
        self.write_json(ENVIRONMENT_FILE, describe_environment(setup) | forced)

    def save_traceback(self, failure: ClientFailure) -> str:
        """Write the traceback of a failed client, after those of the same round; return the path."""
        path = self._file(f"failures/round-{failure.t + 1}-client-{failure.client}.txt")
        earlier = path.read_text() if path.exists() else ""
        if failure.traceback not in earlier:
            write_atomic(path, (earlier + failure.traceback).encode())
        return str(path)

    def write_text(self, name: str, content: str) -> None:
        """Write a text file atomically."""
        write_atomic(self._file(name), content.encode())

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file atomically."""
        write_atomic(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    def write_tensors(
        self, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Write named tensors, such as the global model, to a safetensors file."""
        write_atomic(self._file(name), safetensors.torch.save(dict(tensors), dict(metadata) if metadata else None))


def describe_environment(setup: Setup) -> dict[str, Any]:
    """Return everything that the result may depend on: versions, processor, data, and the configuration itself."""
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
        "config": flatten(tomllib.loads(_toml(setup))),  # a copy: config.toml may be edited
        "start": sha256(setup.server.w.numpy().tobytes()).hexdigest() if _has_custom_weights(setup) else None,
    }


def _has_custom_weights(setup: Setup) -> bool:
    """Return True if the initial weights are those of another run or of a Python module, not of the seed."""
    return setup.experiment.run.start is not None or isinstance(setup.experiment.model, PythonObject)


def _toml(setup: Setup) -> str:
    return tomli_w.dumps(setup.experiment.to_tables())


def _parse_line(line: str) -> RoundRecord | None:
    """Parse a line of a log; None if it is incomplete or damaged."""
    try:
        found = parse_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("round"), int) else None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}..."
