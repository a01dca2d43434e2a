"""A report of runs on the user's own data: names, metrics, probes, accuracy by class and client, honest axes."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedrecall as fr
from fedrecall.reporting.figures.curves import AXIS_NOTE, MIN_SPAN
from fedrecall.reporting.html.page import StudyPage, build_study_page
from fedrecall.reporting.tables import table_files
from fedrecall.reporting.tables.cells import seed_scope
from fedrecall.runs.predictions import load_predictions
from fedrecall.studies.results import load_results
from fedrecall.studies.study import Study
from support.folders import write_study

CLASSES, HOSPITALS = ("alive", "dead", "unknown"), ("north", "south")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a comparison of two methods on a table, with probes and metrics."""
    import pandas as pd

    folder, rng, n = tmp_path_factory.mktemp("clinic"), np.random.default_rng(0), 200
    outcome = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    table = pd.DataFrame(rng.normal(0, 1, (n, 3)) + outcome[:, None], columns=list("abc"))
    table["outcome"], table["hospital"] = np.array(CLASSES)[outcome], rng.choice(HOSPITALS, n)
    table.to_csv(folder / "patients.csv", index=False)
    config = {
        "data": {"name": "table", "path": str(folder / "patients.csv"), "label": "outcome", "client": "hospital"},
        "local": {"epochs": 1, "batch": 20},
        "engine": {"name": "serial"},
        "run": {"rounds": 2, "metrics": ["macro_f1"], "probes": ["confusion", "forgotten", "local", "own_data"]},
    }
    fr.compare(["fedavg", "fedprox"], config=config, seeds=2, out=folder / "study", progress=False)
    return folder / "study"


@pytest.fixture(scope="module")
def page(study: Path) -> StudyPage:
    return build_study_page(load_results(study), "study-1")


def section(page: StudyPage, name: str):
    return next(section for section in page.sections if section.name == name)


def test_the_title_names_the_data(page: StudyPage) -> None:
    assert page.title == "Methods compared on patients.csv"
    assert page.settings["data"] == "patients.csv"


def test_classes_and_clients_have_their_names(study: Path, page: StudyPage) -> None:
    tables = {table.name: table for table in section(page, "breakdown").tables}
    assert tables["classes"].header == ("method", *CLASSES)
    assert tables["accuracy-by-client"].header == ("method", *HOSPITALS)
    assert tables["metrics"].header == ("method", "macro_f1")
    assert [name for name, _ in tables["classes"].rows] == ["fedavg", "fedprox", "central", "majority"]
    runs = load_results(study).finished_runs("fedavg")
    assert (runs[0].class_names, runs[0].client_names) == ([*CLASSES], [*HOSPITALS])
    kept = [load_predictions(run.path) for run in runs]
    recalls = [100 * float((k.predicted == k.y)[k.y == 0].double().mean()) for k in kept]
    assert dict(tables["classes"].rows)["fedavg"][0].value == pytest.approx(np.mean(recalls))
    last = [run.records[-1]["groups"]["south"] for run in runs]
    assert dict(tables["accuracy-by-client"].rows)["fedavg"][1].value == pytest.approx(100 * np.mean(last))


def test_tables_of_several_columns_have_files_of_their_own(tmp_path: Path) -> None:
    rows, columns = {"FedAvg": {}, "FedProx": {"method": {"name": "fedprox"}}}, {"5 %": {}, "10 %": {}}
    several = Study(id="s", title="s", base={"run": {"rounds": 2}}, rows=rows, columns=columns, seeds=(0,))
    folder = write_study(several, tmp_path / "s", lambda cell, number: 0.5, groups=HOSPITALS)
    scores = {"clients": [0, 1], "accuracy": {"mean": 0.5, "weighted": 0.5, "worst_tenth": 0.5, "by_client": [0.5] * 2}}
    for path in folder.rglob("summary.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"client_test": scores}))
    tables = section(build_study_page(load_results(folder), "study-1"), "breakdown").tables
    assert len(tables) == 6, "by client, by client on held-out examples, and means over clients"
    assert len(table_files(tables, tmp_path)) == 3 * len(tables)


def test_every_probe_is_shown(page: StudyPage) -> None:
    probes = section(page, "probes")
    assert {table.name for table in probes.tables} == {"probe-forgotten", "probe-local", "probe-own_data"}
    by_title = {figure.title: figure for figure in probes.figures}
    confusion = by_title["Confusion matrix of the final global model"]
    assert confusion.svg is not None
    assert all(name in confusion.svg for name in CLASSES)
    assert all(figure.svg is not None for figure in probes.figures), [figure.error for figure in probes.figures]
    partition = section(page, "partition").figures[0].svg
    assert all(name in partition for name in (*CLASSES, *HOSPITALS))
    assert section(page, "forgetting").tables


def test_a_report_without_local_accuracy_states_that_forgetting_is_not_measured(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 2)).astype("float32"), [0, 1] * 30
    fr.run({"engine": {"name": "serial"}}, data=(x, y), clients=2, rounds=1, out=tmp_path / "run", progress=False)
    found = build_study_page(load_results(tmp_path / "run"), "study-1")
    assert "forgotten" in section(found, "forgetting").text


def test_axes_span_ten_points_and_state_that_they_do_not_start_at_zero(study: Path) -> None:
    figure = fr.load(study).plot()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert high - low >= MIN_SPAN - 1e-9
    texts = " ".join(" ".join(text.get_text().split()) for text in figure.texts)
    assert (AXIS_NOTE in texts) == (low > 0)


def test_seeds_of_named_clients_do_not_vary_the_partition(study: Path) -> None:
    varied, same = seed_scope(load_results(study)).split(";")
    assert "test set" in varied
    assert "weights" in varied
    assert "partition" in same
    assert "cohorts" in same


def test_the_card_has_metrics_and_the_way_of_the_split(study: Path) -> None:
    card = (load_results(study).finished_runs("fedavg")[0].path / "card.md").read_text()
    assert "20 % of the examples of every class, drawn by seed 0" in card
    assert "macro_f1 0." in card
    assert all(name in card for name in (*CLASSES, *HOSPITALS))
