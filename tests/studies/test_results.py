"""Finished runs, read back."""

import json
from pathlib import Path

import pytest

import fedrecall as fr
from fedrecall.studies.results import load_results
from fedrecall.studies.study import Study
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
def test_a_run_that_was_never_evaluated_is_whole(tmp_path: Path, summary: str) -> None:
    path = write_run(fr.Experiment(run={"rounds": 2}), tmp_path / "a", lambda number: 0.5)
    (path / "summary.json").write_text(summary)
    (path / "partition.json").write_text('{"hash": "ab", "counts": null}')
    (outcome,) = load_results(path).finished_runs()
    assert (outcome.summary, outcome.classes) == (json.loads(summary), None)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(fr.UserError) as error:
        load_results(tmp_path)
    assert (error.value.code, error.value.key) == ("study.not_found", str(tmp_path))
