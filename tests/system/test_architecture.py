"""The shape of the library: one loop each, imports one way, small files."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fedrecall"
FILES = sorted(SOURCE.rglob("*.py"))
ALLOWED = {  # a package may import these of ours, and itself
    "core": {"errors", "files", "data", "simulation"},
    "methods": {"errors", "core"},
    "data": {"errors", "files"},
    "models": {"errors"},
    "simulation": {"errors", "files", "core", "data"},
    "config": {"errors", "files", "core", "data", "models", "methods", "simulation", "runs", "studies"},
}


def imports(path: Path) -> set[str]:
    """Our own top-level packages and modules that a file imports."""
    tree = ast.parse(path.read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("fedrecall.")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way_and_files_stay_small(path: Path) -> None:
    package = path.relative_to(SOURCE).parts[0]
    if package in ALLOWED:
        assert imports(path) <= ALLOWED[package] | {package}
    assert len(path.read_text().splitlines()) <= 400


def test_there_is_one_training_loop_and_one_round_loop() -> None:
    text = {path: path.read_text() for path in FILES}
    steps = [path.name for path, code in text.items() if ".autograd.grad(" in code or ".backward(" in code]
    assert steps == ["training.py"]
    assert [path.name for path, code in text.items() if "method.round(" in code] == ["rounds.py"]


def test_nothing_is_unpickled() -> None:
    for path in FILES:
        assert not {"pickle", "dill", "cloudpickle", "marshal", "shelve"} & imports_anywhere(path), path
        assert "torch.load(" not in path.read_text()


def imports_anywhere(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    plain = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    return plain | {
        node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
