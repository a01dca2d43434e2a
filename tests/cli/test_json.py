"""--json: one document on standard output, and nothing else there."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedrecall import METHODS
from fedrecall.cli import output
from fedrecall.methods import METHOD_GROUPS
from fedrecall.studies.definitions import experiment_ids
from support.command import call

SHORT = ["--set", "run.rounds=2", "--set", "local.epochs=1", "--set", "engine.name=serial"]


@pytest.fixture
def json_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)

    def run(*args: object) -> Any:
        code, out, _ = call(monkeypatch, capsys, *args, "--json")
        assert code == 0
        return json.loads(out, parse_constant=pytest.fail)

    return run


def test_run(json_output) -> None:
    found = json_output("run", *SHORT)
    assert found["summary"] == json.loads((Path(found["directory"]) / "summary.json").read_text())
    assert found["summary"]["rounds"] == 2


def test_compare(json_output) -> None:
    found = json_output("compare", "fedavg", "fedprox", "--seeds", 2, *SHORT)
    (table,) = found["tables"].values()
    assert list(table["rows"]) == ["fedavg", "fedprox"]
    assert 0 < table["rows"]["fedprox"]["final"]["mean"] < 100
    assert table["rows"]["fedavg"]["last 10 less fedavg"]["mean"] is None
    assert (Path(found["folder"]) / "study.toml").exists()


def test_list_of_experiments(json_output) -> None:
    found = json_output("reproduce", "--list")
    assert list(found) == experiment_ids()
    assert all(cost["runs"] > 0 and cost["passes"] > 0 and cost["hours"] > 0 for cost in found.values())


@pytest.mark.parametrize(
    ("subject", "name", "key"),
    [
        ("methods", "fedlmd", "settings"),
        ("models", "mlp", "settings"),
        ("partitions", "dirichlet", "settings"),
        ("rules", "krum", "settings"),
        ("attacks", "sign-flip", "settings"),
        ("datasets", "cifar10", "examples"),
        ("probes", "confusion", "cost"),
    ],
)
def test_show(json_output, subject: str, name: str, key: str) -> None:
    found = json_output("show", subject)
    assert key in found[name]
    assert subject != "methods" or list(found) == list(METHODS)


def test_show_partition(json_output) -> None:
    found = json_output("show", "partition")
    assert len(found["counts"]) == found["clients"] == 10
    assert Path(found["picture"]).exists()


def test_show_partition_has_the_names_of_the_data(json_output, tmp_path: Path) -> None:
    rows = [f"{i},{('yes', 'no')[i % 2]},{('north', 'south')[i // 10]}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["age,ill,hospital", *rows]))
    table = [f"data.path={tmp_path / 't.csv'}", "data.name=table", "data.label=ill", "data.client=hospital"]
    found = json_output("show", "partition", *(part for setting in table for part in ("--set", setting)))
    assert (found["classes"], found["client_names"]) == (["no", "yes"], ["north", "south"])


def test_a_failure_is_json_and_a_line_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(monkeypatch, capsys, "run", "--json", "--set", "local.lr=1e9", *SHORT)
    assert code == 2
    error = json.loads(out)["error"]
    assert list(error) == ["code", "message", "key", "hint"]
    assert error["code"] == "round.diverged"
    assert err.splitlines()[-1] == f"error: {error['message']}: {error['hint']} [{error['code']}]"


def test_a_study_that_failed_in_part_is_one_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = ["compare", "fedavg", "fedcad", "--seeds", 1, "--set", "data.aux_per_class=0", "--json", *SHORT]
    code, out, _ = call(monkeypatch, capsys, *wrong)
    found = json.loads(out)
    assert (code, found["error"]["code"]) == (2, "study.runs_failed")
    (table,) = found["tables"].values()
    assert table["rows"]["fedavg"]["final"]["mean"] > 0


def test_a_search_without_a_complete_trial_is_one_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(
        monkeypatch, capsys, "tune", "fedprox", "--trials", 1, "--set", "local.lr=1e30", "--json", *SHORT
    )
    found = json.loads(out)
    assert (code, found["error"]["code"], found["config"]) == (2, "tune.no_complete_trial", None)
    assert [trial["outcome"] for trial in found["trials"]] == ["failed"]


def test_values_that_are_not_finite_are_null() -> None:
    value = {"a": math.nan, "b": [math.inf, 1.5, True, None], "c": Path("x"), 1: ("t",)}
    assert output.to_json_types(value) == {"a": None, "b": [None, 1.5, True, None], "c": "x", "1": ["t"]}


def test_every_method_is_in_one_group(json_output) -> None:
    found = json_output("show", "methods")
    assert {name: method["group"] for name, method in found.items()} == {
        name: group for group, names in METHOD_GROUPS.items() for name in names
    }
    assert sum(map(len, METHOD_GROUPS.values())) == len(METHODS)
