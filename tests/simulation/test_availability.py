"""Dropouts and stragglers: seeded, the same on every engine and after a resume."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedrecall as fr
from fedrecall.simulation import SerialEngine
from fedrecall.simulation.availability import StragglerModel, UnreliableClients
from fedrecall.testing.federation import model, simulated_clients

MODELS = {
    "dropout": {"dropout": 0.5},
    "deadline": {"straggler": {"spread": 1.0, "deadline": 1.0}},
    "over-selection": {"sample": 3, "straggler": {"over": 3}},
    "all": {"sample": 4, "dropout": 0.3, "straggler": {"over": 2, "deadline": 1.5}},
}
for_each_model = pytest.mark.parametrize("name", MODELS)


def tables(name: str, method: str = "fedavg", engine: str = "serial", rounds: int = 3) -> dict[str, object]:
    return {
        "federation": {"clients": 8, "partition": {"name": "dirichlet", "alpha": 0.3}} | MODELS[name],
        "local": {"epochs": 1},
        "data": {"aux_per_class": 4},
        "method": {"name": method},
        "engine": {"name": engine},
        "run": {"rounds": rounds},
    }


def unreliable(clients: int = 1000, **name: object) -> UnreliableClients:
    return UnreliableClients(SerialEngine(simulated_clients(fr.Method()), model()), [10] * clients, clients, 0, **name)


def test_the_dropout_rate_is_the_configured_one() -> None:
    engine = unreliable(dropout=0.3)
    responding = [engine.responding_clients(t, range(1000)) for t in range(4)]
    assert all(abs(len(p) / 1000 - 0.7) < 0.05 for p in responding)  # three standard deviations are 0.043
    assert len({tuple(p) for p in responding}) == 4, "others in every round"
    assert responding[2] == engine.responding_clients(2, range(1000)), "the same ones again"
    assert set(engine.responding_clients(2, range(500))) == set(responding[2]) & set(range(500)), (
        "whoever else is asked"
    )


def test_times_depend_on_size_speed_and_a_random_draw() -> None:
    steady = StragglerModel(spread=0.0, jitter=0.0)
    assert steady.response_time(0, 3, 5, size=2.0) == 2.0
    model = StragglerModel(spread=0.7, jitter=0.0)
    assert model.response_time(0, 1, 5, 1.0) == model.response_time(0, 2, 5, 1.0) != model.response_time(0, 1, 6, 1.0)
    logs = np.log([model.response_time(0, 0, k, 1.0) for k in range(2000)])
    assert abs(logs.mean()) < 0.06
    assert abs(logs.std() - 0.7) < 0.04
    assert StragglerModel(0.0, 0.5).response_time(0, 1, 5, 1.0) != StragglerModel(0.0, 0.5).response_time(0, 2, 5, 1.0)


def test_the_first_replies_are_accepted_and_late_ones_dropped() -> None:
    name = StragglerModel(spread=1.0, jitter=0.2, over=30)
    times = {k: name.response_time(0, 0, k, 1.0) for k in range(50)}
    fastest = sorted(times, key=lambda k: times[k])
    wanting = UnreliableClients(unreliable().engine, [10] * 50, 20, 0, straggler=name)
    assert wanting.responding_clients(0, range(50)) == fastest[:20]
    strict = UnreliableClients(unreliable().engine, [10] * 50, 20, 0, straggler=replace(name, deadline=0.4))
    assert strict.responding_clients(0, range(50)) == [k for k in fastest[:20] if times[k] <= 0.4]
    assert 0 < len(strict.responding_clients(0, range(50))) < 20
    large = UnreliableClients(unreliable().engine, [1] * 49 + [1000], 20, 0, straggler=name)
    assert 49 not in large.responding_clients(0, range(50)), "more examples take longer"


def test_only_a_round_is_cut_to_its_number_of_replies() -> None:
    everyone = UnreliableClients(unreliable().engine, [10] * 50, 20, 0, straggler=StragglerModel(over=5))
    assert len(everyone.responding_clients(0, range(25))) == 20
    assert sorted(everyone.responding_clients(3, range(50))) == list(range(50)), "all clients, after the last round"


def test_a_round_is_never_empty() -> None:
    nearly_all_absent = unreliable(10, dropout=0.999, straggler=StragglerModel(deadline=1e-9))
    assert [len(nearly_all_absent.responding_clients(t, range(10))) for t in range(20)] == [1] * 20
    assert len({nearly_all_absent.responding_clients(t, range(10))[0] for t in range(20)}) > 3, (
        "not always the same one"
    )


@for_each_model
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedcsd", "feddyn", "fedproto"])
def test_the_same_bits_on_the_pool(name: str, method: str) -> None:
    serial, pool = (fr.run(tables(name, method, engine)) for engine in ("serial", "pool"))
    assert torch.equal(serial.server.state, pool.server.state)
    assert [r["replies"] for r in serial.rounds] == [r["replies"] for r in pool.rounds]
    assert any(r["replies"] < len(r["clients"]) for r in serial.rounds)


@for_each_model
def test_a_resumed_run_misses_the_same_clients(name: str, tmp_path: Path) -> None:
    expected = fr.run(tables(name, "scaffold", rounds=4))

    def stop(line: dict[str, object]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fr.run(tables(name, "scaffold", rounds=4), out=tmp_path / "a", watch=stop)
    resumed = fr.run(tables(name, "scaffold", rounds=4), out=tmp_path / "a", resume=True)
    assert torch.equal(resumed.server.state, expected.server.state)


def test_the_record_has_the_sampled_clients_and_the_number_of_replies() -> None:
    lines = fr.run(tables("over-selection")).rounds
    assert all(len(line["clients"]) == 6 and line["replies"] == 3 for line in lines)


def test_fewer_clients_than_min_replies_are_an_error() -> None:
    config = tables("dropout") | {"engine": {"name": "serial", "min_replies": 8}}
    with pytest.raises(fr.UserError) as error:
        fr.run(config)
    assert (error.value.code, error.value.key) == ("round.too_few_replies", "engine.min_replies")
    assert re.search(r"\b[1-7] of (the )?8\b", str(error.value))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("federation", "code", "key", "fact"),
    [
        ({"dropout": 1.0}, "config.invalid_value", "dropout", "1.0"),
        ({"dropout": -0.1}, "config.invalid_value", "dropout", "-0.1"),
        ({"straggler": {"over": 1}}, "config.conflict", "straggler.over", "11"),
        ({"straggler": {"deadline": 0.0}}, "config.invalid_value", "straggler.deadline", "0.0"),
        ({"straggler": {"sprad": 1.0}}, "config.unknown_key", "straggler.sprad", '"spread"'),
        ({"straggler": {"name": "weibull"}}, "config.unknown_name", "straggler.name", '"weibull"'),
    ],
)
def test_invalid_settings_are_errors(federation: dict[str, object], code: str, key: str, fact: str) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.Experiment(federation=federation)
    assert (error.value.code, error.value.key) == (code, f"federation.{key}")
    assert fact in str(error.value)


@for_each_model
def test_the_configuration_is_written_unchanged(name: str) -> None:
    experiment = fr.Experiment(**tables(name))
    assert fr.Experiment(**experiment.to_tables()) == experiment
