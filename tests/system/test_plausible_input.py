"""Input that is plausible and unusual: what a user gets for it, and which error otherwise."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedrecall as fr
from fedrecall.config.experiment import Experiment
from fedrecall.data.partition import Partition
from fedrecall.runs.setup import load_and_partition
from fedrecall.studies.results import read_json
from support.errors import refused

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
QUICK = {"engine": {"name": "serial"}, "local": {"epochs": 1}, "run": {"rounds": 1}, "federation": {"clients": 2}}


def write_table(file: Path, *, inverted: bool = False) -> None:
    pd.DataFrame(X, columns=list("abcd")).assign(y=1 - Y if inverted else Y).to_csv(file, index=False)


def test_a_comparison_is_not_continued_on_other_data(tmp_path: Path) -> None:
    write_table(tmp_path / "d.csv")
    config = QUICK | {"data": {"name": "table", "path": str(tmp_path / "d.csv"), "label": "y"}}
    compare = partial(fr.compare, config=config, out=tmp_path / "s", seeds=1, baselines=[], progress=False)
    compare(["fedavg"])
    assert set(compare(["fedavg", "fedprox"]).to_dict()) == {"fedavg", "fedprox"}
    write_table(tmp_path / "d.csv", inverted=True)
    refused(lambda: compare(["fedavg", "fedlmd"]), "study.other_settings", "data")


@pytest.mark.parametrize(("share", "rows"), [(0.0, 0), (0.2, 25), (0.5, 60)])
def test_the_share_of_the_test_set_of_arrays(share: float, rows: int) -> None:
    experiment = Experiment(data={"name": "own", "test": share}, federation={"clients": 2})
    assert len(load_and_partition(experiment, data=(X, Y)).test) == rows
    assert len(load_and_partition(experiment, data=(X, Y, ["a", "b"] * 60)).test) == rows


def test_the_seed_of_the_data_stays_when_the_share_changes() -> None:
    experiment = Experiment(data={"name": "own", "test": 0.5}, federation={"clients": 2})
    found = [load_and_partition(experiment, data=fr.from_arrays(X, Y, seed=seed)).dataset.test_x for seed in (7, 7, 8)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_partition_that_was_passed_keeps_its_rows(tmp_path: Path) -> None:
    data = fr.from_arrays(X, Y)
    rows = [torch.nonzero(data.train_y == label).flatten().numpy() for label in (0, 1)]
    offsets = np.array([0, len(rows[0]), len(data.train_y)])
    partition = Partition(np.concatenate(rows), offsets, len(data.train_y), {"name": "own"}, 0)
    found = fr.compare(
        ["fedavg"], config=QUICK, data=data, partition=partition, seeds=2, out=tmp_path / "s", baselines=[]
    )
    for run in found._results.finished_runs():
        counts = np.array(read_json(run.path / "partition.json")["counts"])
        assert (counts > 0).tolist() == [[True, False], [False, True]]


def test_classes_of_clients_keep_their_order() -> None:
    def part() -> fr.Dataset:
        return fr.from_arrays(X, Y, classes=["low", "high", "severe"])

    joined = fr.from_clients({"a": part(), "b": part()})
    assert joined.classes == ("low", "high", "severe")
    assert torch.equal(joined.train_y, torch.cat([part().train_y, part().train_y]))
    numbers = [fr.from_arrays(X, np.arange(120) % 12), fr.from_arrays(X, np.arange(120) % 11)]
    assert fr.from_clients(numbers).classes == tuple(map(str, range(12)))


def test_two_metrics_of_one_name() -> None:
    def score(y: np.ndarray, p: np.ndarray, beta: float) -> float:
        return beta

    metrics = [partial(score, beta=1.0), partial(score, beta=2.0)]
    run = {"run": {"rounds": 1, "metrics": metrics}}
    refused(lambda: fr.run(QUICK | run, data=(X, Y)), "config.conflict", "two functions", "__name__")
    refused(
        lambda: fr.compare(["fedavg"], config=QUICK | run, data=(X, Y), seeds=1), "config.conflict", "two functions"
    )
    for metric, name in zip(metrics, ("one", "two"), strict=True):
        metric.__name__ = name  # type: ignore[attr-defined]
    assert fr.run(QUICK | run, data=(X, Y)).summary["metrics"]["two"]["final"] == 2.0
    found = fr.compare(["fedavg"], config=QUICK | run, data=(X, Y), seeds=1, baselines=[]).to_dict()["fedavg"]
    assert {"one", "two"} <= found.keys()


def test_watch_stops_by_a_condition_of_numpy() -> None:
    result = fr.run(QUICK, data=(X, Y), rounds=3, watch=lambda record: np.mean([record["accuracy"]]) >= 0)
    assert len(result.rounds) == 1


def test_arguments_of_compare() -> None:
    refused(lambda: fr.compare(["fedavg"], seeds=[0, 1]), "config.invalid_value", "seeds")
    refused(lambda: fr.compare(fr.METHODS["fedprox"](mu=0.1)), "config.invalid_value", "not a list")
    found = fr.compare(
        ["fedavg", {"name": "fedprox", "mu": np.float32(0.5)}],
        config=QUICK,
        data=(X, Y),
        alpha=np.float32(0.5),
        rounds=np.int64(1),
        clients=np.int64(2),
        seeds=1,
        baselines=[],
        overrides="local.batch=10",
    )
    assert len(found.to_dict()) == 2


def test_data_sets_of_clients_that_cannot_be_joined() -> None:
    import datasets as hub

    tokens = fr.from_tokens([["a", "b"], ["b"]] * 10, [["X", "Y"], ["Y"]] * 10)
    refused(lambda: fr.from_clients([tokens, tokens]), "data.unsupported_type", "from_tokens")
    splits = hub.DatasetDict({"train": hub.Dataset.from_dict({"a": [0.1, 0.2], "label": [0, 1]})})
    refused(lambda: fr.from_clients([splits, splits]), "data.unsupported_type", 'data["train"]')
    texts = [fr.from_text([f"a {'very ' * n}red rose", "blue sky"] * 10, ["x", "y"] * 10) for n in (1, 3)]
    refused(lambda: fr.from_clients(texts), "data.shape_mismatch", "from_text")


def test_predictions_need_the_inputs_of_the_training(tmp_path: Path) -> None:
    write_table(tmp_path / "d.csv")
    table = fr.run(QUICK, data=fr.from_table(tmp_path / "d.csv", "y"))
    frame = pd.DataFrame(X[:6], columns=list("abcd"), index=[3, 5, 8, 9, 11, 20])
    found = table.predict(frame)
    assert found.index.tolist() == frame.index.tolist()
    by_rows = table.predict(frame.to_dict("records"))
    assert by_rows["p(1)"].tolist() == found["p(1)"].tolist()
    refused(lambda: table.predict(X), "data.unsupported_type", "table")
    arrays = fr.run(QUICK, data=(X, Y), model=nn.Linear(4, 2))
    assert arrays.predict([[1, 2, 3, 4], [0, 1, 0, 1]])["p(1)"].tolist() == pytest.approx(
        arrays.predict(np.array([[1.0, 2, 3, 4], [0, 1, 0, 1]]))["p(1)"].tolist()
    )
    images = RNG.integers(0, 255, (40, 8, 8), dtype=np.uint8)
    pictures = fr.run(QUICK, data=(images, np.arange(40) % 2), model="mlp")
    refused(lambda: pictures.predict(images[:, None].astype(np.float32)), "data.shape_mismatch", "float32", "uint8")
    texts = fr.run(QUICK, data=fr.from_text(["a red rose", "a blue sky"] * 20, ["x", "y"] * 20), model="rnn")
    assert len(texts.predict(pd.Series(["a rose", "the sky"]))) == 2
    refused(lambda: texts.predict("a red rose"), "data.unsupported_type", "list of texts")


def test_an_export_into_no_folder(tmp_path: Path) -> None:
    result = fr.run(QUICK, data=(X, Y), model=nn.Linear(4, 2))
    for kind in ("torch.export", "safetensors"):
        refused(lambda kind=kind: result.export(kind, tmp_path / "none" / "m"), "run.cannot_write", "no folder")
    assert not (tmp_path / "none").exists()


def test_objects_in_an_experiment() -> None:
    def half(y: np.ndarray, p: np.ndarray) -> float:
        return 0.5

    experiment = Experiment(**QUICK | {"run": {"rounds": 1, "metrics": [half]}})
    assert fr.run(experiment, data=(X, Y)).summary["metrics"]["half"]["final"] == 0.5
    found = fr.compare(["fedavg"], config=experiment, data=(X, Y), seeds=1, baselines=[])
    assert "half" in found.to_dict()["fedavg"]


def test_messages_of_load_and_resume(tmp_path: Path) -> None:
    fr.run(QUICK, data=(X, Y), model=nn.Linear(4, 2), out=tmp_path / "run")
    refused(lambda: fr.load(tmp_path / "run").model(), "config.needs_python_object", "fedrecall.load")
    message = refused(
        lambda: fr.load(tmp_path / "run", model=nn.Sequential(nn.Linear(4, 2))).model(), "model.wrong_weights"
    )
    assert "run.start" not in message
    for config in (None, QUICK):
        refused(lambda config=config: fr.run(config, out=tmp_path / "none", resume=True), "run.not_a_run", "none")
    assert not (tmp_path / "none").exists()
