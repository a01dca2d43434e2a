"""`fedrecall compare` and `fedrecall reproduce` on the command line, and their progress display."""

import json
import re
import signal
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import fedrecall as fr
from fedrecall import cli
from fedrecall.studies import papers
from fedrecall.studies.compare import DEFAULT_METHODS, StudyObjects, comparison_study
from fedrecall.studies.progress import StudyProgress
from fedrecall.studies.reproduce import default_folder, reproduction_study, with_study_overrides
from fedrecall.studies.results import load_results
from fedrecall.studies.runner import StudyEvent
from fedrecall.studies.study import Study, Target
from support.folders import write_study
from support.processes import start, until
from support.tiny_transformer import make_texts, save_transformer

QUICK = ["--set", "run.rounds=2", "--set", "local.epochs=1", "--set", "engine.name=serial"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fedrecall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture):
    """Return a function that runs a command in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedrecall", *map(str, args)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return call


def test_methods_and_their_settings() -> None:
    study, _ = comparison_study(["fedavg", "fedlmd:tau=3,beta=0.5", "fedprox:local.prox=1.0,local.epochs=2"])
    assert study.rows == {
        "fedavg": {"method": {"name": "fedavg"}},
        "fedlmd:tau=3,beta=0.5": {"method": {"name": "fedlmd", "tau": 3, "beta": 0.5}},
        "fedprox:local.prox=1.0,local.epochs=2": {"method": {"name": "fedprox"}, "local": {"prox": 1.0, "epochs": 2}},
    }
    assert study.target == Target(of="fedavg", measure="last10")
    assert len({cell.folder for cell in study.cells()}) == 15


def test_values_may_have_commas() -> None:
    study, _ = comparison_study(["fedavg:model.name=mlp,model.hidden=[10,20],local.lr=0.1"])
    (row,) = study.rows.values()
    assert row["model"] == {"name": "mlp", "hidden": [10, 20]}
    assert row["local"] == {"lr": 0.1}


def test_a_configuration_and_overrides(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[method]\nname = "fedlmd"\ntau = 2.0\n[run]\nrounds = 7\ntargets = [0.8]\n')
    study, _ = comparison_study(["fedavg", "fedlmd"], config, ["run.seed=5", "local.lr=0.5"], seeds=2)
    assert study.seeds == (5, 6)
    assert study.target == 0.8
    fedavg, fedlmd = (study.experiment(study.cell(row, "digits", 5)) for row in ("fedavg", "fedlmd"))
    assert (fedlmd.method.tau, fedlmd.run.rounds, fedavg.local.lr) == (2.0, 7, 0.5)
    assert not fedavg.run.local_accuracy, "which may cost more than the training"


@pytest.mark.parametrize(
    ("args", "problem", "key", "fact"),
    [
        (["fedavgg"], "config.unknown_name", "method.name", '"fedavg"'),
        (["fedlmd:tua=3"], "config.unknown_key", "method.tua", '"tau"'),
        (["fedlmd:tau"], "config.invalid_override", "method.tau", "key=value"),
        (["fedavg", "fedavg"], "study.duplicate_name", "methods", "fedavg"),
        (["fedavg", "--seeds", "0"], "config.invalid_value", "seeds", "0"),
        (["--set", "method.name=fedavg"], "config.conflict", "method.name", "--set"),
        (["--set", "run.rounds=many"], "config.invalid_value", "run.rounds", "many"),
        (["--config", "nowhere.toml"], "config.unreadable_file", "nowhere.toml", "No such file"),
    ],
)
def test_bad_input_is_one_line(fedrecall, tmp_path: Path, args: list[str], problem: str, key: str, fact: str) -> None:
    code, out, err = fedrecall("compare", *args, "--json")
    error = json.loads(out)["error"]
    assert (code, error["code"], error["key"]) == (2, problem, key)
    assert fact in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_file_in_place_of_the_folder_is_an_error(fedrecall, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, out, _ = fedrecall("compare", "fedavg", "--out", "file", "--json")
    error = json.loads(out)["error"]
    assert (code, error["code"], error["key"]) == (2, "study.cannot_write", "file")
    code, _, err = fedrecall("compare", "fedavg", "--out", "file")
    assert (code, len(err.splitlines())) == (2, 1)
    assert not (tmp_path / "runs").exists()


def test_compare(fedrecall, tmp_path: Path) -> None:
    code, out, err = fedrecall("compare", "fedavg", "fedlmd:tau=3", "--seeds", 2, "--out", "mine", *QUICK)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    for fact in ("digits", "4 runs", "2 rows", "1 column", "2 seeds", "mine"):
        assert fact in lines[0]
    one_run = r"\d/4  (fedavg|fedlmd:tau=3), seed [01]: final \d+\.\d\d %  best \d+\.\d\d %  \d+\.\d\d s/round"
    assert sum(re.fullmatch(one_run, line) is not None for line in lines) == 4
    for title in ("best", "last 10", "last 10 less fedavg", "forgotten", "s/round"):
        assert title in out
    complete = (tmp_path / "mine" / "tables" / "compare-digits.md").read_text()
    for title in ("final", "rounds to target", "speedup", "MB up", "forgotten less fedavg", "global - local"):
        assert title in complete
    assert re.search(r"^fedlmd:tau=3 +\d+\.\d\d ± \d+\.\d\d", out, re.M)
    for fact in ("mine/tables", "mine/figures", "fedrecall report mine"):
        assert fact in "\n".join(lines[-2:])
    assert {p.suffix for p in (tmp_path / "mine" / "tables").iterdir()} == {".csv", ".tex", ".md"}
    assert {p.suffix for p in (tmp_path / "mine" / "figures").iterdir()} == {".svg", ".pdf", ".png"}

    outcomes = load_results(tmp_path / "mine").finished_runs()
    environments = [json.loads((o.path / "environment.json").read_text()) for o in outcomes]
    for seed in (0, 1):
        of_seed = [i for i, outcome in enumerate(outcomes) if outcome.cell.seed == seed]
        assert len({environments[i]["partition"] for i in of_seed}) == 1, "the same federation"
        assert len({str([line["clients"] for line in outcomes[i].records]) for i in of_seed}) == 1, "the same cohorts"
        assert len({outcomes[i].summary["initial"] for i in of_seed}) == 1, "the same first weights"

    code, out, _ = fedrecall("compare", "fedavg", "fedlmd:tau=3", "fedprox", "--seeds", 2, "--out", "mine", *QUICK)
    assert code == 0
    assert out.count("(kept)") == 4, "a larger comparison goes on"
    code, out, err = fedrecall("compare", "fedavg", "--out", "mine", *QUICK, "--set", "local.lr=0.3", "--json")
    error = json.loads(out)["error"]
    assert (code, error["code"], error["key"]) == (2, "study.other_settings", "local.lr")
    assert "0.05, not 0.3" in err


def test_a_method_that_diverges_is_shown_as_failed(fedrecall, tmp_path: Path) -> None:
    code, out, _ = fedrecall("compare", "fedavg", "fedavg:local.lr=1e9", "--seeds", 1, *QUICK)
    assert code == 0
    assert re.search(r"fedavg:local.lr=1e9, seed 0: failed: .*finite", out)
    assert re.search(r"^fedavg:local.lr=1e9 +Failed", out, re.M)
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-compare-digits", folder.name), "the default has a date"


def test_runs_that_cannot_be_made_end_in_exit_code_2(fedrecall, tmp_path: Path) -> None:
    missing = ["--set", "data.name=mnist", "--set", f"data.root={tmp_path / 'nowhere'}"]
    code, out, err = fedrecall("compare", "fedavg", "fedprox", "--seeds", 1, *QUICK, *missing)
    assert code == 2
    assert err.startswith("error: ")
    assert "2 of 2" in err
    assert len(err.splitlines()) == 1
    assert out.count(str(tmp_path / "nowhere")) == 1, "one reason is printed once"
    code, out, _ = fedrecall("compare", "fedavg", "fedprox", "--seeds", 1, *QUICK, *missing, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "study.runs_failed")


def test_the_same_from_python(tmp_path: Path) -> None:
    sets = ["run.rounds=1", "local.epochs=1", "engine.name=serial"]
    found = fr.compare(["fedavg", "fedntd"], overrides=sets, seeds=1, out=tmp_path / "a")
    assert [o.cell.row for o in found.runs] == ["fedavg", "fedntd"]
    with pytest.raises(fr.UserError) as error:
        fr.compare(["fedavg"], overrides=[*sets, "data.name=mnist", "data.root=nowhere"], seeds=1, out=tmp_path / "b")
    assert (error.value.code, error.value.key) == ("data.not_found", "nowhere")


def test_ctrl_c_keeps_finished_runs_and_prints_the_command_to_resume(tmp_path: Path) -> None:
    command = ["-m", "fedrecall", "compare", "fedavg", "--seeds", "2", "--out", "a", "--set", "run.rounds=400"]
    process = start(*command, cwd=tmp_path)
    cells = tmp_path / "a" / "cells" / "fedavg" / "digits"
    until((cells / "seed-0" / "rounds.jsonl").exists, seconds=60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    last = out.splitlines()[-1]
    assert all(fact in last for fact in ("interrupted", "0 of 2", "--out a"))
    assert err == ""


def frame(display: StudyProgress, console: Console, out: StringIO) -> str:
    """Return the present content of the live table."""
    out.truncate(0)
    console.print(display)
    return re.sub(r"\x1b\[[\d;]*m", "", out.getvalue().strip("\x00"))


def test_the_live_table() -> None:
    study = Study(
        id="s", title="S", base={"run": {"rounds": 4}}, rows={"FedAvg": {}, "FedNova": {}}, columns={"digits": {}},
        seeds=(0, 1),
    )  # fmt: skip
    out = StringIO()
    console = Console(file=out, width=80, force_terminal=True)
    display = StudyProgress(study, console)
    cell = study.cells()[0]
    display.update(StudyEvent("started", cell))
    for number, accuracy, seconds in ((1, 0.5, 0.25), (2, None, 0.5), (3, 0.25, 0.5)):
        record = {"round": number, "accuracy": accuracy, "seconds": seconds}
        display.update(StudyEvent("round", cell, record=record))
    text = frame(display, console, out)
    assert re.search(r"FedAvg +0/2 +seed 0 +3/4 +25.00 % +50.00 % +0.50", text)
    assert re.search(r"FedNova +0/2 *$", text, re.M)
    assert re.search(r"0 of 4 runs, 0:00, about 0:0\d left", text)
    summary = {"rounds": 4, "seconds": 2.0, "final": 0.75, "best": 0.8}
    display.update(StudyEvent("finished", cell, summary=summary))
    display.update(StudyEvent("rejected", study.cells()[1], error=fr.UserError("data.not_found", "no data")))
    text = frame(display, console, out)
    assert re.search(r"FedAvg +1/2 +seed 0 +4/4 +75.00 % +80.00 % +0.50", text)
    assert "1 of 4 runs" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_live_table_notes_scaled_rounds() -> None:
    rows: dict = {"FedAvg": {}}
    study = Study(id="s", title="S", base={"run": {"rounds": 40}}, rows=rows, columns={"digits": {}}, fraction=0.05)
    out = StringIO()
    console = Console(file=out, width=80, force_terminal=True)
    assert "0 of 1 runs, 0:00; rounds scaled to 5 %" in frame(StudyProgress(study, console), console, out)


@pytest.mark.parametrize("summary", ["{}", '{"rounds": "two"}'])
def test_a_damaged_summary_is_one_line(fedrecall, tmp_path: Path, summary: str) -> None:
    study, _ = comparison_study(["fedavg"], None, QUICK[1::2], 1)
    path = write_study(study, tmp_path / "a", lambda cell, number: 0.5) / study.cells()[0].folder / "summary.json"
    path.write_text(summary)
    code, _, err = fedrecall("compare", "fedavg", "--seeds", 1, "--out", "a", *QUICK)
    assert code == 2
    assert len(err.splitlines()) == 1
    code, out, _ = fedrecall("compare", "fedavg", "--seeds", 1, "--out", "a", *QUICK, "--json")
    error = json.loads(out)["error"]
    assert (code, error["code"]) == (2, "run.damaged_file")
    assert tmp_path / error["key"] == path


DEFINITION = """
title = "A table of my own"
paper = "fedlmd"
seeds = 2
measure = "best"
target = { of = "FedAvg", measure = "best" }

[base]
local = { epochs = 1 }
engine = { name = "serial" }
run = { rounds = 20 }

[rows]
FedAvg = { method = { name = "fedavg" } }
FedLMD = { method = { name = "fedlmd" }, columns = { few = { local = { lr = 0.1 } } } }

[columns]
digits = {}
few = { federation = { clients = 5 }, run = { rounds = 40 } }

[printed.best]
FedAvg = [90.0, 91.0]
FedLMD = [95.0, 96.0]

[printed.speedup]
FedAvg = [1.0, 1.0]
FedLMD = [2.0, "Failed"]
"""


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    path = tmp_path / "own-table.toml"
    path.write_text(DEFINITION)
    return path


def test_reproduce(fedrecall, tmp_path: Path, definition: Path) -> None:
    code, out, err = fedrecall("reproduce", definition, "--fraction", 0.1, "--seeds", 1)
    assert (code, err) == (0, "")
    first, second, *rest = out.splitlines()
    folder = "reproductions/own-table-f0.1"
    for fact in ("A table of my own", "4 runs", "2 rows", "2 columns", "1 seed", "10 %", folder):
        assert fact in first
    assert re.match(r"(< )?0\.\d million .* \d+ min", second)
    assert "rounds scaled to 10 %: 2 of 20, 4 of 40" in rest
    assert sum(line.startswith("full: ") for line in rest) == 2
    assert re.search(r"full 95.00 \([+-]\d+\.\d\d\)", out)
    assert "full Failed" in out
    assert (tmp_path / folder / "tables" / "own-table-speedup.tex").exists()

    code, out, _ = fedrecall("reproduce", definition, "--fraction", 0.1, "--methods", "FedAvg", "--cells", "few")
    assert code == 0
    assert out.count("(kept)") == 1, "seed 0 was there"
    assert len(load_results(tmp_path / folder).finished_runs("FedAvg", "few")) == 2
    assert "seeds 0, 1; 3 of 8 runs are not finished" in out


def test_overrides_apply_to_every_cell_and_are_printed(definition: Path) -> None:
    study = reproduction_study(str(definition), overrides=["run.rounds=3", "local.lr=0.5", "engine.name=pool"])
    experiments = [study.experiment(cell) for cell in study.cells()]
    assert {(e.run.rounds, e.local.lr, e.engine.name) for e in experiments} == {(3, 0.5, "pool")}
    assert study.title == "A table of my own (with run.rounds=3, local.lr=0.5)"
    assert reproduction_study(str(definition), overrides=["data.root=/x"]).title == "A table of my own"


def test_another_choice_drops_the_settings_of_the_first() -> None:
    base = {"model": {"name": "mlp", "hidden": [5]}}
    columns = {"a": {"model": {"name": "mlp", "hidden": [7]}}, "b": {}}
    study = Study(id="s", title="S", base=base, rows={"FedAvg": {}}, columns=columns)
    other = with_study_overrides(study, ["model.name=cnn"])
    assert [cell.config["model"] for cell in other.cells()] == [{"name": "cnn"}] * 2


def test_default_folders_of_studies() -> None:
    study = papers.load_definition("fedlmd-table-1")
    assert str(default_folder(study)) == "reproductions/fedlmd-table-1"
    assert str(default_folder(study.model_copy(update={"fraction": 0.05}))) == "reproductions/fedlmd-table-1-f0.05"


def test_bad_reproductions_are_one_line(fedrecall, tmp_path: Path) -> None:
    for args, problem, key, fact in [
        ([], "cli.missing_argument", "ID", "fedrecall reproduce --list"),
        (["fedlmd-table-9"], "config.unknown_name", "experiment", 'did you mean "fedlmd-table-'),
        (["fedlmd-table-1", "--methods", "FedAvgg"], "config.unknown_name", "method", '"FedAvgg"'),
        (["fedlmd-table-1", "--fraction", "0"], "config.invalid_value", "fraction", "0"),
        (["fedlmd-table-1", "--set", "local.rate=1"], "config.unknown_key", "local.rate", "local"),
        (["nowhere.toml"], "config.unreadable_file", "nowhere.toml", "No such file"),
    ]:
        code, out, _ = fedrecall("reproduce", *args, "--json")
        error = json.loads(out)["error"]
        assert (code, error["code"], error["key"]) == (2, problem, key)
        code, _, err = fedrecall("reproduce", *args)
        assert code == 2
        assert fact in err
        assert len(err.splitlines()) == 1
    assert not (tmp_path / "reproductions").exists()


def test_the_list_has_costs(fedrecall, monkeypatch: pytest.MonkeyPatch) -> None:
    some = ["fedlmd-table-1", "fedlmd-fig-2"]  # all of them take a while
    monkeypatch.setattr("fedrecall.studies.definitions.experiment_ids", lambda: some)
    code, out, _ = fedrecall("reproduce", "--list")
    assert code == 0
    assert re.search(r"^fedlmd-table-1 +FedLMD, Table 1.* 4 +20 +\d", out, re.M)
    assert re.search(r"^fedlmd-fig-2 .* 2 +5.0 +\d", out, re.M)
    assert all(len(line) <= 80 for line in out.splitlines())


def test_the_default_methods_are_compared() -> None:
    assert set(DEFAULT_METHODS) <= set(fr.METHODS)
    assert comparison_study()[0].base["data"]["name"] == "digits"


def test_rows_share_the_data_only_if_they_have_the_same_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra text")
    texts, labels, _ = make_texts(60)
    lines = [f"{text},{label}\n" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(lines))
    bert = {"name": "huggingface", "path": str(save_transformer(tmp_path / "bert"))}
    data = {"name": "table", "path": str(tmp_path / "texts.csv"), "label": "label", "text": "text", "aux_per_class": 1}
    study = Study(
        id="s",
        title="S",
        base={"data": data, "federation": {"clients": 2, "partition": {"name": "iid"}}},
        rows={
            "bert": {"model": bert},
            "head": {"model": bert | {"train": "head"}},
            "words": {"model": {"name": "rnn"}},
        },
        columns={"all": {}},
    )
    objects = StudyObjects()
    complete, head, words = (objects.setup(cell, study.experiment(cell)).data.dataset for cell in study.cells())
    assert complete is head
    assert isinstance(complete.shape, dict)
    assert isinstance(words.shape, tuple), "words as integers, not the tokens of the transformer"


def test_a_function_as_metric(tmp_path: Path) -> None:
    def worst_probability(labels: np.ndarray, probabilities: np.ndarray) -> float:
        return float(probabilities[np.arange(len(labels)), labels].min())

    config = {
        "data": {"name": "digits"},
        "federation": {"clients": 4},
        "run": {"rounds": 1, "metrics": ["macro_f1", worst_probability]},
        "engine": {"name": "serial"},
    }
    for _ in range(2):  # the second comparison keeps the runs of the first
        found = fr.compare(["fedavg"], config=config, seeds=1, out=tmp_path / "s", baselines=["majority"])
        assert {"macro_f1", "worst_probability"} <= found.to_dict()["fedavg"].keys()
    study = Study.load(tmp_path / "s")
    assert study.base["run"]["metrics"][1].endswith("worst_probability")
    assert fr.report(tmp_path / "s", tmp_path / "report")[0].exists()
