"""Seconds a round, and the memory of a whole process tree. Standard library only.

Run as a process (`python -m benchmarks.peers.meter PID`), it looks at the tree of PID until it is told to stop, and
prints the largest sum of proportional set sizes it saw, in MB: every page counts once, however many processes share it.
That is right as long as nobody outside the tree shares its pages; therefore every peer has its own copy of torch.
Looking costs milliseconds of kernel time for each process, so it does not look while rounds are timed.
"""

import json
import os
import select
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.peers.job import Job

INTERVAL = 0.2
PAUSE, RESUME, STOP = b"p", b"r", b"s"


class Stopwatch:
    """Started before the first round, told of the end of each."""

    def __init__(self, job: "Job") -> None:
        self._job = job
        command = [sys.executable, "-m", "benchmarks.peers.meter", str(os.getpid())]
        self._meter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._ends = [time.perf_counter()]

    def lap(self) -> None:
        """A round has ended: its global model is there."""
        self._ends.append(time.perf_counter())
        done = len(self._ends) - 1
        if done == self._job.warmup:
            self._tell(PAUSE)
        if done == self._job.warmup + self._job.timed:
            self._tell(RESUME)

    def report(self, peer: str, *packages: str, steps: float | None = None) -> None:
        """Print what was measured as one line of JSON."""
        self._tell(STOP)
        peak, _ = self._meter.communicate()
        laps = [end - start for start, end in zip(self._ends[:-1], self._ends[1:], strict=True)]
        found = {
            "peer": peer,
            "method": self._job.method,
            "seconds_per_round": min(laps[self._job.warmup : self._job.warmup + self._job.timed]),
            "peak_memory_mb": float(peak),
            "versions": {name: version(name) for name in (*packages, "torch", "numpy")},
            "laps": laps,
            "steps": steps,
        }
        print(json.dumps(found), flush=True)

    def _tell(self, word: bytes) -> None:
        assert self._meter.stdin is not None
        self._meter.stdin.write(word)
        self._meter.stdin.flush()


def tree(root: int) -> list[int]:
    """A process and all its descendants, but this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it has ended
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, fresh = {root}, {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return sorted(found - {os.getpid()})


def megabytes(pid: int) -> float:
    """The proportional set size of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def watch(root: int) -> float:
    """Look until told to stop; returns the peak."""
    peak, looking = 0.0, True
    while True:
        if select.select([sys.stdin], [], [], INTERVAL if looking else None)[0]:
            word = os.read(sys.stdin.fileno(), 1)
            if word in (STOP, b""):
                return peak
            looking = word == RESUME
        if looking:
            peak = max(peak, sum(map(megabytes, tree(root))))


if __name__ == "__main__":
    print(watch(int(sys.argv[1])))
