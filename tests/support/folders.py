"""Folders of studies and runs made by hand: documented files, numbers from formulas."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedrecall.config.experiment import Experiment
from fedrecall.data.partition import Partition
from fedrecall.studies.study import Cell, Study

SIZES = (30, 10, 10)  # examples of three clients, two classes
Accuracy = Callable[[Cell, int], float]  # of a cell, after a round

ENVIRONMENT = {
    "fedrecall": "0.1",
    "python": "3.11.7",
    "torch": "2.6",
    "platform": "Linux",
    "cores": 2,
    "data": "ab" * 32,
}


def write_study(
    study: Study, folder: Path, accuracy: Accuracy, *, without: Collection[str] = (), **options: Any
) -> Path:
    """Write a study's folder with all its cells except those in `without`."""
    folder.mkdir(parents=True)
    study.save(folder)
    for cell in study.cells():
        if cell.folder not in without:
            write_run(study.experiment(cell), folder / cell.folder, lambda r, cell=cell: accuracy(cell, r), **options)
    return folder


def write_run(
    experiment: Experiment,
    path: Path,
    accuracy: Callable[[int], float],
    *,
    local: float | None = None,  # how much less the local models know
    groups: Collection[str] = (),
    finished: bool = True,
) -> Path:
    """Write a run directory; a negative accuracy means that the round failed."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(tomli_w.dumps(experiment.to_tables()))
    (path / "environment.json").write_text(json.dumps(ENVIRONMENT | {"partition": f"{experiment.run.seed:064x}"}))
    offsets = np.cumsum([0, *SIZES])
    partition = Partition(np.arange(offsets[-1]), offsets, int(offsets[-1]), {"name": "dirichlet"}, 0)
    partition.save(path, np.arange(offsets[-1]) % 2, 2)
    lines, failed = [], {}
    for number in range(1, experiment.run.rounds + 1):
        value = accuracy(number)
        if value < 0:
            failed = {"failed": f"round {number}: a loss is not finite"}
            break
        line = {"round": number, "accuracy": value, "loss": 1 - value, "train_loss": 1.5 - value, "seconds": 0.5}
        line |= {"bytes_up": 1000, "bytes_down": 2000, "clients": [0, number % 2 + 1], "replies": 2}
        line |= {} if local is None else {"local_accuracy": value - local}
        line |= {"groups": dict.fromkeys(groups, value)} if groups else {}
        lines.append(line)
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        reached = [line["accuracy"] for line in lines] or [None]
        last10 = sum(reached[-10:]) / len(reached[-10:]) if lines else None
        accuracies = {"final": reached[-1], "best": max(reached) if lines else None, "last10": last10}
        totals = {"seconds": 0.5 * len(lines), "bytes_up": 2000 * len(lines), "bytes_down": 4000 * len(lines)}
        (path / "summary.json").write_text(json.dumps({"rounds": len(lines), **accuracies, **totals, **failed}))
    return path
