"""Trials of a search, and the files of its folder: the search, its trials, and the best settings as a configuration."""

import csv
import io
import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedrecall.config.experiment import Experiment, default_settings
from fedrecall.config.tables import RESULT_NEUTRAL_KEYS, Tables, flatten
from fedrecall.errors import UserError
from fedrecall.files import parse_json, remove_temporary_files, write_atomic
from fedrecall.studies.tuning.space import Settings, apply_settings

SEARCH_FILE, TRIALS_FILE, TABLE_FILE, BEST_FILE = "search.toml", "trials.jsonl", "trials.csv", "best.toml"


@dataclass(frozen=True)
class Trial:
    """One run with some settings, scored on validation examples."""

    number: int
    """From 1."""
    settings: Settings
    outcome: Literal["complete", "pruned", "failed"]
    """`failed`: the run diverged."""
    value: float | None
    """Mean validation accuracy of the last ten evaluated rounds; None unless the trial is complete."""
    curve: dict[int, float]
    """Validation accuracy by round."""
    seconds: float
    why: str = ""
    """Reason of the failure."""


@dataclass(frozen=True)
class SearchFolder:
    """Files of a search, written after every trial, so that an interrupted search can be resumed."""

    path: Path

    def open(self, search: Tables) -> list[Trial]:
        """Write the description of a new search, or load the trials of an interrupted one.

        Raises an error if the folder contains another search.
        """
        file, text = self.path / SEARCH_FILE, tomli_w.dumps(search)
        for name in (SEARCH_FILE, TRIALS_FILE, TABLE_FILE, BEST_FILE):
            remove_temporary_files(self.path, name)
        if not file.exists():
            if others := sorted(path.name for path in self.path.iterdir() if path.suffix != ".lock"):
                message = f"{self.path}: the folder is not a search, it contains {others[0]}"
                raise UserError("tune.directory_not_empty", message, str(self.path), "choose another --out")
            write_atomic(file, text.encode())
        try:
            old, new = (flatten(tomllib.loads(toml)) for toml in (file.read_text(), text))
            trials = read_trials(self.path)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            message = f"{self.path}: the files of the search are damaged ({error})"
            hint = "remove the folder or choose another --out"
            raise UserError("tune.damaged", message, str(self.path), hint) from None
        neutral = tuple(f"config.{key}" for key in RESULT_NEUTRAL_KEYS)
        # Keys that an earlier version did not have had their defaults.
        before = flatten({"config": default_settings(search.get("config", {}))}) | old
        differences = [
            f"{key.removeprefix('config.')} was {before.get(key)}, is {new.get(key)}"
            for key in {**old, **new}
            if before.get(key) != new.get(key) and not key.startswith(neutral)
        ]
        if differences:
            message = f"{self.path}: the folder contains a different search: {'; '.join(differences)}"
            hint = "restore these settings or choose another --out"
            raise UserError("tune.cannot_resume", message, str(self.path), hint)
        return trials

    def save(self, experiment: Experiment, trials: list[Trial]) -> Path | None:
        """Write the trials and the best settings; return the path of the configuration with the best settings."""
        write_atomic(self.path / TRIALS_FILE, "".join(json.dumps(asdict(trial)) + "\n" for trial in trials).encode())
        write_atomic(self.path / TABLE_FILE, _to_csv(trials).encode())
        best = best_trial(trials)
        if best is None:
            return None
        tables = Experiment(**apply_settings(experiment.to_tables(), best.settings)).to_tables()
        head = (
            f"# Found by {len(trials)} trials: {format_settings(best.settings)}\n"
            f"# {100 * (best.value or 0):.2f} % on examples held out from the clients; the test set was not used.\n\n"
        )
        write_atomic(self.path / BEST_FILE, (head + tomli_w.dumps(tables)).encode())
        return self.path / BEST_FILE


def best_trial(trials: list[Trial]) -> Trial | None:
    """Return the complete trial of highest value, the earliest of equal ones."""
    complete = [trial for trial in trials if trial.value is not None]
    return max(complete, key=lambda trial: (trial.value or 0.0, -trial.number), default=None)


def format_settings(settings: Settings) -> str:
    """Return settings as text.

    >>> format_settings({"method.mu": 0.1, "method.tau": 2.0})
    'method.mu = 0.1, method.tau = 2'
    """
    return ", ".join(f"{key} = {value:.6g}" for key, value in settings.items())


def read_trials(folder: Path) -> list[Trial]:
    """Return the finished trials of a search's folder."""
    log = folder / TRIALS_FILE
    return [_parse_trial(line) for line in (log.read_text().splitlines() if log.exists() else [])]


def _parse_trial(line: str) -> Trial:
    fields: dict[str, Any] = parse_json(line)
    curve = {int(number): float(accuracy) for number, accuracy in fields.pop("curve").items()}
    return Trial(curve=curve, **fields)


def _to_csv(trials: list[Trial]) -> str:
    out = io.StringIO()
    keys = list(trials[0].settings) if trials else []
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["trial", *keys, "outcome", "validation_accuracy", "rounds", "seconds"])
    for trial in trials:
        rounds = max(trial.curve, default=0)
        value = "" if trial.value is None else trial.value
        writer.writerow([trial.number, *trial.settings.values(), trial.outcome, value, rounds, trial.seconds])
    return out.getvalue()
