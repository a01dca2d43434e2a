"""The process is killed at random moments; the run goes on and ends with the bits it would have had."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

import fedrecall as fr
from support.disturbed import begin, difference, outcome, tables
from support.processes import children, gone, until

pytestmark = pytest.mark.faults
RUNS = [("scaffold", "pool", 20), ("fedcsd", "pool", 15), ("fedgkd", "serial", 15)]  # 50 kills in all


@pytest.mark.parametrize(("method", "engine", "times"), RUNS)
def test_killed_at_random_moments(method: str, engine: str, times: int, tmp_path: Path, tally) -> None:
    given, rng = tables(method, engine), random.Random(method)
    whole = tmp_path / "whole"
    began = time.monotonic()
    begin(given, whole).join(120)
    lasts, expected = time.monotonic() - began, outcome(whole)
    count = tally(f"SIGKILL, {method} on {engine}")
    for i in range(3 * times):
        out = tmp_path / str(i)
        process = begin(given, out)
        time.sleep(rng.uniform(0, lasts))
        workers = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.join(20)
        until(lambda pids=workers: all(gone(pid) for pid in pids))
        if (out / "summary.json").exists() and not (out / "checkpoints").exists():
            count.note("finished before")  # and no try
            assert difference(out, expected) == ""
            continue
        if (out / "environment.json").exists():
            count.note("resumed")
            fr.run(given, out=out, resume=True)
        else:
            count.note("killed before its first round")
            shutil.rmtree(out, ignore_errors=True)
            fr.run(given, out=out)
        count.add(difference(out, expected))
        shutil.rmtree(out)
        if count.tried == times:
            break
    assert count.tried == times
