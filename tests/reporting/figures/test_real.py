"""Every form, drawn from real runs with every probe."""

from pathlib import Path

from fedrecall.reporting.figures import FIGURES, default_figures, draw_all
from fedrecall.runs.probes import PROBES
from fedrecall.studies.results import load_results
from fedrecall.studies.runner import run_study
from fedrecall.studies.study import Study

OPTIONS: dict[str, dict] = {
    "curves": {"y": ["accuracy", "forgetting"]},
    "against": {"x": [2], "xlabel": "local epochs"},
    "forgetting": {"start": "FedAvg"},
    "grid": {"x": {"name": "epochs", "values": [1, 2]}, "y": {"name": "batch", "values": [50, 100]}},
    "filter-rate": {"rows": ["FedCSD"]},
    "tsne": {"global": ["FedCSD"], "local": ["plain"]},
}


def test_every_form_is_drawn_from_a_real_study(tmp_path: Path) -> None:
    study = Study(
        id="all-forms",
        title="all forms",
        base={
            "federation": {"clients": 3, "partition": {"name": "dirichlet", "alpha": 0.3}},
            "engine": {"name": "serial"},
            "run": {"rounds": 2, "local_accuracy": True, "probes": list(PROBES)},
        },
        rows={
            "FedAvg": {"method": {"name": "fedavg"}},
            "FedCSD": {"method": {"name": "fedcsd"}},
            "plain": {"start": "FedAvg", "run": {"rounds": 1}},
            "FedCAD": {"start": "FedAvg", "method": {"name": "fedcad"}, "run": {"rounds": 1}},
        },
        columns={"digits": {"local": {"epochs": 2, "batch": 50}}},
        figures=[{"form": form, "title": form, "options": OPTIONS.get(form, {})} for form in FIGURES],
    )
    assert [event for event in run_study(study, tmp_path) if event.error is not None] == []
    drawn = draw_all(load_results(tmp_path))
    assert drawn.skipped == {}
    assert set(drawn.figures) == set(FIGURES)
    assert len(drawn.paths) == 3 * len(FIGURES)
    assert all(path.stat().st_size > 5_000 for path in drawn.paths)
    alone = load_results(tmp_path / study.cell("plain", "digits", 0).folder)  # a run directory is a study of one cell
    assert [(spec.form, spec.options.get("y")) for spec in default_figures(alone)] == [
        ("curves", None),
        ("curves", "local_accuracy"),
        ("curves", "forgetting"),
        ("curves", ["forgotten", "forgotten_absent"]),
        ("partition", None),
    ]
