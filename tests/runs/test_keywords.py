"""Keywords that run, compare and tune share."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

import fedrecall as fr
from fedrecall.runs.keywords import Keywords
from support.command import call

SHARED = {
    "data", "model", "partition", "clients", "sample", "alpha", "rounds", "seed", "lr", "epochs", "batch", "overrides",
    "config", "out", "progress",
}  # fmt: skip
SERIAL = {"engine": {"name": "serial"}}
rng = np.random.default_rng(0)
Y = rng.integers(0, 3, 90)
X = (rng.normal(size=(90, 4)) + Y[:, None]).astype(np.float32)


def test_the_three_functions_have_the_same_keywords() -> None:
    for function in (fr.run, fr.compare, fr.tune):
        assert inspect.signature(function).parameters.keys() >= SHARED
    assert {*Keywords.__dataclass_fields__} <= SHARED


def test_the_same_words_make_the_same_run() -> None:
    words = {"data": "digits", "model": "mlp", "clients": 4, "sample": 2, "alpha": 0.3, "rounds": 2, "seed": 3}
    words |= {"lr": 0.1, "epochs": 1, "batch": 20, "config": SERIAL}
    alone = fr.run(method="fedlmd:tau=3", **words)
    side = fr.compare(["fedlmd:tau=3"], seeds=1, **words)
    assert [r["loss"] for r in side.runs[0].records] == [r["loss"] for r in alone.rounds]
    tables = alone.experiment.to_tables()
    assert tables["federation"]["partition"] == {"name": "dirichlet", "alpha": 0.3} | tables["federation"]["partition"]
    assert (tables["local"]["lr"], tables["local"]["epochs"], tables["local"]["batch"]) == (0.1, 1, 20)
    assert tables["method"] == {"name": "fedlmd", "beta": 1.0, "tau": 3.0}
    assert (tables["run"]["rounds"], tables["run"]["seed"]) == (2, 3)
    assert alone.rounds[0]["replies"] == 2


@pytest.mark.parametrize("method", ["fedprox:mu=0.5", {"name": "fedprox", "mu": 0.5}, fr.METHODS["fedprox"](mu=0.5)])
def test_methods_of_every_kind(method: object) -> None:
    found = fr.run(SERIAL, method=method, rounds=1, epochs=1, clients=2).experiment.to_tables()["method"]
    assert found == {"name": "fedprox", "mu": 0.5}


def test_an_experiment_keeps_its_objects() -> None:
    class Own(fr.Method):
        pass

    experiment = fr.Experiment(method=Own(), run={"rounds": 1}, local={"epochs": 1}, **SERIAL)
    assert fr.run(experiment).experiment.to_tables()["method"]["of"] == "Own"
    assert fr.run(experiment, method="fedavg").experiment.to_tables()["method"]["name"] == "fedavg"


def test_overrides_win_over_keywords_and_keywords_over_the_configuration() -> None:
    tables, _ = Keywords(rounds=5, sample=2).apply({"run": {"rounds": 9}, "federation": {"fraction": 0.5}})
    assert (tables["run"]["rounds"], tables["federation"]) == (5, {"sample": 2})
    tables, _ = Keywords(rounds=5).apply({"run": {"rounds": 9}}, ["run.rounds=7"])
    assert tables["run"]["rounds"] == 7


def test_paths_are_part_of_the_configuration(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("a,b,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(60)))
    result = fr.run(SERIAL, data=table, overrides=["data.label=y"], rounds=1, epochs=1, clients=2, partition="iid")
    assert result.experiment.to_tables()["data"]["path"] == str(table)
    tables, objects = Keywords(data=str(tmp_path)).apply({"data": {"name": "femnist", "classes": 10, "aux": "holdout"}})
    assert tables["data"] == {"name": "folder", "path": str(tmp_path), "aux": "holdout"}
    assert objects.is_empty
    with pytest.raises(fr.UserError) as error:
        fr.run(data=table)
    assert (error.value.code, error.value.key) == ("config.missing_key", "data.label")
    with pytest.raises(fr.UserError) as error:
        fr.run(data="digts")
    assert (error.value.code, error.value.key) == ("config.unknown_name", "data")


def test_alpha_and_a_partition_conflict() -> None:
    for function in (fr.run, fr.compare, lambda **words: fr.tune("fedavg", **words)):
        with pytest.raises(fr.UserError) as error:
            function(alpha=0.5, partition="iid")
        assert (error.value.code, error.value.key) == ("config.conflict", "alpha")


def test_options_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--data", "digits", "--model", "mlp", "--clients", 4, "--sample", 2, "--alpha", 0.3, "--rounds", 1]
    quick = ["--seed", 3, "--set", "local.epochs=1", "--set", "engine.name=serial"]
    code, _, err = call(monkeypatch, capsys, "run", "--method", "fedprox:mu=0.5", *options, *quick, "--out", "r")
    assert (code, err) == (0, "")
    tables = fr.Experiment.load("r/config.toml").to_tables()
    assert (tables["method"], tables["model"]["name"]) == ({"name": "fedprox", "mu": 0.5}, "mlp")
    assert (tables["federation"]["clients"], tables["federation"]["sample"]) == (4, 2)
    code, out, _ = call(
        monkeypatch, capsys, "compare", "fedavg", *options, *quick, "--seeds", 1, "--out", "s", "--json"
    )
    assert code == 0
    assert json.loads(out)["study"] == "compare-digits"
    assert fr.load("s").runs[0].cell.seed == 3
    tune = ["tune", "fedprox", *options, *quick, "--trials", 1, "--out", "t", "--json"]
    code, out, _ = call(monkeypatch, capsys, *tune)
    assert (code, len(json.loads(out)["trials"])) == (0, 1)


# --- the clients that the data names --------------------------------------------------------------
HOSPITALS = np.array(["north", "south", "west", "east", "isle"])[np.arange(90) % 5]


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    file = tmp_path / "patients.csv"
    rows = (f"{x[0]},{x[1]},{y},{h}" for x, y, h in zip(X, Y, HOSPITALS, strict=True))
    file.write_text("a,b,ill,hospital\n" + "\n".join(rows) + "\n")
    return file


def test_clients_named_by_the_data_are_the_clients(patients: Path) -> None:
    quick = SERIAL | {"local": {"epochs": 1}, "run": {"rounds": 1}}
    table = {"data": {"name": "table", "path": str(patients), "label": "ill", "client": "hospital"}}
    data = fr.from_table(patients, "ill", client="hospital")
    for result in (
        fr.run(quick, data=data),
        fr.run(quick, data=(X, Y, HOSPITALS)),
        fr.run(quick | table),
        fr.run(fr.Experiment(**quick | table)),
        fr.run(quick | table | {"federation": {"clients": 5}}),
        fr.run(quick | table | {"federation": {"partition": {"name": "groups"}}}),
    ):
        assert result.rounds[0]["clients"] == [0, 1, 2, 3, 4]
        federation = result.experiment.to_tables()["federation"]
        assert (federation["clients"], federation["partition"]) == (5, {"name": "groups"})
    side = fr.compare(["fedavg"], config=quick | table, seeds=1)
    assert side.runs[0].records[0]["clients"] == [0, 1, 2, 3, 4]
    assert fr.run(quick, data=data, sample=3).rounds[0]["replies"] == 3
    assert len(fr.run(quick, data=data, clients=3, alpha=9.0).rounds[0]["clients"]) == 3, "an explicit partition"


@pytest.mark.parametrize("words", [{"clients": 3}, {"clients": 3, "partition": "groups"}, {"clients": 9}])
def test_a_number_that_does_not_fit_is_refused(words: dict[str, object]) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(SERIAL, data=(X, Y, HOSPITALS), **words)
    assert (error.value.code, error.value.key) == ("config.conflict", "federation.clients")
    assert "5" in str(error.value.hint)


def test_a_sample_larger_than_the_named_clients_is_refused() -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(SERIAL, data=(X, Y, HOSPITALS), sample=7)
    assert (error.value.code, error.value.key) == ("config.conflict", "federation.sample")
    many = np.arange(90) % 30
    assert fr.run(SERIAL, data=(X, Y, many), sample=20, rounds=1, epochs=1).rounds[0]["replies"] == 20
