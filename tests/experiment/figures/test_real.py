"""Every form, drawn from real runs with every probe."""

from pathlib import Path

from fedrecall.experiment.figures import FORMS, draw_all
from fedrecall.experiment.probes import PROBES
from fedrecall.experiment.results import load
from fedrecall.experiment.study import Study
from fedrecall.experiment.sweep import Watch, sweep

OPTIONS: dict[str, dict] = {
    "curves": {"y": ["accuracy", "forgetting"]},
    "against": {"x": [1, 2], "xlabel": "local epochs"},
    "forgetting": {"start": "FedAvg"},
    "grid": {"x": {"name": "epochs", "values": [1, 2]}, "y": {"name": "batch", "values": [50, 100]}},
    "filter-rate": {"rows": ["FedCSD"]},
    "tsne": {"global": ["FedCSD"], "local": ["plain"], "columns": ["1"]},
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
        columns={"1": {"local": {"epochs": 1, "batch": 100}}, "2": {"local": {"epochs": 2, "batch": 50}}},
        figures=[{"form": form, "title": form, "options": OPTIONS.get(form, {})} for form in FORMS],
    )
    assert not sweep(study, tmp_path, Watch())
    drawn = draw_all(load(tmp_path))
    assert drawn.skipped == {}
    assert set(drawn.figures) == set(FORMS)
    assert len(drawn.paths) == 3 * len(FORMS)
    import shutil; shutil.copytree(tmp_path, "/tmp/c/real", dirs_exist_ok=True)
    assert all(path.stat().st_size > 5_000 for path in drawn.paths)
    for row, column in (("FedAvg", "1"), ("plain", "2")):  # a plain run directory is a study of one cell
        assert set(draw_all(load(tmp_path / study.cell(row, column, 0).folder)).figures) >= {"partition"}
