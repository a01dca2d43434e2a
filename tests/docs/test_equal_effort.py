"""Comparison with equal effort: the page is that of the records, and every method had the same effort."""

import re
import shutil
from pathlib import Path

import pytest

from fedrecall.methods import METHODS
from fedrecall.studies.tuning.trials import best_trial, read_trials
from support.markdown import ROOT, script

effort = script("make_equal_effort")
TINY = {
    "data": {"name": "digits"},
    "federation": {"clients": 5, "sample": 2, "partition": {"name": "shards", "s": 2}},
    "local": {"epochs": 1},
    "engine": {"name": "serial"},
    "run": {"rounds": 2},
}
FINISHED = [name for name, task in effort.tasks().items() if not effort.missing_work(name, task)]


def test_the_page_is_that_of_the_records() -> None:
    assert "digits" in FINISHED
    assert effort.PAGE.read_text() == effort.page(), "python docs/make_equal_effort.py"


@pytest.mark.parametrize("name", [name for name in FINISHED if effort.tasks()[name].searches is None])
def test_every_method_has_the_same_trials(name: str) -> None:
    task, folder = effort.tasks()[name], effort.RECORDS / f"equal-effort-{name}"
    trials = {method: read_trials(folder / "tuning" / method) for method in task.methods}
    assert len(set(map(len, trials.values()))) == 1
    assert len(trials["fedavg"]) == task.trials
    for method, found in trials.items():
        best = best_trial(found)
        assert best is not None, method
        assert "local.lr" in best.settings, "the learning rate of every method is tuned"


@pytest.mark.parametrize("name", FINISHED)
def test_the_best_settings_were_run_on_fresh_seeds(name: str) -> None:
    task, results = effort.tasks()[name], effort.load_results(effort.RECORDS / f"equal-effort-{name}")
    assert set(results.study.rows) == set(task.methods)
    assert effort.TUNING_SEED not in results.study.seeds
    for method in task.methods:
        searched = effort.RECORDS / f"equal-effort-{task.searches or name}"
        best = best_trial(read_trials(searched / "tuning" / method))
        assert best is not None
        assert best.settings.items() <= effort.flatten(results.study.rows[method]).items()
        assert {run.cell.seed for run in results.finished_runs(method)} == set(results.study.seeds)


def test_a_task_is_resumed_from_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two methods, two trials, then one more trial and seed; the records are small, and the page has the table."""
    monkeypatch.setattr(effort, "RECORDS", tmp_path / "results")
    monkeypatch.setattr(effort, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(effort, "COMPARE_DEFAULTS", TINY)
    monkeypatch.setattr(effort, "METHODS", {name: METHODS[name] for name in ("fedavg", "fedlmd")})
    digits = effort.tasks()["digits"]._replace(trials=3, seeds=2)
    monkeypatch.setattr(effort, "tasks", lambda: {"digits": digits})

    def call(out: str, trials: int, seeds: int) -> None:
        words = ["", "digits", "--out", str(tmp_path / out), "--trials", str(trials), "--seeds", str(seeds)]
        monkeypatch.setattr("sys.argv", words)
        effort.main()

    call("a", 2, 1)
    assert "Not finished: 4 of 6 trials and 2 of 4 runs" in (tmp_path / "page.md").read_text()
    first = read_trials(tmp_path / "results" / "equal-effort-digits" / "tuning" / "fedlmd")
    shutil.rmtree(tmp_path / "results" / "equal-effort-digits" / "cells")
    call("b", 3, 2)  # in another folder: only the searches are those of the records
    again = read_trials(tmp_path / "results" / "equal-effort-digits" / "tuning" / "fedlmd")
    assert [(trial.settings, trial.value) for trial in again[:2]] == [(t.settings, t.value) for t in first]
    assert len(again) == 3
    page = (tmp_path / "page.md").read_text()
    assert page == effort.page()
    assert "seeds 10, 11" in page
    assert sum(line.startswith("| `fedlmd` |") for line in page.splitlines()) == 2, "one row of each table"
    capsys.readouterr()
    call("c", 3, 2)  # the records have all searches and runs: nothing is run again
    assert {line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if ", seed" in line} == {"kept"}
    kept = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert not [path for path in kept if path.name in ("model.safetensors", "environment.json")]


def test_a_run_that_is_not_finished_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "RECORDS", tmp_path / "results")
    done, cut_off = (tmp_path / "out/study/cells/fedavg/digits" / name for name in ("seed-0", "seed-1"))
    for folder in (done, cut_off):
        folder.mkdir(parents=True)
        (folder / "rounds.jsonl").write_text("{}")
    (done / "summary.json").write_text("{}")
    effort.keep_records("digits", tmp_path / "out")
    kept = {path.parent.name for path in (tmp_path / "results").rglob("*.jsonl")}
    assert kept == {"seed-0"}


def test_the_default_is_in_every_space() -> None:
    """Otherwise the first trial would not be the default, and what tuning changed would not be known."""
    for name in METHODS:
        if name in effort.tasks()["digits"].methods:
            start = {"method": effort.method_table(name)}
            defaults = effort.Experiment(**effort.merge_tables(effort.COMPARE_DEFAULTS, start)).to_tables()
            space = effort.search_texts(name, defaults, effort.tasks()["digits"].rates)
            assert space[-1] == "local.lr=0.01..0.2"
            for key, _, values in (text.partition("=") for text in space):
                value = effort.flatten(defaults)[key]
                low, dots, high = values.partition("..")
                inside = float(low) <= value <= float(high) if dots else value in map(float, values.split(","))
                assert inside, (name, key)


@pytest.mark.parametrize(
    ("task", "begin", "end"), [("digits", "**Digits**", "**CIFAR-10**"), ("cifar10", "**CIFAR-10**", "**The papers'")]
)
def test_differences_in_prose_are_those_of_the_records(task: str, begin: str, end: str) -> None:
    """Every "`method` +1.2" of the page on choosing a method, and of the README's sentence."""
    results = effort.load_results(effort.RECORDS / f"equal-effort-{task}")
    reference = effort.run_group(results, "fedavg", task)
    prose = (ROOT / "docs" / "choose.md").read_text().partition(begin)[2].partition(end)[0]
    stated = re.findall(r"`([a-z-]+)`(?: as released)? ([+-]\d+\.\d)", prose)
    assert len(stated) >= 6
    readme = re.search(
        r"FedNTD is (\d+\.\d) points above FedAvg on CIFAR-10, and (\d+\.\d) on digits",
        (ROOT / "README.md").read_text(),
    )
    assert readme is not None
    stated.append(("fedntd", readme[1] if task == "cifar10" else readme[2]))
    for method, value in stated:
        runs = effort.run_group(results, method, task)
        cell = effort.difference_cell(runs, reference, lambda group: group.accuracy("last10"), "last10")
        assert cell.numbers["mean"] == pytest.approx(float(value), abs=0.0501), method
