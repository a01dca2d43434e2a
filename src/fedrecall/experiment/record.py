"""A run directory: what was run, how it went, what came out. JSON, TOML and safetensors only."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import tomli_w
import torch
from torch import Tensor

import fedrecall
from fedrecall.core.rounds import Round
from fedrecall.data.datasets import Dataset
from fedrecall.engines import Failure
from fedrecall.errors import UserError
from fedrecall.experiment.setup import Setup
from fedrecall.files import write

Record = dict[str, Any]  # one round, as a line of rounds.jsonl
MANY_GROUPS = 20  # domains are reported one by one; thousands of writers are not


def record(r: Round, dataset: Dataset) -> Record:
    """What rounds.jsonl keeps of a round."""
    global_accuracy = None if r.score is None else r.score.accuracy
    out: Record = {
        "round": r.number,
        "accuracy": r.local_accuracy if r.personal else global_accuracy,
        "loss": None if r.score is None else r.score.mean_loss,
        "train_loss": r.train_loss,
        "seconds": round(r.seconds, 4),
        "bytes_up": r.bytes_up,
        "bytes_down": r.bytes_down,
        "clients": r.clients,
        "replies": r.replies,
    }
    if r.local_accuracy is not None:
        out["local_accuracy"] = r.local_accuracy
    if r.score is not None and dataset.test_groups is not None and len(dataset.group_names) <= MANY_GROUPS:
        right = (r.score.predicted == r.score.y).double()
        of = ((name, right[dataset.test_groups == g]) for g, name in enumerate(dataset.group_names))
        out["groups"] = {name: float(hits.mean()) for name, hits in of if len(hits)}
    return out


def summarise(records: Sequence[Record], initial: float, targets: Sequence[float]) -> dict[str, Any]:
    """Final, best and mean of the last ten accuracies, first rounds at the targets, and totals."""
    curve = [(r["round"], r["accuracy"]) for r in records if r["accuracy"] is not None]
    accuracies = [accuracy for _, accuracy in curve]
    best = max(accuracies, default=None)
    return {
        "rounds": len(records),
        "initial": initial,
        "final": accuracies[-1] if accuracies else None,
        "best": best,
        "best_round": next((number for number, accuracy in curve if accuracy == best), None),
        "last10": float(np.mean(accuracies[-10:])) if accuracies else None,
        "rounds_to_target": {
            str(target): next((number for number, accuracy in curve if accuracy >= target), None) for target in targets
        },
        "seconds": round(sum(r["seconds"] for r in records), 4),
        "bytes_up": sum(r["bytes_up"] * r["replies"] for r in records),
        "bytes_down": sum(r["bytes_down"] * len(r["clients"]) for r in records),
    }


def require_free(path: Path) -> None:
    """Refuse an output directory that holds anything."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = "holds another run" if (path / "config.toml").exists() else "exists and is not empty"
        raise UserError(f"the output directory {path} {what}: choose another --out, or remove it first")


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @classmethod
    def create(cls, path: Path, setup: Setup) -> "RunDirectory":
        """A new directory with all that is known before the first round."""
        require_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the output directory {path}: {error.strerror}") from None
        directory = cls(path)
        write(path / "config.toml", tomli_w.dumps(setup.experiment.tables()).encode())
        directory.write_json("environment.json", environment(setup))
        setup.dealt.partition.save(path, setup.dealt.clients.y.numpy(), setup.dealt.dataset.num_classes)
        return directory

    def append(self, line: Record, file: str = "rounds.jsonl") -> None:
        """One more round."""
        path = self.path / file
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as out:
            out.write(json.dumps(line) + "\n")

    def keep(self, failure: Failure) -> str:
        """The traceback of a client that failed; returns where it is."""
        folder = self.path / "failures"
        folder.mkdir(exist_ok=True)
        path = folder / f"round-{failure.t + 1}-client-{failure.client}.txt"
        write(path, failure.traceback.encode())
        return str(path)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """A JSON file, whole or not at all."""
        write(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Tensors under their names: the global model, for one."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        write(path, safetensors.torch.save(dict(tensors)))


def environment(setup: Setup) -> dict[str, Any]:
    """What the result may depend on besides the configuration."""
    return {
        "fedrecall": fedrecall.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "data": setup.dealt.dataset.fingerprint,
        "partition": setup.dealt.partition.hash,
        "parameters": len(setup.server.w),
    }
