"""User code named in a configuration: imported by run, compare and tune, not from a directory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedrecall as fr
from fedrecall.config.own_code import import_object
from fedrecall.config.sources import import_own_code, own_code
from support.command import call
from support.own_code import Alternate, Calm, Net, blobs

CODE = {
    "data": {"name": "support.own_code:blobs", "per_class": 20},
    "model": {"name": "support.own_code:Net", "inputs": 4},
    "method": {"name": "support.own_code:Calm", "weight": 0.5},
    "federation": {"clients": 3, "partition": {"name": "support.own_code:Alternate", "start": 1}},
    "local": {"epochs": 1},
    "engine": {"name": "serial"},
    "run": {"rounds": 2},
}
NAMES = [f"support.own_code:{name}" for name in ("blobs", "Calm", "Net", "Alternate")]


@pytest.fixture(scope="module")
def by_name(tmp_path_factory: pytest.TempPathFactory) -> fr.Result:
    return fr.run(CODE, out=tmp_path_factory.mktemp("own") / "run")


def test_objects_and_names_give_the_same_run(by_name: fr.Result) -> None:
    quick = {key: CODE[key] for key in ("local", "engine", "run")}
    objects = fr.run(
        quick, data=blobs(per_class=20), model=lambda: Net(4), method=Calm(0.5), clients=3, partition=Alternate(1)
    )
    assert torch.equal(by_name.server.w, objects.server.w)


def test_keywords_overrides_and_tables_name_the_same_code(by_name: fr.Result) -> None:
    quick = {key: CODE[key] for key in ("local", "engine", "run")}
    named = fr.run(
        quick | {"model": CODE["model"], "data": CODE["data"]},
        method="support.own_code:Calm:weight=0.5",
        partition={"name": "support.own_code:Alternate", "start": 1},
        clients=3,
    )
    assert torch.equal(by_name.server.w, named.server.w)
    texts = [f"{section}.{key}={json.dumps(value)}" for section in ("data", "model", "method")
             for key, value in CODE[section].items()]  # fmt: skip
    texts += ["federation.clients=3", 'federation.partition={name="support.own_code:Alternate", start=1}']
    assert torch.equal(by_name.server.w, fr.run(quick, overrides=texts).server.w)


def test_the_configuration_is_complete_and_imports_nothing_by_itself(by_name: fr.Result) -> None:
    tables = by_name.experiment.to_tables()
    assert tables["method"] == CODE["method"]
    assert tables["data"].items() >= CODE["data"].items()
    experiment = fr.Experiment(**tables)
    assert own_code(experiment) == NAMES
    assert experiment.known_method is None
    assert import_own_code(experiment).known_method == Calm(0.5)
    assert fr.Experiment(method={"name": "no.such:Thing"}).known_method is None


def test_defaults_of_own_code_are_recorded() -> None:
    experiment = import_own_code(fr.Experiment(method={"name": "support.own_code:Calm"}))
    assert experiment.to_tables()["method"]["weight"] == 0.1


def test_a_directory_needs_trust(by_name: fr.Result, tmp_path: Path) -> None:
    def stop(record: dict[str, object]) -> None:
        raise KeyboardInterrupt

    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        fr.run(CODE, out=cut, watch=stop)
    with pytest.raises(fr.UserError) as error:
        fr.run(out=cut, resume=True)
    assert (error.value.code, error.value.key) == ("config.untrusted_code", str(cut))
    resumed = fr.run(out=cut, resume=True, trust_code=True)
    assert torch.equal(resumed.server.w, by_name.server.w)
    assert fr.load(cut).runs[0].summary["rounds"] == 2, "results need no code"


def test_compare_tune_and_every_engine(by_name: fr.Result, tmp_path: Path) -> None:
    base = {key: value for key, value in CODE.items() if key != "method"}
    side = fr.compare(
        ["fedavg", "support.own_code:Calm:weight=0.5", {"name": "support.own_code:Calm", "weight": 2.0}],
        config=base, seeds=1, overrides=["engine.name=pool", "engine.workers=2"], out=tmp_path / "study",
    )  # fmt: skip
    assert side.methods[1:] == ["support.own_code:Calm:weight=0.5", "support.own_code:Calm:weight=2.0"]
    final = {run.cell.row: run.records[-1]["loss"] for run in side.runs}
    assert final[side.methods[1]] == by_name.rounds[-1]["loss"], "the pool has the bits of serial"
    assert len({final[method] for method in side.methods}) == 3
    assert side.baselines == ["central", "majority"], "as for any data of the user"
    again = fr.compare([side.methods[1]], config=base, seeds=1, out=tmp_path / "study")
    assert [run.cell.row for run in again.runs] == [*side.methods, *side.baselines]
    words = {"overrides": ["data.aux_per_class=0"], "progress": False}
    tuned = fr.tune(side.methods[1], base, trials=2, over=["method.weight=0.1,0.2"], out=tmp_path / "t", **words)
    assert {trial.settings["method.weight"] for trial in tuned.trials} == {0.1, 0.2}
    assert tuned.config is not None
    assert 'name = "support.own_code:Calm"' in tuned.config.read_text()
    with pytest.raises(fr.UserError) as error:
        fr.tune("support.own_code:Calm", base, out=tmp_path / "u")
    assert error.value.code == "tune.invalid_space"


@pytest.mark.parametrize(
    ("tables", "code", "key", "near"),
    [
        ({"method": {"name": "no_such_module:Calm"}}, "config.cannot_import", "method.name", None),
        ({"method": {"name": "support.own_cod:Calm"}}, "config.cannot_import", "method.name", "support.own_code"),
        ({"method": {"name": "support.own_code:Clam"}}, "config.unknown_name", "method.name", "Calm"),
        ({"method": {"name": "support.own_code:Calm", "wieght": 1}}, "config.unknown_key", "method.wieght", "weight"),
        ({"method": {"name": "support.own_code:Calm", "weight": -1.0}}, "config.invalid_value", "method.weight", None),
        ({"method": {"name": "support.own_code:Calm", "weight": "x"}}, "config.invalid_value", "method.weight", None),
        ({"method": {"name": "support.own_code:Net"}}, "config.missing_key", "method.inputs", None),
        ({"method": {"name": "support.own_code:blobs"}}, "config.invalid_value", "method.name", None),
        ({"model": {"name": "support.own_code:Net", "input": 4}}, "config.unknown_key", "model.input", "inputs"),
        ({"data": {"name": "support.own_code:blobs", "per": 4}}, "config.unknown_key", "data.per", "per_class"),
        ({"federation": {"attack": {"name": "support.own_code:Net"}}}, "config.unknown_name", None, None),
        ({"data": {"nmae": "digits"}}, "config.unknown_key", "data.nmae", "name"),
    ],
)  # fmt: skip
def test_bad_names(tables: dict[str, object], code: str, key: str | None, near: str | None) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(tables, rounds=1)
    assert error.value.code == code
    assert key is None or error.value.key == key
    assert near is None or f'"{near}"' in str(error.value.hint)


def test_a_module_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('first\\nsecond')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(fr.UserError) as error:
        import_object("broken_module:Thing", "method.name")
    assert error.value.code == "config.cannot_import"
    assert "\n" not in str(error.value)


OWN_MODULE = """
from dataclasses import dataclass
import fedrecall as fr

@dataclass(frozen=True)
class Mine(fr.Method):
    weight: float = 1.0
    def loss(self, s, r):
        return self.weight * super().loss(s, r)
"""


def test_the_command_finds_code_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "mymethods.py").write_text(OWN_MODULE)
    command = [Path(sys.executable).with_name("fedrecall"), "run", "--method", "mymethods:Mine:weight=0.5"]
    done = subprocess.run(
        [*command, "--rounds", "1", "--set", "local.epochs=1", "--out", "r"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 'name = "mymethods:Mine"' in (tmp_path / "r" / "config.toml").read_text()


def test_the_command_line_refuses_and_trusts(
    by_name: fr.Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(monkeypatch, capsys, "run", "--resume", by_name.directory)
    assert (code, "[config.untrusted_code]" in err) == (2, True)
    code, _, err = call(monkeypatch, capsys, "run", "--resume", by_name.directory, "--trust-code")
    assert (code, "[run.finished]" in err) == (2, True)
