"""Three nodes with tables of their own on Flower's processes, TLS and keys; the coordinator has no data."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: make test-flower")

import fedrecall as fr
from fedrecall import METHODS
from fedrecall.flower.app_template import write_app
from fedrecall.flower.processes import LocalDeployment
from support.federation import LONG, Federation, at_work, is_running
from support.lossy_engine import serial_without
from support.own_tables import write_federation
from support.processes import until

pytestmark = pytest.mark.flower
NO_AUXILIARY = [name for name, method in METHODS.items() if not method().traits.needs_auxiliary_data]
EXACT = ("round", "accuracy", "train_loss", "clients", "replies", "client_test")

OWN_METHOD = '''
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

import fedrecall as fr


@dataclass(frozen=True)
class Calm(fr.Method):
    """FedAvg with a penalty on large logits."""

    weight: float = 0.1

    def loss(self, s: fr.Step, r: fr.Local) -> Tensor:
        return F.cross_entropy(s.z, s.y) + self.weight * s.z.square().mean()
'''


def start_nodes(daemons: LocalDeployment, tables: list[Path], settings: str = "") -> list[str]:
    return [daemons.start_supernode(k, f'table="{table}" {settings}') for k, table in enumerate(tables)]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    config, tables = write_federation(folder)
    with LocalDeployment(folder, 3) as daemons:
        start_nodes(daemons, tables)
        yield Federation(daemons, config)


@pytest.mark.parametrize("method", NO_AUXILIARY)
def test_every_method_ends_with_the_weights_of_serial(method: str, trial: Federation) -> None:
    changes = f"method.name={method} run.rounds=2 run.evaluate_every=2"  # a message takes seconds, so one evaluation
    run = trial.start(method, changes)
    assert trial.rounds(run, method) == 2, "".join(run.heard[-40:])
    assert not run.missing
    expected = serial_without(trial.daemons.folder / "simulation.toml", changes, ())
    for got, meant in zip(trial.records(method), expected.rounds, strict=True):
        assert {key: got.get(key) for key in EXACT} == {key: meant.get(key) for key in EXACT}
    assert "client_test" in expected.rounds[-1]
    if not expected.experiment.method.traits.personalised:
        assert trial.same(method, expected)


def return_node(daemons: LocalDeployment, name: str, client: int, settings: str) -> None:
    """Start a killed node again: it is refused, and ends, until Flower has noticed that the old one is gone."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        daemons.start_supernode(client, settings)
        time.sleep(15)
        if is_running(daemons, name):
            return
        daemons.stop(name)


@pytest.mark.parametrize("method", ["own_method:Calm", "fedlmd", "scaffold", "fedcsd"])
def test_own_tables_own_method_and_a_killed_node(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 1 has its columns reversed, client 2 lacks a value, client 1 is killed in round 2 and comes back."""
    config, tables = write_federation(tmp_path)
    module = tmp_path / "own_method.py"
    module.write_text(OWN_METHOD)
    changes = f"method.name={method} run.rounds=7 engine.min_replies=2 local.epochs=300"
    with LocalDeployment(tmp_path / "federation", 3) as daemons:
        app = daemons.folder / "trial"
        write_app(app, config, changes.split(), [module])
        settings = 'code="own_method:Calm"'
        names = start_nodes(daemons, tables, settings)
        trial = Federation(daemons, config, app)
        run = trial.start("run", "engine.timeout=240")
        assert run.until(r"round 1/7\b"), "".join(run.heard[-40:])
        until(lambda: at_work(daemons, names[1]), 120)
        daemons.stop(names[1], signal.SIGKILL)
        assert run.until(r"client 1 failed"), "".join(run.heard[-40:])
        return_node(daemons, names[1], 1, f'table="{tables[1]}" {settings}')
        assert trial.rounds(run, "run") == 7, "".join(run.heard[-40:])
        records = trial.records("run")
    assert {client for _, client, _ in run.missing} == {1}
    assert records[-1]["replies"] == 3, "it is back"
    monkeypatch.syspath_prepend(tmp_path)
    expected = serial_without(tmp_path / "simulation.toml", changes, run.missing)
    for got, meant in zip(records, expected.rounds, strict=True):
        assert {key: got[key] for key in EXACT} == {key: meant[key] for key in EXACT}
    assert trial.same("run", expected)
    lost = [(record["round"], entry["client"]) for record in records for entry in record.get("lost", ())]
    assert lost
    page, *_ = fr.report(daemons.folder / "run", tmp_path / "report.html")
    scores = records[-1]["client_test"]["accuracy"]["by_client"]
    for fact in ("Lost and rejected replies", "its node is not connected", *(f"{100 * score:.3g}" for score in scores)):
        assert fact in page.read_text(), fact
    assert json.loads((daemons.folder / "run" / "summary.json").read_text())["accuracy_on"] == "client_test"
