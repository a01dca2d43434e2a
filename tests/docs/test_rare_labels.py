"""The study of rare labels: its methods and federation, and its tables, which are those of the records."""

from pathlib import Path
from typing import Any

import pytest

from fedrecall import Experiment
from fedrecall.config.tables import read_toml
from fedrecall.methods import METHOD_GROUPS
from fedrecall.studies.papers import load_study
from fedrecall.studies.results import FinishedRun, load_results
from support.markdown import ROOT, script

rare = script("make_rare_labels")
DEFINITION = load_study(rare.DEFINITION)


def test_the_study_has_all_distillation_methods_and_enough_seeds() -> None:
    distil = METHOD_GROUPS["forget less: distillation"]
    assert {*distil, "fedavg", "fedlmd-tf", "fedlc", "fedrs"} == set(DEFINITION.rows)
    assert len(DEFINITION.seeds) >= 3
    ratios = [(column["data"]["name"], column["data"]["imbalance"]["ratio"]) for column in DEFINITION.columns.values()]
    assert ratios == [("digits", 10), ("digits", 30), ("cifar10", 100), ("cifar10", 10)]


def test_the_federation_of_cifar10_is_that_of_the_forgetting_task() -> None:
    task = Experiment(**read_toml(ROOT / "examples" / "forgetting.toml"))
    cell = DEFINITION.experiment(DEFINITION.cell("fedavg", "CIFAR-10, ratio 100", 0))
    for section in ("federation", "model", "local"):
        assert getattr(cell, section) == getattr(task, section)
    assert (cell.run.rounds, cell.data.aux_per_class) == (task.run.rounds, task.data.aux_per_class)


def run(records: list[dict[str, Any]]) -> FinishedRun:
    cell = DEFINITION.cell("fedavg", "digits, ratio 10", 0)
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
    planned = dict.fromkeys(DEFINITION.columns, len(DEFINITION.rows) * len(DEFINITION.seeds))
    results = load_results(ROOT / "results" / "rare-labels")
    assert results.finished_runs()
    assert rare.section(results, planned) in rare.PAGE.read_text(), "python docs/make_rare_labels.py"
