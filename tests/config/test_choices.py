"""Choices by name: strict types, tuples from lists, objects and records of objects."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedrecall import Experiment, UserError
from fedrecall.config.choices import PythonObject, require
from fedrecall.config.experiment import CHOICES
from fedrecall.core.method import Method
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
