"""Runs that are interrupted, and the comparison of their results."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import fedrecall as fr
from support.processes import children, has_exited, until


def tables(method: str, engine: str, rounds: int = 8, **sections: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a run of about a second."""
    config = {
        "federation": {"clients": 8, "sample": 4, "partition": {"name": "dirichlet", "alpha": 0.3}},
        "local": {"epochs": 2},
        "data": {"aux_per_class": 4},
        "method": {"name": method},
        "engine": {"name": engine} | ({"workers": 2} if engine == "pool" else {}),
        "run": {"rounds": rounds},
    }
    return config | sections


def outcome(directory: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Return the model and the records of a run, without times."""
    lines = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    return safetensors.torch.load_file(directory / "model.safetensors"), timeless


def difference(directory: Path, expected: tuple[dict[str, torch.Tensor], list[dict[str, Any]]]) -> str:
    """Return the difference from the uninterrupted run, an empty text if there is none."""
    try:
        tensors, lines = outcome(directory)
    except (OSError, ValueError) as error:
        return str(error)
    if lines != expected[1]:
        return "other rounds"
    same = all(torch.equal(t, tensors[name]) for name, t in expected[0].items())
    return "" if same and tensors.keys() == expected[0].keys() else "other weights"


def _child(task: Callable[[], object]) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    task()


def start_process(task: Callable[[], object]) -> multiprocessing.Process:
    """Start a task in a process that leads its process group: forked, because importing torch takes longer."""
    process = multiprocessing.get_context("fork").Process(target=_child, args=(task,))
    process.start()
    return process


def kill(process: multiprocessing.Process) -> None:
    """Kill a process by SIGKILL, and wait until its workers have exited."""
    assert process.pid is not None
    workers = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.join(20)
    until(lambda: all(has_exited(pid) for pid in workers))


def kill_at_write(config: dict[str, object], out: Path, write: int) -> None:
    """Run, and kill the process in the middle of its n-th write to the disk."""
    real, writes = os.fsync, iter(range(1, write + 1))

    def fsync(handle: int) -> None:
        if next(writes, None) == write:
            os.kill(os.getpid(), signal.SIGKILL)
        real(handle)

    os.fsync = fsync
    fr.run(config, out=out)
