"""Meter of seconds per round, load by other programs, and memory of a process tree. Standard library only.

As a process (`python -m benchmarks.peers.meter PID`), it samples the process tree of PID until it is stopped. It prints
the largest sum of proportional set sizes in MB: a page counts once, also if several processes share it. This is correct
only if no process outside the tree shares its pages; therefore every peer has its own copy of torch. A sample takes
milliseconds of kernel time for each process, so there are no samples while rounds are timed.
"""

import json
import os
import select
import subprocess
import sys
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from benchmarks.peers.job import Job

INTERVAL = 0.1
PAUSE, RESUME, LAP, STOP = b"p", b"r", b"l", b"s"
TICK = 1 / os.sysconf("SC_CLK_TCK")


class Stopwatch:
    """Meter of one run: start it before the first round, and call it at the end of each."""

    def __init__(self, job: "Job") -> None:
        self._job = job
        command = [sys.executable, "-m", "benchmarks.peers.meter", str(os.getpid())]
        self._meter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._ends = [time.perf_counter()]

    def lap(self) -> None:
        """Record the end of a round."""
        self._ends.append(time.perf_counter())
        done = len(self._ends) - 1
        if done == self._job.warmup:
            self._tell(PAUSE)
        self._tell(LAP)
        if done == self._job.warmup + self._job.timed:
            self._tell(RESUME)

    def report(self, peer: str, *packages: str, steps: float | None = None) -> None:
        """Print the measurements as one line of JSON."""
        self._tell(STOP)
        seen = json.loads(self._meter.communicate()[0])
        laps = [end - start for start, end in pairwise(self._ends)]
        timed = slice(self._job.warmup, self._job.warmup + self._job.timed)
        found = {
            "peer": peer,
            "method": self._job.method,
            "seconds_per_round": min(laps[timed]),
            "peak_memory_mb": seen["peak"],
            "versions": {name: version(name) for name in (*packages, "torch", "numpy")},
            "laps": laps[timed],
            "others": seen["others"][timed],  # cores used by other programs, in each of these laps
            "steps": steps,
        }
        print(json.dumps(found), flush=True)

    def _tell(self, word: bytes) -> None:
        assert self._meter.stdin is not None
        self._meter.stdin.write(word)
        self._meter.stdin.flush()


class Process(NamedTuple):
    """Entry of a process in /proc."""

    parent: int
    cpu: float  # seconds, with those of its children that have ended


def processes() -> dict[int, Process]:
    """Return all processes."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            found[int(entry.name)] = Process(int(fields[1]), sum(map(int, fields[11:15])) * TICK)
    return found


def tree(root: int, running: dict[int, Process]) -> set[int]:
    """Return a process and all its descendants, without the current process."""
    found, fresh = {root}, {root}
    while fresh:
        fresh = {pid for pid, process in running.items() if process.parent in fresh} - found
        found |= fresh
    return found & running.keys() - {os.getpid()}


def megabytes(pid: int) -> float:
    """Return the proportional set size of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def busy() -> float:
    """Return the busy seconds of the machine's cores since its start, and the stolen seconds."""
    user, nice, system, _, _, irq, soft, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft + stolen) * TICK


class Mark(NamedTuple):
    """Values of the clocks at one time."""

    time: float
    all: float
    own: float  # of the tree

    @classmethod
    def now(cls, root: int) -> "Mark":
        """Read the clocks."""
        running = processes()
        return cls(time.perf_counter(), busy(), sum(running[pid].cpu for pid in tree(root, running)))

    def others(self, before: "Mark") -> float:
        """Return the cores that programs outside the tree have used since then."""
        return max(0.0, (self.all - before.all - (self.own - before.own)) / (self.time - before.time))


def watch(root: int) -> dict[str, object]:
    """Sample until stopped; return the peak memory, and the load by other programs in each lap."""
    peak, looking, marks = 0.0, True, [Mark.now(root)]
    while True:
        if select.select([sys.stdin], [], [], INTERVAL if looking else None)[0]:
            word = os.read(sys.stdin.fileno(), 1)
            if word in (STOP, b""):
                return {"peak": peak, "others": [after.others(before) for before, after in pairwise(marks)]}
            if word == LAP:
                marks.append(Mark.now(root))
            else:
                looking = word == RESUME
        if looking:
            peak = max(peak, sum(map(megabytes, tree(root, processes()))))


if __name__ == "__main__":
    print(json.dumps(watch(int(sys.argv[1]))))
