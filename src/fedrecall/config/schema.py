"""What the source code says of names and keys: read as text, not imported, so that nothing waits for torch.

Names come from dict literals such as METHODS, keys from the classes of the configuration, and what a key means from the
comment beside it. Whoever completes, comments or documents a configuration asks here; there is no second list.
"""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]

CONFIG = PACKAGE / "config" / "experiment.py"


class KeyInfo(NamedTuple):
    """A field of a class: what it can be, and what its comment says."""

    comment: str
    values: tuple[object, ...]  # where only these are possible; else empty


class SectionInfo(NamedTuple):
    """A class of the configuration."""

    about: str  # first line of its docstring
    keys: dict[str, KeyInfo]


def names(kind: str) -> list[str]:
    """What `kind` (a key of CHOICES, such as "method") can be called."""
    return list(_choices()[kind])


def chosen(kind: str, name: str) -> SectionInfo:
    """The class behind a name, e.g. ("method", "fedlmd")."""
    file, cls = _choices()[kind][name]
    return classes(file)[cls]


def sections() -> dict[str, SectionInfo]:
    """The tables of a configuration; those that are chosen by name (method, model) have their keys elsewhere."""
    known = classes(CONFIG)
    inside = {name: _class_of(field.value) for name, field in _fields(_node(CONFIG, "Experiment")).items()}
    return {name: known[cls] if cls in known else SectionInfo("", {}) for name, cls in inside.items()}


def keys() -> dict[str, KeyInfo]:
    """Every dotted key that a configuration can have, e.g. "federation.partition.alpha"."""
    out: dict[str, KeyInfo] = {}
    for section, cls in sections().items():
        for name, key in cls.keys.items() if cls.keys else [(section, KeyInfo("", ()))]:
            path = f"{section}.{name}" if cls.keys else section
            if name not in _choices():
                out[path] = key._replace(values=(*datasets(),)) if path == "data.name" else key
                continue
            out[f"{path}.name"] = KeyInfo(key.comment, tuple(names(name)))
            for each in names(name):
                out |= {f"{path}.{inner}": found for inner, found in chosen(name, each).keys.items()}
    return out


def datasets() -> list[str]:
    """The named data sets."""
    return [ast.literal_eval(key) for key in _assigned(PACKAGE / "data" / "catalog.py", "DATASETS").keys if key]


@cache
def classes(file: Path) -> dict[str, SectionInfo]:
    """The classes of a module, with the comments of their fields."""
    lines = file.read_bytes().splitlines()
    return {
        node.name: SectionInfo(
            (ast.get_docstring(node) or "").split("\n")[0],
            {
                name: KeyInfo(_said(field, lines) or _docstring(node, field), _literals(field.annotation))
                for name, field in _fields(node).items()
            },
        )
        for node in _tree(file).body
        if isinstance(node, ast.ClassDef)
    }


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def _choices() -> dict[str, dict[str, tuple[Path, str]]]:
    """CHOICES of the configuration: kind -> name -> where its class is."""
    out = {}
    literal = _assigned(CONFIG, "CHOICES")
    for key, value in zip(literal.keys, literal.values, strict=True):
        assert isinstance(key, ast.Constant)
        assert isinstance(value, ast.Call)
        assert isinstance(value.args[1], ast.Name)
        file = _origin(CONFIG, value.args[1].id)
        valid = _assigned(file, value.args[1].id)
        pairs = zip(valid.keys, valid.values, strict=True)
        behind = {ast.literal_eval(k): v.id for k, v in pairs if k and isinstance(v, ast.Name)}
        out[str(key.value)] = {name: (_origin(file, cls), cls) for name, cls in behind.items()}
    return out


def _origin(file: Path, name: str) -> Path:
    """The module that a name is imported from; the file itself if it is not."""
    for node in _tree(file).body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            path = PACKAGE.parent.joinpath(*str(node.module).split("."))
            return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file


def _assigned(file: Path, name: str) -> ast.Dict:
    for node in _tree(file).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        value = getattr(node, "value", None)
        if isinstance(value, ast.Dict) and any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return value
    raise LookupError(f"{file} has no dict literal {name}")


def _node(file: Path, name: str) -> ast.ClassDef:
    return next(node for node in _tree(file).body if isinstance(node, ast.ClassDef) and node.name == name)


def _fields(node: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    inside = (field for field in node.body if isinstance(field, ast.AnnAssign))
    return {field.target.id: field for field in inside if isinstance(field.target, ast.Name)}


def _class_of(value: ast.expr | None) -> str:
    """The class that a default such as `Data()` is made of."""
    return value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""


def _literals(annotation: ast.expr) -> tuple[object, ...]:
    """The values of a Literal in an annotation."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            found = ast.literal_eval(node.slice)
            return found if isinstance(found, tuple) else (found,)
        if isinstance(node, ast.Name) and node.id == "bool":
            return (False, True)
    return ()


def _docstring(node: ast.ClassDef, field: ast.AnnAssign) -> str:
    """Return the attribute docstring below a field, or ""."""
    below = node.body[node.body.index(field) + 1 :][:1]
    text = [n.value.value for n in below if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    return str(text[0]) if text else ""


def _said(field: ast.AnnAssign, lines: list[bytes]) -> str:
    """The comment behind a field's default, or behind its type if it has none."""
    end = field.value or field
    rest = lines[(end.end_lineno or 1) - 1][end.end_col_offset or 0 :].decode().strip()
    return rest.lstrip("# ") if rest.startswith("#") else ""
