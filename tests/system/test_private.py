"""federation.private and the methods with personal models, in whole runs: engines, resume, scores, errors."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fedrecall as fr
from fedrecall.config.tables import read_toml
from fedrecall.data.examples import Examples
from fedrecall.runs.run import Run
from fedrecall.runs.setup import prepare_run
from fedrecall.studies.papers import load_definition
from support.markdown import ROOT

CASES = [("scaffold", "head"), ("fedntd", "body"), ("moon", ["features.*"]), ("fedrep", None), ("ditto", None)]


def experiment(method: str, private: object, engine: str = "serial", **sections: Any) -> fr.Experiment:
    federation = {"clients": 6, "sample": 3} | ({} if private is None else {"private": private})
    tables: dict[str, Any] = {
        "method": {"name": method},
        "federation": federation,
        "model": {"name": "mlp", "hidden": [16]},
        "local": {"epochs": 2},
        "engine": {"name": engine},
        "run": {"rounds": 3},
    }
    return fr.Experiment(**tables | sections)


@pytest.mark.parametrize(("method", "private"), CASES)
def test_engines_give_the_same_bits(method: str, private: object) -> None:
    serial, pool = (fr.run(experiment(method, private, engine)) for engine in ("serial", "pool"))
    assert torch.equal(serial.server.w, pool.server.w)
    assert [r["accuracy"] for r in serial.rounds] == [r["accuracy"] for r in pool.rounds]


@pytest.mark.ray
def test_ray_gives_the_bits_of_serial() -> None:
    serial, ray = (fr.run(experiment("fedntd", "head", engine)) for engine in ("serial", "ray"))
    assert torch.equal(serial.server.w, ray.server.w)
    assert [r["accuracy"] for r in serial.rounds] == [r["accuracy"] for r in ray.rounds]


@pytest.mark.parametrize(("method", "private"), [("scaffold", "head"), ("ditto", None)])
def test_a_resumed_run_has_the_private_parts(method: str, private: object, tmp_path: Path) -> None:
    whole = fr.run(experiment(method, private))
    with Run(prepare_run(experiment(method, private)), tmp_path / "a") as run:
        for record in run:
            if record["round"] == 2:
                break
    with Run(prepare_run(experiment(method, private)), tmp_path / "a", resume=True) as run:
        assert [record["round"] for record in run] == [3]
    assert torch.equal(run.result.server.w, whole.server.w)
    assert [r["accuracy"] for r in run.result.rounds] == [r["accuracy"] for r in whole.rounds]


def test_only_the_shared_part_is_sent_and_there_is_no_global_model(tmp_path: Path) -> None:
    sizes = {"head": 4 * (64 * 16 + 16), "body": 4 * (16 * 10 + 10)}
    for private, size in sizes.items():
        result = fr.run(experiment("fedavg", private), out=tmp_path / private)
        assert {(r["bytes_up"], r["bytes_down"]) for r in result.rounds} == {(size, size)}
        assert result.rounds[-1]["accuracy"] == result.rounds[-1]["local_accuracy"]
        assert not (tmp_path / private / "model.safetensors").exists()
        with pytest.raises(fr.UserError) as error:
            result.model()
        assert error.value.code == "method.no_global_model"


def test_fedbabu_keeps_the_initial_head_and_scores_a_fine_tuned_one() -> None:
    start = prepare_run(experiment("fedbabu", None)).server.f
    result = fr.run(experiment("fedbabu", None, run={"rounds": 2, "local_accuracy": True}))
    assert torch.equal(result.model().classifier.weight, start.model.classifier.weight)
    assert not torch.equal(result.server.w, start.w)
    tuned = fr.run(
        experiment("fedbabu", None, run={"rounds": 2, "local_accuracy": True}).model_copy(
            update={"method": fr.METHODS["fedbabu"](finetune_epochs=0)}
        )
    )
    assert torch.equal(tuned.server.w, result.server.w)
    assert tuned.rounds[-1]["local_accuracy"] != result.rounds[-1]["local_accuracy"]


def right(module: torch.nn.Module, data: Examples) -> float:
    with torch.no_grad():
        return float((module(data.batch(slice(None)))[1].argmax(-1) == data.y).double().mean())


@pytest.mark.parametrize(("method", "private"), [("fedntd", "head"), ("fedrep", None), ("ditto", None)])
def test_clients_are_scored_on_their_own_held_out_examples(method: str, private: object) -> None:
    setup = prepare_run(experiment(method, private, data={"client_test": 0.3}, run={"rounds": 2}))
    with Run(setup) as run:
        record = list(run)[-1]
        states, server = dict(run._engine.client_state), run.result.server
    f, rows = server.f, setup.data.held_out["client_test"]
    assert len(states) < 6, "some clients have not participated"
    own, expected, common = [], [], []
    for k in range(6):
        data = setup.data.client_examples.subset(torch.from_numpy(rows.rows(k)))
        assert not set(rows.rows(k)) & set(setup.data.partition.rows(k))
        with f.use_private(f.initial_private.updated(states.get(k, {}))):
            common.append(right(f.to_module(server.w, server.b, server.int_buffers), data))
            if "personal" in states.get(k, {}):
                own.append(right(f.to_module(*f.split(states[k]["personal"]), server.int_buffers), data))
            else:
                own.append(common[-1])
        expected.append(len(data))
    assert record["client_test"]["examples"] == expected
    assert record["client_test"]["model"] == ("global" if method == "ditto" else "personal")
    assert record["client_test"]["accuracy"]["by_client"] == pytest.approx(common)
    assert ("client_test_personal" in record) == (method == "ditto")
    if method == "ditto":
        assert record["client_test_personal"]["accuracy"]["by_client"] == pytest.approx(own)
        assert own != common


@pytest.mark.parametrize(
    ("method", "private", "code"),
    [
        ("fedavg", "haed", "config.unknown_name"),
        ("fedavg", [], "config.invalid_value"),
        ("fedavg", 3, "config.invalid_value"),
        ("fedavg", "norm", "config.invalid_value"),  # the network has none
        ("fedavg", ["x.*"], "config.invalid_value"),
        ("fedrep", "body", "config.conflict"),
        ("fedssd", "norm", "config.conflict"),  # the server would evaluate a model that it does not have
        ("feddf", "head", "config.conflict"),
        ("ccvr", "body", "config.conflict"),
    ],
)
def test_errors_name_the_key(method: str, private: object, code: str) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(experiment(method, private))
    assert (error.value.code, error.value.key) == (code, "federation.private")


def test_the_example_of_fedbn_has_the_federation_of_fedcsds_table_2() -> None:
    table = load_definition("fedcsd-table-2")
    fedavg = table.experiment(table.cell("FedAvg", "average", 0))
    example = fr.Experiment(**read_toml(ROOT / "examples" / "fedbn-office.toml"))
    assert example.federation.private == "norm"
    shared = example.federation.model_copy(update={"private": None})
    assert (example.data, shared, example.model, example.local) == (
        fedavg.data, fedavg.federation, fedavg.model, fedavg.local
    )  # fmt: skip
    assert example.run.rounds == fedavg.run.rounds
