"""Tests of the method pages against the code: names, defaults, costs, snippets, links."""

import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import fedrecall
from fedrecall import METHODS, Experiment, Method
from fedrecall.core.method_extensions import MethodExtensions, Traits
from fedrecall.core.rounds import run_rounds
from fedrecall.core.types import Local, Output, Reply, Server, Step
from fedrecall.runs.setup import prepare_run
from fedrecall.simulation import ENGINES
from support.markdown import DOCS, blocks, headings, prose, table

INDEX, VOCABULARY = DOCS / "methods" / "index.md", DOCS / "vocabulary.md"
PAGES = sorted((DOCS / "methods").glob("*.md"))
SECTIONS = [
    "Equations",
    "Parameters",
    "Communication and client state",
    "When to use it",
    "Choices",
    "Configuration",
    "Reference",
]
SMALL = {
    "federation": {"clients": 4},
    "model": {"name": "mlp", "hidden": [16]},
    "local": {"epochs": 1},
    "engine": {"name": "serial"},
}

methods = pytest.mark.parametrize("name", METHODS)


def value(cell: str) -> Any:
    """Return the default that a table cell contains: a TOML value in backticks, or "unset"."""
    return None if cell == "unset" else tomllib.loads(f"value = {cell.strip('`')}")["value"]


SNIPPETS = [(path.stem, block.text) for path in PAGES for block in blocks(path, "toml")]


@methods
def test_every_method_has_a_page_and_the_index_links_to_it(name: str) -> None:
    page = DOCS / "methods" / f"{name}.md"
    assert f"[{name}]({name}.md)" in [row[0] for row in table(INDEX, "Method")]
    _, *sections = headings(page)
    assert [s for s in sections if s in SECTIONS] == SECTIONS
    assert page.read_text().count("$$") % 2 == 0


def test_every_page_has_a_method() -> None:
    assert {path.stem for path in PAGES} == set(METHODS) | {"index"}
    assert [row[0] for row in table(INDEX, "Method")] == [f"[{name}]({name}.md)" for name in METHODS]


@methods
def test_the_parameter_table_is_the_dataclass(name: str) -> None:
    rows = table(DOCS / "methods" / f"{name}.md", "Name")
    assert all(len(row) == 4 and all(row) for row in rows)
    documented = [(row[0].strip("`"), value(row[2])) for row in rows]
    declared = [(f.name, f.default) for f in fields(METHODS[name])]
    assert documented == declared
    assert [type(v) for _, v in documented] == [type(v) for _, v in declared]


@methods
def test_the_costs_in_the_index_are_those_of_a_run(name: str) -> None:
    ready = prepare_run(Experiment(method={"name": name}, **SMALL, run={"rounds": 3}))
    with ENGINES["serial"](ready.clients, ready.server.f) as engine:
        *_, last = run_rounds(ready.clients.method, ready.server, engine, ready.schedule)
        state_sizes = [sum(t.numel() for t in memory.values()) for memory in engine.client_state.values()]
    unit = len(ready.server.state)
    _, _, down, up, keeps, *_ = next(row for row in table(INDEX, "Method") if row[0].startswith(f"[{name}]"))
    size = {"C": 10, "C²": 100, "C·D": 160, "2·C": 20, "C·D²": 2560, "a scalar": 1}

    def floats(cell: str) -> int:
        return sum(size[term] if term in size else int(term) * unit for term in cell.split(" + "))

    assert last.bytes_down == 4 * floats(down)
    assert last.bytes_up == 4 * floats(up)
    assert state_sizes == ([] if keeps == "nothing" else [floats(keeps.partition(":")[0])] * 4)


@pytest.mark.parametrize(("page", "text"), SNIPPETS, ids=[page for page, _ in SNIPPETS])
def test_snippets_are_valid_and_run(page: str, text: str) -> None:
    tables = tomllib.loads(text)
    experiment = Experiment(**tables)
    assert tables["method"]["name"] == page
    assert type(experiment.method) is METHODS[page]
    if "name" not in tables.get("data", {}):  # on the embedded digits
        result = fedrecall.run(Experiment(**(SMALL | tables), run={"rounds": 2}))
        assert len(result.rounds) == 2


def test_every_method_has_a_snippet() -> None:
    assert {page for page, _ in SNIPPETS} == set(METHODS)


@pytest.mark.parametrize("row", table(DOCS / "methods" / "grid.md", "Method"), ids=lambda row: row[0].strip("`{ }"))
def test_points_of_the_grid_are_the_methods(row: list[str]) -> None:
    named, point = map(value, row)

    def weights(method: dict[str, Any]) -> torch.Tensor:
        trains = SMALL | {"local": {"epochs": 5, "lr": 0.1}}  # enough for a teacher above chance
        return fedrecall.run(Experiment(method=method, **trains, run={"rounds": 2})).server.w

    ours = weights(named)
    torch.testing.assert_close(weights({"name": "grid"} | point), ours, rtol=1e-4, atol=1e-5)
    assert (ours - weights({"name": "fedavg"})).abs().max() > 1e-3  # otherwise any method would pass


@pytest.fixture
def example(tmp_path: Path) -> Iterator[ModuleType]:
    """First Python block of the vocabulary, as a module."""
    file = tmp_path / "documented_method.py"
    file.write_text(blocks(VOCABULARY, "python")[0].text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[file.stem]


def test_the_new_method_runs(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"MyMethod": example.MyMethod}
    exec(blocks(VOCABULARY, "python")[1].text, names)  # the block that a reader would run next
    result = names["result"]
    assert [r["round"] for r in result.rounds] == [1, 2]
    assert result.rounds[-1]["bytes_down"] == 2 * result.rounds[-1]["bytes_up"]  # the weights and their slow copy
    assert str(result.summary["final"]) in capsys.readouterr().out
    assert torch.equal(
        fedrecall.run(Experiment(method=example.MyMethod(mu=0.0), run={"rounds": 2})).server.w,
        fedrecall.run(Experiment(run={"rounds": 2})).server.w,
    )


def test_the_vocabulary_names_every_hook_and_field() -> None:
    text = prose(VOCABULARY)
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", text))))
    hooks = {name for cls in (Method, MethodExtensions) for name in vars(cls) if not name.startswith("_")}
    assert hooks <= words
    assert {f.name for f in fields(Traits)} <= words
    for record in (Output, Step, Local, Reply):
        assert {record.__name__, *record._fields} <= words
    assert {f.name for f in fields(Server)} | {"Payload", "Server", "Cohort", "Engine"} <= words


def test_hooks_are_called_in_the_documented_order() -> None:
    order: list[str] = []

    def noted(name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            order.append(name)
            return hook(*args)

        return call

    nine, rare = (
        {name: hook for name, hook in vars(cls).items() if isfunction(hook) and not name.startswith("_")}
        for cls in (Method, MethodExtensions)
    )
    recorder = type("Recorder", (Method,), {name: noted(name, hook) for name, hook in (nine | rare).items()})
    some = SMALL | {"engine": {"name": "serial", "min_replies": 1}}  # then replies are validated
    fedrecall.run(Experiment(method=recorder(), **some, run={"rounds": 1, "probes": ["local", "distillation", "pull"]}))
    documented = re.findall(r"^\d+\. `(\w+)\(", prose(VOCABULARY), flags=re.MULTILINE)
    assert [name for name in dict.fromkeys(order) if name in nine] == documented
    assert set(documented) == set(nine)
    assert set(re.findall(r"^- `(\w+)\(", prose(VOCABULARY), flags=re.MULTILINE)) == set(rare) <= set(order)


@pytest.mark.parametrize(("page", "example"), [("own-model.md", "own_model.py"), ("transformers.md", "transformer.py")])
def test_a_page_that_shows_an_example_has_its_text(page: str, example: str) -> None:
    """The repository's view of a page resolves no includes."""
    (shown,) = blocks(DOCS / page, "py")
    assert shown.text.strip() == (DOCS.parent / "examples" / example).read_text().strip()


def test_no_page_has_an_include() -> None:
    assert [page.name for page in DOCS.rglob("*.md") if "--8<--" in page.read_text()] == []


def test_the_page_on_new_methods_shows_the_class_of_the_example() -> None:
    shown = blocks(DOCS / "own-method.md", "python")[0].text
    example = (DOCS.parent / "examples" / "own_method.py").read_text()
    assert shown[shown.index("@dataclass") :].strip() in example
