"""A resumed run ends with the bits of an uninterrupted one, or is an error."""

import json
import logging
import multiprocessing
import shutil
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import fedrecall as fr
from fedrecall.config.tables import merge_tables
from fedrecall.runs.directory import LOCK_FILE

SMALL = {
    "federation": {"clients": 6, "sample": 3, "partition": {"name": "dirichlet", "alpha": 0.3}},
    "local": {"epochs": 1},
    "data": {"aux_per_class": 4},
}


def tables(method: str = "scaffold", engine: str = "serial", **run: object) -> dict[str, object]:
    return SMALL | {"method": {"name": method}, "engine": {"name": engine}, "run": {"rounds": 4} | run}


def interrupt(config: dict[str, object], out: Path, after: int, **objects: object) -> None:
    """Run, and interrupt after this number of rounds, as Ctrl-C does."""

    def stop(line: dict[str, object]) -> None:
        if line["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.run(config, out=out, watch=stop, **objects)


def same(a: fr.Result, b: fr.Result) -> None:
    """Compare all bits except the time."""
    assert torch.equal(a.server.state, b.server.state)
    assert all(torch.equal(t, b.server.extra[name]) for name, t in a.server.extra.items())
    timeless = [[{k: v for k, v in line.items() if k != "seconds"} for line in r.rounds] for r in (a, b)]
    assert timeless[0] == timeless[1]
    assert a.probes == b.probes
    assert {k: v for k, v in a.summary.items() if k != "seconds"} == {
        k: v for k, v in b.summary.items() if k != "seconds"
    }


@pytest.mark.parametrize("method", fr.METHODS)
def test_every_method_resumes_to_the_same_bits(method: str, tmp_path: Path) -> None:
    expected = fr.run(tables(method))
    interrupt(tables(method), tmp_path / "a", after=2)
    assert not (tmp_path / "a" / "summary.json").exists()
    resumed = fr.run(tables(method), out=tmp_path / "a", resume=True)
    same(resumed, expected)
    lines = [json.loads(line) for line in (tmp_path / "a" / "rounds.jsonl").read_text().splitlines()]
    assert lines == resumed.rounds


def test_on_another_engine_with_probes_and_server_momentum(tmp_path: Path) -> None:
    run = {"probes": ["local", "confusion"], "checkpoint_every": 2, "rounds": 6}
    complete = tables("fedgkd", **run) | {"server": {"momentum": 0.5}}
    expected = fr.run(complete)
    interrupt(complete, tmp_path / "a", after=3)
    other = complete | {"engine": {"name": "pool", "workers": 2}}
    interrupted_again = 5
    with pytest.raises(KeyboardInterrupt):
        fr.run(other, out=tmp_path / "a", resume=True, watch=lambda line: _stop_at(line, interrupted_again))
    same(fr.run(complete, out=tmp_path / "a", resume=True), expected)


def test_forgetting_is_measured_on_the_model_that_was_received_after_a_resume_too(tmp_path: Path) -> None:
    forgotten = tables("fedexp", probes=["forgotten"])  # it evaluates another model than it sends
    expected = fr.run(forgotten)
    interrupt(forgotten, tmp_path / "a", after=2)
    same(fr.run(forgotten, out=tmp_path / "a", resume=True), expected)


def _stop_at(line: dict[str, object], number: int) -> None:
    if line["round"] == number:
        raise KeyboardInterrupt


def test_interrupted_before_the_first_checkpoint(tmp_path: Path) -> None:
    interrupt(tables(checkpoint_every=3), tmp_path / "a", after=1)
    same(fr.run(tables(), out=tmp_path / "a", resume=True), fr.run(tables()))


def test_a_finished_run_leaves_no_checkpoint_and_cannot_be_resumed(tmp_path: Path) -> None:
    fr.run(tables(), out=tmp_path / "a")
    assert not (tmp_path / "a" / "checkpoints").exists()
    assert not (tmp_path / "a" / LOCK_FILE).exists()
    with pytest.raises(fr.UserError) as error:
        fr.run(tables(), out=tmp_path / "a", resume=True)
    assert (error.value.code, error.value.key) == ("run.finished", str(tmp_path / "a"))


@pytest.mark.parametrize("part", ["round-000003.json", "round-000003.safetensors", "memories"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_skipped(
    part: str, damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    interrupt(tables(), tmp_path / "a", after=3)
    folder = tmp_path / "a" / "checkpoints"
    newest = max((folder / "memories").iterdir(), key=lambda path: int(path.stem.partition("-")[2]))
    path = newest if part == "memories" else folder / part
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    with caplog.at_level(logging.WARNING):
        resumed = fr.run(tables(), out=tmp_path / "a", resume=True)
    if (part, damage) != ("round-000003.json", "remove"):  # without its manifest it never was a checkpoint
        assert [warning.args[0] for warning in caplog.records] == [3], "the round of the damaged checkpoint"
    same(resumed, fr.run(tables()))


@pytest.mark.parametrize(("line", "from_round"), [(3, 2), (1, 0)])
@pytest.mark.parametrize("file", ["rounds.jsonl", "probes/cohort.jsonl"])
def test_an_altered_record_is_an_error(
    file: str, line: int, from_round: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The record is a part of a checkpoint: a run with another record is not resumed."""
    config = tables(probes=["cohort"])
    interrupt(config, tmp_path / "a", after=3)
    path = tmp_path / "a" / file
    lines = path.read_text().splitlines(keepends=True)
    before = lines[line - 1]
    key = next(key for key in ("bytes_up", "labels") if key in before)
    at = before.index(key) + len(key) + 4
    lines[line - 1] = before[:at] + str(9 - int(before[at])) + before[at + 1 :]
    path.write_text("".join(lines))
    records = []
    with caplog.at_level(logging.WARNING):
        resumed = fr.run(config, out=tmp_path / "a", resume=True, watch=lambda line: records.append(line["round"]))
    assert caplog.records[0].args[0] == 3, "the round of the damaged checkpoint"
    assert str(path) in caplog.records[0].args[1]
    assert records[0] == from_round + 1
    same(resumed, fr.run(config))


@pytest.mark.parametrize("damage", [b"\xff\xfe", b'{"rouod": 1}\n', b"7\n", b'{"round": "1"}\n', b""])
def test_an_unreadable_record_is_written_again(damage: bytes, tmp_path: Path) -> None:
    interrupt(tables(), tmp_path / "a", after=2)
    (tmp_path / "a" / "rounds.jsonl").write_bytes(damage)
    same(fr.run(tables(), out=tmp_path / "a", resume=True), fr.run(tables()))


def test_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    interrupt(tables(rounds=6), tmp_path / "a", after=5)
    folder = tmp_path / "a" / "checkpoints"
    leftovers = [
        folder / ".round-000006.json.x1",
        folder / "memories" / "0-99.safetensors",
        folder / "memories" / ".0-9.x",
    ]
    for path in leftovers:
        path.write_bytes(b"half")
    with pytest.raises(KeyboardInterrupt):
        fr.run(tables(rounds=6), out=tmp_path / "a", resume=True, watch=lambda line: _stop_at(line, 6))
    assert not [path for path in leftovers if path.exists()]


def test_a_finished_run_whose_checkpoints_were_not_all_removed_is_finished(tmp_path: Path) -> None:
    interrupt(tables(), tmp_path / "a", after=3)
    shutil.copytree(tmp_path / "a" / "checkpoints", tmp_path / "left")
    fr.run(tables(), out=tmp_path / "a", resume=True)
    (tmp_path / "left" / "round-000003.safetensors").unlink()
    shutil.copytree(tmp_path / "left", tmp_path / "a" / "checkpoints")
    with pytest.raises(fr.UserError) as error:
        fr.run(tables(), out=tmp_path / "a", resume=True)
    assert (error.value.code, error.value.key) == ("run.finished", str(tmp_path / "a"))


def test_force_resumes_where_the_model_fits(tmp_path: Path) -> None:
    interrupt(tables("fedavg"), tmp_path / "a", after=2)
    other = tables("fedavg") | {"model": {"name": "mlp", "hidden": [7]}}
    before = {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    with pytest.raises(fr.UserError) as error:
        fr.run(other, out=tmp_path / "a", resume=True, force=True)
    assert (error.value.code, error.value.key) == ("run.other_model", str(tmp_path / "a"))
    assert before == {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}, "nothing is touched"
    with pytest.raises(KeyboardInterrupt):
        fr.run(tables("scaffold"), out=tmp_path / "a", resume=True, force=True, watch=lambda line: _stop_at(line, 3))
    assert fr.Experiment.load(tmp_path / "a" / "config.toml").to_tables()["method"]["name"] == "scaffold", "it is now"
    forced = fr.run(tables("scaffold"), out=tmp_path / "a", resume=True)
    assert [line["round"] for line in forced.rounds] == [1, 2, 3, 4]
    (admitted,) = json.loads((tmp_path / "a" / "environment.json").read_text())["forced"]
    assert admitted["after"] == 2
    assert "method.name was fedavg, is scaffold" in admitted["changed"]


def test_force_adds_a_metric(tmp_path: Path) -> None:
    interrupt(tables("fedavg", metrics=["accuracy"]), tmp_path / "a", after=2)
    more = tables("fedavg", metrics=["accuracy", "macro_f1"])
    result = fr.run(more, out=tmp_path / "a", resume=True, force=True)
    values = [record["metrics"]["macro_f1"] for record in result.rounds[2:]]
    assert result.summary["metrics"]["macro_f1"]["last10"] == pytest.approx(sum(values) / 2)


class FailsOnce(fr.Method):
    """Raises an exception in every client until a file exists."""

    repaired: Path

    def loss(self, s: fr.Step, r: fr.Local) -> torch.Tensor:
        if not self.repaired.exists():
            raise ZeroDivisionError
        return super().loss(s, r)


def test_a_run_that_fails_in_its_first_round_is_resumed(tmp_path: Path) -> None:
    FailsOnce.repaired = tmp_path / "repaired"
    with pytest.raises(fr.UserError):
        fr.run(tables(), method=FailsOnce(), out=tmp_path / "a")
    FailsOnce.repaired.touch()
    resumed = fr.run(tables(), method=FailsOnce(), out=tmp_path / "a", resume=True)
    assert torch.equal(resumed.server.w, fr.run(tables("fedavg")).server.w)


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_an_edited_configuration_in_the_directory_is_an_error(engine: str, tmp_path: Path) -> None:
    interrupt(tables(engine=engine), tmp_path / "a", after=2)
    file = tmp_path / "a" / "config.toml"
    assert "epochs = 1" in file.read_text()
    file.write_text(file.read_text().replace("epochs = 1", "epochs = 2"))
    with pytest.raises(fr.UserError) as error:
        fr.run(file, out=tmp_path / "a", resume=True)
    assert (error.value.code, error.value.key) == ("run.cannot_resume", str(tmp_path / "a"))
    assert "local.epochs was 1, is 2" in str(error.value)


def test_only_two_checkpoints_are_kept(tmp_path: Path) -> None:
    interrupt(tables(rounds=6), tmp_path / "a", after=5)
    folder = tmp_path / "a" / "checkpoints"
    assert sorted(p.name for p in folder.glob("*.json")) == ["round-000004.json", "round-000005.json"]
    named = {n for p in folder.glob("*.json") for n in json.loads(p.read_text())["memories"]}
    assert {p.name for p in (folder / "memories").iterdir()} == named, "memories that no checkpoint names are gone"


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"local": {"epochs": 2}}, ["local.epochs was 1, is 2"]),
        ({"run": {"rounds": 4, "seed": 1}}, ["run.seed was 0, is 1", "partition (environment)"]),
        ({"method": {"name": "fedavg"}}, ["method.name was scaffold, is fedavg"]),
        ({"federation": SMALL["federation"] | {"clients": 7}}, ["federation.clients was 6, is 7"]),
    ],
)
def test_every_changed_key_of_the_configuration_is_an_error(
    change: dict[str, object], changed: list[str], tmp_path: Path
) -> None:
    interrupt(tables(), tmp_path / "a", after=2)
    before = {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    with pytest.raises(fr.UserError) as error:
        fr.run(tables() | change, out=tmp_path / "a", resume=True)
    assert (error.value.code, error.value.key) == ("run.cannot_resume", str(tmp_path / "a"))
    assert all(difference in str(error.value) for difference in changed)
    assert before == {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}, "nothing is touched"


def test_a_key_that_an_earlier_version_did_not_have_had_its_default(tmp_path: Path) -> None:
    interrupt(tables(), tmp_path / "a", after=2)
    file = tmp_path / "a" / "environment.json"
    recorded = json.loads(file.read_text())
    del recorded["config"]["run.probe_every"], recorded["config"]["federation.partition.min_size"]
    file.write_text(json.dumps(recorded))
    with pytest.raises(fr.UserError) as error:
        fr.run(merge_tables(tables(), {"run": {"probe_every": 2}}), out=tmp_path / "a", resume=True)
    assert "run.probe_every was 1, is 2" in str(error.value)
    same(fr.run(tables(), out=tmp_path / "a", resume=True), fr.run(tables()))


def test_other_data_and_versions_are_errors_without_force(tmp_path: Path) -> None:
    interrupt(tables(), tmp_path / "a", after=2)
    file = tmp_path / "a" / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"data": "another", "torch": "1.0"}))
    with pytest.raises(fr.UserError) as error:
        fr.run(tables(), out=tmp_path / "a", resume=True)
    assert (error.value.code, error.value.key) == ("run.cannot_resume", str(tmp_path / "a"))
    assert "torch (environment) was 1.0" in str(error.value)
    assert "data (environment) was another" in str(error.value)
    assert "--force" in str(error.value.hint)
    same(fr.run(tables(), out=tmp_path / "a", resume=True, force=True), fr.run(tables()))


def test_another_kind_of_processor_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interrupt(tables(), tmp_path / "a", after=2)
    file = tmp_path / "a" / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"cpu": "VSX"}))
    with caplog.at_level(logging.WARNING):
        fr.run(tables(), out=tmp_path / "a", resume=True)
    (warning,) = caplog.records
    assert warning.args[:2] == (tmp_path / "a", "VSX")


def test_other_folders_are_no_run_directories(tmp_path: Path) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(tables(), out=tmp_path / "nothing", resume=True)
    assert (error.value.code, error.value.key) == ("run.not_a_run", str(tmp_path / "nothing"))
    with pytest.raises(fr.UserError) as error:
        fr.run(tables(), resume=True)
    assert (error.value.code, error.value.key) == ("run.needs_directory", "resume")


def _hold(path: str, ready: object, done: object) -> None:
    with FileLock(path):
        ready.set()  # type: ignore[attr-defined]
        done.wait(30)  # type: ignore[attr-defined]


def test_two_processes_cannot_run_in_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrecall.runs.directory.RUN_LOCK_TIMEOUT", 0.1)
    interrupt(tables(), tmp_path / "a", after=2)
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path / "a" / LOCK_FILE), ready, done))
    other.start()
    assert ready.wait(30)
    with pytest.raises(fr.UserError) as error:
        fr.run(tables(), out=tmp_path / "a", resume=True)
    assert (error.value.code, error.value.key) == ("run.directory_in_use", str(tmp_path / "a"))
    done.set()
    other.join()
    fr.run(tables(), out=tmp_path / "a", resume=True)


def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write fails as on a full disk: half of the content is written."""
    import errno

    from fedrecall import files

    written = {"n": 0}
    real = files.os.fsync

    def full(fd: int) -> None:
        written["n"] += 1
        if written["n"] > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(fr.UserError) as error:
        fr.run(tables(rounds=8), out=tmp_path / "a")
    assert (error.value.code, error.value.key) == ("run.disk_full", str(tmp_path / "a"))
    assert f"--resume {tmp_path / 'a'}" in str(error.value.hint)
    monkeypatch.setattr(files.os, "fsync", real)
    same(fr.run(tables(rounds=8), out=tmp_path / "a", resume=True), fr.run(tables(rounds=8)))


def test_runs_with_users_data_and_model_resume_too(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(120, 5, generator=rng), torch.randint(0, 3, (120,), generator=rng)
    objects = {"data": (x.numpy(), y.numpy()), "model": torch.nn.Linear(5, 3)}
    config = {"federation": {"clients": 3}, "engine": {"name": "serial"}, "run": {"rounds": 4}}
    expected = fr.run(config, **objects)
    interrupt(config, tmp_path / "a", after=2, **objects)
    same(fr.run(config, out=tmp_path / "a", resume=True, **objects), expected)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    other = objects | {"data": ((x + 1).numpy(), y.numpy())}
    (tmp_path / "b" / "summary.json").unlink()
    with pytest.raises(fr.UserError) as error:
        fr.run(config, out=tmp_path / "b", resume=True, **other)
    assert (error.value.code, error.value.key) == ("run.cannot_resume", str(tmp_path / "b"))
    assert "data (environment)" in str(error.value)
