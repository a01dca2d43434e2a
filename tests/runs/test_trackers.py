"""Trackers, read back with the tools' own readers."""

import json
import logging
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedrecall as fr
from fedrecall.errors import UserError
from fedrecall.runs.trackers import TRACKERS, SafeTracker

METRICS = ("accuracy", "loss", "train_loss", "local_accuracy", "seconds", "bytes_up", "bytes_down")


CLIENTS = {"mean": 0.5, "weighted": 0.75, "worst_tenth": None, "undefined": 1, "by_client": [0.5, None]}
HELD_OUT = {
    "metrics": {"macro_f1": 0.125, "auroc": None},
    "validation": {"examples": 8, "accuracy": 0.375},
    "client_test": {"model": "global", "clients": [0, 1], "examples": [4, 4], "macro_f1": CLIENTS},
}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the tools' settings from the environment; no data may leave the machine."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the tracker sets it as well; this takes it back


@pytest.fixture(scope="module")
def result() -> fr.Result:
    run = {"rounds": 3, "local_accuracy": True, "evaluate_every": 2, "targets": (0.5,)}
    return fr.run({"local": {"epochs": 1}, "run": run, "method": {"name": "fedprox", "mu": 0.01}})


def track(name: str, result: fr.Result, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with SafeTracker(name) as tracking:
        tracking.start(result.experiment.to_tables(), directory)
        for record in result.rounds:
            tracking.round(record | {"groups": {"a/b": 0.25}} | HELD_OUT)
        tracking.finish(result.summary)


def expected(result: fr.Result, metric: str) -> list[tuple[int, float]]:
    return [(line["round"], line[metric]) for line in result.rounds if line.get(metric) is not None]


def test_tensorboard(result: fr.Result, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    track("tensorboard", result, tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for metric in METRICS:
        found = {event.step: event.value for event in events.Scalars(metric)}
        assert found == pytest.approx(dict(expected(result, metric)), rel=1e-6), metric
    assert len(events.Scalars("accuracy")) == 2, "the first round is not evaluated"
    assert events.Scalars("groups/a_b")[0].value == 0.25
    assert events.Scalars("metrics/macro_f1")[0].value == 0.125
    assert events.Scalars("validation/accuracy")[0].value == 0.375
    assert events.Scalars("client_test/macro_f1/weighted")[0].value == 0.75
    undefined = {"metrics/auroc", "client_test/macro_f1/worst_tenth"}
    assert not undefined & set(events.Tags()["scalars"]), "a metric that is not defined is not logged"
    assert events.Scalars("result/final")[0].value == pytest.approx(result.summary["final"])
    text = events.Tensors("configuration/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "mu = 0.01" in text
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["method.name"].string_value == "fedprox"
    assert hparams["local.epochs"].number_value == 1


def test_a_run_is_tracked_by_one_setting(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tables = {"local": {"epochs": 1}, "run": {"rounds": 2, "track": "tensorboard"}}
    tracked = fr.run(tables, out=tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("accuracy")] == [1, 2]
    alone = fr.run({"local": {"epochs": 1}, "run": {"rounds": 2}})
    assert alone.summary["final"] == tracked.summary["final"], "to be watched changes nothing"


def mlflow_run(uri: str):
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("fedrecall")
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run


def test_mlflow(result: fr.Result, tmp_path: Path) -> None:
    directory = tmp_path / "cells" / "fedprox" / "all" / "seed-0"
    track("mlflow", result, directory)
    client, run = mlflow_run((directory / "mlruns").as_uri())
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "fedprox/all/seed-0"
    for metric in METRICS:
        history = client.get_metric_history(run.info.run_id, metric)
        assert [(point.step, point.value) for point in history] == expected(result, metric), metric
    assert run.data.metrics["result/best"] == result.summary["best"]
    assert run.data.metrics["groups/a_b"] == 0.25
    assert run.data.metrics["client_test/macro_f1/mean"] == 0.5
    tables = result.experiment.to_tables()
    assert run.data.params["method.mu"] == "0.01"
    assert run.data.params["federation.partition.alpha"] == str(tables["federation"]["partition"]["alpha"])
    assert run.data.params["run.targets"] == "[0.5]"
    assert {key.partition(".")[0] for key in run.data.params} == set(tables), "all sections are there"


def test_mlflow_uses_the_address_of_the_environment(
    result: fr.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "elsewhere").as_uri())
    track("mlflow", result, tmp_path / "run")
    assert not (tmp_path / "run" / "mlruns").exists()
    assert mlflow_run((tmp_path / "elsewhere").as_uri())[1].info.status == "FINISHED"


def wandb_records(path: Path) -> Iterator:
    """Return the records of an offline run's file: a LevelDB log of protobuf messages after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, message = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # no header fits into the rest of a block
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        message += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(message)
            message = b""


def test_wandb_is_offline_by_default(
    result: fr.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import wandb

    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # its settings and caches
    track("wandb", result, tmp_path / "run")
    wandb.teardown()  # its service process, which writes the file after it has told us that the run is finished
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    records = list(wandb_records(file))
    config = {item.key: json.loads(item.value_json) for r in records for item in r.run.config.update}
    assert config["method"] == result.experiment.to_tables()["method"]
    history = [
        {i.key or i.nested_key[0]: json.loads(i.value_json) for i in r.history.item}
        for r in records
        if r.HasField("history")
    ]
    for metric in METRICS:
        found = [(line["_step"], line[metric]) for line in history if metric in line]
        assert found == expected(result, metric), metric
    assert any(r.HasField("exit") and r.exit.exit_code == 0 for r in records)
    assert capfd.readouterr() == ("", ""), "the console is not its own"


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")])
def test_a_missing_package_is_an_error_with_the_install_command(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in [m for m in sys.modules if m == "torch.utils.tensorboard" or m.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError) as error:
        SafeTracker(name)
    assert (error.value.code, error.value.key) == ("install.missing_extra", name)
    assert f'pip install ".[{name}]"' in str(error.value.hint)


def test_an_unknown_tracker() -> None:
    with pytest.raises(UserError) as error:
        SafeTracker("tensorbord")
    assert (error.value.code, error.value.key) == ("config.unknown_name", "run.track")
    assert '"tensorboard"' in str(error.value.hint)


def test_without_a_tracker_no_file_is_written(result: fr.Result, tmp_path: Path) -> None:
    with SafeTracker(None) as tracking:
        tracking.start(result.experiment.to_tables(), tmp_path)
        tracking.round(result.rounds[0])
        tracking.finish(result.summary)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "folder"), [("tensorboard", "tensorboard"), ("mlflow", "mlruns")])
def test_a_failed_write_is_warned_of_once(
    name: str, folder: str, result: fr.Result, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / folder).write_text("a file is in the way")
    track(name, result, tmp_path)
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert line.args[0] == name
    assert "\n" not in line.getMessage()


class FailingTracker:
    """Tracker that fails in its second round and stores its calls."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        FailingTracker.last = self

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.heard.append("exit")
        raise OSError("cannot close either")

    def start(self, tables, directory, done) -> None:
        self.heard.append("start")

    def round(self, record) -> None:
        self.heard.append(f"round {record['round']}")
        if record["round"] == 2:
            raise OSError("the disk\nis full")

    def finish(self, summary) -> None:
        self.heard.append("finish")


def test_a_failure_while_running_ends_the_tracking_only(
    result: fr.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(TRACKERS, "fragile", FailingTracker)
    track("fragile", result, tmp_path)
    assert FailingTracker.last.heard == ["start", "round 1", "round 2", "exit"]
    assert [r.args for r in caplog.records] == [("fragile", "the disk is full")]


def test_an_interrupted_run_is_marked(result: fr.Result, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), SafeTracker("mlflow") as tracking:  # noqa: PT012
        tracking.start(result.experiment.to_tables(), tmp_path)
        tracking.round(result.rounds[0])
        raise KeyboardInterrupt
    assert mlflow_run((tmp_path / "mlruns").as_uri())[1].info.status == "FAILED"


def test_a_diverged_run_is_marked(result: fr.Result, tmp_path: Path) -> None:
    with SafeTracker("mlflow") as tracking:
        tracking.start(result.experiment.to_tables(), tmp_path)
        tracking.finish(result.summary | {"failed": "not finite", "final": None})
    _, run = mlflow_run((tmp_path / "mlruns").as_uri())
    assert run.info.status == "FAILED"
    assert run.data.tags["failed"] == "not finite"
    assert "result/final" not in run.data.metrics


def resumed(name: str, out: Path) -> fr.Result:
    """Run with a tracker, interrupt after the third round (the last two are in no checkpoint), and resume."""
    run = {"rounds": 4, "track": name, "checkpoint_every": 2}
    config = {"local": {"epochs": 1}, "engine": {"name": "serial"}, "run": run}

    def stop(line: dict[str, object]) -> None:
        if line["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.run(config, out=out, watch=stop)
    return fr.run(config, out=out, resume=True)


def test_mlflow_resumes_the_same_run(tmp_path: Path) -> None:
    complete = resumed("mlflow", tmp_path / "run")
    client, run = mlflow_run((tmp_path / "run" / "mlruns").as_uri())
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(point.step, point.value) for point in history] == expected(complete, "accuracy"), "every round once"


def test_tensorboard_resumes_the_same_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    complete = resumed("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("accuracy")] == [1, 2, 3, 4]
    assert [event.value for event in events.Scalars("accuracy")] == pytest.approx(
        [line["accuracy"] for line in complete.rounds]
    )
    assert events.Tensors("configuration/text_summary")


def test_wandb_resumes_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    resumed("wandb", tmp_path / "run")
    files = list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1, "the name has the run's own"
    wandb.teardown()


def test_a_damaged_tracker_file_does_not_end_the_run(
    result: fr.Result, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tracker.json").write_text('{"mlflow": "gone"}')
    track("mlflow", result, tmp_path)
    (line,) = caplog.records
    assert line.args[0] == "mlflow"
