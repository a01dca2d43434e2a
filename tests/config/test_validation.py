"""Settings that contradict the number of clients, which own data may state."""

from typing import Any

import pytest

from fedrecall import Experiment, UserError
from fedrecall.runs.setup import prepare_run

CLIENTS = 25


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    path = tmp_path_factory.mktemp("data") / "rows.csv"
    path.write_text("a,b,site,label\n" + "".join(f"{i % 7},{i % 5},{i % CLIENTS},{i % 2}\n" for i in range(500)))
    return {"name": "table", "path": str(path), "label": "label", "client": "site", "test": 0.1, "aux_per_class": 1}


@pytest.mark.parametrize(
    "sections",
    [
        {"engine": {"min_replies": CLIENTS}},
        {"federation": {"attack": {"name": "sign-flip", "share": 0.03}}},
        {"server": {"robust": {"name": "krum", "attackers": 11}}},
        {"server": {"robust": {"name": "median"}, "preaggregation": {"name": "nearest-neighbours", "attackers": 12}}},
    ],
)
def test_settings_that_fit_the_clients_of_the_data_are_accepted(data: dict, sections: dict[str, Any]) -> None:
    setup = prepare_run(Experiment(data=data, **sections))
    assert setup.experiment.federation.clients == CLIENTS


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"engine": {"min_replies": CLIENTS + 1}}, "engine.min_replies"),
        ({"federation": {"attack": {"name": "sign-flip", "share": 0.01}}}, "federation.attack.share"),
        ({"server": {"robust": {"name": "krum", "attackers": 12}}}, "server.robust"),
        ({"server": {"privacy": {"delta": 0.05}, "weights": "uniform"}}, "server.privacy.delta"),
        ({"federation": {"sample": CLIENTS + 1}}, "federation.sample"),
    ],
)
def test_settings_are_compared_with_the_clients_of_the_data(data: dict, sections: dict[str, Any], key: str) -> None:
    experiment = Experiment(data=data, **sections)
    with pytest.raises(UserError) as error:
        prepare_run(experiment)
    assert (error.value.code, error.value.key) == ("config.conflict", key)
    stated = sections | {"federation": sections.get("federation", {}) | {"clients": CLIENTS}}
    with pytest.raises(UserError) as error:
        Experiment(data=data, **stated)
    assert (error.value.code, error.value.key) == ("config.conflict", key)


def test_the_default_counts_if_the_data_is_partitioned(data: dict) -> None:
    experiment = Experiment(data=data, engine={"min_replies": 11}, federation={"partition": {"name": "iid"}})
    with pytest.raises(UserError) as error:
        prepare_run(experiment)
    assert (error.value.code, error.value.key) == ("config.conflict", "engine.min_replies")


def test_the_clients_of_a_round_may_be_known_before_the_data(data: dict) -> None:
    with pytest.raises(UserError) as error:
        Experiment(data=data, engine={"min_replies": 4}, federation={"sample": 3})
    assert (error.value.code, error.value.key) == ("config.conflict", "engine.min_replies")
