"""Calls of the command line in this process, where torch is already imported."""

import sys

import pytest

from fedrecall import cli


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["fedrecall", *map(str, args)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    captured = capsys.readouterr()
    return int(exit_.value.code or 0), captured.out, captured.err
