"""Data of the figures, on numbers made by hand."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecall.errors import UserError
from fedrecall.reporting.figures.series import (
    MissingData,
    accuracy_over_seeds,
    column_positions,
    mean_over_seeds,
    pick_client,
    recall,
    run_curve,
    runs_to_average,
    safe_divide,
    seeds_note,
    select,
)
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import Study

NAMES = ["FedAvg", "FedLMD-Tf", "FedLMD+Prox"]


def test_mean_and_deviation_over_seeds_of_different_lengths() -> None:
    line = mean_over_seeds([[(1, 0.2), (2, 0.4), (3, 0.9)], [(1, 0.4), (2, 0.6)]])
    assert line is not None
    assert line.rounds.tolist() == [1, 2, 3]
    np.testing.assert_allclose(line.mean, [0.3, 0.5, 0.9])
    np.testing.assert_allclose(line.deviation, [0.02**0.5, 0.02**0.5, np.nan])  # of a sample: divided by n - 1
    assert line.seeds == 2


def test_one_seed_has_no_deviation_and_none_no_line() -> None:
    line = mean_over_seeds([[(5, 0.5)], []])
    assert line is not None
    assert line.seeds == 1
    assert np.isnan(line.deviation).all()
    assert mean_over_seeds([[], []]) is None


def test_a_value_that_is_not_finite_leaves_a_gap() -> None:
    line = mean_over_seeds([[(1, 1.0), (2, float("inf"))], [(1, 3.0), (2, float("nan"))]])
    assert line is not None
    np.testing.assert_allclose(line.mean, [2.0, np.nan])


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4), min_size=2, max_size=5))
def test_over_seeds_is_numpys_mean_and_deviation(table: list[list[float]]) -> None:
    line = mean_over_seeds([list(enumerate(each, 1)) for each in table])
    assert line is not None
    np.testing.assert_allclose(line.mean, np.mean(table, axis=0), atol=1e-9)
    np.testing.assert_allclose(line.deviation, np.std(table, axis=0, ddof=1), atol=1e-6)


def test_names_are_known_by_their_slugs_and_keep_the_wanted_order() -> None:
    assert select(NAMES, None, "row") == NAMES
    assert select(NAMES, ["fedlmd-tf", "FedAvg"], "row") == ["FedLMD-Tf", "FedAvg"]
    assert select(NAMES, ["FedNTD", "FedAvg"], "row") == ["FedAvg"]  # a part of the study
    with pytest.raises(MissingData) as error:
        select(NAMES, ["FedNTD", "MOON"], "row")
    assert (error.value.code, error.value.key) == ("report.not_in_study", "row")
    assert "FedAvg, FedLMD-Tf, FedLMD" in str(error.value)


def test_numbers_of_columns() -> None:
    assert column_positions(["a", "b"], None, [3, 7]) == {"a": 3, "b": 7}
    assert column_positions(["a", "b", "c"], ["c", "a"], [3, 7]) == {"a": 7, "c": 3}
    assert column_positions(["a", "c"], ["c", "b", "a"], [1, 2, 3]) == {"a": 3, "c": 1}  # a part of the study
    assert column_positions(["0.5", "10"], None, [0.1, 0.5, 10]) == {"0.5": 0.5, "10": 10}
    assert column_positions(["10", "0.5"], None, [0.5, 10]) == {"0.5": 0.5, "10": 10}  # extended in another order
    with pytest.raises(UserError) as error:
        column_positions(["a", "b"], ["a", "b"], [1, 2, 3])
    assert (error.value.code, error.value.key) == ("report.invalid_option", "x")
    with pytest.raises(MissingData) as error:
        column_positions(["a", "b"], None, [1, 2, 3])
    assert (error.value.code, error.value.key) == ("report.not_in_study", "x")


def test_recall_of_a_confusion_matrix_and_shares_of_nothing() -> None:
    found = recall([[8, 2, 0], [5, 5, 0], [0, 0, 0]])
    np.testing.assert_allclose(found, [0.8, 0.5, np.nan])
    np.testing.assert_allclose(safe_divide([1, 2], [4, 0]), [0.25, np.nan])


def test_the_most_skewed_client() -> None:
    counts = np.array([[10, 10], [0, 5], [40, 0], [1, 19]])
    assert pick_client("most skewed", [0, 1, 2, 3], counts) == 2  # two have one class only: the larger of them
    assert pick_client("most skewed", [0, 1, 3], counts) == 1
    assert pick_client(3, [0, 3], counts) == 3
    with pytest.raises(MissingData) as error:
        pick_client(1, [0, 3], counts)
    assert (error.value.code, error.value.key) == ("report.absent_client", "client")
    assert "0, 3" in str(error.value)
    with pytest.raises(UserError) as error:
        pick_client("largest", [0, 3], counts)
    assert (error.value.code, error.value.key) == ("report.invalid_option", "client")
    assert '"most skewed"' in str(error.value)


def study(**fields: object) -> Study:
    return Study(**{"id": "s", "title": "s", "rows": {"FedAvg": {}}, "columns": {"digits": {}}} | fields)


def write_rounds(results: StudyResults, lines: list[dict[str, object]]) -> None:
    path = results.finished_runs()[0].path
    (path / "rounds.jsonl").write_text("".join(json.dumps({"clients": [], **line}) + "\n" for line in lines))
    results._cache.clear()


def test_forgetting_is_global_less_local_where_both_are_known(make: Callable[..., StudyResults]) -> None:
    results = make(study(), rounds=1)
    write_rounds(
        results,
        [
            {"round": 1, "accuracy": 0.5, "local_accuracy": 0.3},
            {"round": 2, "accuracy": None, "local_accuracy": 0.4},
            {"round": 3, "accuracy": 0.6, "local_accuracy": 0.45},
        ],
    )
    (run,) = results.finished_runs()
    assert run_curve(run, "forgetting") == [(1, pytest.approx(0.2)), (3, pytest.approx(0.15))]
    assert run_curve(run, "local_accuracy") == [(1, 0.3), (2, 0.4), (3, 0.45)]


def test_local_accuracy_is_read_from_the_probe_where_rounds_lack_it(make: Callable[..., StudyResults]) -> None:
    (run,) = make(study(), rounds=2, probes=["local"]).finished_runs()
    lines = run.probe_records("local")
    assert run_curve(run, "local_accuracy") == [(1, lines[0]["mean_accuracy"]), (2, lines[1]["mean_accuracy"])]
    assert run_curve(run, "forgetting")[1][1] == pytest.approx(lines[1]["forgetting"])


def test_a_group_of_the_test_set_has_no_local_accuracy_of_its_own(make: Callable[..., StudyResults]) -> None:
    results = make(study(columns={"amazon": {"group": "amazon"}}), rounds=1)
    write_rounds(results, [{"round": 1, "accuracy": 0.5, "local_accuracy": 0.3, "groups": {"amazon": 0.7}}])
    (run,) = results.finished_runs()
    assert run_curve(run, "accuracy") == [(1, 0.7)]
    assert run_curve(run, "local_accuracy") == run_curve(run, "forgetting") == []


def test_measures(make: Callable[..., StudyResults]) -> None:
    results = make(study(), rounds=1)
    write_rounds(results, [{"round": 1, "accuracy": 0.9}, {"round": 2, "accuracy": 0.5}])
    assert [accuracy_over_seeds(results.finished_runs(), m).mean for m in ("final", "best", "last10")] == [
        0.5,
        0.9,
        0.7,
    ]
    with pytest.raises(UserError) as error:
        accuracy_over_seeds(results.finished_runs(), "finale")
    assert (error.value.code, error.value.key) == ("report.invalid_option", "measure")
    assert '"final"' in str(error.value.hint)
    assert accuracy_over_seeds([], "final") is None


def test_diverged_runs_are_in_no_mean(make: Callable[..., StudyResults]) -> None:
    results = make(study(seeds=(0, 1, 2)), rounds=4, diverged=[("FedAvg", 1)])
    good = [run for run in results.finished_runs() if run.cell.seed != 1]
    found = accuracy_over_seeds(results.finished_runs(), "final")
    assert found is not None
    assert (found.mean, found.seeds) == (np.mean([o.curve()[-1][1] for o in good]), 2)
    assert runs_to_average(results.finished_runs()) == good
    diverged = [results.finished_runs()[1]]
    assert accuracy_over_seeds(diverged, "final") is None
    assert runs_to_average(diverged) == diverged, "all, if all diverged"


def test_notes_count_seeds() -> None:
    assert "deviation" not in seeds_note([[0]])
    assert "3" in seeds_note([[0, 1, 2], [0, 1, 2]])
    assert all(number in seeds_note([[0, 1, 2], [0, 1], []], "mean") for number in "23")
    assert seeds_note([[0, 1]], "median").startswith("median")
