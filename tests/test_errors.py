"""Error codes: every code that the source uses is explained, and every explanation belongs to a code in use."""

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import fedrecall
from fedrecall.errors import UserError, explanations, unknown_name

SOURCE = Path(fedrecall.__file__).parent
CODE = re.compile(r"[a-z]+\.[a-z]+(_[a-z]+)*")
AREAS = {
    "cli", "config", "data", "engine", "flower", "install", "method", "metric", "model", "partition", "privacy",
    "reply", "report", "robust", "round", "run", "study", "system", "tune",
}  # fmt: skip


TREES = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


class Use(NamedTuple):
    """Expression whose value is an error code."""

    where: str
    code: ast.expr


def name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def position(function: ast.FunctionDef) -> int | None:
    """Return the position of the parameter `code` in a call."""
    names = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
    return names.index("code") if "code" in names else None


def takers(tree: ast.AST) -> dict[str, int]:
    """Return callables with a parameter `code`, and its position: errors, reasons, and functions that make them."""
    found = dict[str, int | None]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found[node.name] = position(node)
        elif isinstance(node, ast.ClassDef):
            fields = [name_of(each.target) for each in node.body if isinstance(each, ast.AnnAssign)]
            found[node.name] = fields.index("code") if "code" in fields else None
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name in ("__init__", "__new__"):
                    found[node.name] = position(inner)
    return {name: at for name, at in found.items() if at is not None}


def everywhere() -> dict[str, int]:
    """Return the callables that other modules can use: public names, and subclasses."""
    found = {name: at for tree in TREES.values() for name, at in takers(tree).items() if not name.startswith("_")}
    classes = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {node.name: [name_of(base) for base in node.bases] for node in classes}
    while more := {
        name: found[base] for name, parents in bases.items() for base in parents if base in found and name not in found
    }:
        found |= more
    return found


def uses() -> Iterator[Use]:
    """Yield codes that are arguments, the default of a parameter `code`, or the value of a name or key `code`."""
    public = everywhere()
    for path, tree in TREES.items():
        known = public | takers(tree)
        for node in ast.walk(tree):
            where = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call):
                named = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
                at = known.get(name_of(node.func))
                yield from (Use(where, each) for each in named or (node.args[at : at + 1] if at is not None else ()))
            elif isinstance(node, ast.Assign) and "code" in map(name_of, node.targets):
                yield Use(where, node.value)
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                yield from (Use(where, value) for key, value in pairs if getattr(key, "value", None) == "code")
            elif isinstance(node, ast.arguments):
                with_default = node.args[len(node.args) - len(node.defaults) :]
                pairs = zip(with_default, node.defaults, strict=True)
                yield from (Use(where, default) for each, default in pairs if each.arg == "code")


def constants() -> dict[str, str]:
    """Return codes that have a name: `NAME = "area.problem"` in a module."""
    found = {}
    for node in (node for tree in TREES.values() for node in tree.body if isinstance(node, ast.Assign)):
        if isinstance(node.value, ast.Constant) and CODE.fullmatch(str(node.value.value)):
            found |= {name_of(target): str(node.value.value) for target in node.targets}
    return found


def codes() -> dict[str, str]:
    """Return every code in the source, and a module that uses it."""
    found, named = {}, constants()
    for where, code in uses():
        parts = list(ast.walk(code))
        texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if isinstance(code, ast.Constant) and texts:
            assert CODE.fullmatch(texts[0]), f"{where}: {texts[0]!r} is not a code"
        assert not any(isinstance(part, ast.JoinedStr) for part in parts), f"{where}: write the code out, to be found"
        texts += [named[name] for name in map(name_of, (p for p in parts if isinstance(p, ast.Name))) if name in named]
        found |= {text: where for text in texts if CODE.fullmatch(text)}
    return found


def test_every_code_is_explained() -> None:
    assert {"config.unknown_name", "install.missing_extra", "run.damaged_file"} < set(codes()), "they are found"
    assert {code: where for code, where in codes().items() if code not in explanations()} == {}


def test_every_explanation_belongs_to_a_code_in_use() -> None:
    assert set(explanations()) - set(codes()) == set()


def test_explanations_are_sentences_of_known_areas() -> None:
    for code, text in explanations().items():
        assert CODE.fullmatch(code)
        assert code.partition(".")[0] in AREAS
        assert text.endswith("."), code
        assert "\n" not in text, code
    assert list(explanations()) == sorted(explanations())


def test_an_error_has_a_code_a_key_and_a_hint_also_in_another_process() -> None:
    for error in (UserError("data.empty", "no rows", "data.path", "add some"), UserError("data.empty", "no rows")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is UserError
        assert vars(again) == vars(error)
        assert str(again) == str(error)
    assert str(UserError("data.empty", "no rows", hint="add some")) == "no rows: add some"


@pytest.mark.parametrize(("name", "hint"), [("fedavgg", "fedavg"), ("zzz", None)])
def test_the_nearest_name_is_the_hint(name: str, hint: str | None) -> None:
    error = unknown_name("method", name, ["fedprox", "fedavg"])
    assert (error.code, error.key) == ("config.unknown_name", "method")
    assert "fedavg, fedprox" in error.message
    assert error.hint is None if hint is None else f'"{hint}"' in str(error.hint)
