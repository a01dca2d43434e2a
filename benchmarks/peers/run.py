"""Runs of peers on jobs, alternately, and the comparison of their results."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.peers import envs, ours
from benchmarks.peers.job import Job, learnable, repeated
from benchmarks.peers.meter import busy
from benchmarks.peers.task import network, pictures

Found = dict[str, Any]
PEERS = {"plain": "plain", "flower": "flower", "pfl": "pfl_research", "fedrecall": "ours"}  # peer -> module
# pfl-research's published CIFAR-10 setting: 1,000 users, 50 per round, server learning rate 1, equal weights
PFL_SETTING = {"clients": 1000, "images": 50, "sample": 50, "epochs": 1, "batch": 10, "lr": 0.1, "momentum": 0.0}
TASKS: dict[str, Found] = {  # task -> fields of its job
    "fedavg": {},
    "fedntd": {"method": "fedntd"},
    "small": PFL_SETTING | {"timed": 20},
    "pfl-cnn": PFL_SETTING | {"network": "pfl", "timed": 48},  # 50 rounds
}
FRAMEWORKS = ("flower", "pfl")  # the peers of the bounds
# maximum seconds per round, relative to each framework, or to the faster one
BOUNDS: dict[str, dict[str, float]] = {
    "fedavg": {"faster": 0.8},
    "fedntd": {"faster": 0.6},
    "small": {"pfl": 0.75, "flower": 0.25},
    "pfl-cnn": {"pfl": 1.0},
}
LIMIT = 900  # timeout of a run in seconds
QUIET = 0.1  # maximum number of cores used by other programs
TINY = {"clients": 4, "images": 100, "sample": None, "epochs": 1, "timed": 1}  # of --tiny


def one(peer: str, job: Job, folder: Path) -> Found:
    """Run a peer once, with the interpreter of its environment."""
    path = folder / f"{peer}.json"
    job.write(path)
    command = [str(envs.python(peer)), "-m", f"benchmarks.peers.{PEERS[peer]}", str(path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise RuntimeError(f"{peer} failed with exit code {process.returncode}:\n{errors[-4000:]}")
    return json.loads(lines[-1])


def weights(job: Job) -> torch.Tensor:
    """Return the final weights of a run."""
    return torch.from_numpy(np.load(job.out))


def train_loss(job: Job) -> float:
    """Return the cross-entropy of a run's final global model on the pictures of all clients."""
    net = network(job).eval()
    nn.utils.vector_to_parameters(weights(job), net.parameters())
    with torch.no_grad():
        losses = [F.cross_entropy(net(x), y) for x, y in (pictures(job, c) for c in range(job.clients))]
    return float(torch.stack(losses).mean())


def check(peers: list[str], tasks: list[str]) -> list[Found]:
    """Measure the distance of the peers' weights from fedrecall's on a job that does not depend on the batch order.

    The rows also have the distance from the initial weights, of which a single step is a few per cent. Sums in another
    order differ in the last bit, which sometimes changes a ReLU or a maximum. This effect is far smaller than a step.
    """
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        small = {"images": 100, "batch": 25, "epochs": 2, "timed": 1, "after": 1, "clients": 10, "sample": None}
        for task in tasks:
            job = variant = Job(str(folder), **TASKS[task]).but(**small, lr=0.01, momentum=0.9, dropout=False)
            job.save(**repeated(job.clients, job.images))
            job.save(init=ours.initial_weights(job))
            reference = variant.but(out=str(folder / "fedrecall.npy"))
            one("fedrecall", reference, folder)
            moved = float((weights(reference) - torch.from_numpy(np.array(job.array("init")))).abs().max())
            for peer in [peer for peer in peers if peer != "fedrecall"]:
                target = variant.but(out=str(folder / f"{peer}.npy"))
                found = one(peer, target, folder)
                far = float((weights(target) - weights(reference)).abs().max())
                if far > 5e-3 * moved or found["steps"] not in (None, job.steps):
                    raise RuntimeError(f"{peer} does not do the same {task} as fedrecall: it is {far} away, {found}")
                rows.append({"peer": peer, "task": task, "steps": found["steps"], "weights moved": moved, "far": far})
    return rows


def measure(peers: list[str], tasks: list[str], turns: int, patience: float, *, tiny: bool = False) -> list[Found]:
    """Return one row per peer and task: the best seconds, the largest memory, the final loss."""
    for peer in peers:
        envs.python(peer)
    best: dict[tuple[str, str], Found] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for task in tasks:
            job = Job(str(folder), **TASKS[task]).but(**(TINY if tiny else {}))
            job.save(**learnable(job.clients * job.images))
            job.save(init=ours.initial_weights(job))
            for turn in range(turns):
                for peer in peers:
                    variant = job.but(out=str(folder / f"{peer}.npy"))
                    wait_for_quiet(patience)
                    found = one(peer, variant, folder) | {"train_loss": train_loss(variant), "task": task}
                    pairs = zip(found["laps"], found["others"], strict=True)
                    laps = ", ".join(f"{lap:.2f} s ({others:.2f})" for lap, others in pairs)
                    print(f"turn {turn + 1}: {peer} {task} {laps}", file=sys.stderr)
                    best[task, peer] = better(best.get((task, peer)), found)
    return list(best.values())


def better(before: Found | None, now: Found) -> Found:
    """Merge two runs of a job: the laps of both, the best of them, and the larger memory."""
    laps, others = ((before[key] if before else []) + now[key] for key in ("laps", "others"))
    best = min(range(len(laps)), key=laps.__getitem__)
    memory = max(now["peak_memory_mb"], before["peak_memory_mb"] if before else 0.0)
    found = {"laps": laps, "others": others, "seconds_per_round": laps[best], "others_meanwhile": others[best]}
    found["mean_seconds"] = sum(laps) / len(laps)
    return now | found | {"peak_memory_mb": memory}


def wait_for_quiet(patience: float) -> None:
    """Wait until other programs use almost no core, at most this many seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before, began = busy(), time.monotonic()
        time.sleep(1)
        if busy() - before < QUIET * (time.monotonic() - began):
            return


def ratios(rows: list[Found]) -> list[Found]:
    """Return fedrecall's seconds and memory, relative to those of the frameworks of the task's bounds."""
    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        by_peer = {row["peer"]: row for row in rows if row["task"] == task}
        rivals = [by_peer[peer] for peer in FRAMEWORKS if peer in by_peer]
        if "fedrecall" not in by_peer or not rivals:
            continue
        for name, bound in BOUNDS[task].items():
            if name == "faster":
                found.append(_ratio(by_peer["fedrecall"], rivals, "seconds_per_round", bound))
                found.append(_ratio(by_peer["fedrecall"], rivals, "peak_memory_mb", 1.0))
            elif name in by_peer:
                found.append(_ratio(by_peer["fedrecall"], [by_peer[name]], "seconds_per_round", bound))
                found.append(_ratio(by_peer["fedrecall"], [by_peer[name]], "mean_seconds", None))
    return found


def _ratio(ours: Found, rivals: list[Found], what: str, bound: float | None) -> Found:
    """Return the ratio of a measurement to the smallest one of some rivals."""
    rival = min(rivals, key=lambda row: row[what])
    row = {"task": ours["task"], "what": what, "against": rival["peer"], "ratio": ours[what] / rival[what]}
    return row | ({} if bound is None else {"bound": bound})
