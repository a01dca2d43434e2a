"""Processes killed at random moments: the run resumes and ends with the same bits."""

import itertools
import random
import shutil
import time
from functools import partial
from pathlib import Path

import pytest
import tomli_w

import fedrecall as fr
from support.interrupted_run import difference, kill, kill_at_write, outcome, start_process, tables

pytestmark = pytest.mark.faults
RUNS = [("scaffold", "pool", 20), ("fedcsd", "pool", 15), ("fedgkd", "serial", 15)]  # 50 kills in all


@pytest.mark.parametrize(("method", "engine", "times"), RUNS)
def test_killed_at_random_moments(method: str, engine: str, times: int, tmp_path: Path, tally) -> None:
    config, rng = tables(method, engine), random.Random(method)
    complete = tmp_path / "complete"
    began = time.monotonic()
    start_process(partial(fr.run, config, out=complete)).join(120)
    lasts, expected = time.monotonic() - began, outcome(complete)
    count = tally(f"SIGKILL, {method} on {engine}")
    for i in range(3 * times):
        out = tmp_path / str(i)
        process = start_process(partial(fr.run, config, out=out))
        time.sleep(rng.uniform(0, lasts))
        kill(process)
        if (out / "summary.json").exists():
            count.note("finished before")  # and no try
            assert difference(out, expected) == ""
            continue
        if (out / "environment.json").exists():
            count.note("resumed")
            fr.run(config, out=out, resume=True)
        else:
            count.note("killed before its first round")
            shutil.rmtree(out, ignore_errors=True)
            fr.run(config, out=out)
        count.add(difference(out, expected))
        shutil.rmtree(out)
        if count.tried == times:
            break
    assert count.tried == times


@pytest.mark.parametrize("every", [1, 2])
def test_killed_in_the_middle_of_every_write(every: int, tmp_path: Path, tally) -> None:
    small = {"federation": {"clients": 4, "sample": 2}, "local": {"epochs": 1}}
    config = tables("scaffold", "serial", **small, run={"rounds": 5, "checkpoint_every": every})
    fr.run(config, out=tmp_path / "complete")
    expected = outcome(tmp_path / "complete")
    count = tally(f"SIGKILL in every write, a checkpoint every {every}")
    for write in itertools.count(1):
        out = tmp_path / str(write)
        process = start_process(partial(kill_at_write, config, out, write))
        process.join(60)
        if process.exitcode == 0:
            break
        resumable = (out / "environment.json").exists()
        if not resumable:
            shutil.rmtree(out, ignore_errors=True)
        if not (out / "summary.json").exists():
            fr.run(config, out=out, resume=resumable)
        count.add(difference(out, expected) or ("" if (out / "partition.json").exists() else "no partition"))
        shutil.rmtree(out)
    assert count.tried > 20


def test_a_comparison_killed_repeatedly(tmp_path: Path, tally) -> None:
    """The same command resumes the same folder until it is complete."""
    config, rng = tmp_path / "config.toml", random.Random(0)
    config.write_text(tomli_w.dumps({k: v for k, v in tables("fedavg", "pool").items() if k != "method"}))
    compare = partial(fr.compare, ["fedavg", "scaffold"], config=config, seeds=2)
    began = time.monotonic()
    undisturbed = start_process(partial(compare, out=tmp_path / "complete"))
    undisturbed.join(240)
    assert undisturbed.exitcode == 0
    lasts = time.monotonic() - began
    count, out = tally("SIGKILL, a comparison"), tmp_path / "killed"
    for _ in range(8):
        process = start_process(partial(compare, out=out))
        time.sleep(rng.uniform(0.1, 0.3) * lasts)
        kill(process)
        count.add()
    compare(out=out)
    cells = [path.parent.relative_to(tmp_path / "complete") for path in (tmp_path / "complete").rglob("rounds.jsonl")]
    assert len(cells) == 4
    count.lost += [
        f"{cell}: {lost}" for cell in cells if (lost := difference(out / cell, outcome(tmp_path / "complete" / cell)))
    ]
