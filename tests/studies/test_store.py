"""Store of finished runs, plans of several studies, and tuned reproductions."""

import json
from pathlib import Path

import pytest

from fedrecall import api
from fedrecall.config.experiment import Experiment
from fedrecall.errors import UserError
from fedrecall.runs.directory import RunDirectory
from fedrecall.runs.setup import prepare_run
from fedrecall.studies.plan import read_plan
from fedrecall.studies.results import load_results
from fedrecall.studies.runner import run_study
from fedrecall.studies.store import RunStore, changed_settings, run_key
from fedrecall.studies.study import Study
from support.command import call

BASE = {
    "federation": {"clients": 4, "sample": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"epochs": 1},
    "run": {"rounds": 1, "checkpoint_every": 1},
    "engine": {"name": "serial"},
}
FEDAVG, FEDLMD = {"method": {"name": "fedavg"}}, {"method": {"name": "fedlmd"}}


def make_study(name: str, **rows: dict) -> Study:
    return Study(id=name, title=name, base=BASE, rows=rows, columns={"digits": {}})


def test_equal_runs_of_two_studies_are_made_once(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "store")
    first = [e.kind for e in run_study(make_study("one", FedAvg=FEDAVG), tmp_path / "one", store=store)]
    assert first == ["started", "round", "finished"]
    second = make_study("two", reference=FEDAVG, FedLMD=FEDLMD)
    events = [(e.kind, e.cell.row) for e in run_study(second, tmp_path / "two", store=store)]
    assert events == [("kept", "reference"), ("started", "FedLMD"), ("round", "FedLMD"), ("finished", "FedLMD")]
    one, two = tmp_path / "one" / "cells" / "fedavg", tmp_path / "two" / "cells" / "reference"
    for file in ("rounds.jsonl", "summary.json", "model.safetensors"):
        assert (one / "digits" / "seed-0" / file).read_bytes() == (two / "digits" / "seed-0" / file).read_bytes()
    assert len([path for path in store.folder.iterdir() if path.is_dir()]) == 2
    assert not list(store.folder.glob("*/checkpoints"))
    assert not list(store.folder.glob("*.lock"))


def test_the_key_depends_on_what_changes_a_result() -> None:
    def key(**sections: dict) -> str:
        return run_key(prepare_run(Experiment(**{**BASE, **sections})))

    base = key()
    assert key(engine={"name": "pool", "workers": 2}) == base
    assert key(method={"name": "fedavg"}) == base
    assert key(run={"rounds": 1, "checkpoint_every": 5, "seed": 0}) == base
    others = [
        key(run={"rounds": 1, "seed": 1}),
        key(run={"rounds": 2}),
        key(run={"rounds": 1, "probes": ["pull"]}),
        key(method={"name": "fedlmd"}),
        key(method={"name": "fedlmd", "tau": 3.0}),
        key(data={"name": "digits", "aux_per_class": 16}),
    ]
    assert len({base, *others}) == len(others) + 1


def test_settings_at_their_defaults_do_not_count() -> None:
    names = {"method.name": "fedavg", "federation.partition.name": "dirichlet"}
    assert changed_settings(Experiment()) == names
    lmd = Experiment(method={"name": "fedlmd", "beta": 1.0, "tau": 2.0}, federation={"partition": {"name": "iid"}})
    assert changed_settings(lmd) == {
        "method.name": "fedlmd",
        "method.tau": 2.0,
        "federation.partition.name": "iid",
    }


def test_a_start_counts_by_its_weights(tmp_path: Path) -> None:
    study = make_study("s", start=FEDAVG, again=FEDAVG | {"start": "start"})
    store = RunStore(tmp_path / "store")
    kinds = [[event.kind for event in run_study(study, tmp_path / name, store=store)] for name in ("a", "b")]
    assert kinds == [["started", "round", "finished"] * 2, ["kept", "kept"]]


def write_definition(path: Path, **methods: str) -> Path:
    rows = "\n".join(f"{name} = {{ method = {{ {settings} }} }}" for name, settings in methods.items())
    path.write_text(
        f"""
title = "own"
[base]
federation = {{ clients = 4, sample = 2 }}
model = {{ name = "mlp", hidden = [8] }}
local = {{ epochs = 1 }}
run = {{ rounds = 1 }}
engine = {{ name = "serial" }}
[rows]
{rows}
[columns]
digits = {{}}
"""
    )
    return path


def test_a_plan_runs_its_studies_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_definition(tmp_path / "first.toml", FedAvg='name = "fedavg"')
    write_definition(tmp_path / "second.toml", A='name = "fedavg"', B='name = "fedntd"')
    plan = '[[plan]]\nid = "first.toml"\n[[plan]]\nid = "second.toml"\nmethods = "A"\nseeds = 1\n'
    (tmp_path / "plan.toml").write_text(plan)
    code, out, _ = call(monkeypatch, capsys, "reproduce", "plan.toml", "--out", "all", "--store", "store", "--json")
    assert code == 0
    assert [document["study"] for document in json.loads(out)["studies"]] == ["first", "second"]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["first", "second"]
    assert not (tmp_path / "all" / "second" / "cells" / "b").exists()
    assert len([path for path in (tmp_path / "store").iterdir() if path.is_dir()]) == 1


@pytest.mark.parametrize("text", ['plan = ["x"]', '[[plan]]\nid = "x"\nseeds = 0', '[[plan]]\nid = "x"\nseed = 1'])
def test_errors_in_plans(tmp_path: Path, text: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(text)
    with pytest.raises(UserError) as error:
        read_plan([str(plan)])
    assert error.value.code.startswith("config.")


def test_a_tuned_reproduction_searches_the_printed_grids(tmp_path: Path) -> None:
    definition = write_definition(tmp_path / "own.toml", FedAvg='name = "fedavg"', FedProx='name = "fedprox", mu = 5.0')
    comparison = api.reproduce(str(definition), out=tmp_path / "out", tune=True, progress=False)
    study = comparison.study_results.study
    assert study.rows["FedAvg"].get("columns") is None, "no paper prints a grid of its learning rate"
    assert study.rows["FedProx"]["columns"]["digits"]["method"]["mu"] in (0.001, 0.01, 0.1, 5.0)
    assert (tmp_path / "out-tuning" / "fedprox" / "digits" / "best.toml").exists()
    assert study.command.endswith("--tune")
    with pytest.raises(UserError) as error:
        api.reproduce(str(definition), tune=True, progress=False)
    assert error.value.code == "run.needs_directory"


def test_runs_that_lost_replies_or_failed_are_not_stored(tmp_path: Path) -> None:
    attack = {"name": "scaling", "share": 0.25, "scale": 1e9}
    few = {"federation": {"sample": 4, "attack": attack}, "engine": {"name": "serial", "min_replies": 2}}
    study = make_study("s", attacked=few, wild={"local": {"epochs": 1, "lr": 1e30}}, FedAvg=FEDAVG)
    store = RunStore(tmp_path / "store")
    events = list(run_study(study, tmp_path / "s", store=store))
    assert [event.cell.row for event in events if event.kind == "finished"] == ["attacked", "wild", "FedAvg"]
    attacked, wild, fedavg = load_results(tmp_path / "s").finished_runs()
    assert [len(record["refused"]) for record in attacked.records] == [1]
    assert wild.diverged
    stored = [path.name for path in store.folder.iterdir() if path.is_dir()]
    assert stored == [run_key(prepare_run(study.experiment(fedavg.cell)))]


def test_a_run_that_cannot_be_stored_is_finished(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    study, store = make_study("s", FedAvg=FEDAVG), RunStore(tmp_path / "store")
    (cell,) = study.cells()
    block_copies(store.path_of(prepare_run(study.experiment(cell))))
    assert [event.kind for event in run_study(study, tmp_path / "s", store=store)] == ["started", "round", "finished"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert [event.kind for event in run_study(study, tmp_path / "s", store=store)] == ["kept"]


def test_an_unfinished_run_is_replaced_only_by_a_complete_copy(tmp_path: Path) -> None:
    study, store = make_study("s", FedAvg=FEDAVG | {"run": {"rounds": 3}}), RunStore(tmp_path / "store")
    (cell,) = study.cells()
    list(run_study(study, tmp_path / "first", store=store))
    begun = run_study(study, tmp_path / "s")
    assert [next(begun).kind for _ in range(3)] == ["started", "round", "round"]
    begun.close()
    path = tmp_path / "s" / cell.folder
    block_copies(path)
    (event,) = run_study(study, tmp_path / "s", store=store)
    assert event.error is not None
    assert (event.kind, event.error.code, event.error.key) == ("rejected", "study.cannot_write", str(path.parent))
    assert RunDirectory(path).checkpoints.latest() is not None
    path.with_name(f"{path.name}.part").unlink()
    assert [event.kind for event in run_study(study, tmp_path / "s", store=store)] == ["kept"]
    assert len(RunDirectory(path).records()) == 3


def block_copies(target: Path) -> None:
    """Let copies of a run to this directory fail: a file has the name of the folder for the incomplete copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.with_name(f"{target.name}.part").touch()
