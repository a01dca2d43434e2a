"""The contract of every method, on every engine: a method in METHODS is tested without a line here."""

from dataclasses import fields

import pytest

from fedrecall import METHODS, UserError
from fedrecall.core.method import Method
from fedrecall.testing import method_checks

CONTRACT = method_checks()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("check", CONTRACT)
def test_contract(name: str, check: str) -> None:
    CONTRACT[check](METHODS[name]())


@pytest.mark.parametrize("name", METHODS)
def test_inherits_from_no_sibling(name: str) -> None:
    method = METHODS[name]()
    assert type(method) is Method or type(method).__bases__ == (Method,)


WRONG = {"tau": 0.0, "mu": -1.0, "lam": -1.0, "beta": float("nan"), "alpha": float("inf"), "buffer": 0, "beta_s": 1.0}
LOWER_BOUND = {("fedlc", "tau"): -1.0}  # 0 is valid


@pytest.mark.parametrize(
    ("name", "key"), [(name, f.name) for name in METHODS for f in fields(METHODS[name]()) if f.name in WRONG]
)
def test_invalid_hyper_parameters_are_errors(name: str, key: str) -> None:
    value = LOWER_BOUND.get((name, key), WRONG[key])
    with pytest.raises(UserError) as error:
        METHODS[name](**{key: value})
    assert (error.value.code, error.value.key) == ("config.invalid_value", f"method.{key}")
    assert f"method.{key} = {value}" in str(error.value)
