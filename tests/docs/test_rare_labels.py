"""The study of rare labels: its methods and federation, and its tables, which are those of the records."""

from pathlib import Path
from typing import Any

import pytest

from fedrecall import Experiment
from fedrecall.config.tables import read_toml
from fedrecall.methods import METHOD_GROUPS
from fedrecall.studies.results import FinishedRun
from fedrecall.studies.tuning.trials import Trial
from support.markdown import ROOT, script

rare, effort = script("make_rare_labels"), script("make_equal_effort")
DEFAULTS = Trial(1, {}, "complete", 0.5, {}, 0.0)


def test_the_study_has_all_distillation_methods_and_enough_seeds() -> None:
    distil = METHOD_GROUPS["forget less: distillation"]
    tasks = [effort.tasks()[name] for name in rare.TASKS]
    assert [task.tables["data"]["imbalance"]["ratio"] for task in tasks] == [100, 10]
    for task in tasks:
        assert {*distil, "fedavg", "fedlmd-tf", "fedlc", "fedrs"} == set(task.methods)
        assert task.seeds >= 3


def test_only_the_participation_differs_from_the_forgetting_task() -> None:
    """Otherwise the settings that were found there would be those of another task."""
    task = Experiment(**read_toml(ROOT / "examples" / "forgetting.toml"))
    cell = Experiment(**effort.tasks()["rare-labels"].tables)
    for section in ("model", "local"):
        assert getattr(cell, section) == getattr(task, section)
    assert cell.federation.partition == task.federation.partition
    assert (cell.run.rounds, cell.data.aux_per_class) == (task.run.rounds, task.data.aux_per_class)


def run(records: list[dict[str, Any]]) -> FinishedRun:
    cell = effort.make_study("rare-labels", effort.tasks()["rare-labels"], {"fedavg": DEFAULTS}).cells()[0]
    return FinishedRun(cell, Path(), {"rounds": records[-1]["round"]}, records)


def test_values_are_means_over_the_last_ten_rounds_that_have_them() -> None:
    few = {10: 0.9, 11: 0.2, 15: None, 20: 0.4}
    found = run([{"round": t, "frequency": {"few": few.get(t)}, "accuracy": few.get(t)} for t in range(1, 21)])
    assert rare.measure(found, "frequency", "few") == pytest.approx(30)
    assert rare.measure(found, "accuracy") == pytest.approx(30)
    assert rare.measure(found, "forgotten_frequency", "few") is None
    assert rare.by_seed([found], "accuracy") == {0: pytest.approx(30)}


def test_cells() -> None:
    assert rare.mean_cell({0: 10.0, 1: 20.0}) == "15.0 ± 7.1"
    assert rare.mean_cell({0: 10.0}) == "10.0"
    assert rare.mean_cell({}) == ""
    assert rare.difference_cell({0: 12.0, 1: 23.0}, {0: 10.0, 1: 20.0}) == "+2.5 [-3.9, +8.9]"
    assert rare.difference_cell({0: 12.0}, {0: 10.0, 1: 20.0}) == "+2.0"
    assert rare.difference_cell({2: 12.0}, {0: 10.0}) == ""


def test_the_page_has_the_tables_of_the_records() -> None:
    assert rare.section() in rare.PAGE.read_text(), "python docs/make_rare_labels.py"
