"""Federation on Flower's processes on loopback, its runs and their output."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedrecall.flower.app_template import write_app
from fedrecall.flower.processes import LocalDeployment
from fedrecall.runs.directory import ROUNDS_FILE, SUMMARY_FILE
from fedrecall.runs.result import Result

LONG = 1200.0  # seconds: only so that nothing hangs for ever, on however busy a machine

FAILED = re.compile(r"round (\d+): client (\d+) failed: .* \(task (\w+)\)")


class Federation:
    """Federation of three nodes, and the runs on it."""

    def __init__(self, daemons: LocalDeployment, config: Path, app: Path | None = None) -> None:
        self.daemons, self.config = daemons, config
        self.app = daemons.folder / "trial" if app is None else app
        if app is None:
            write_app(self.app, config, ["run.rounds=2"])

    def start(self, out: str, changes: str) -> "Run":
        return Run(self.daemons.start_run(self.app, f'out="{self.daemons.folder / out}" set="{changes}"'))

    def rounds(self, run: "Run", out: str) -> int:
        """Read the output of a run to its end and return the number of rounds in its summary, 0 without one."""
        run.until(None)
        summary = self.daemons.folder / out / SUMMARY_FILE
        return int(json.loads(summary.read_text())["rounds"]) if summary.exists() else 0

    def records(self, out: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.daemons.folder / out / ROUNDS_FILE).read_text().splitlines()]

    def same(self, out: str, expected: Result) -> bool:
        got, meant = load_file(self.daemons.folder / out / "model.safetensors"), expected.model().state_dict()
        return got.keys() == meant.keys() and all(torch.equal(got[name], meant[name]) for name in got)


class Run:
    """Output of `flwr run`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.heard = process, list[str]()

    def until(self, pattern: str | None) -> bool:
        """Read lines until one matches this pattern, or to the end."""
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            self.heard.append(raw.decode(errors="replace"))
            if pattern and re.search(pattern, self.heard[-1]):
                return True
        return False

    @property
    def missing(self) -> set[tuple[int, int, str]]:
        found = (FAILED.search(line) for line in self.heard)
        return {(int(m[1]), int(m[2]), m[3]) for m in found if m}


def is_running(daemons: LocalDeployment, name: str) -> bool:
    return daemons.processes[name].poll() is None


def at_work(daemons: LocalDeployment, name: str) -> bool:
    """True if a node's client is training or about to: Flower starts a process for it."""
    group = daemons.processes[name].pid
    return any("flwr-clientapp" in command_line(pid) and os.getpgid(pid) == group for pid in processes())


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
