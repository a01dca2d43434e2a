"""Output of commands: 80 columns, pipes, terminals without colours or cursor movement."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import call

SHORT = ["--set", "run.rounds=2", "--set", "local.epochs=1", "--set", "engine.name=serial"]


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        *([command, "--help"] for command in ("init", "run", "compare", "reproduce", "tune", "report", "doctor")),
        *(["show", subject] for subject in ("methods", "models", "partitions", "rules", "attacks", "datasets")),
        *(["show", subject] for subject in ("probes", "partition")),
        ["reproduce", "--list"],
        ["run", *SHORT, "--out", "r"],
        ["tune", "fedprox", "--trials", "1", *SHORT],
        ["init"],
    ],
    ids=" ".join,
)
def test_eighty_columns_in_a_pipe(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = call(monkeypatch, capsys, *args)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    if args[-1] == "--help":
        assert "\\" not in out, "an escape that was not removed"
    if args == ["--help"]:
        assert "..." not in out.partition("Commands:")[2], "a summary that is cut off"


def on_a_terminal(*args: str, cwd: Path, **environment: str) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fedrecall", *args]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=cwd, env=os.environ | environment) as process:
        os.close(theirs)
        output = b""
        try:
            while piece := os.read(ours, 1 << 16):
                output += piece
        except OSError:  # how Linux says that the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    return output.decode()


def test_a_terminal_that_cannot_redraw_gets_lines(tmp_path: Path) -> None:
    out = on_a_terminal("run", *SHORT, cwd=tmp_path, TERM="dumb")
    assert "\x1b" not in out
    assert "round 1/2  accuracy" in out
    assert "round 2/2  accuracy" in out


def test_no_colour_with_no_color(tmp_path: Path) -> None:
    plain = on_a_terminal("show", "probes", cwd=tmp_path, TERM="xterm-256color", NO_COLOR="1")
    assert "confusion" in plain
    assert not any(f"\x1b[{code}" in plain for code in ("3", "38;", "4"))
