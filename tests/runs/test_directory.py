"""The run directory: claimed by one process, complete or resumable after a kill, and one line when it is lost."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import fedrecall as fr
from fedrecall.files import TEMPORARY_NAME, write_atomic
from fedrecall.runs.directory import START_FILES, new_run_directory, remove_if_unused
from support.command import call
from support.interrupted_run import difference, kill_at_write, outcome, start_process, tables

CODES = ("[run.cannot_write]", "[run.not_a_directory]", "[study.cannot_write]")
SMALL = {"federation": {"clients": 4, "sample": 2}, "local": {"epochs": 1}}


def test_processes_that_start_at_the_same_time_get_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        paths = list(threads.map(new_run_directory, ["fedavg-digits"] * 20))
    assert len(set(paths)) == 20
    assert all(path.is_dir() for path in paths)


def test_a_claimed_directory_is_removed_only_if_it_was_not_used(tmp_path: Path) -> None:
    for name in ("unused", "used"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.lock").touch()
    (tmp_path / "used" / "config.toml").touch()
    for name in ("unused", "used", "missing"):
        remove_if_unused(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["used"]


def test_a_command_that_fails_at_its_start_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, _ = call(monkeypatch, capsys, "run", "--set", "data.name=cifar10", "--set", "data.root=nowhere")
    assert code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", range(1, len(START_FILES) + 1))
@pytest.mark.parametrize("resume", [False, True])
def test_a_start_that_was_killed_is_started_again(write: int, resume: bool, tmp_path: Path) -> None:
    """The same command works, and so does --resume if the configuration was written. A Flower server resumes so."""
    config = tables("fedavg", "serial", rounds=2, **SMALL)
    fr.run(config, out=tmp_path / "undisturbed")
    process = start_process(partial(kill_at_write, config, tmp_path / "killed", write))
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "environment.json").exists()
    fr.run(config, out=tmp_path / "killed", resume=resume and (tmp_path / "killed" / "config.toml").exists())
    assert difference(tmp_path / "killed", outcome(tmp_path / "undisturbed")) == ""
    assert not [path for path in (tmp_path / "killed").rglob("*") if TEMPORARY_NAME.fullmatch(path.name)]


def test_temporary_files_have_the_names_that_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", lambda *_: None)
    write_atomic(tmp_path / "model.safetensors", b"")
    assert [bool(TEMPORARY_NAME.fullmatch(path.name)) for path in tmp_path.iterdir()] == [True]
    assert not any(map(TEMPORARY_NAME.fullmatch, [*START_FILES, ".gitignore", "run.lock", ".a.b"]))


@pytest.mark.parametrize("every", [1, 100])
def test_a_directory_that_disappears_ends_the_run_with_one_line(every: int, tmp_path: Path) -> None:
    config = tables("scaffold", "serial", rounds=4, **SMALL)
    config["run"]["checkpoint_every"] = every

    def remove(record: dict[str, object]) -> None:
        if record["round"] == 2:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(fr.UserError) as error:
        fr.run(config, out=tmp_path / "run", watch=remove)
    assert (error.value.code, error.value.key) == ("run.cannot_write", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_disk_that_fails_ends_the_run_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a write or a sync names no file by itself."""

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def break_disk(record: dict[str, object]) -> None:
        monkeypatch.setattr(os, "fsync", fails)

    with pytest.raises(fr.UserError) as error:
        fr.run(tables("fedavg", "serial", rounds=3, **SMALL), out=tmp_path / "run", watch=break_disk)
    assert (error.value.code, error.value.key) == ("run.cannot_write", str(tmp_path / "run"))


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv: root may write everywhere")
def test_a_directory_that_loses_its_permission_ends_the_run_with_one_line(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
import fedrecall as fr
out = Path({str(tmp_path / "run")!r})
config = {{"engine": {{"name": "serial"}}, "local": {{"epochs": 1}}, "run": {{"rounds": 3, "checkpoint_every": 1}}}}
try:
    fr.run(config, out=out, watch=lambda record: out.chmod(0o500))
except fr.UserError as error:
    print(error.code)
"""
    without_override = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*without_override, sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["run.cannot_write"]


@pytest.mark.parametrize("out", ["/dev/null", "/dev/null/run", "x" * 300, "/".join(["y" * 200] * 30)])
def test_an_output_path_that_cannot_be_a_directory(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (["run"], ["compare", "fedavg", "--seeds", "1"]):
        code, _, err = call(monkeypatch, capsys, *command, "--out", out)
        assert code == 2
        assert "Traceback" not in err
        assert err.strip().splitlines()[-1].endswith(CODES), err


def test_resume_on_another_engine_drops_the_settings_of_the_first(tmp_path: Path) -> None:
    config = tables("fedavg", "pool", rounds=3, **SMALL)
    fr.run(config, out=tmp_path / "undisturbed")

    def stop(record: dict[str, object]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    config["run"]["checkpoint_every"] = 1
    with pytest.raises(KeyboardInterrupt):
        fr.run(config, out=tmp_path / "run", watch=stop)
    saved = tmp_path / "run" / "config.toml"
    assert "workers" in saved.read_text()
    fr.run(saved, overrides=["engine.name=serial"], out=tmp_path / "run", resume=True)
    assert difference(tmp_path / "run", outcome(tmp_path / "undisturbed")) == ""
