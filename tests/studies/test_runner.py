"""Runs of a study: each cell once, with several processes, failures and interruptions."""

import json
import shutil
import signal
import tomllib
from pathlib import Path

import pytest
import safetensors.torch
import torch

import fedrecall as fr
from fedrecall.studies.extend import write_or_extend
from fedrecall.studies.results import load_results
from fedrecall.studies.runner import run_study, try_lock
from fedrecall.studies.study import Study
from support.processes import start, until

BASE = {
    "federation": {"clients": 4, "sample": 2},
    "local": {"epochs": 1},
    "engine": {"name": "serial"},
    "run": {"rounds": 2},
}
ROWS = {"FedAvg": {}, "FedProx": {"method": {"name": "fedprox"}}}


def study(**fields: object) -> Study:
    defaults = {"id": "s", "title": "S", "base": BASE, "rows": ROWS, "columns": {"digits": {}}, "seeds": (0, 1)}
    return Study(**defaults | fields)


class Events:
    """Events of a study that is run to the end, by kind."""

    def __init__(self, *arguments: object) -> None:
        events = list(run_study(*arguments))  # type: ignore[arg-type]
        self.started = [event.cell.folder for event in events if event.kind == "started"]
        self.kept = [event.cell.folder for event in events if event.kind == "kept"]
        self.finished = [event.cell.folder for event in events if event.kind == "finished"]
        self.rounds = sum(event.kind == "round" for event in events)
        self.errors = {event.cell.folder: event.error for event in events if event.error is not None}


def files(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Return every file of the runs with its modification time and content."""
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in (folder / "cells").rglob("*") if p.is_file()}


def timeless(path: Path) -> list[dict]:
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_every_cell_is_a_separate_run_and_is_run_once(tmp_path: Path) -> None:
    events = Events(study(), tmp_path / "s")
    folders = [cell.folder for cell in study().cells()]
    assert events.started == events.finished == folders
    assert events.rounds == 8
    assert events.errors == {}
    assert Study.load(tmp_path / "s") == study()
    for cell in study().cells():
        fr.run(cell.config, out=tmp_path / cell.folder)
        assert timeless(tmp_path / "s" / cell.folder) == timeless(tmp_path / cell.folder), "as if it were run alone"
    assert not list(tmp_path.rglob("*seed*.lock")), "claims are tidied up"

    before, again = files(tmp_path / "s"), Events(study(), tmp_path / "s")
    assert again.started == again.finished == []
    assert again.kept == folders
    assert files(tmp_path / "s") == before, "a finished cell is not touched"


def test_an_extended_study_is_resumed(tmp_path: Path) -> None:
    Events(study(seeds=(0,)), tmp_path / "s")
    before = files(tmp_path / "s")
    rows = {"FedAvg": {}, "FedNova": {"method": {"name": "fednova"}}}
    more = study(rows=rows, columns={"digits": {}, "few": {"federation": {"clients": 3}}}, seeds=(0, 1))
    events = Events(more, tmp_path / "s")
    assert "cells/fedavg/digits/seed-0" in events.kept
    assert len(events.started) == 7
    assert before.items() <= files(tmp_path / "s").items()
    both = Study.load(tmp_path / "s")
    assert list(both.rows) == ["FedAvg", "FedProx", "FedNova"], "what was there stays, in its place"
    assert both.seeds == (0, 1)
    assert list(both.columns) == ["digits", "few"]


def test_running_a_part_does_not_change_the_study(tmp_path: Path) -> None:
    printed = {"final": {"FedAvg": [1.0, 2.0], "FedProx": [3.0, None]}}
    rows = {"FedAvg": {}, "FedProx": {"method": {"name": "fedprox"}, "columns": {"few": {"local": {"lr": 0.1}}}}}
    errata = ({"row": "FedAvg", "column": "few", "measure": "final", "why": "w"},)
    columns = {"digits": {}, "few": {"federation": {"clients": 3}}}
    complete = study(
        rows=rows, columns=columns, printed=printed, errata=errata, seeds=(0,), target={"digits": 0.5, "few": 0.6}
    )
    for parts in ([{}, {"columns": ["few"]}], [{"columns": ["digits"]}, {"rows": ["FedProx"]}, {}]):
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
        for part in parts:
            write_or_extend(complete.subset(**part), tmp_path / "s")
        assert Study.load(tmp_path / "s") == complete


@pytest.mark.parametrize(
    ("changes", "key", "fact"),
    [
        ({"base": BASE | {"local": {"epochs": 3}}}, "local.epochs", "1, not 3"),
        ({"fraction": 0.5}, "fraction", "1.0, not 0.5"),
        ({"id": "t"}, "id", "s, not t"),
        ({"rows": {"FedAvg": {"local": {"lr": 0.5}}}}, "rows.FedAvg.local.lr", "(not set), not 0.5"),
        ({"columns": {"digits": {"data": {"aux_per_class": 1}}}}, "columns.digits.data.aux_per_class", "not 1"),
    ],
)
def test_another_study_in_the_same_folder_is_an_error_with_the_key(
    tmp_path: Path, changes: dict, key: str, fact: str
) -> None:
    write_or_extend(study(), tmp_path / "s")
    before = (tmp_path / "s" / "study.toml").read_bytes()
    with pytest.raises(fr.UserError) as error:
        Events(study(**changes), tmp_path / "s")
    assert (error.value.code, error.value.key) == ("study.other_settings", key)
    assert fact in str(error.value)
    assert str(tmp_path / "s") in str(error.value)
    assert (tmp_path / "s" / "study.toml").read_bytes() == before


def test_the_engine_may_change(tmp_path: Path) -> None:
    write_or_extend(study(), tmp_path / "s")
    other = study(base=BASE | {"engine": {"name": "pool", "workers": 2}, "data": {"root": "/elsewhere"}})
    write_or_extend(other, tmp_path / "s")
    assert Study.load(tmp_path / "s") == other


def test_a_folder_without_a_study_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(fr.UserError) as error:
        Events(study(), tmp_path)
    assert (error.value.code, error.value.key) == ("study.directory_not_empty", str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(fr.UserError) as error:
        Events(study(), tmp_path / "file")
    assert (error.value.code, error.value.key) == ("study.cannot_write", str(tmp_path / "file"))


def test_nothing_runs_before_all_of_it_is_valid(tmp_path: Path) -> None:
    with pytest.raises(fr.UserError) as error:
        Events(study(rows=ROWS | {"x": {"method": {"name": "fedprx"}}}), tmp_path / "s")
    assert (error.value.code, error.value.key) == ("config.unknown_name", "method.name")
    assert not (tmp_path / "s").exists()


def test_a_run_that_diverges_is_a_result(tmp_path: Path) -> None:
    rows = {"wild": {"local": {"lr": 1e9}}, "FedAvg": {}}
    events = Events(study(rows=rows, seeds=(0,)), tmp_path / "s")
    assert events.errors == {}
    assert len(events.finished) == 2
    wild, fedavg = load_results(tmp_path / "s").finished_runs()
    assert wild.diverged
    assert "finite" in wild.summary["failed"]
    assert not fedavg.diverged
    assert Events(study(rows=rows, seeds=(0,)), tmp_path / "s").started == []


def test_a_cell_that_cannot_run_does_not_stop_the_others(tmp_path: Path) -> None:
    missing = {"data": {"name": "mnist", "root": str(tmp_path / "nowhere")}}
    idle = {"local": {"batch": 2000, "drop_last": True}}
    columns = {"gone": missing, "idle": idle, "digits": {}}
    errors = Events(study(columns=columns, seeds=(0,)), tmp_path / "s").errors
    assert {folder: error.code for folder, error in errors.items()} == {
        f"cells/{row}/{column}/seed-0": code
        for column, code in (("gone", "data.not_found"), ("idle", "round.no_training_step"))
        for row in ("fedavg", "fedprox")
    }
    assert next(iter(errors)) == "cells/fedavg/gone/seed-0", "in the order of the cells"
    assert "nowhere" in str(errors["cells/fedavg/gone/seed-0"])
    assert errors["cells/fedavg/idle/seed-0"].key == "local.drop_last"
    assert [o.cell.column for o in load_results(tmp_path / "s").finished_runs()] == ["digits", "digits"], (
        "no result, no cell"
    )

    mended = study(columns=columns | {"idle": {}}, seeds=(0,))
    (tmp_path / "s" / "study.toml").unlink()
    shutil.rmtree(tmp_path / "s" / "cells" / "fedavg" / "digits")
    mended.save(tmp_path / "s")
    assert "cells/fedavg/idle/seed-0" in Events(mended, tmp_path / "s").started, "it is tried again"
    assert load_results(tmp_path / "s").finished_runs("FedAvg", "idle")[0].summary["rounds"] == 2


def test_a_cell_starts_from_the_model_of_another(tmp_path: Path) -> None:
    rows = {"after": {"start": "before", "run": {"rounds": 1}}, "before": {}}
    events = Events(study(rows=rows, seeds=(0,)), tmp_path / "s")
    assert events.finished == ["cells/before/digits/seed-0", "cells/after/digits/seed-0"]
    first, second = (tmp_path / "s" / f"cells/{name}/digits/seed-0" for name in ("before", "after"))
    config = tomllib.loads((second / "config.toml").read_text())
    assert config["run"]["start"] == str((first / "model.safetensors").resolve())
    results = load_results(tmp_path / "s")
    initial = results.finished_runs("after")[0].summary["initial"]
    assert initial == results.finished_runs("before")[0].summary["final"]


def test_a_cell_that_starts_from_a_failed_run_is_an_error(tmp_path: Path) -> None:
    rows = {"wild": {"local": {"lr": 1e9}}, "after": {"start": "wild"}}
    errors = Events(study(rows=rows, seeds=(0,)), tmp_path / "s").errors
    (error,) = errors.values()
    assert (error.code, error.key) == ("study.start_failed", "cells/wild/digits/seed-0")
    missing = {"data": {"name": "mnist", "root": str(tmp_path / "nowhere")}}
    rows = {"before": missing, "after": {"start": "before"} | missing}
    errors = Events(study(rows=rows, seeds=(0,)), tmp_path / "t").errors
    assert [(error.code, folder) for folder, error in errors.items()] == [
        ("data.not_found", "cells/before/digits/seed-0"),
        ("study.start_failed", "cells/after/digits/seed-0"),
    ], "the cause comes first"
    assert errors["cells/after/digits/seed-0"].key == "cells/before/digits/seed-0"


def test_a_run_directory_without_its_first_files_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "s/cells/fedavg/digits/seed-0"
    write_or_extend(study(), tmp_path / "s")
    path.mkdir(parents=True)
    (path / "rounds.jsonl").write_text('{"rou')
    Events(study(), tmp_path / "s")
    assert [line["round"] for line in timeless(path)] == [1, 2]


SCRIPT = """
import sys
from pathlib import Path
from fedrecall.studies.study import Study
from fedrecall.studies.runner import run_study

folder = Path(sys.argv[1])
for event in run_study(Study.load(folder), folder):
    if event.kind == "started":
        print("started", event.cell.folder, flush=True)
"""


def test_a_claimed_cell_is_skipped(tmp_path: Path) -> None:
    single = study(rows={"FedAvg": {}}, seeds=(0, 1))
    write_or_extend(single, tmp_path / "s")
    with try_lock(tmp_path / "s" / single.cells()[0].folder) as ours:
        assert ours
        other = start("-c", SCRIPT, tmp_path / "s", cwd=tmp_path)
        assert other.stdout is not None
        assert other.stdout.readline() == "started cells/fedavg/digits/seed-1\n", "it does what is free"
        until((tmp_path / "s" / single.cells()[1].folder / "summary.json").exists)
        assert other.poll() is None, "and waits for the rest"
    out, err = other.communicate(timeout=60)
    assert out == "started cells/fedavg/digits/seed-0\n", "a claim that is given up is free"
    assert err == ""


def test_a_closed_study_holds_no_lock_and_is_resumed(tmp_path: Path) -> None:
    single = study(rows={"FedAvg": {}}, seeds=(0,), base=BASE | {"run": {"rounds": 4}})
    events = run_study(single, tmp_path / "s")
    kinds = [next(events).kind for _ in range(3)]
    events.close()
    assert kinds == ["started", "round", "round"]
    with try_lock(tmp_path / "s" / single.cells()[0].folder) as acquired:
        assert acquired
    assert Events(single, tmp_path / "s").finished == [single.cells()[0].folder]
    assert [line["round"] for line in timeless(tmp_path / "s" / single.cells()[0].folder)] == [1, 2, 3, 4]


def test_a_study_waits_for_a_cell_of_another_process(tmp_path: Path) -> None:
    single = study(rows={"FedAvg": {}}, seeds=(0,))
    write_or_extend(single, tmp_path / "s")
    with try_lock(tmp_path / "s" / single.cells()[0].folder):
        events = run_study(single, tmp_path / "s")
        assert next(events).kind == "waiting"
    assert [event.kind for event in events] == ["started", "round", "round", "finished"]


def test_two_processes_share_the_work(tmp_path: Path) -> None:
    shared = study(base=BASE | {"run": {"rounds": 5}}, seeds=tuple(range(12)))
    write_or_extend(shared, tmp_path / "s")
    both = [start("-c", SCRIPT, tmp_path / "s", cwd=tmp_path) for _ in range(2)]
    outs = [process.communicate(timeout=120) for process in both]
    assert [err for _, err in outs] == ["", ""]
    started = [out.split("\n")[:-1] for out, _ in outs]
    assert sorted(started[0] + started[1]) == sorted(f"started {cell.folder}" for cell in shared.cells()), (
        "each cell once"
    )
    assert all(started), "both had a part in it"
    assert all(len(timeless(tmp_path / "s" / cell.folder)) == 5 for cell in shared.cells())


@pytest.mark.parametrize("engine", [{"name": "serial"}, {"name": "pool", "workers": 2}], ids=["serial", "pool"])
def test_results_survive_a_killed_process(tmp_path: Path, engine: dict) -> None:
    long = study(base=BASE | {"engine": engine, "run": {"rounds": 30}}, seeds=(0,))
    write_or_extend(long, tmp_path / "s")
    first, second = (tmp_path / "s" / cell.folder for cell in long.cells())
    process = start("-c", SCRIPT, tmp_path / "s", cwd=tmp_path)
    rounds = second / "rounds.jsonl"
    until(lambda: rounds.exists() and rounds.read_text().count("\n") >= 3, seconds=60)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (second / "summary.json").exists(), "it was in the middle of it"
    started, finished = rounds.read_text().splitlines()[0], files(first.parent.parent)

    events = Events(long, tmp_path / "s")
    assert events.started == events.finished == [long.cells()[1].folder]
    assert files(first.parent.parent) == finished
    assert events.rounds < 30, "it went on from a checkpoint"
    assert rounds.read_text().splitlines()[0] == started
    complete = fr.run(long.cells()[1].config, out=tmp_path / "alone")
    assert timeless(second) == timeless(tmp_path / "alone")
    saved = [safetensors.torch.load_file(p / "model.safetensors") for p in (second, tmp_path / "alone")]
    assert all(torch.equal(tensor, saved[1][name]) for name, tensor in saved[0].items())
    assert complete.summary["rounds"] == 30
