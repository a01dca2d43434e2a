"""The command that runs a study again."""

import json
import shlex
from pathlib import Path

from fedrecall.experiment.report.runs import Runs
from fedrecall.experiment.results import Results
from fedrecall.experiment.settings import dotted


def repeat(results: Results) -> str:
    """What to type; a run directory has a command of its own."""
    study = results.study
    if results.single:
        return _run(results.folder)
    if isinstance(results, Runs):
        return "\n".join(_run(folder) for folder in results.places.values())
    words = ["fedrecall"]
    if study.paper is not None:
        words += ["reproduce", study.id, "--seeds", str(len(study.seeds))]
        words += ["--fraction", f"{study.fraction:g}"] if study.fraction < 1 else []
    else:
        words += ["compare", *study.rows, "--seeds", str(len(study.seeds))]
        for key, value in dotted(study.base).items():
            words += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join([*words, "--out", "again"])


def _run(folder: Path) -> str:
    again = folder.with_name(f"{folder.resolve().name}-again")
    return shlex.join(["fedrecall", "run", str(folder / "config.toml"), "--out", str(again)])
