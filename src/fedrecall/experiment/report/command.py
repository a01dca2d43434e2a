"""The command that runs a study again."""

import json
import shlex

from fedrecall.experiment.results import Results
from fedrecall.experiment.settings import dotted


def repeat(results: Results) -> str:
    """What to type, in a place where the folder does not exist yet."""
    study = results.study
    if results.single:
        return shlex.join(["fedrecall", "run", str(results.folder / "config.toml"), "--out", "again"])
    words = ["fedrecall"]
    if study.paper is not None:
        words += ["reproduce", study.id, "--seeds", str(len(study.seeds))]
        words += ["--fraction", f"{study.fraction:g}"] if study.fraction < 1 else []
    else:
        words += ["compare", *study.rows, "--seeds", str(len(study.seeds))]
        for key, value in dotted(study.base).items():
            words += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join([*words, "--out", "again"])
