"""Tests of examples/: every file runs unchanged in a separate process and prints the expected results."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# Expected in the output of each example, beside the rows of its tables.
EXPECTED = {
    "tabular.py": ["307 patients of 8 clinics", "fedavg", "fedlmd", "fedcad", "all patients pooled: "],
    "patients.py": ["fedavg", "central", "majority", "report: report.html", "chosen model: fed", "200 new patients"],
    "text.py": ["docstrings of 10 packages", "fedavg", "fedlmd", "fedntd", "all texts pooled: "],
    "image_folder.py": ["pictures of 10 classes, 1x16x16", "fedavg", "fedntd", "digit 0 -> "],
    "own_model.py": ["fedavg", "fedlmd", "accuracy: final", "17258 parameters"],
    "transformer.py": ["fedavg", "fedlmd", "1123 weights are trained", "in PEFT the logits are the same"],
    "own_method.py": ["checks passed", "fedlmd", "FedAnchor", "FedAnchor:mu=10.0"],
}

SHORTER = {"tabular.py": ("2", "10"), "text.py": ("2", "15")}  # seeds and rounds, fewer than by default

OUTDATED = "the outputs are outdated: jupyter execute --inplace examples/quickstart.ipynb"


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str, tmp_path: Path) -> None:
    if name == "transformer.py":
        pytest.importorskip("peft", reason="needs the extra text")
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *SHORTER.get(name, ())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    for text in EXPECTED[name]:
        assert text in done.stdout
    rows = re.findall(r"^\S+ +(\d+\.\d\d) ± \d+\.\d\d  ", done.stdout, re.M)
    assert len(rows) >= 2
    assert max(map(float, rows)) > 40, "something is learned"
    assert not list(tmp_path.iterdir()), "nothing is left behind"
    if name == "text.py":  # the claims of its docstring
        pooled = float(re.search(r"all texts pooled: (\d+\.\d\d) %", done.stdout)[1])
        assert float(rows[0]) + 10 < pooled, "FedAvg is far below pooled training"
        gains = re.findall(r"^fed(?:lmd|ntd) .* \+(\d+\.\d\d)  ", done.stdout, re.M)
        assert len(gains) == 2, "and both other methods are better"


def test_notebook(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    before = outputs(notebook)
    nbclient.NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(tmp_path)}}).execute()
    after = outputs(notebook)
    assert [[*map(sorted, cell)] for cell in after] == [[*map(sorted, cell)] for cell in before], OUTDATED
    assert re.search(r"(\d+) of \1 runs", after[1][0]["text/plain"]), "progress"
    assert after[1][1]["text/html"].startswith("<table>")
    assert all("image/png" in after[cell][0] for cell in (2, 3))
    assert (EXAMPLES / "quickstart.ipynb").stat().st_size < 250_000


def outputs(notebook: Any) -> list[list[dict[str, str]]]:
    """Return the outputs of every code cell, by MIME type."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[dict(output.get("data", {"text": ""})) for output in cell.outputs] for cell in cells]
