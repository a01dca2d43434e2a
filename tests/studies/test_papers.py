"""Definitions of the papers' experiments: printed values, inheritance, and definitions of a user."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedrecall import Experiment
from fedrecall.errors import UserError
from fedrecall.studies import papers
from fedrecall.studies.definitions import experiment_ids
from fedrecall.studies.reproduce import reproduction_study
from fedrecall.studies.study import Study, Target

ROOT = Path(__file__).parents[2]
PRINTED = [  # typed by hand
    ("fedcad-table-1", "final", "FedLSD", "CIFAR-100", 72.64),
    ("fedcad-table-1", "rounds_to_target", "FedCAD", "FEMNIST", 4),
    ("fedcad-table-2", "final", "FedCAD", "5", 74.00),
    ("fedcad-table-3", "final", "FedProx", "0.3", 59.96),
    ("fedcad-table-4", "final", "FedAvg", "50", 68.40),
    ("fedssd-table-1", "final", "MOON", "Tiny-ImageNet", 23.89),
    ("fedssd-table-1", "deviation", "FedProx", "CIFAR-100", 0.05),
    ("fedssd-table-1", "rounds_to_target", "FedNTD", "CIFAR-100", "-"),
    ("fedssd-table-2", "final", "FedSSD", "#K=2", 53.37),
    ("fedssd-table-2", "deviation", "FedSSD", "#K=2", 1.52),
    ("fedssd-table-3", "final", "MSE", "0.5", 69.51),
    ("fedcsd-table-1", "best", "MOON", "CIFAR-100 0.5", 98.49),
    ("fedcsd-table-1", "best", "FedNova", "FEMNIST 0.01", 10.31),
    ("fedcsd-table-2", "best", "FedProto", "Webcam", 86.44),
    ("fedcsd-table-2", "best", "MOON", "average", 63.20),
    ("fedcsd-table-3", "best", "M2", "CIFAR-100 0.5", 69.38),
    ("fedcsd-table-4", "best", "hard mask", "CIFAR-100 5", 69.61),
    ("fedlmd-table-1", "best", "FedAvg+KD", "CIFAR-10 LDA 0.05", 40.46),
    ("fedlmd-table-2", "best", "FedNTD-Tf", "CIFAR-10 LDA 0.05", 41.30),
    ("fedlmd-table-3", "best", "SCAFFOLD", "CIFAR-10 s=3", 40.73),
    ("fedlmd-table-3", "best", "FedRS", "CINIC-10 LDA 0.1", 58.21),
    ("fedlmd-table-3", "speedup", "FedLMD", "CIFAR-10 LDA 0.05", 5.26),
    ("fedlmd-table-3", "speedup", "FedNova", "CIFAR-10 LDA 0.05", "Failed"),
    ("fedlmd-table-4", "best", "FedCurv", "MobileNet", 14.10),
    ("fedlmd-table-5", "best", "FedLMD+Prox+AvgM", "CIFAR-10 LDA 0.5", 70.33),
]
ERRATA = {  # typed by hand: row, column -> the number that fits the rest
    "fedcad-table-4": {("FedAvg", "10"): 71.29, ("FedLSD", "10"): 72.56},
    "fedcsd-table-1": {
        ("MOON", "CIFAR-100 0.01"): 56.78,
        ("MOON", "CIFAR-100 0.5"): 67.10,
        ("FedProto", "FEMNIST 0.05"): 69.70,
        ("FedCSD", "CIFAR-100 5"): 71.53,
    },
    "fedcsd-table-2": {("MOON", "average"): 63.72},
    "fedlmd-table-2": {("FedAvg+LS", "CIFAR-10 LDA 0.05"): None},
    "fedlmd-table-3": {("FedProx", "CIFAR-10 LDA 0.05"): None},
    "fedlmd-table-4": {("FedProx", "CNN"): None},
}


@pytest.mark.parametrize(("name", "measure", "row", "column", "value"), PRINTED)
def test_printed(name: str, measure: str, row: str, column: str, value: float | str) -> None:
    study = papers.load_definition(name)
    assert study.printed[measure][row][list(study.columns).index(column)] == value  # type: ignore[index]


def test_every_row_of_a_table_has_its_printed_numbers() -> None:
    for name in experiment_ids():
        study = papers.load_definition(name)
        for lines in study.printed.values():
            assert list(lines) == list(study.rows)
            assert all(value is not None for line in lines.values() for value in line)


def test_errata() -> None:
    marked = {}
    for name in experiment_ids():
        study = papers.load_definition(name)
        marked[name] = {(e.row, e.column): e.consistent for e in study.errata}
        assert all(e.measure == study.measure and e.why for e in study.errata)
    assert {name: found for name, found in marked.items() if found} == ERRATA


def test_targets() -> None:
    assert papers.load_definition("fedcad-table-1").target == {"CIFAR-10": 0.65, "CIFAR-100": 0.65, "FEMNIST": 0.9}
    assert papers.load_definition("fedssd-table-1").target == Target(of="FedAvg", measure="final")
    assert papers.load_definition("fedlmd-table-3").target == Target(of="FedAvg", measure="best")


def test_the_two_versions_of_fedcad_share_a_figure() -> None:
    first, other = papers.load_definition("fedcad-fig-1"), papers.load_definition("fedcad-sa-fig-2")
    assert (first.paper, other.paper) == ("fedcad", "fedcad-sa")
    assert first.title != other.title
    own = {"id", "paper", "title", "about", "base", "rows", "columns"}
    assert first.model_dump(exclude=own) == other.model_dump(exclude=own)
    assert (list(first.rows), list(first.columns)) == (list(other.rows), list(other.columns))
    # The short version trains its global model for 5 epochs; from there, both train for 10.
    epochs = [
        [study.experiment(study.cell(row, "CIFAR-10", 0)).local.epochs for row in ("global model", "FedCAD")]
        for study in (first, other)
    ]
    assert epochs == [[10, 10], [5, 10]]
    assert first.figures[0].options["printed"]["FedLSD"][7] == 0.05


def test_rows_that_start_from_a_model_start_from_the_right_one() -> None:
    study = papers.load_definition("fedcad-fig-1")
    starts = {cell.row: cell.start_from for cell in study.cells()}
    assert starts.pop("global model") is None
    assert set(starts.values()) == {"cells/global-model/cifar-10/seed-0"}
    # One well-trained model serves all columns of FedCSD's Figure 1.
    cells = papers.load_definition("fedcsd-fig-1").cells()
    assert cells[0].row == "global model"
    assert [cell.row for cell in cells].count("global model") == 1
    assert {cell.start_from for cell in cells[1:]} == {cells[0].folder}
    assert {cell.row: cell.start_from for cell in papers.load_definition("fedcsd-fig-7").cells()} == {
        "FedAvg": None,
        "FedCSD": None,
        "FedCSD (code)": None,
        "local, cross-entropy": "cells/fedcsd/femnist-0.01/seed-0",
        "local, full loss": "cells/fedcsd/femnist-0.01/seed-0",
        "local, full loss (code)": "cells/fedcsd-code/femnist-0.01/seed-0",
    }


def test_columns_that_are_domains_share_their_runs() -> None:
    study = papers.load_definition("fedcsd-table-2")
    assert len(study.cells()) == len(study.rows)
    groups = [study.cell("FedAvg", column, 0).group for column in study.columns]
    assert groups == ["amazon", "caltech", "dslr", "webcam", "mean"]


def test_a_part_at_a_fraction() -> None:
    study = papers.load_study("fedlmd-fig-8", fraction=0.1, seeds=2, columns=["25", "200"])
    assert (study.seeds, study.fraction) == ((0, 1), 0.1)
    found = [(cell.config["run"]["rounds"], cell.config["method"]["switch"]) for cell in study.cells()]
    assert found == [(20, 3), (20, 20)] * 2
    part = papers.load_study("fedssd-table-3", rows=["ssd"], columns=["0.5"])
    assert part.printed == {"final": {"SSD": [71.38]}}
    assert part.experiment(part.cells()[0]).method.m_max == 0.5  # type: ignore[attr-defined]


def test_a_part_is_saved_and_read_back(tmp_path: Path) -> None:
    for name in ("fedssd-table-3", "fedcsd-table-2", "fedcsd-fig-1", "fedlmd-table-3"):
        part = papers.load_study(name, fraction=0.5, columns=[list(papers.load_definition(name).columns)[-1]])
        part.save(tmp_path)
        assert Study.load(tmp_path) == part


def test_roman_numerals_and_capitals() -> None:
    assert papers.load_definition("FedCSD-Table-III") == papers.load_definition("fedcsd-table-3")
    assert papers.load_study("fedcsd-table-iv").id == "fedcsd-table-4"


@pytest.mark.parametrize(
    ("which", "options", "problem", "key", "fact"),
    [
        ("fedlmd-tabel-3", {}, "unknown_name", "experiment", '"fedlmd-table-3"'),
        ("fedlmd-table-3", {"rows": ["FedLDM"]}, "unknown_name", "row", '"FedLMD"'),
        ("fedlmd-table-1", {"fraction": 0.0}, "invalid_value", "fraction", "0.0"),
        ("fedlmd-table-1", {"seeds": 0}, "invalid_value", "seeds", "0"),
        ("no/such/file.toml", {}, "unreadable_file", "no/such/file.toml", "No such file"),
    ],
)
def test_invalid_selections_are_errors(
    which: str, options: dict[str, object], problem: str, key: str, fact: str
) -> None:
    with pytest.raises(UserError) as error:
        papers.load_study(which, **options)  # type: ignore[arg-type]
    assert (error.value.code, error.value.key) == (f"config.{problem}", key)
    assert fact in str(error.value)
    assert "\n" not in str(error.value)


DEFINITION = """
setting = "fedlmd"
title = "Mine"
columns = ["CIFAR-10 LDA 0.5"]
[rows]
FedLMD = { like = "FedLMD", method = { beta = 3.0 } }
Mine = { method = { name = "fedprox", mu = 0.5 } }
[base.run]
rounds = 7
"""


def load_text(tmp_path: Path, text: str) -> Study:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return papers.load_study(path, seeds=1)


def test_a_users_definition(tmp_path: Path) -> None:
    study = load_text(tmp_path, DEFINITION)
    assert study.id == "mine"
    lmd, mine = (study.experiment(cell) for cell in study.cells())
    assert (lmd.method.beta, lmd.method.tau) == (3.0, 1.0)  # type: ignore[attr-defined]
    assert mine.method.mu == 0.5  # type: ignore[attr-defined]
    assert (mine.run.rounds, mine.federation.clients, mine.local.lr_decay) == (7, 100, 0.99)
    with pytest.raises(UserError) as error:
        load_text(tmp_path, "base = 7")
    assert (error.value.code, error.value.key) == ("config.invalid_value", "base")
    alone = load_text(
        tmp_path, 'title = "t"\nseeds = 2\nrows = { A = {} }\ncolumns = { B = { data = { name = "digits" } } }'
    )
    assert alone.experiment(alone.cells()[0]) == Experiment()


@pytest.mark.parametrize(
    ("old", "new", "code", "key", "fact"),
    [
        ('setting = "fedlmd"', 'setting = "fedlmt"', "config.unknown_name", "setting", '"fedlmd"'),
        ('like = "FedLMD"', 'like = "FedLMT"', "config.unknown_name", "rows.FedLMD", '"FedLMD"'),
        ("LDA 0.5", "LDA 0.7", "config.unknown_name", "columns.CIFAR-10 LDA 0.7", '"CIFAR-10 LDA 0.7"'),
        ('title = "Mine"', 'titel = "Mine"', "config.unknown_key", "titel", '"title"'),
        ("Mine = {", 'Mine = "FedLMD"\nOther = {', "config.invalid_value", "rows.Mine", "FedLMD"),
        ('["CIFAR-10 LDA 0.5"]', '"CIFAR-10 LDA 0.5"', "config.invalid_value", "columns", "CIFAR-10 LDA 0.5"),
        ("[base.run]\nrounds = 7", "[base]\nlocal = 7", "config.invalid_value", "base.local", "7"),
        ('title = "Mine"', "", "config.missing_key", "title", ""),
        ("mu = 0.5", "nu = 0.5", "config.unknown_key", "method.nu", "fedprox"),
        ("mu = 0.5 }", 'mu = 0.5 }, start = "Other"', "study.invalid_definition", "rows.Mine.start", "Other"),
        ("mu = 0.5 }", "mu = 0.5 }, columns = { Z = {} }", "study.invalid_definition", "rows.Mine.columns.Z", "mine"),
        ('title = "Mine"', 'same_as = "fedlmd-table-6"', "config.unknown_name", "experiment", '"fedlmd-table-6"'),
    ],
)  # fmt: skip
def test_errors_in_a_users_definition(tmp_path: Path, old: str, new: str, code: str, key: str, fact: str) -> None:
    assert old in DEFINITION
    with pytest.raises(UserError) as error:
        load_text(tmp_path, DEFINITION.replace(old, new)).experiments  # noqa: B018  (the configurations are validated on access)
    assert (error.value.code, error.value.key) == (code, key)
    assert fact in str(error.value)


def test_a_row_that_is_run_once_and_a_row_with_settings_for_a_column() -> None:
    study = Study(
        id="s",
        title="s",
        base={"data": {"name": "cifar10", "augment": "moon"}, "local": {"epochs": 3}},
        rows={
            "first": {"once": True, "run": {"rounds": 9}},
            "then": {"start": "first", "columns": {"b": {"method": {"name": "fedprox", "mu": 0.5}}}},
        },
        columns={"a": {"local": {"epochs": 1}}, "b": {"local": {"epochs": 2}, "data": {"name": "cifar100"}}},
    )
    cells = study.cells()
    assert [(cell.row, cell.column) for cell in cells] == [("first", "a"), ("then", "a"), ("then", "b")]
    first, a, b = (study.experiment(cell) for cell in cells)
    assert [e.local.epochs for e in (first, a, b)] == [3, 1, 2]
    assert study.cell("first", "b", 0).folder == cells[0].folder == cells[1].start_from == cells[2].start_from
    assert type(a.method).__name__ == "Method"
    assert b.method.mu == 0.5  # type: ignore[attr-defined]
    assert (b.data.name, b.data.augment) == ("cifar100", "moon")  # only methods, models and partitions are reset
    assert study.subset(columns=["a"]).rows["then"]["columns"] == {}


def test_the_examples_are_configurations_that_run_can_take() -> None:
    examples = sorted((ROOT / "examples").glob("*.toml"))
    for path in examples:
        assert f"fedrecall run examples/{path.name}" in path.read_text()
    assert {path.stem: Experiment.load(path).data.name for path in examples} == {
        "cifar10-fedavg": "cifar10",
        "fedbn-office": "office-caltech-10",
        "forgetting": "cifar10",
        "rare-labels": "cifar10",
    }


@pytest.mark.slow
def test_an_installed_wheel_has_the_definitions(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "from fedrecall.studies import definitions as d; print(d.definitions_folder(), *d.experiment_ids())"
    environment = {"PYTHONPATH": str(tmp_path / "site"), "PATH": ""}
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
        timeout=60,
    )
    assert found.stdout.split() == [
        str(tmp_path / "site" / "fedrecall" / "studies" / "definitions"),
        *experiment_ids(),
    ]


def test_a_part_of_the_data_is_stated() -> None:
    study = reproduction_study("fedssd-table-1", columns="Tiny-ImageNet", overrides=["data.partial=true"])
    assert len(study.scale_note()) == 1
    assert "tiny-imagenet" in study.scale_note()[0]
    scaled = reproduction_study("fedssd-table-1", fraction=0.5, columns="CIFAR-10", overrides=["data.partial=true"])
    assert [bool(note) for note in scaled.scale_note(lengths=True)] == [True, True]
    assert papers.load_definition("fedssd-table-1").scale_note() == []
