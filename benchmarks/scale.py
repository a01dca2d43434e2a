"""Time and peak memory of a round by population, cohort and model size. Each case runs in a separate process."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.federation import Running, Work
from benchmarks.timing import seconds
from fedrecall.data.transforms import Transform
from fedrecall.methods import METHODS

CASES = {
    "population 1,000": Work(1_000, 1, 1, model="mlp", sample=10, shape=(1, 2, 2)),
    "population 10,000": Work(10_000, 1, 1, model="mlp", sample=10, shape=(1, 2, 2)),
    "population 100,000": Work(100_000, 1, 1, model="mlp", sample=10, shape=(1, 2, 2)),
    "population 1,000,000": Work(1_000_000, 1, 1, model="mlp", sample=10, shape=(1, 2, 2)),
    "cohort 10": Work(1_000, 20, 1, sample=10),
    "cohort 100": Work(1_000, 20, 1, sample=100),
    "cohort 1,000": Work(1_000, 20, 1, sample=1_000),
    "model 62 k (6/16 CNN)": Work(4, 50, 1),
    "model 2.2 M (32/64 CNN)": Work(4, 50, 1, model="cnn-32-64"),
    "model 23.5 M (ResNet-50)": Work(4, 4, 1, model="resnet50"),
}
"""The populations have images of four pixels, so that only the number of clients grows."""


def measure() -> list[dict[str, Any]]:
    """Return one row per case."""
    rows = []
    for name, work in CASES.items():
        command = [sys.executable, "-m", "benchmarks.scale", json.dumps(asdict(work))]
        rows.append(
            {"case": name, **json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)}
        )
    return rows


def peak_megabytes() -> float:
    """Return the sum of the peak memory of this process and its workers; shared pages count in each process."""
    own = [Path("/proc/self/status"), *Path("/proc/self/task").glob("*/children")]
    children = [pid for file in own[1:] for pid in file.read_text().split()]
    files = [own[0], *(Path(f"/proc/{pid}/status") for pid in children)]
    lines = (line for file in files for line in file.read_text().splitlines() if line.startswith("VmHWM"))
    return float(np.sum([int(line.split()[1]) for line in lines])) / 1024


if __name__ == "__main__":
    work = Work(**json.loads(sys.argv[1]))
    started: list[Running] = []
    to_start = seconds(lambda: started.append(Running(work, METHODS["fedavg"](), transform=Transform())))
    (running,) = started
    first = seconds(running.round)
    times = [seconds(running.round) for _ in range(3)]
    print(json.dumps({"start s": to_start, "first round s": first, "round s": min(times), "peak MB": peak_megabytes()}))
    running.close()
