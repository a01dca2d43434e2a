"""Nested tables: merging and overrides keep the settings of the chosen name only."""

import pytest

from fedrecall.config.experiment import CHOICES
from fedrecall.config.overrides import apply_overrides, with_overrides
from fedrecall.config.tables import NAMED_TABLES, flatten, merge_tables
from fedrecall.errors import UserError


def test_named_tables_are_the_choices() -> None:
    assert set(CHOICES) == NAMED_TABLES


def test_later_tables_win_and_the_parts_are_not_changed() -> None:
    first, second = {"run": {"rounds": 3, "seed": 1}}, {"run": {"rounds": 5}}
    assert merge_tables(first, second) == {"run": {"rounds": 5, "seed": 1}}
    assert first == {"run": {"rounds": 3, "seed": 1}}
    assert merge_tables({"run": 3}, second) == second


@pytest.mark.parametrize(
    ("former", "new", "merged"),
    [
        ({"name": "fedprox", "mu": 1}, {"name": "fedavg"}, {"name": "fedavg"}),
        ({"name": "fedprox", "mu": 1}, {"name": "fedprox"}, {"name": "fedprox", "mu": 1}),
        ({"name": "fedprox", "mu": 1}, {"mu": 2}, {"name": "fedprox", "mu": 2}),
        ({"mu": 1}, {"name": "fedprox"}, {"mu": 1, "name": "fedprox"}),
    ],
)
def test_another_name_drops_the_former_settings(
    former: dict[str, object], new: dict[str, object], merged: dict[str, object]
) -> None:
    assert merge_tables({"method": former}, {"method": new}) == {"method": merged}


def test_names_are_applied_before_settings() -> None:
    tables = {"method": {"name": "fedprox", "mu": 1}}
    assert with_overrides(tables, ["method.tau=3", "method.name=fedlmd"])["method"] == {"name": "fedlmd", "tau": 3}
    assert tables == {"method": {"name": "fedprox", "mu": 1}}


def test_values_are_toml_or_text() -> None:
    tables: dict[str, object] = {}
    apply_overrides(tables, ["run.targets=[0.5, 0.6]", "data.root=some folder", "local.drop_last=true", "run.seed = 3"])
    assert tables == {
        "run": {"targets": [0.5, 0.6], "seed": 3},
        "data": {"root": "some folder"},
        "local": {"drop_last": True},
    }
    assert flatten(tables)["run.targets"] == "[0.5, 0.6]"


def test_a_value_is_no_table() -> None:
    with pytest.raises(UserError) as error:
        apply_overrides({"run": {"rounds": 3}}, ["run.rounds.x=1"])
    assert (error.value.code, error.value.key) == ("config.invalid_override", "run.rounds.x=1")
