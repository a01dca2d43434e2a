"""Constraints on hyper-parameters: the same in Python and in a configuration."""

from dataclasses import dataclass
from typing import Literal

import pytest

import fedrecall as fr
from fedrecall.constraints import PositiveInt, UnitInterval
from fedrecall.core.privacy import GaussianMechanism
from fedrecall.core.robust import Clip, Krum, TrimmedMean
from fedrecall.data.partitioners import Dirichlet, LabelsPerClient, Quantity, Shards
from fedrecall.data.transforms import Transform, resolve_transform
from fedrecall.simulation.attacks import LabelFlip, Scaling
from fedrecall.simulation.availability import StragglerModel

INVALID = [
    ("fedcad", "tau", 0.0),
    ("fedcad", "phi_tau", -1.0),
    ("fedcad", "gamma", 1.5),
    ("fedprox", "mu", -0.1),
    ("fedgkd", "buffer", 0),
    ("fedavgm", "beta_s", 1.0),
    ("grid", "high", 2.0),
    ("fedlmd-tf", "switch", -1),
    ("fedproto", "lam", float("inf")),
]


@pytest.mark.parametrize(("method", "name", "value"), INVALID)
def test_a_value_out_of_bounds_is_an_error_in_python_and_in_a_configuration(
    method: str, name: str, value: float
) -> None:
    for make in (
        lambda: fr.METHODS[method](**{name: value}),
        lambda: fr.Experiment(method={"name": method, name: value}),
    ):
        with pytest.raises(fr.UserError) as error:
            make()
        assert (error.value.code, error.value.key) == ("config.invalid_value", f"method.{name}")


def test_a_value_that_is_not_in_a_literal_is_an_error_in_python_and_in_a_configuration() -> None:
    for make in (
        lambda: fr.METHODS["fedcad"](kd_scale="t2"),
        lambda: fr.Experiment(method={"name": "fedcad", "kd_scale": "t2"}),
    ):
        with pytest.raises(fr.UserError) as error:
            make()
        assert (error.value.code, error.value.key) == ("config.unknown_name", "method.kd_scale")


def test_a_condition_on_two_fields() -> None:
    with pytest.raises(fr.UserError) as error:
        fr.METHODS["fedcad"](beta=0.6, gamma=0.5)
    assert (error.value.code, error.value.key) == ("config.invalid_value", "method.gamma")


@dataclass(frozen=True)
class UserMethod(fr.Method):
    alpha: float = 0.0
    tau: float = 1.0
    keep: UnitInterval = 0.5
    layers: PositiveInt | None = None
    mode: Literal["a", "b"] | None = None


def test_a_users_method_has_its_declared_constraints_only() -> None:
    assert UserMethod(alpha=-1.0, tau=-2.0) == UserMethod(-1.0, -2.0)
    for name, value in {"keep": 1.1, "layers": 0, "mode": "c", "alpha": float("nan"), "tau": "1"}.items():
        with pytest.raises(fr.UserError) as error:
            UserMethod(**{name: value})
        assert error.value.key == f"method.{name}"


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Scaling(share=1.0), "federation.attack.share"),
        (lambda: Scaling(scale=float("nan")), "federation.attack.scale"),
        (lambda: LabelFlip(share=0.0), "federation.attack.share"),
        (lambda: StragglerModel(spread=-1.0), "federation.straggler.spread"),
        (lambda: StragglerModel(deadline=0.0), "federation.straggler.deadline"),
        (lambda: StragglerModel(over=-1), "federation.straggler.over"),
        (lambda: TrimmedMean(share=0.5), "server.robust.share"),
        (lambda: Clip(norm=0.0), "server.robust.norm"),
        (lambda: Krum(keep=0), "server.robust.keep"),
        (lambda: GaussianMechanism(delta=1.0), "server.privacy.delta"),
        (lambda: GaussianMechanism(source="dice"), "server.privacy.source"),  # type: ignore[arg-type]
    ],
)
def test_other_choices_declare_bounds_in_the_same_way(make, key: str) -> None:
    with pytest.raises(fr.UserError) as error:
        make()
    assert error.value.key == key


@pytest.mark.parametrize(
    ("table", "make", "key"),
    [
        ({"name": "dirichlet", "alpha": 0.0}, lambda: Dirichlet(alpha=0.0), "federation.partition.alpha"),
        ({"name": "dirichlet", "min_size": 0}, lambda: Dirichlet(min_size=0), "federation.partition.min_size"),
        ({"name": "quantity", "alpha": -1.0}, lambda: Quantity(alpha=-1.0), "federation.partition.alpha"),
        ({"name": "labels", "k": 0}, lambda: LabelsPerClient(k=0), "federation.partition.k"),
        ({"name": "shards", "s": 0}, lambda: Shards(s=0), "federation.partition.s"),
        ({"pad": -1}, lambda: Transform(pad=-1), "data.augment.pad"),
        ({"rotate": -1.0}, lambda: Transform(rotate=-1.0), "data.augment.rotate"),
        ({"cutout": -1}, lambda: Transform(cutout=-1), "data.augment.cutout"),
    ],
)
def test_partitioners_and_transforms_have_the_same_bounds_in_python_and_in_a_configuration(table, make, key) -> None:
    section, name = key.split(".")[:2]

    def configured() -> None:
        experiment = fr.Experiment(**{section: {name: table}})
        resolve_transform(experiment.data.augment, "digits", Transform())

    for call in (make, configured):
        with pytest.raises(fr.UserError) as error:
            call()
        assert (error.value.code, error.value.key) == ("config.invalid_value", key)
