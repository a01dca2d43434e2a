"""Written files, skipped figures and rejected options."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from fedrecall.errors import UserError
from fedrecall.reporting.figures import FIGURES, default_figures, draw_all, figure_names, validated_options
from fedrecall.reporting.figures.curves import AXIS_NOTE
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import FigureSpec, Study

MAGIC = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


def study(**fields: object) -> Study:
    two = {"rows": {"FedAvg": {}, "FedCAD": {}}, "columns": {"a": {}, "$5 a day": {}}}
    return Study(**{"id": "s", "title": "s", **two} | fields)


def figures(*of: tuple[str, str, dict]) -> tuple[FigureSpec, ...]:
    return tuple(FigureSpec(form=form, title=title, options=options) for form, title, options in of)


def test_every_figure_is_written_three_times_with_text_as_text(make: Callable[..., StudyResults]) -> None:
    results = make(study(figures=figures(("curves", "Test accuracy", {}), ("bars", "", {}))))
    report = draw_all(results)
    assert not report.skipped
    assert {name: saved.title for name, saved in report.figures.items()} == {"curves": "Test accuracy", "bars": ""}
    assert report.paths == [results.folder / "figures" / f"{n}.{s}" for n in ("curves", "bars") for s in MAGIC]
    assert sorted(report.paths) == sorted((results.folder / "figures").iterdir())  # no temporary file is left
    for path in report.paths:
        assert path.read_bytes().startswith(MAGIC[path.suffix[1:]])
    svg = (results.folder / "figures" / "curves.svg").read_text()
    for text in ("Test accuracy", "FedCAD", "$5 a day", "round", f"one seed; {AXIS_NOTE}"):
        assert f">{text}</text>" in svg
    assert not plt.get_fignums()


def test_the_same_results_give_the_same_bytes_in_another_process(make: Callable[..., StudyResults]) -> None:
    results = make(study(figures=figures(("curves", "a", {}), ("partition", "b", {}))))
    first = {path: path.read_bytes() for path in draw_all(results).paths}
    code = "import sys, pathlib; from fedrecall.reporting.figures import draw_all;"
    code += "from fedrecall.studies.results import load_results; draw_all(load_results(pathlib.Path(sys.argv[1])))"
    subprocess.run(
        [sys.executable, "-c", code, str(results.folder)], check=True, env=os.environ | {"PYTHONHASHSEED": "7"}
    )
    assert {path: path.read_bytes() for path in first} == first


def test_without_figures_curves_and_partition_are_drawn(make: Callable[..., StudyResults]) -> None:
    results = make(study(), rounds=2)
    assert [spec.form for spec in default_figures(results)] == ["curves", "partition"]
    for run in results.finished_runs():
        (run.path / "partition.json").unlink()
    report = draw_all(results)
    assert set(report.figures) == {"curves"}
    error = report.skipped["partition"]
    assert error.code == "run.damaged_file"
    assert str(error.key).endswith("partition.json")
    assert "No such file" in str(error)


def test_with_local_accuracies_also_forgetting(make: Callable[..., StudyResults]) -> None:
    results = make(study(), rounds=2, local_accuracy=True)
    assert [spec.options.get("y") for spec in default_figures(results)] == [
        None,
        "local_accuracy",
        "forgetting",
        None,
    ]


def test_a_study_without_finished_runs_has_no_figures(tmp_path: Path) -> None:
    report = draw_all(StudyResults(study(), tmp_path))
    assert {name: error.code for name, error in report.skipped.items()} == dict.fromkeys(
        ("curves", "partition"), "report.no_finished_run"
    )
    assert report.paths == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", sorted(set(FIGURES) - {"curves", "against", "bars", "partition", "presence", "grid"}))
def test_missing_data_skips_the_figure(form: str, make: Callable[..., StudyResults]) -> None:
    report = draw_all(make(study(figures=figures((form, "", {}))), rounds=2))
    assert not report.figures
    assert report.skipped[form].code in ("report.missing_probe", "report.missing_measurement")


def test_a_damaged_file_skips_the_figure(make: Callable[..., StudyResults]) -> None:
    results = make(study(figures=figures(("partition", "", {}), ("tsne", "", {}))), rounds=1, probes=["features"])
    for run in results.finished_runs():
        (run.path / "partition.json").write_text("{")
        (run.path / "probes" / "features.safetensors").write_text("{")
    skipped = draw_all(results).skipped
    assert skipped["partition"].code == "run.damaged_file"
    assert str(skipped["partition"].key).endswith("partition.json")
    assert skipped["tsne"].code == "report.unreadable_file"
    assert str(skipped["tsne"].key).endswith("features.safetensors")


@pytest.mark.parametrize(
    ("form", "options", "code", "key", "fact"),
    [
        ("curve", {}, "report.unknown_form", "form", '"curves"'),
        ("curves", {"why": 1}, "report.invalid_option", "why", "curves"),
        ("curves", {"rows": "FedAvg"}, "report.invalid_option", "rows", "rows = 'FedAvg'"),
        ("against", {}, "report.invalid_option", "x", "against"),
        ("against", {"x": ["one"]}, "report.invalid_option", "x", "x ="),
        ("against", {"x": [1, 2], "measure": "speedup"}, "report.invalid_option", "measure", "measure = 'speedup'"),
        ("grid", {"x": "tau", "y": "beta"}, "report.invalid_option", "x", "x = 'tau'"),
        ("grid", {"x": {"name": "tau", "values": []}, "y": {}}, "report.invalid_option", "x", "x ="),
    ],
)
def test_invalid_figures_are_rejected_in_one_line(form: str, options: dict, code: str, key: str, fact: str) -> None:
    with pytest.raises(UserError) as caught:
        validated_options(FigureSpec(form=form, options=options))
    assert (caught.value.code, caught.value.key) == (code, key)
    assert fact in str(caught.value)
    assert "\n" not in str(caught.value)


def test_printed_accuracies_must_fit(make: Callable[..., StudyResults]) -> None:
    wrong = figures(("forgetting", "", {"printed": {"FedAvg": [0.5, 0.5]}}))
    report = draw_all(make(study(figures=wrong, columns={"a": {}}), probes=["local", "confusion"], rounds=2))
    error = report.skipped["forgetting"]
    assert (error.code, error.key) == ("report.invalid_option", "printed")
    assert '"data share"' in str(error)


def test_names_of_files() -> None:
    several = figures(
        ("curves", "(a) Global", {}), ("curves", "", {}), ("bars", "Bars", {}), ("curves", "a global", {})
    )
    assert list(figure_names(several)) == ["curves-a-global", "curves-2", "bars", "curves-a-global-4"]


def test_a_folder_that_cannot_be_written_is_an_error_in_one_line(make: Callable[..., StudyResults]) -> None:
    results = make(study(), rounds=1)
    (results.folder / "figures").write_text("this is a file")
    error = draw_all(results).skipped["curves"]
    assert (error.code, error.key) == ("report.cannot_write", str(results.folder / "figures" / "curves"))
