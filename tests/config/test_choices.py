"""Choices by name: strict types, tuples from lists, objects and records of objects."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrecall as fr
from fedrecall import Experiment, UserError
from fedrecall.config.choices import PythonObject, require
from fedrecall.config.experiment import CHOICES
from fedrecall.config.tables import flatten, merge_tables
from fedrecall.core.method import Method
from fedrecall.core.privacy import GaussianMechanism
from fedrecall.core.robust import ExchangeInfo
from fedrecall.core.types import Reply
from fedrecall.methods import METHODS
from fedrecall.models import MODELS


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"name": "fedlmd", "tau": "3"}, "method.tau"),
        ({"name": "fedlmd", "tau": True}, "method.tau"),
        ({"name": "fedlmd", "tau": [1.0]}, "method.tau"),
        ({"name": "fedgkd", "buffer": 2.5}, "method.buffer"),
        ({"name": "fedavgm", "nesterov": 1}, "method.nesterov"),
    ],
)
def test_types_are_strict(table: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError) as error:
        CHOICES["method"].build(table)
    assert (error.value.code, error.value.key) == ("config.invalid_value", key)


def test_an_unknown_literal_has_the_nearest_name() -> None:
    with pytest.raises(UserError) as error:
        CHOICES["method"].build({"name": "fedcad", "estimate": "axu"})
    assert (error.value.code, error.value.key) == ("config.unknown_name", "method.estimate")
    assert '"aux"' in str(error.value.hint)


def test_lists_integers_and_numpy_numbers_are_accepted() -> None:
    assert CHOICES["model"].build({"name": "mlp", "hidden": [10, 20]}) == MODELS["mlp"](hidden=(10, 20))
    assert CHOICES["method"].build({"name": "fedlmd", "tau": 3}) == METHODS["fedlmd"](tau=3.0)
    assert CHOICES["method"].build({"name": "fedlmd", "tau": np.float64(3)}) == METHODS["fedlmd"](tau=3.0)


@pytest.mark.parametrize("kind", CHOICES)
def test_a_bare_name_is_a_table_with_defaults(kind: str) -> None:
    choice = CHOICES[kind]
    for name in choice.classes:
        built = choice.build(name)
        assert built == choice.build(choice.dump(built))
        assert choice.dump(built)["name"] == name


@dataclass(frozen=True)
class UserMethod(Method):
    weight: float = 0.5


def test_a_python_object_is_recorded_and_required() -> None:
    method = UserMethod()
    assert CHOICES["method"].build(method) is method
    table = Experiment(method=method).to_tables()["method"]
    assert table == {"name": "own", "of": "UserMethod", "weight": 0.5}
    record = Experiment(method=table).method
    assert record == PythonObject("method", "UserMethod")
    assert require(method) is method
    with pytest.raises(UserError) as error:
        require(record)
    assert (error.value.code, error.value.key) == ("config.needs_python_object", "method")


def test_a_class_is_no_object() -> None:
    for kind, cls in (("method", UserMethod), ("model", MODELS["mlp"])):
        with pytest.raises(UserError) as error:
            CHOICES[kind].build(cls)
        assert (error.value.code, error.value.key) == ("config.invalid_value", kind)


class Halved:
    """Aggregation rule of a user that is no dataclass."""

    def apply(self, replies: Iterator[Reply], exchange: ExchangeInfo) -> Iterator[Reply]:
        for reply in replies:
            down = exchange.down["w"]
            yield reply._replace(up=reply.up | {"w": down + 0.5 * (reply.up["w"] - down)})


class Silent:
    """Attack of a user that is no dataclass."""

    share = 0.2


@dataclass(frozen=True)
class Clipped(GaussianMechanism):
    """Privacy mechanism of a user."""


@pytest.mark.parametrize(
    ("section", "kind", "chosen"),
    [("server", "robust", Halved()), ("federation", "attack", Silent()), ("server", "privacy", Clipped())],
)
def test_an_object_in_a_section_is_recorded(section: str, kind: str, chosen: Any) -> None:
    tables = Experiment(**merge_tables({"server": {"weights": "uniform"}}, {section: {kind: chosen}})).to_tables()
    assert tables[section][kind].items() >= {"name": "own", "of": type(chosen).__name__}.items()
    record = getattr(getattr(Experiment(**tables), section), kind)
    assert record == PythonObject(kind, type(chosen).__name__)


def test_an_object_in_a_section_is_used_and_required(tmp_path: Path) -> None:
    quick = {"local": {"epochs": 1}, "engine": {"name": "serial"}, "run": {"rounds": 1}}
    experiment = Experiment(**quick, server={"robust": Halved()})
    finals = [
        fr.run(config, progress=False).server.w
        for config in (
            experiment,
            quick | {"server": {"robust": Halved()}},
            quick | {"server": {"lr": 0.5, "weights": "uniform"}},
        )
    ]
    assert torch.equal(finals[0], finals[1])
    assert torch.allclose(finals[0], finals[2], atol=1e-5)
    fr.run(experiment, out=tmp_path / "run", progress=False)
    for config in (experiment, quick | {"server": {"robust": Halved()}}):
        compared = fr.compare(["fedavg"], config=config, seeds=1, baselines=["central"], progress=False)
        assert compared.to_dict()["fedavg"]["final"]["mean"] == pytest.approx(100 * fr.run(experiment).summary["final"])
    for run, code in (
        (lambda: fr.run(tmp_path / "run" / "config.toml", progress=False), "config.needs_python_object"),
        (lambda: fr.tune("fedprox", experiment, out=tmp_path / "search", progress=False), "config.invalid_value"),
    ):
        with pytest.raises(UserError) as error:
            run()
        assert (error.value.code, error.value.key) == (code, "server.robust")
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize("kind", CHOICES)
def test_errors_name_a_call_that_passes_an_object(kind: str) -> None:
    choice = CHOICES[kind]
    argument = choice.python_call.removeprefix("run(").removesuffix(")")
    if argument.endswith("=..."):
        assert argument.removesuffix("=...") in inspect.signature(fr.run).parameters
    else:
        assert flatten(ast.literal_eval(argument)).keys() == {choice.key}
    with pytest.raises(UserError) as error:
        choice.build(3)
    assert (error.value.code, error.value.key) == ("config.invalid_value", choice.key)
    assert choice.python_call in str(error.value.hint)
