"""Tuning: the test set is not used, a search is resumed exactly, the best configuration can be run."""

import csv
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedrecall as fr
from fedrecall.config.experiment import Experiment
from fedrecall.data.dataset import Dataset
from fedrecall.errors import UserError
from fedrecall.methods.search_spaces import SEARCH_SPACES, FloatRange, GridValues
from fedrecall.runs.keywords import Keywords
from fedrecall.simulation import SerialEngine
from fedrecall.studies.tuning.search import Search, TuningEvent, TuningResult
from fedrecall.studies.tuning.space import grid_points, require_valid, search_space
from fedrecall.studies.tuning.trials import Trial, best_trial
from support.command import call

QUICK = (
    "federation.clients=4",
    "federation.partition.name=iid",
    "local.epochs=1",
    "local.batch=16",
    "run.rounds=4",
    "engine.name=serial",
    "data.aux_per_class=4",
)


@pytest.fixture(scope="module")
def data() -> Dataset:
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (np.eye(3)[y] * 1.5 + rng.normal(size=(240, 3))).astype(np.float32)
    return fr.from_arrays(x[:180], y[:180], test=(x[180:], y[180:]))


def search(data: Dataset, out: Path, **changes) -> TuningResult:
    arguments = {"method": "fedlmd", "trials": 7, "overrides": QUICK, "data": data, "out": out} | changes
    return fr.tune(arguments.pop("method"), **arguments)


def found(tuned: TuningResult) -> list[tuple[object, ...]]:
    return [(t.number, t.settings, t.outcome, t.value, t.curve) for t in tuned.trials]


def rows(x: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in x.tolist()}


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))


# --- what is seen -------------------------------------------------------------------------


def test_trials_hold_out_validation_examples_and_no_test_set(data: Dataset, tmp_path: Path) -> None:
    for overrides, share in (([], 0.2), (["data.validation=0.4", "data.client_test=0.3"], 0.4)):
        out = tmp_path / str(share)
        arguments = {"trials": 1, "overrides": [*QUICK, *overrides], "keywords": Keywords(data=data)}
        with Search("fedcad", out=out, **arguments) as started:
            federated = started._data
            assert len(federated.test) == len(federated.dataset.test_y) == 0
            assert list(federated.held_out) == ["validation"]
            seen, trained = (
                rows(federated.client_examples.batch(torch.from_numpy(part.indices)))
                for part in (federated.held_out["validation"], federated.partition)
            )
            assert not seen & trained
            assert not seen & rows(federated.auxiliary.batch(slice(None)))
            assert len(seen) + len(trained) == len(data.train_x)
            assert share - 0.1 < len(seen) / len(data.train_x) < share + 0.05
            assert all(event.record["accuracy"] is None for event in started if event.record is not None)
            best = started.result.config
        assert best is not None
        assert Experiment.load(best).data.validation == (0.4 if overrides else 0.0)


def test_the_test_set_is_not_used(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another test set no bit differs, and no model is evaluated on a test set."""
    plain = search(data, tmp_path / "a", trials=3)
    other = replace(data, test_x=torch.full_like(data.test_x, 1e30), test_y=data.test_y.flip(0))
    evaluated = []
    monkeypatch.setattr(SerialEngine, "evaluate", lambda *_, **__: evaluated.append(1))
    again = search(other, tmp_path / "b", trials=3)
    assert found(plain) == found(again)
    assert evaluated == []


# --- what is tried ------------------------------------------------------------------------


def test_a_grid_that_the_trials_cover_is_run_once_and_completely(data: Dataset, tmp_path: Path) -> None:
    tuned = search(data, tmp_path / "t", method="fedcad", trials=30)
    tried = [(t.settings["method.beta"], t.settings["method.gamma"]) for t in tuned.trials]
    grid = (0.0, 0.3, 0.5, 0.7)
    assert sorted(tried) == [(beta, gamma) for beta in grid for gamma in grid if beta <= gamma]


def test_the_configuration_is_the_first_trial_and_no_trial_is_repeated(data: Dataset, tmp_path: Path) -> None:
    tuned = search(data, tmp_path / "t", trials=20)
    assert tuned.trials[0].settings == {"method.beta": 1.0, "method.tau": 1.0}
    settings = [tuple(trial.settings.values()) for trial in tuned.trials]
    assert len(set(settings)) == len(settings) == 20


def test_a_range(data: Dataset, tmp_path: Path) -> None:
    tuned = search(data, tmp_path / "t", over=["local.lr=0.001..0.5", "local.epochs=1,2"], trials=6)
    assert {trial.settings["local.epochs"] for trial in tuned.trials} == {1, 2}
    assert all(0.001 <= trial.settings["local.lr"] <= 0.5 for trial in tuned.trials)


def test_bad_trials_are_pruned(data: Dataset, tmp_path: Path) -> None:
    over = ["local.lr=0.1,0.08,0.06,0.05,1e-9,2e-9"]
    tuned = search(data, tmp_path / "t", over=over, overrides=[*QUICK, "run.rounds=8"], trials=6)
    outcomes = {trial.settings["local.lr"]: trial for trial in tuned.trials}
    assert [outcomes[lr].outcome for lr in (1e-9, 2e-9)] == ["pruned", "pruned"]
    assert max(outcomes[1e-9].curve) == 4, "not in the first half of the rounds"
    assert outcomes[1e-9].value is None
    assert tuned.best is not None
    assert tuned.best.settings["local.lr"] >= 0.05


def test_a_trial_that_diverges_has_failed(data: Dataset, tmp_path: Path) -> None:
    tuned = search(data, tmp_path / "t", over=["local.lr=0.1,1e30"])
    assert [trial.outcome for trial in tuned.trials] == ["complete", "failed"]
    assert "local.lr" in tuned.trials[1].why
    with pytest.raises(UserError) as error:
        search(data, tmp_path / "u", trials=0)
    assert (error.value.code, error.value.key) == ("config.invalid_value", "trials")


# --- how it goes on -----------------------------------------------------------------------


def interrupt_at(number: int) -> Callable[[TuningEvent], None]:
    """Return a consumer that presses Ctrl-C in the middle of a trial."""

    def watch(event: TuningEvent) -> None:
        if event.number == number and event.record is not None and event.record["round"] == 2:
            raise KeyboardInterrupt

    return watch


def test_an_interrupted_search_resumes_to_the_same_result(data: Dataset, tmp_path: Path) -> None:
    complete = search(data, tmp_path / "a", trials=12)
    with pytest.raises(KeyboardInterrupt):
        search(data, tmp_path / "b", trials=12, watch=interrupt_at(10))
    before = table(tmp_path / "b")
    assert [int(line["trial"]) for line in before] == list(range(1, 10))
    assert (tmp_path / "b" / "best.toml").exists()
    assert found(search(data, tmp_path / "b", trials=12)) == found(complete)
    assert found(search(data, tmp_path / "b", trials=12)) == found(complete)  # nothing is left to do


def test_a_search_of_a_version_without_a_key_resumes(data: Dataset, tmp_path: Path) -> None:
    search(data, tmp_path / "t", trials=1)
    file = tmp_path / "t" / "search.toml"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith("probe_every")))
    assert len(file.read_text().splitlines()) == len(lines) - 1
    assert len(search(data, tmp_path / "t", trials=2).trials) == 2


def test_a_search_is_an_iterator_of_events(data: Dataset, tmp_path: Path) -> None:
    with Search("fedlmd", trials=2, overrides=QUICK, keywords=Keywords(data=data), out=tmp_path / "t") as search_:
        events = list(search_)
    assert [(event.number, event.kind) for event in events] == [
        (number, kind) for number in (1, 2) for kind in ("started", *["round"] * 4, "finished")
    ]
    assert [event.trial for event in events if event.kind == "finished"] == search_.result.trials


def test_another_search_is_an_error_with_the_key(data: Dataset, tmp_path: Path) -> None:
    search(data, tmp_path / "t", trials=1)
    for changes, fact in (
        ({"overrides": [*QUICK, "local.momentum=0.5"]}, "local.momentum was 0.9, is 0.5"),
        ({"method": "fedprox"}, "method.name was fedlmd, is fedprox"),
        ({"over": ["method.beta=1,2"]}, "space.method.tau was"),
        ({"data": replace(data, train_x=data.train_x + 1)}, "data was"),
    ):
        with pytest.raises(UserError) as error:
            search(**{"data": data, "out": tmp_path / "t"} | changes)
        assert (error.value.code, error.value.key) == ("tune.cannot_resume", str(tmp_path / "t"))
        assert fact in str(error.value)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(UserError) as error:
        search(data, tmp_path / "full")
    assert (error.value.code, error.value.key) == ("tune.directory_not_empty", str(tmp_path / "full"))
    assert "thesis.tex" in str(error.value)
    (tmp_path / "t" / "trials.jsonl").write_text("{")
    with pytest.raises(UserError) as error:
        search(data, tmp_path / "t")
    assert (error.value.code, error.value.key) == ("tune.damaged", str(tmp_path / "t"))


def test_without_optuna(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError) as error:
        search(data, tmp_path / "t")
    assert (error.value.code, error.value.key) == ("install.missing_extra", "optuna")
    assert ".[tune]" in str(error.value.hint)
    assert not (tmp_path / "t").exists()


# --- what comes of it ---------------------------------------------------------------------


def test_the_command_and_the_configuration_that_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [
        argument for text in ("run.rounds=3", "local.epochs=1", "engine.name=serial") for argument in ("--set", text)
    ]
    code, out, err = call(monkeypatch, capsys, "tune", "fedprox", "--trials", 5, *settings)
    assert (code, err) == (0, "")
    assert "space (FedCAD):\n  method.mu in 0.001, 0.01, 0.1\n" in out
    assert "[I 20" not in out
    folder = Path("tuning/fedprox-digits")
    assert "fedrecall run tuning/fedprox-digits/best.toml" in out
    trials = table(folder)
    best = max(trials, key=lambda line: float(line["validation_accuracy"] or 0))
    experiment = fr.Experiment.load(folder / "best.toml")
    assert experiment.to_tables()["method"] == {"name": "fedprox", "mu": float(best["method.mu"])}
    assert fr.run(experiment).summary["rounds"] == 3
    code, out, _ = call(monkeypatch, capsys, "tune", "fedprox", "--trials", 5, *settings, "--json")
    document = json.loads(out)
    assert document["config"] == str(folder / "best.toml")
    assert [trial["number"] for trial in document["trials"]] == [1, 2, 3]
    assert all("\x1b" not in line and len(line) <= 100 for line in out.splitlines())


def test_every_method_has_a_space_whose_keys_it_has() -> None:
    assert list(SEARCH_SPACES) == list(fr.METHODS)
    for name, space in SEARCH_SPACES.items():
        tables = Experiment(method={"name": name}).to_tables()
        grid = grid_points(tables, space)
        assert grid or any(isinstance(values, FloatRange) for values in space.dimensions.values())
        require_valid(tables, space)


def test_strings_of_a_space() -> None:
    assert search_space("moon", []) is SEARCH_SPACES["moon"]
    assert search_space("moon", ["method.mu=1, 2.5", "local.lr=1e-3..0.1"]).dimensions == {
        "method.mu": GridValues((1, 2.5)),
        "local.lr": FloatRange(0.001, 0.1),
    }
    assert FloatRange(0.001, 0.1).log
    assert not FloatRange(0.0, 0.9).log
    for text, key, fact in (
        ("data.size=3,4", "data.size", "method, local, server"),
        ("method=3", "method", "method, local, server"),
        ("method.mu=a,b", "method.mu", "method.mu=0.01,0.1"),
        ("method.mu=0.1..x", "method.mu", "method.mu=0.01..0.1"),
        ("method.mu=2..1", "method.mu", "method.mu=1..2"),
    ):
        with pytest.raises(UserError) as error:
            search_space("moon", [text])
        assert (error.value.code, error.value.key) == ("tune.invalid_space", key)
        assert fact in str(error.value)


def test_the_best_is_the_first_of_equals() -> None:
    trials = [Trial(n, {"method.mu": n}, "complete", 0.5, {1: 0.5}, 0.1) for n in (1, 2)]
    assert best_trial(trials) == trials[0]
    assert best_trial([]) is None
