"""Store of finished runs by content: the same run is made once, whichever study needs it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedrecall.config.experiment import Experiment, default_settings
from fedrecall.config.tables import RESULT_NEUTRAL_KEYS, Scalar, flatten
from fedrecall.errors import UserError
from fedrecall.runs.directory import SUMMARY_FILE, RunDirectory
from fedrecall.runs.setup import Setup

RESULTS = 2
"""Version of the results, raised when a default or a golden run changes: 2 is FedSSD with linear weights."""


class RunStore:
    """A folder of finished run directories, named by a hash of everything that their result depends on.

    Results of several kinds of processor differ in the last bits; the store does not distinguish them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path_of(self, setup: Setup) -> Path:
        """Return the directory of a run with this setup, whether it exists or not."""
        return self.folder / run_key(setup)

    def fetch(self, setup: Setup, path: Path) -> bool:
        """Copy a finished run with this setup to `path`; return True if there is one."""
        stored = self.path_of(setup)
        if not (stored / SUMMARY_FILE).exists():
            return False
        with _copying(path) as part:
            shutil.copytree(stored, part)
        return True

    def keep(self, setup: Setup, path: Path) -> None:
        """Copy a finished run into the store, without its checkpoints; not a run that lost replies, or failed.

        The result of such a run depends on engine.min_replies, which the hash of a run does not have.
        """
        stored, directory = self.path_of(setup), RunDirectory(path)
        is_complete = not any(record.keys() & {"lost", "refused"} for record in directory.records())
        if is_complete and "failed" not in directory.summary and not (stored / SUMMARY_FILE).exists():
            with _copying(stored) as part:
                shutil.copytree(path, part, ignore=shutil.ignore_patterns("checkpoints", "*.lock"))


def run_key(setup: Setup) -> str:
    """Return the hash of the settings that change a result and are not defaults, the data, and `RESULTS`.

    The seed is one of the settings. Initial weights of another run count by their values, not by their path.
    """
    settings: dict[str, Any] = changed_settings(setup.experiment)
    settings["fingerprint"], settings["results"] = setup.data.dataset.fingerprint, RESULTS
    if setup.experiment.run.start is not None:
        settings["start"] = sha256(setup.server.w.numpy().tobytes()).hexdigest()
    return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]


def changed_settings(experiment: Experiment) -> dict[str, Scalar]:
    """Return the flat settings that change a result and differ from their defaults; a new key changes no hash."""
    tables = experiment.to_tables()
    defaults = default_settings(tables)
    return {
        key: value
        for key, value in flatten(tables).items()
        if not key.startswith(RESULT_NEUTRAL_KEYS) and defaults.get(key) != value
    }


@contextmanager
def _copying(target: Path) -> Iterator[Path]:
    """Yield a temporary directory beside the target, which it replaces: an interrupted copy is never a run."""
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        yield part
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)  # the disk may be full
        message = f"{target.parent}: cannot copy a run to this folder: {error.strerror or error}"
        raise UserError("study.cannot_write", message, str(target.parent), "check --store and --out") from None
