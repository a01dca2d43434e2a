"""Results of finished runs, and the command that repeats a study."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest

import fedrecall as fr
from fedrecall.runs.keywords import Keywords
from fedrecall.studies import papers
from fedrecall.studies.compare import comparison_study
from fedrecall.studies.extend import write_or_extend
from fedrecall.studies.reproduce import reproduction_study
from fedrecall.studies.results import load_results, runs_as_study
from fedrecall.studies.study import Study
from support.command import call
from support.folders import write_run, write_study

STUDY = Study(
    id="s",
    title="S",
    base={"run": {"rounds": 3}},
    rows={"FedAvg": {}, "FedProx": {"method": {"name": "fedprox"}}},
    columns={"digits": {}, "few": {"federation": {"clients": 5}}},
    seeds=(0, 1),
)


def rising(cell, number: int) -> float:
    return 0.6 + 0.1 * number + 0.01 * cell.seed


def test_finished_cells_are_outcomes(tmp_path: Path) -> None:
    folder = write_study(STUDY, tmp_path / "s", rising, without=["cells/fedprox/few/seed-0"])
    results = load_results(folder)
    assert results.study == STUDY
    assert len(results.finished_runs()) == 7
    assert [o.cell.seed for o in results.finished_runs("FedAvg", "few")] == [0, 1]
    assert [o.cell.seed for o in results.finished_runs("FedProx", "few")] == [1]
    assert {o.cell.row for o in results.finished_runs(column="few")} == {"FedAvg", "FedProx"}
    assert [cell.folder for cell in results.unfinished] == ["cells/fedprox/few/seed-0"]
    (outcome,) = results.finished_runs("FedProx", "few")
    assert outcome.path == folder / "cells/fedprox/few/seed-1"
    assert outcome.curve() == [(1, pytest.approx(0.71)), (2, pytest.approx(0.81)), (3, pytest.approx(0.91))]
    assert outcome.curve("seconds") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert outcome.curve("nothing of the kind") == []
    assert outcome.classes == 2
    assert not outcome.diverged


def test_rounds_without_a_value_are_left_out(tmp_path: Path) -> None:
    fr.run({"run": {"rounds": 3, "evaluate_every": 2}, "local": {"epochs": 1}}, out=tmp_path / "a")
    (outcome,) = load_results(tmp_path / "a").finished_runs()
    assert [number for number, _ in outcome.curve()] == [2, 3]


def test_a_plain_run_is_a_study_of_one_cell(tmp_path: Path) -> None:
    result = fr.run(
        {"method": {"name": "fedlmd", "tau": 2.0}, "run": {"rounds": 2, "seed": 3, "probes": ["confusion"]}},
        out=tmp_path / "mine",
    )
    results = load_results(tmp_path / "mine")
    (outcome,) = results.finished_runs()
    assert (outcome.cell.row, outcome.cell.column, outcome.cell.seed) == ("fedlmd", "digits", 3)
    assert outcome.records == result.rounds
    assert outcome.summary == result.summary
    assert outcome.classes == 10
    assert [line["round"] for line in outcome.probe_records("confusion")] == [1, 2]
    assert outcome.probe_records("local") == []
    assert results.unfinished == []
    assert results.study.experiment(outcome.cell) == result.experiment


def test_columns_that_are_groups_share_a_run(tmp_path: Path) -> None:
    columns = {"Amazon": {"group": "amazon"}, "DSLR": {"group": "dslr"}, "average": {"group": "mean"}}
    study = Study(id="g", title="G", base={"run": {"rounds": 1}}, rows={"FedAvg": {}}, columns=columns)
    folder = write_study(study, tmp_path / "g", lambda cell, number: 0.5, groups=["amazon", "dslr"])
    rounds = folder / "cells/fedavg/all/seed-0/rounds.jsonl"
    line = json.loads(rounds.read_text()) | {"groups": {"amazon": 0.25, "dslr": 0.75}}
    rounds.write_text(json.dumps(line) + "\n")
    assert [o.curve() for o in load_results(folder).finished_runs()] == [[(1, 0.25)], [(1, 0.75)], [(1, 0.5)]]
    rounds.write_text(json.dumps(line | {"groups": {"webcam": 1.0}}) + "\n")
    with pytest.raises(fr.UserError) as error:
        load_results(folder).finished_runs("FedAvg", "Amazon")[0].curve()
    assert (error.value.code, error.value.key) == ("study.unknown_group", "columns.Amazon.group")
    assert "webcam" in str(error.value), "the groups that there are"


def test_a_run_that_failed_in_its_first_round_has_no_curve(tmp_path: Path) -> None:
    write_run(fr.Experiment(run={"rounds": 2}), tmp_path / "a", lambda number: -1.0)
    (tmp_path / "a" / "rounds.jsonl").unlink()
    (outcome,) = load_results(tmp_path / "a").finished_runs()
    assert outcome.diverged
    assert outcome.curve() == []


SUMMARY = json.dumps(
    {"rounds": 2, "seconds": 1.5, "bytes_up": 3, "bytes_down": 3, "final": 0.5, "best": None, "last10": None}
)


@pytest.mark.parametrize(
    ("file", "content", "fact"),
    [
        ("summary.json", "{", "JSON"),
        ("summary.json", "[1]", "JSON"),
        ("summary.json", b"\xff\xfe", "decode"),
        ("rounds.jsonl", '{"round": 1}\n{"rou', "line 2"),
        ("rounds.jsonl", '{"accuracy": 1}\n', "line 1"),
        ("partition.json", "nonsense", "JSON"),
        ("summary.json", "{}", "rounds"),
        ("summary.json", SUMMARY.replace("1.5", '"long"'), "seconds"),
        ("summary.json", SUMMARY.replace("0.5", "[0.5]"), "final"),
        ("summary.json", SUMMARY.replace("best", "beast"), "best"),
        ("rounds.jsonl", '{"round": 1, "accuracy": "high", "clients": [0]}', "accuracy in line 1"),
        ("rounds.jsonl", '{"round": 1, "accuracy": 0.5}', "clients"),
        ("rounds.jsonl", '{"round": 1, "clients": ["a"]}', "clients"),
        ("rounds.jsonl", '{"round": 1, "clients": [0], "groups": {"a": null}}', "groups in line 1"),
        ("partition.json", '{"hash": "ab", "counts": 3}', "counts"),
        ("partition.json", '{"hash": "ab", "counts": [[1, 2], [3]]}', "counts"),
        ("partition.json", '{"counts": [[1]]}', "hash"),
        ("probes/local.jsonl", "7\n", "line 1"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, content: str | bytes, fact: str) -> None:
    path = write_run(fr.Experiment(run={"rounds": 2}), tmp_path / "a", lambda number: 0.5) / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(fr.UserError) as error:
        [(outcome.classes, outcome.probe_records("local")) for outcome in load_results(tmp_path / "a").finished_runs()]
    assert (error.value.code, error.value.key) == ("run.damaged_file", str(path))
    assert error.value.hint is not None
    assert fact in error.value.message.removeprefix(str(path))


@pytest.mark.parametrize("summary", [SUMMARY, SUMMARY.replace("0.5", "null")])
def test_a_run_that_was_never_evaluated_is_complete(tmp_path: Path, summary: str) -> None:
    path = write_run(fr.Experiment(run={"rounds": 2}), tmp_path / "a", lambda number: 0.5)
    (path / "summary.json").write_text(summary)
    (path / "partition.json").write_text('{"hash": "ab", "counts": null}')
    (outcome,) = load_results(path).finished_runs()
    assert (outcome.summary, outcome.classes) == (json.loads(summary), None)


def test_other_folders_are_errors(tmp_path: Path) -> None:
    with pytest.raises(fr.UserError) as error:
        load_results(tmp_path)
    assert (error.value.code, error.value.key) == ("study.not_found", str(tmp_path))


# --- the command that repeats a study ------------------------------------------------------------


def command_of(study: Study, folder: Path) -> list[str]:
    """Return the command of a study that was written and loaded again, without `fedrecall` and `--out`."""
    write_study(study, folder, rising, without=[cell.folder for cell in study.cells()])
    first, *arguments, option, out = shlex.split(load_results(folder).command)
    assert (first, option, out) == ("fedrecall", "--out", f"{folder.name}-again")
    return arguments


def test_a_reproduction_records_its_command(tmp_path: Path) -> None:
    cells = ",".join(list(papers.load_definition("fedlmd-table-3").columns)[:2])
    part = reproduction_study("fedlmd-table-3", fraction=0.1, seeds=2, rows="FedAvg,FedLMD", columns=cells)
    expected = ["--fraction", "0.1", "--methods", "FedAvg,FedLMD", "--cells", cells, "--seeds", "2"]
    assert command_of(part, tmp_path / "part") == ["reproduce", "fedlmd-table-3", *expected]
    assert command_of(reproduction_study("fedlmd-table-3"), tmp_path / "whole") == ["reproduce", "fedlmd-table-3"]
    other = reproduction_study("fedlmd-table-3", overrides=["local.lr=0.5"])
    assert command_of(other, tmp_path / "other") == ["reproduce", "fedlmd-table-3", "--set", "local.lr=0.5"]


def test_a_comparison_records_its_command(tmp_path: Path) -> None:
    study, _ = comparison_study(["fedavg", "fedlmd:tau=3"], None, ["run.rounds=2"], 2)
    assert study.command == "fedrecall compare fedavg fedlmd:tau=3 --seeds 2 --set run.rounds=2"
    assert comparison_study()[0].command == "fedrecall compare"
    keywords = Keywords(data="digits", model="mlp", partition="iid", clients=4, rounds=2, lr=0.1)
    options = "--data digits --model mlp --set federation.partition.name=iid --clients 4 --rounds 2 --set local.lr=0.1"
    assert comparison_study(["fedavg"], keywords=keywords)[0].command == f"fedrecall compare fedavg {options}"
    (tmp_path / "c.toml").write_text("[run]\nrounds = 2\n")
    assert (
        comparison_study(config=tmp_path / "c.toml")[0].command == f"fedrecall compare --config {tmp_path / 'c.toml'}"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"methods": [fr.METHODS["fedavg"]()]},
        {"methods": {"plain": "fedavg"}},
        {"config": {"run": {"rounds": 2}}},
        {"keywords": Keywords(data=([[0.0], [1.0]] * 9, [0, 1] * 9))},
        {"keywords": Keywords(model={"name": "mlp", "hidden": [8]})},
        {"keywords": Keywords(partition={"name": "iid"})},
    ],
    ids=str,
)
def test_a_comparison_that_needs_python_has_no_command(arguments: dict[str, object]) -> None:
    assert comparison_study(**arguments)[0].command == ""  # type: ignore[arg-type]


def test_a_study_without_a_recorded_command_is_repeated_from_its_file(tmp_path: Path) -> None:
    study = STUDY.model_copy(update={"fraction": 0.5})
    expected = ["reproduce", str(tmp_path / "s" / "study.toml"), "--fraction", "0.5"]
    assert command_of(study, tmp_path / "s") == expected
    assert "command" not in tomllib.loads((tmp_path / "s" / "study.toml").read_text())


def test_every_command_that_filled_a_folder_is_recorded_once(tmp_path: Path) -> None:
    for methods in (["fedavg"], ["fedprox"], ["fedavg"]):
        write_or_extend(comparison_study(methods)[0], tmp_path / "s")
    assert load_results(tmp_path / "s").command.splitlines() == [
        "fedrecall compare fedavg --out s-again",
        "fedrecall compare fedprox --out s-again",
    ]


@pytest.mark.parametrize("kind", ["compare", "reproduce"])
def test_the_recorded_command_makes_the_same_runs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["run.rounds=1", "local.epochs=1", "federation.partition.s=1"]
    study, _ = comparison_study(["fedavg", "fedprox:mu=0.5"], None, quick, 1)
    if kind == "reproduce":
        study = study.model_copy(update={"id": "mine", "measure": "final", "seeds": (4,), "command": ""})
    arguments = command_of(study, tmp_path / "study")
    assert arguments[0] == kind
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, capsys, *arguments, "--out", "again")[0] == 0
    made = load_results(Path("again"))
    assert made.study.cells() == study.cells()
    assert len(made.finished_runs()) == 2


def test_the_commands_of_run_directories(tmp_path: Path) -> None:
    folders = [tmp_path / "a b", tmp_path / "c"]
    for seed, folder in enumerate(folders):
        write_run(fr.Experiment(run={"rounds": 2, "seed": seed}), folder, lambda r: 0.5)
    commands = [shlex.split(line) for line in runs_as_study(folders).command.splitlines()]
    assert commands == [
        ["fedrecall", "run", str(folder / "config.toml"), "--out", f"{folder.name}-again"] for folder in folders
    ]
    assert shlex.split(load_results(folders[0]).command) == commands[0]
