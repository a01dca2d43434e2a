"""Notices at the start of a run: methods that cannot act on the data."""

import logging

import numpy as np
import pytest
import torch

import fedrecall as fr
from fedrecall.errors import warn_once
from fedrecall.studies.compare import DEFAULT_METHODS, default_methods

QUICK = {"engine": {"name": "serial"}, "local": {"epochs": 1}, "run": {"rounds": 2}, "federation": {"clients": 3}}
rng = np.random.default_rng(0)
X = rng.normal(size=(120, 4)).astype(np.float32)


@pytest.mark.parametrize("method", ["fedntd", "fedlmd", "fedlmd-tf"])
def test_with_two_classes_the_method_is_fedavg_and_says_so_once(method: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    data = (X, np.arange(120) % 2)
    with caplog.at_level(logging.WARNING):
        results = [fr.run(QUICK, method=name, data=data, partition="iid") for name in ("fedavg", method, method)]
    assert torch.equal(results[0].server.w, results[1].server.w)
    assert "inactive" not in results[0].summary
    assert "two classes" in results[1].summary["inactive"]
    assert sum("FedAvg" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize(("epochs", "warned"), [(1, True), (2, False)])
def test_fedrep_needs_an_epoch_for_each_part(epochs: int, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        fr.run(QUICK | {"local": {"epochs": epochs}}, method="fedrep", data=(X, np.arange(120) % 3), partition="iid")
    assert any("local.epochs = 1: FedRep" in record.getMessage() for record in caplog.records) == warned


def test_fedrs_needs_a_missing_class() -> None:
    data = (X, np.arange(120) % 3)
    complete = fr.run(QUICK, method="fedrs", data=data, partition="iid")
    plain = fr.run(QUICK, method="fedavg", data=data, partition="iid")
    assert torch.equal(complete.server.w, plain.server.w)
    assert "inactive" in complete.summary
    assert "inactive" not in fr.run(QUICK, method="fedrs", data=data, partition={"name": "shards", "s": 2}).summary


def test_tables_name_the_methods_that_cannot_act() -> None:
    side = fr.compare(["fedavg", "fedntd"], data=(X, np.arange(120) % 2), partition="iid", config=QUICK, seeds=1)
    notes = [note.text for table in side.tables() for note in table.notes]
    assert sum(note.startswith("fedntd is FedAvg") for note in notes) == 1
    assert not any(note.startswith("fedavg is") for note in notes)


def test_compare_without_names_picks_methods_that_can_act() -> None:
    two = fr.from_arrays(X, np.arange(120) % 2)
    assert default_methods(fr.Experiment(), two) == ["fedavg", "fedprox", "fedcad", "fedgkd", "fedlsd", "fedssd"]
    assert default_methods(fr.Experiment()) == list(DEFAULT_METHODS)


@pytest.mark.parametrize(("m_max", "lines"), [(1e-6, 1), (1.0, 0)])
def test_a_run_whose_distillation_is_nothing_states_it_in_one_line(
    m_max: float, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = QUICK | {
        "method": {"name": "fedssd", "m_max": m_max},
        "local": {"epochs": 4, "lr": 0.1},
        "run": {"rounds": 3, "probes": ["pull"]},
    }
    with caplog.at_level(logging.WARNING):
        pulls = [record["pull"] for record in fr.run(settings).rounds]
    assert (max(pulls) < 0.01) == bool(lines)
    assert sum("practically no effect" in record.getMessage() for record in caplog.records) == lines
