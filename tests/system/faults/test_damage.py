"""Damaged checkpoints, full disks, reseeded global generators."""

import multiprocessing
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch

import fedrecall as fr
from support.interrupted_run import difference, outcome, tables

pytestmark = pytest.mark.faults


def interrupted(config: dict[str, object], out: Path, after: int) -> None:
    def stop(line: dict[str, object]) -> None:
        if line["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.run(config, out=out, watch=stop)


@pytest.mark.parametrize("flips", [1, 20])
def test_flipped_bytes_in_checkpoints(flips: int, tmp_path: Path, tally) -> None:
    config, rng = tables("scaffold", "serial", rounds=5), random.Random(flips)
    fr.run(config, out=tmp_path / "whole")
    expected = outcome(tmp_path / "whole")
    interrupted(config, tmp_path / "cut", after=4)
    count = tally(f"{flips} flipped bytes in a file of a checkpoint, or in the record")
    for i in range(30):
        out = tmp_path / str(i)
        shutil.copytree(tmp_path / "cut", out)
        checkpoints = sorted(p for p in (out / "checkpoints").rglob("*") if p.is_file())
        victim = rng.choice([*checkpoints, out / "rounds.jsonl"])
        content = bytearray(victim.read_bytes())
        for _ in range(flips):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        victim.write_bytes(content)
        fr.run(config, out=out, resume=True)
        count.add(difference(out, expected))
        shutil.rmtree(out)


def resume_if_stopped(config: dict[str, object], out: Path, code: str, message: str) -> None:
    """Resume a run that had no space, after an error of one line."""
    if message:
        assert code in ("run.disk_full", "run.cannot_write")
        assert "\n" not in message
        fr.run(config, out=out, resume=(out / "environment.json").exists())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system; only root can."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "fedrecall", disk], check=True, capture_output=True)
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("needs leave to mount a small file system: run as root; test_files_may_not_grow needs none")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)


def test_the_disk_is_full(small_disk: Path, tmp_path: Path, tally) -> None:
    config, rng = tables("scaffold", "serial"), random.Random(0)
    fr.run(config, out=tmp_path / "whole")
    expected = outcome(tmp_path / "whole")
    count = tally("full disk")
    sizes = [4, 8, 12, 16, 24, 32, 48, *(rng.randrange(64, 3000) for _ in range(23))]  # kilobytes
    for i, size in enumerate(sizes):
        out = small_disk / str(i)
        resize(small_disk, f"{size}k")
        code = message = ""
        try:
            fr.run(config, out=out)
        except fr.UserError as error:
            code, message = error.code, str(error)
        resize(small_disk, "64m")
        count.note("stopped" if message else "fitted")
        resume_if_stopped(config, out, code, message)
        count.add(difference(out, expected))
        shutil.rmtree(out)


def limited(config: dict[str, object], out: Path, size: int, connection: Connection) -> None:
    """Run with a limit on file sizes: the system ends a write at the limit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        fr.run(config, out=out)
        connection.send(("", ""))
    except fr.UserError as error:
        connection.send((error.code, str(error)))


def test_files_may_not_grow(tmp_path: Path, tally) -> None:
    """Like a full disk, without mounting one: no write beyond the limit, and half of one at it."""
    config, rng = tables("scaffold", "serial"), random.Random(0)
    fr.run(config, out=tmp_path / "whole")
    expected = outcome(tmp_path / "whole")
    largest = max(p.stat().st_size for p in (tmp_path / "whole").rglob("*"))
    count = tally("files that may not grow")
    for i, size in enumerate([0, 100, 500, *(rng.randrange(600, 2 * largest) for _ in range(22)), 10**9]):
        out = tmp_path / str(i)
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=limited, args=(config, out, size, theirs))
        child.start()
        theirs.close()
        code, message = ours.recv()
        child.join()
        count.note("stopped" if message else "fitted")
        resume_if_stopped(config, out, code, message)
        count.add(difference(out, expected))
        shutil.rmtree(out)


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_poisoned_generators(engine: str, tally) -> None:
    """Draws from the global generators and new seeds of them change no bit of a run."""
    rng = random.Random(0)

    def poison(_: object) -> None:
        number = rng.getrandbits(31)
        torch.manual_seed(number)
        np.random.seed(number)  # noqa: NPY002 (on purpose)
        random.seed(number)

    count = tally(f"poisoned generators, {engine}")
    for method in fr.METHODS:
        config = tables(method, engine, rounds=2)
        poison(None)
        expected = fr.run(config)
        poison(None)
        got = fr.run(config, watch=poison)
        count.add("" if torch.equal(got.server.state, expected.server.state) else method)
