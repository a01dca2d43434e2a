"""The folder of a search: what is searched, what was tried, and the best of it as a configuration."""

import csv
import io
import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedrecall.config.experiment import Experiment
from fedrecall.config.tables import RESULT_NEUTRAL_KEYS, Tables, flatten
from fedrecall.errors import UserError
from fedrecall.files import write_atomic
from fedrecall.studies.tuning.space import Settings, apply_settings

SEARCH, TRIALS, TABLE, BEST = "search.toml", "trials.jsonl", "trials.csv", "best.toml"


@dataclass(frozen=True)
class Trial:
    """One run with some settings, scored on validation examples."""

    number: int  # from 1
    settings: Settings
    outcome: Literal["complete", "pruned", "failed"]  # failed: it diverged
    value: float | None  # mean validation accuracy of the last ten evaluated rounds; None if it was not complete
    curve: dict[int, float]  # validation accuracy by round
    seconds: float
    why: str = ""  # it failed


@dataclass(frozen=True)
class Journal:
    """Written a trial at a time: what an interrupted search goes on from."""

    folder: Path

    def begin(self, search: Tables) -> list[Trial]:
        """What was tried before, if it was the same search; else a new one."""
        file, text = self.folder / SEARCH, tomli_w.dumps(search)
        if not file.exists():
            if others := [p.name for p in self.folder.iterdir() if p.suffix != ".lock"]:
                text = f"{self.folder}: the folder is not a search, it contains {sorted(others)[0]}"
                raise UserError("tune.directory_not_empty", text, str(self.folder), "choose another --out")
            write_atomic(file, text.encode())
        try:
            old, new = (flatten(tables) for tables in map(tomllib.loads, (file.read_text(), text)))
            trials = [_trial(json.loads(line)) for line in self._lines()]
        except (OSError, ValueError, TypeError, KeyError) as error:
            text = f"{self.folder}: the files of the search are damaged ({error})"
            hint = "remove the folder or choose another --out"
            raise UserError("tune.damaged", text, str(self.folder), hint) from None
        free = tuple(f"config.{key}" for key in RESULT_NEUTRAL_KEYS)
        differences = [
            f"{key.removeprefix('config.')} was {old.get(key)}, is {new.get(key)}"
            for key in {**old, **new}
            if old.get(key) != new.get(key) and not key.startswith(free)
        ]
        if differences:
            text = f"{self.folder}: the folder contains a different search: {'; '.join(differences)}"
            raise UserError(
                "tune.cannot_resume", text, str(self.folder), "restore these settings or choose another --out"
            )
        return trials

    def add(self, trials: list[Trial]) -> None:
        """One more trial is finished: the last of these."""
        write_atomic(self.folder / TRIALS, "".join(json.dumps(asdict(trial)) + "\n" for trial in trials).encode())

    def write_best(self, experiment: Experiment, trials: list[Trial]) -> Path | None:
        """Write the table of trials, and the configuration with the best settings; returns where that is."""
        write_atomic(self.folder / TABLE, _csv(trials).encode())
        best = best_trial(trials)
        if best is None:
            return None
        tables = Experiment(**apply_settings(experiment.to_tables(), best.settings)).to_tables()
        head = (
            f"# Found by {len(trials)} trials: {format_settings(best.settings)}\n"
            f"# {100 * (best.value or 0):.2f} % on examples held out from the clients; the test set was not used.\n\n"
        )
        write_atomic(self.folder / BEST, (head + tomli_w.dumps(tables)).encode())
        return self.folder / BEST

    def _lines(self) -> list[str]:
        file = self.folder / TRIALS
        return file.read_text().splitlines() if file.exists() else []


def best_trial(trials: list[Trial]) -> Trial | None:
    """The complete trial of highest value, the earliest of several."""
    complete = [trial for trial in trials if trial.value is not None]
    return max(complete, key=lambda trial: (trial.value or 0.0, -trial.number), default=None)


def format_settings(settings: Settings) -> str:
    """As one would set them.

    >>> format_settings({"method.mu": 0.1, "method.tau": 2.0})
    'method.mu = 0.1, method.tau = 2'
    """
    return ", ".join(f"{key} = {value:.6g}" for key, value in settings.items())


def _trial(line: dict[str, Any]) -> Trial:
    curve = {int(number): float(accuracy) for number, accuracy in line.pop("curve").items()}
    return Trial(curve=curve, **line)


def _csv(trials: list[Trial]) -> str:
    out = io.StringIO()
    keys = list(trials[0].settings) if trials else []
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["trial", *keys, "outcome", "validation_accuracy", "rounds", "seconds"])
    for trial in trials:
        rounds = max(trial.curve, default=0)
        value = "" if trial.value is None else trial.value
        writer.writerow([trial.number, *trial.settings.values(), trial.outcome, value, rounds, trial.seconds])
    return out.getvalue()
