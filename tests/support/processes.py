"""Processes of the system, and scripts started as by a user."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def children(parent: int) -> list[int]:
    """Return the processes whose parent is this one."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return sorted(pid for pid in pids if _status(pid)[1] == parent)


def has_exited(pid: int) -> bool:
    """True if a process has ended (an orphan may stay a zombie if process 1 does not reap it)."""
    return _status(pid)[0] in "ZX"


def _status(pid: int) -> tuple[str, int]:
    """Return state and parent of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return fields[0], int(fields[1])


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def shared_memory() -> set[str]:
    """Return the names in /dev/shm that could be of this library."""
    return {p.name for p in Path("/dev/shm").iterdir() if p.name.startswith(("torch_", "psm_", "fedrecall"))}


def start(*args: object, cwd: Path) -> subprocess.Popen[str]:
    """Start Python with these arguments in a new process group, as under a terminal."""
    # A shell ignores SIGINT for its background jobs, and a child inherits that: Ctrl-C would do nothing in it.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(
            [sys.executable, *map(str, args)],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
