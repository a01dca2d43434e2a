"""Files of the project beside the library agree with `pyproject.toml`, and the wheel is complete."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import fedrecall
from support.attack_groups import GROUPS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
yaml = pytest.importorskip("yaml")


def read_yaml(path: str) -> dict:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_workflow_tests_every_version_of_python_that_is_declared() -> None:
    jobs = read_yaml(".github/workflows/test.yml")["jobs"]
    declared = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert jobs["test"]["strategy"]["matrix"]["python"] == declared
    assert ".ci/run" in [step.get("run") for step in jobs["test"]["steps"]]
    assert "make test" in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize(
    "path", [".github/dependabot.yml", ".pre-commit-config.yaml", *map(str, ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))]
)
def test_settings_are_yaml(path: str) -> None:
    assert read_yaml(path)


def test_the_citation_names_the_project() -> None:
    citation = read_yaml("CITATION.cff")
    assert citation["authors"] == PROJECT["authors"]
    assert citation["license"] == PROJECT["license"]
    assert "version" not in citation, "the version has one place"


def test_the_image_has_the_declared_range_of_torch() -> None:
    torch = next(d for d in PROJECT["dependencies"] if d.startswith("torch"))
    assert f'"{torch}"' in (ROOT / "Dockerfile").read_text()


def test_the_hooks_run_what_the_makefile_runs() -> None:
    hooks = {
        hook["entry"].split()[0] for repo in read_yaml(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]
    }
    assert hooks == {".venv/bin/ruff", ".venv/bin/mypy"}


def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.split("-")[1] == fedrecall.__version__
    source = ROOT / "src"
    files = {p.relative_to(source).as_posix() for p in (source / "fedrecall").rglob("*") if p.is_file()}
    files = {file for file in files if "__pycache__" not in file}
    assert {"fedrecall/py.typed", "fedrecall/error_codes.toml"} <= files
    assert files <= set(zipfile.ZipFile(wheel).namelist())


def test_every_file_of_the_threat_table_is_run_by_a_command_that_counts_attacks() -> None:
    table = (ROOT / "docs" / "security.md").read_text().partition("## Threats")[2]
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", table))
    grouped = {file for files in GROUPS.values() for file in files}
    attacked = re.search(r"^ATTACKED := (.*?)\n\n", (ROOT / "Makefile").read_text(), re.M | re.S)
    assert attacked
    listed = {path.partition("::")[0].removeprefix("tests/") for path in re.findall(r"tests/\S+", attacked[1])}
    assert len(named) > 15
    assert all((ROOT / "tests" / file).is_file() for file in named | grouped)
    assert named <= grouped
    assert "system/faults" in listed
    by_flower = {file for file in grouped if "pytestmark = pytest.mark.flower" in (ROOT / "tests" / file).read_text()}
    assert all(file.startswith("flower/") for file in by_flower), "make test-flower collects tests/flower"
    by_faults = {file for file in grouped if file.startswith("system/faults/")} | (grouped & listed)
    assert by_flower | by_faults == grouped
    assert not by_flower & by_faults, "the environment of make test-faults has no Flower"
    selected = re.search(r"^test-flower:.*\n.*pytest (.*)", (ROOT / "Makefile").read_text(), re.M)
    assert selected
    assert selected[1] == "--count-attacks -m flower tests/flower"


def test_every_benchmark_can_be_imported() -> None:
    paths = sorted((ROOT / "benchmarks").rglob("*.py"))
    needs_flower = {"benchmarks.peers.flower_app"}
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in paths if not p.stem.startswith("__")}
    code = "; ".join(f"import {name}" for name in sorted(names - needs_flower))
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
