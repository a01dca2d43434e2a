"""More rounds for a finished run: the bits of a longer run, or the reason why not."""

from pathlib import Path

import pytest
import torch

import fedrecall as fr
from support.command import call

QUICK = {"federation": {"clients": 3, "sample": 2}, "local": {"epochs": 1}, "engine": {"name": "serial"}}


def without_seconds(records: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


@pytest.mark.parametrize("method", ["fedavg", "fedlmd", "fedgkd", "fedavgm"])
def test_more_rounds_have_the_bits_of_a_longer_run(method: str, tmp_path: Path) -> None:
    fr.run(QUICK, method=method, rounds=3, out=tmp_path / "short")
    extended = fr.run(out=tmp_path / "short", resume=True, rounds=5)
    longer = fr.run(QUICK, method=method, rounds=5, out=tmp_path / "long")
    assert torch.equal(extended.server.w, longer.server.w)
    assert without_seconds(extended.rounds) == without_seconds(longer.rounds)
    read = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("short", "long")]
    assert read[0] == read[1]
    assert (tmp_path / "short" / "config.toml").read_text() == (tmp_path / "long" / "config.toml").read_text()
    again = fr.run(out=tmp_path / "short", resume=True, rounds=6)
    assert again.summary["rounds"] == 6, "and once more"


def test_an_interrupted_extension_is_resumed(tmp_path: Path) -> None:
    fr.run(QUICK, rounds=2, out=tmp_path / "a")

    def stop(record: dict[str, object]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.run(out=tmp_path / "a", resume=True, rounds=4, watch=stop)
    resumed = fr.run(out=tmp_path / "a", resume=True)
    assert torch.equal(resumed.server.w, fr.run(QUICK, rounds=4).server.w)


@pytest.mark.parametrize(
    ("tables", "changes", "code"),
    [
        ({"method": {"name": "scaffold"}}, {"rounds": 3}, "run.cannot_extend"),
        ({"method": {"name": "ccvr"}}, {"rounds": 3}, "run.cannot_extend"),
        ({"local": {"epochs": 1, "schedule": {"name": "cosine"}}}, {"rounds": 3}, "run.cannot_extend"),
        ({"run": {"evaluate_every": 3}}, {"rounds": 3}, "run.cannot_extend"),
        ({"run": {"probe_every": 3, "local_accuracy": True}}, {"rounds": 3}, "run.cannot_extend"),
        ({}, {"rounds": 3, "lr": 0.5}, "run.cannot_extend"),
        ({}, {"rounds": 1}, "run.cannot_extend"),
        ({}, {}, "run.finished"),
    ],
    ids=[
        "client state",
        "last step",
        "schedule",
        "evaluation",
        "probes",
        "other settings",
        "fewer rounds",
        "no more rounds",
    ],
)
def test_rounds_that_cannot_be_added(
    tables: dict[str, object], changes: dict[str, int], code: str, tmp_path: Path
) -> None:
    fr.run(QUICK | tables, rounds=2, out=tmp_path / "a")
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir() if path.is_file()}
    with pytest.raises(fr.UserError) as error:
        fr.run(out=tmp_path / "a", resume=True, **changes)
    assert (error.value.code, error.value.key) == (code, str(tmp_path / "a"))
    after = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir() if path.is_file()}
    assert after == before


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fr.run(QUICK, rounds=1, out=tmp_path / "a")
    code, out, err = call(monkeypatch, capsys, "run", "--resume", tmp_path / "a", "--set", "run.rounds=2")
    assert (code, err) == (0, "")
    assert "2 rounds" in out
