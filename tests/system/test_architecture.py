"""Layers, cycles, loops and names of the library, computed from its source."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2] / "src"
SOURCE = ROOT / "fedrecall"
FILES = sorted(SOURCE.rglob("*.py"))
BASE = {"errors", "files", "constraints", "tensor_dict", "_version"}
BELOW_RUNS = BASE | {"core", "data", "models", "methods", "simulation", "config"}
# A package or top-level module, and the others that it may import, at module level and inside functions.
ALLOWED = {
    "_version": set(),
    "errors": set(),
    "files": {"errors"},
    "constraints": {"errors"},
    "tensor_dict": set(),
    "core": BASE,
    "data": BASE,
    "models": BASE,
    "methods": BASE | {"core"},
    "simulation": BASE | {"core", "data"},
    "config": BELOW_RUNS - {"config"},
    "runs": BELOW_RUNS,
    "studies": BELOW_RUNS | {"runs"},
    "reporting": BELOW_RUNS | {"runs", "studies"},
    "api": BELOW_RUNS | {"runs", "studies", "reporting"},
    "flower": BELOW_RUNS | {"runs"},
    "testing": BASE | {"core", "data", "models", "simulation"},
    "cli": BELOW_RUNS | {"runs", "studies", "reporting", "api", "flower"},
    "__init__": {"_version"},  # public names are imported when first used
    "__main__": {"cli"},
}
# Imports against the table: (file, function) -> package.
EXCEPTIONS = {
    ("runs/result.py", "Result.plot"): "reporting",  # as pandas.DataFrame.plot: a result draws its own curves
}
# Sets of modules that import each other, counting imports inside functions, or those for type checkers only.
LAZY_CYCLES: set[frozenset[str]] = set()
TYPE_CYCLES = {
    # The records of core/types.py carry the model, the server optimiser and the training settings.
    frozenset(f"core.{name}" for name in ("flat_model", "method", "method_extensions", "optim", "training", "types")),
    # An experiment is validated by functions that take an experiment.
    frozenset(f"config.{name}" for name in ("choices", "data_section", "experiment", "local_section", "validation")),
}
# One name, two definitions, one meaning: the reason.
SAME_MEANING = {
    "log": "each module's logger",
    "T": "a type variable is local to its module",
    "Floats": "a type alias of arrays, local to its module",
    "Ints": "a type alias of arrays, local to its module",
    "Examples": "core's protocol of what data implements",
    "app": "typer's application and Flower's apps are loaded by this name",
    "main": "Flower's decorator takes the function of this name",
    # A command is the function that the API has under the same name.
    "run": "command",
    "compare": "command",
    "reproduce": "command",
    "report": "command",
    "tune": "command",
}
MAX_LINES = 500  # usually 80 to 400; no file is split because it is too long by a few lines


class Import(NamedTuple):
    """Import of a module of the library."""

    module: str  # "core.types"; a package is its own name, the root is ""
    scope: str  # qualified name of the function; "" at module level
    typing_only: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path): path for path in FILES}


def package(module: str) -> str:
    return module.partition(".")[0]


def imports_of(path: Path) -> Iterator[Import]:
    def resolve(name: str, member: str | None) -> str:
        inner = name.removeprefix("fedrecall").removeprefix(".")
        deeper = f"{inner}.{member}".removeprefix(".")
        return deeper if member and deeper in MODULES else inner

    def walk(node: ast.AST, scope: str, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ImportFrom) and (child.module or "").split(".")[0] == "fedrecall":
                for alias in child.names:
                    yield Import(resolve(child.module or "", alias.name), scope, typing_only)
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    if alias.name.split(".")[0] == "fedrecall":
                        yield Import(resolve(alias.name, None), scope, typing_only)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from walk(child, f"{scope}.{child.name}".removeprefix("."), typing_only)
            else:
                guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from walk(child, scope, typing_only or guarded)

    yield from walk(ast.parse(path.read_text()), "", False)


IMPORTS = {module: list(imports_of(path)) for module, path in MODULES.items()}


def is_lazy(found: Import, tree: str) -> bool:
    """True if the import runs when a function is called, not when the module is imported."""
    node: ast.AST = ast.parse(tree)
    for name in found.scope.split(".") if found.scope else ():
        node = next(n for n in ast.walk(node) if getattr(n, "name", None) == name and hasattr(n, "body"))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return True
    return False


def cycles(*, lazy: bool, typing_only: bool) -> set[frozenset[str]]:
    """Return sets of modules of which each reaches each by imports."""
    edges: dict[str, set[str]] = defaultdict(set)
    for module, found in IMPORTS.items():
        text = MODULES[module].read_text()
        for found_import in found:
            counted = typing_only if found_import.typing_only else lazy or not is_lazy(found_import, text)
            if counted and found_import.module in MODULES and found_import.module != module:
                edges[module].add(found_import.module)

    def reached(start: str) -> set[str]:
        visited: set[str] = set()
        stack = [start]
        while stack:
            for target in edges[stack.pop()] - visited:
                visited.add(target)
                stack.append(target)
        return visited

    reach = {module: reached(module) for module in MODULES}
    return {
        frozenset(other for other in reach[module] if module in reach[other])
        for module in MODULES
        if module in reach[module]
    }


def test_the_table_has_every_package() -> None:
    assert {package(module) for module in MODULES} == set(ALLOWED)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module: str) -> None:
    path = MODULES[module].relative_to(SOURCE).as_posix()
    allowed = ALLOWED[package(module)] | {package(module)}
    against = {
        (found_import.scope, found_import.module)
        for found_import in IMPORTS[module]
        if package(found_import.module) not in allowed
        and EXCEPTIONS.get((path, found_import.scope)) != package(found_import.module)
        and not (module == "__init__" and found_import.typing_only)
    }
    assert not against


def test_every_exception_is_needed() -> None:
    used = {
        (MODULES[module].relative_to(SOURCE).as_posix(), found_import.scope): package(found_import.module)
        for module, found in IMPORTS.items()
        for found_import in found
        if found_import.scope and package(found_import.module) not in ALLOWED[package(module)] | {package(module)}
    }
    assert used == EXCEPTIONS


def test_no_cycle_when_modules_are_imported() -> None:
    assert cycles(lazy=False, typing_only=False) == set()


def test_cycles_by_imports_inside_functions_are_named() -> None:
    assert cycles(lazy=True, typing_only=False) == LAZY_CYCLES


def test_cycles_by_imports_for_type_checkers_are_named() -> None:
    assert cycles(lazy=False, typing_only=True) == TYPE_CYCLES


@pytest.mark.parametrize("command", ["import fedrecall", "import fedrecall.cli", "import fedrecall.errors"])
def test_light_imports(command: str) -> None:
    heavy = "{'torch', 'pydantic', 'numpy', 'matplotlib', 'flwr', 'ray'}"
    code = f"import sys; {command}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def definitions() -> dict[str, list[str]]:
    """Return public classes, functions and constants at module level, and the modules that define them."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            names: list[str] = []
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names = [node.name]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            for name in dict.fromkeys(names):
                if not name.startswith("_"):
                    found[name].append(module)
    return found


def test_a_name_is_defined_once() -> None:
    twice = {name: modules for name, modules in definitions().items() if len(modules) > 1}
    assert {name: modules for name, modules in twice.items() if name not in SAME_MEANING} == {}
    assert set(SAME_MEANING) <= set(twice), "no reason without need"


@pytest.mark.parametrize("module", MODULES)
def test_files_stay_readable(module: str) -> None:
    assert len(MODULES[module].read_text().splitlines()) <= MAX_LINES


def calls(path: Path, *attributes: str) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in attributes
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_there_is_one_training_loop_and_one_round_loop() -> None:
    # client_report: the probe "pull" has the gradient at the logits, of no weights
    assert [path.name for path in FILES if calls(path, "backward", "grad")] == ["client_report.py", "training.py"]
    assert [path.name for path in FILES if "method.round(" in path.read_text()] == ["rounds.py"]


def test_nothing_is_unpickled() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text())
        plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        named = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not {"pickle", "dill", "cloudpickle", "marshal", "shelve"} & {m.split(".")[0] for m in plain | named}
        called = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert "torch.load" not in {ast.unparse(call.func) for call in called}, path
        assert "allow_pickle" not in {keyword.arg for call in called for keyword in call.keywords}, path
