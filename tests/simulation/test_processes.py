"""Real processes, as users start and stop them: scripts, the command line, Ctrl-C, kill -9."""

import json
import os
import signal
from pathlib import Path

import pytest

from support.processes import children, has_exited, shared_memory, start, until

SCRIPT = """
import os
from dataclasses import dataclass
import torch
from torch import nn
import fedrecall as fr

# This process computes with several threads before it has any worker.
torch.set_num_threads(2)
big = torch.randn(800, 800, requires_grad=True)
(big @ big).sum().backward()
nn.Conv2d(3, 8, 5)(torch.randn(64, 3, 32, 32)).sum().backward()

@dataclass(frozen=True)
class Mine(fr.Method):
    parent: int = 0

    def loss(self, s, r):
        assert os.getpid() != self.parent and torch.get_num_threads() == 1
        return super().loss(s, r) + 0 * s.w.sum()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(x.flatten(1))

print("begin")  # once: no worker runs this script again
torch.manual_seed(0)  # of the weights of Net, which are the initial ones
result = fr.run(fr.Experiment(method=Mine(os.getpid()), run={"rounds": 2}, local={"epochs": 1}), model=Net())
print("end", result.summary["rounds"], torch.get_num_threads())
"""


def test_an_unguarded_script_with_its_own_classes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    process = start("-W", "error", "script.py", cwd=tmp_path)
    out, err = process.communicate(timeout=180)
    assert err == ""
    assert out == "begin\nend 2 2\n"
    assert process.returncode == 0


def test_code_from_standard_input_as_a_notebook_has_it(tmp_path: Path) -> None:
    """The script is no file that a worker could import."""
    process = start("-c", SCRIPT, cwd=tmp_path)
    out, err = process.communicate(timeout=180)
    assert (out, err) == ("begin\nend 2 2\n", "")


SPAWNED = """
import fedrecall as fr
from fedrecall.simulation import processes

processes.default_start_method = lambda _: "spawn"  # as on other systems
fr.run(fr.Experiment(engine={"workers": 1}))
"""


def test_with_spawned_workers_an_unguarded_script_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SPAWNED)
    process = start("script.py", cwd=tmp_path)
    *_, last = process.communicate(timeout=180)[1].splitlines()
    assert "UserError: " in last
    assert "exit code 1" in last
    assert '`if __name__ == "__main__":`' in last
    assert process.returncode == 1


@pytest.fixture
def running(tmp_path: Path):
    """Start a run of the command line and wait for its workers and its first round."""
    before = shared_memory()
    settings = ["run.rounds=100000", "local.epochs=20", "engine.workers=2"]
    sets = [text for setting in settings for text in ("--set", setting)]
    process = start("-m", "fedrecall", "run", *sets, "--out", "out", cwd=tmp_path)
    rounds = tmp_path / "out" / "rounds.jsonl"
    until(lambda: rounds.exists() and rounds.read_text().count("\n") >= 1, seconds=180)
    workers = children(process.pid)
    assert len(workers) == 2
    yield process, workers, rounds
    if process.poll() is None:
        process.kill()
        process.communicate()
    assert shared_memory() == before


def test_a_killed_worker_is_replaced_and_ctrl_c_ends_all_processes(running) -> None:
    process, workers, rounds = running
    os.kill(workers[0], signal.SIGKILL)
    until(lambda: len(set(children(process.pid)) - {workers[0]}) == 2)
    workers += children(process.pid)
    done = rounds.read_text().count("\n")
    until(lambda: rounds.read_text().count("\n") > done, seconds=180)

    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    _, err = process.communicate(timeout=20)
    assert all(has_exited(pid) for pid in workers)
    assert process.returncode == 130
    assert err == ""
    lines = [json.loads(line) for line in rounds.read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, len(lines) + 1)), "they are kept"


def test_workers_do_not_outlive_their_parent(running) -> None:
    process, workers, _ = running
    process.kill()
    _, err = process.communicate(timeout=20)
    until(lambda: all(has_exited(pid) for pid in workers), seconds=5)
    assert err == ""
