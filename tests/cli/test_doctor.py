"""`fedrecall doctor` reports the state of the installation."""

import json
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from fedrecall.cli import doctor
from fedrecall.core.precision import bf16_instructions
from fedrecall.data.catalog import DATASETS
from fedrecall.errors import explanations
from fedrecall.simulation.devices import available_cores
from fedrecall.simulation.processes import ProcessPool
from support.command import call

ROOT = Path(__file__).parents[2]


def test_facts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = tmp_path / "data"
    (root / "mnist").mkdir(parents=True)
    for split in ("train", "test"):
        (root / "mnist" / f"{split}-0.parquet").touch()
    monkeypatch.setenv("FEDRECALL_DATA", str(root))
    code, out, _ = call(monkeypatch, capsys, "doctor", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["ok"]
    assert facts["installed"]["torch"] == torch.__version__
    assert facts["machine"]["workers"] == available_cores()
    assert facts["machine"]["bf16"] == list(bf16_instructions())
    assert facts["engines"]["serial"]["works"]
    assert facts["engines"]["pool"]["works"]
    assert facts["extras"]["tune"]["version"] == version("optuna")
    assert list(facts["data"]["sets"]) == list(DATASETS)
    assert facts["data"]["sets"]["mnist"]["found"] == "FEDRECALL_DATA"
    assert "$FEDRECALL_DATA/cifar10" in facts["data"]["sets"]["cifar10"]["get"]


def test_an_error_code_is_explained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "diagnose", None)
    code, out, _ = call(monkeypatch, capsys, "doctor", "--explain", "report.missing_probe")
    assert (code, " ".join(out.split())) == (0, f"report.missing_probe: {explanations()['report.missing_probe']}")
    code, out, _ = call(monkeypatch, capsys, "doctor", "--explain", "report.missing_probe", "--json")
    assert json.loads(out) == {"code": "report.missing_probe", "explanation": explanations()["report.missing_probe"]}
    code, out, err = call(monkeypatch, capsys, "doctor", "--explain", "report.missing_prob")
    assert (code, out) == (2, "")
    assert '"report.missing_probe"' in err


def test_every_extra_is_known() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(doctor.EXTRAS) == set(extras) - {"dev", "docs"}
    for extra, (package, _) in doctor.EXTRAS.items():
        assert extras[extra][0].startswith(package)


def test_missing_extras_have_an_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "flower", ("no-such-package", "real federations"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    code, out, _ = call(monkeypatch, capsys, "doctor")
    assert code == 0
    assert "missing: pip install '.[flower]'" in out
    assert "from the hub: ylecun/mnist" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "\x1b" not in out


def test_an_engine_that_does_not_work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no room in /dev/shm")

    monkeypatch.setattr(ProcessPool, "__init__", fail)
    code, out, _ = call(monkeypatch, capsys, "doctor")
    assert code == 0, "serial does"
    assert "does not work: no room in /dev/shm" in out


def test_a_library_that_cannot_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("illegal instruction\nand more")

    monkeypatch.setattr("fedrecall.api.run", fail)
    code, out, _ = call(monkeypatch, capsys, "doctor")
    assert code == 1
    assert "does not work: illegal instruction" in out
    assert "cannot run here" in out
