"""Probes: correct values, and no effect on the run."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

import fedrecall as fr
from fedrecall.core.client_report import distillation_share
from fedrecall.core.types import Local, Output, Step
from fedrecall.methods.fedcsd import FedCSD
from fedrecall.runs.forgetting import measure_forgotten
from fedrecall.runs.probes import PROBES, _in_and_out_of_distribution
from fedrecall.runs.records import has_no_effect
from fedrecall.runs.run import Run
from fedrecall.runs.setup import prepare_run

SKEWED = {
    "federation": {"clients": 5, "sample": 3, "partition": {"name": "dirichlet", "alpha": 0.1}},
    "local": {"epochs": 2},
}


def tables(*probes: str, method: str = "fedavg", rounds: int = 2, engine: str = "serial") -> dict[str, object]:
    return SKEWED | {
        "method": {"name": method},
        "engine": {"name": engine},
        "run": {"rounds": rounds, "probes": list(probes)},
    }


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> fr.Result:
    return fr.run(tables(*PROBES, method="fedcsd"), out=tmp_path_factory.mktemp("runs") / "a")


@pytest.mark.parametrize("method", ["fedavg", "fedcsd", "fedssd", "fedproto"])
def test_no_probe_changes_a_bit(method: str) -> None:
    plain = fr.run(tables(method=method))
    probed = fr.run(tables(*PROBES, method=method))
    assert torch.equal(plain.server.w, probed.server.w)
    assert [r["train_loss"] for r in plain.rounds] == [r["train_loss"] for r in probed.rounds]


def test_probes_are_equal_with_workers_and_in_one_process(everything: fr.Result) -> None:
    spread = fr.run(tables(*PROBES, method="fedcsd", engine="pool"))
    # One sum over the participants: their order is the engine's, the same for all.
    assert spread.probes == everything.probes


def test_files_and_result_agree(everything: fr.Result) -> None:
    assert everything.directory is not None
    for name, lines in everything.probes.items():
        text = (everything.directory / "probes" / f"{name}.jsonl").read_text()
        assert [json.loads(line) for line in text.splitlines()] == lines
        assert [line["round"] for line in lines] == [1, 2]
    assert set(everything.probes) == set(PROBES) - {"features"}


def test_the_confusion_matrix_is_that_of_the_global_model(everything: fr.Result) -> None:
    test = prepare_run(everything.experiment).data.test
    model = everything.model()
    with torch.no_grad():
        predicted = model(test.batch(slice(None)))[1].argmax(-1)
    expected = np.zeros((10, 10), int)
    np.add.at(expected, (test.y.numpy(), predicted.numpy()), 1)
    assert everything.probes["confusion"][-1]["confusion"] == expected.tolist()
    assert expected.trace() / expected.sum() == everything.summary["final"]


def test_local_models_are_counted_and_lose_accuracy(everything: fr.Result) -> None:
    line, record = everything.probes["local"][-1], everything.rounds[-1]
    assert sorted(line["clients"]) == record["clients"]
    correct, test = np.array(line["correct"]), np.array(line["test"])
    mean = (correct.sum(1) / test.sum()).mean()
    assert line["mean_accuracy"] == pytest.approx(mean, rel=1e-12)
    assert record["local_accuracy"] == pytest.approx(mean, rel=1e-6)
    assert line["forgetting"] == pytest.approx(record["accuracy"] - mean, rel=1e-9)
    assert line["forgetting"] > 0, "local models of skewed clients know less than their mean"
    assert line["in_distribution"] > line["out_distribution"]
    assert (np.array(line["predicted"]).sum(1) == test.sum()).all()
    matrices = np.array(everything.probes["local_confusion"][-1]["confusion"])
    assert (matrices.diagonal(axis1=1, axis2=2) == correct).all()
    assert (matrices.sum(2) == test).all()
    partition = json.loads((everything.directory / "partition.json").read_text())  # type: ignore[operator]
    assert line["labels"] == [partition["counts"][client] for client in line["clients"]]
    assert everything.probes["cohort"][-1]["labels"] == np.sum(line["labels"], 0).tolist()


def test_forgotten_examples_are_those_that_the_received_model_knew(everything: fr.Result, tmp_path: Path) -> None:
    """The second round again, from the first round's model, client by client with the training loop alone."""
    first = fr.run(tables(method="fedcsd", rounds=1), out=tmp_path / "first")
    setup = prepare_run(everything.experiment)
    test, line = setup.data.test, everything.probes["forgotten"][-1]
    with torch.no_grad():
        known = first.model()(test.batch(slice(None)))[1].argmax(-1) == test.y
    confusion = np.array(everything.probes["local_confusion"][-1]["confusion"])
    right = confusion.diagonal(axis1=1, axis2=2).sum(1)
    for correct, share in zip(right, line["shares"], strict=True):
        # those that a client knows after its training are at least those that it kept
        assert share >= 1 - correct / int(known.sum()) - 1e-12
    record = everything.rounds[-1]
    assert record["forgotten"] == pytest.approx(np.mean(line["shares"]))
    assert record["forgotten_absent"] == pytest.approx(np.mean([a for a in line["absent"] if a is not None]))
    assert record["forgotten_absent"] > record["forgotten"]


def test_forgotten_by_hand() -> None:
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    labels = {0: torch.tensor([3, 0, 1]), 1: torch.tensor([1, 1, 1]), 2: torch.tensor([0, 0, 0])}
    context = SimpleNamespace(test=SimpleNamespace(y=y), labels=labels.__getitem__)
    received = SimpleNamespace(predicted=torch.tensor([0, 1, 1, 1, 2, 0]))  # right: examples 0, 2, 3 and 4
    predicted = {0: [0, 0, 2, 1, 2, 2], 1: [1, 0, 0, 0, 0, 2], 2: [0, 0, 2, 1, 2, 2]}
    metrics = [{"client": torch.tensor(k), "predicted": torch.tensor(p)} for k, p in predicted.items()]
    found = measure_forgotten(context, SimpleNamespace(received=received, client_metrics=metrics))  # type: ignore[arg-type]
    assert found is not None
    assert found.shares == [0.25, 1.0, 0.25]
    assert found.absent == [0.5, None, None], "client 1 has all classes, the labels of client 2 are unknown"
    assert found.means() == {"forgotten": 0.5, "forgotten_absent": 0.5}
    assert measure_forgotten(context, SimpleNamespace(received=None, client_metrics=metrics)) is None  # type: ignore[arg-type]


def test_clients_models_are_evaluated_in_some_rounds_only() -> None:
    names = ("forgotten", "local", "local_confusion", "shift", "pull")
    plain, sparse = tables(*names, method="fedntd", rounds=5), tables(*names, method="fedntd", rounds=5)
    sparse["run"] |= {"probe_every": 2}  # type: ignore[operator]
    found, every_round = fr.run(sparse), fr.run(plain)
    for name in names:
        measured = (1, 2, 3, 4, 5) if name == "pull" else (2, 4, 5)
        assert found.probes[name] == [record for record in every_round.probes[name] if record["round"] in measured]
    with_values = [record["round"] for record in found.rounds if "local_accuracy" in record]
    assert with_values == [record["round"] for record in found.rounds if "forgotten" in record] == [2, 4, 5]
    assert all(record["accuracy"] is not None for record in found.rounds)
    assert torch.equal(found.server.w, every_round.server.w)


def test_forgotten_is_the_same_after_a_resume_and_with_few_evaluations(tmp_path: Path) -> None:
    plain = fr.run(tables("forgotten", rounds=3))
    sparse = tables("forgotten", rounds=3)
    sparse["run"] |= {"evaluate_every": 2}  # type: ignore[operator]
    assert fr.run(sparse).probes == plain.probes
    with Run(prepare_run(fr.Experiment(**tables("forgotten", rounds=3))), tmp_path / "a") as run:
        next(iter(run))
    assert fr.run(out=tmp_path / "a", resume=True).probes == plain.probes


@pytest.mark.parametrize(
    ("method", "scale"),
    [("fedntd", {"beta": 0.0}), ("fedcad", {"beta": 0.0, "gamma": 0.0}), ("fedlmd-tf", {"beta": 0.0})],
)
def test_pull_is_the_share_of_the_distillation(method: str, scale: dict[str, float]) -> None:
    strong = fr.run(tables("pull", method=method)).rounds
    assert all(0 < record["pull"] < 1 for record in strong)
    idle = fr.run(tables("pull") | {"method": {"name": method, **scale}}).rounds
    assert [record["pull"] for record in idle] == [0.0, 0.0]
    assert has_no_effect(idle)


def test_pull_by_hand() -> None:
    z, teacher = torch.tensor([[1.0, 2.0, 0.5]]), torch.tensor([[0.5, 0.0, 1.0]])
    step = Step(torch.zeros(1), torch.zeros(1, 1), z, torch.tensor([1]), {"global": Output(z, teacher)})
    label = F.softmax(z, -1) - torch.tensor([[0.0, 1.0, 0.0]])
    distilled = 0.7 * 3 * (F.softmax(z / 3, -1) - F.softmax(teacher / 3, -1))  # tau^2 times 1 / tau
    expected = distilled.norm() / (label.norm() + distilled.norm())
    local = Local(*[None] * len(Local._fields))._replace(scratch={})  # type: ignore[arg-type]
    share = distillation_share(fr.METHODS["fedavg-kd"](beta=0.7, tau=3.0), step, local)
    assert share == pytest.approx(float(expected), rel=1e-6)
    assert distillation_share(fr.METHODS["fedavg"](), step, local) is None


@pytest.mark.parametrize("method", ["fedprox", "scaffold", "fedcurv", "moon", "fedproto"])
def test_methods_that_act_elsewhere_have_no_pull(method: str) -> None:
    result = fr.run(tables("pull", method=method, rounds=1))
    assert "pull" not in result.rounds[0]
    assert not has_no_effect(result.rounds)


def test_in_and_out_of_distribution_by_hand() -> None:
    labels = torch.tensor([[3, 1, 0, 5], [0, 4, 0, 0]])
    correct = torch.tensor([[2, 1, 0, 0], [1, 4, 2, 0]])
    test = torch.tensor([4, 4, 4, 0])  # nothing can be said of the last class
    inside, outside = _in_and_out_of_distribution(labels, correct, test)
    first_in = (3 / 9 * 0.5 + 1 / 9 * 0.25) / (4 / 9)
    first_out = (6 / 9 * 0.5 + 8 / 9 * 0.25 + 0) / (6 / 9 + 8 / 9 + 1)
    second_in, second_out = 1.0, (0.25 + 0.5) / 2
    assert inside == pytest.approx((first_in + second_in) / 2)
    assert outside == pytest.approx((first_out + second_out) / 2)


def test_shift_grows_from_the_received_model(everything: fr.Result) -> None:
    line = everything.probes["shift"][0]
    for name in ("kl", "features", "accuracy"):
        assert np.array(line[name]).shape == (3, 2), "three participants, two epochs"
    kl, local = np.array(line["kl"]), everything.probes["local"][0]
    assert (kl > 0).all()
    assert (kl[:, 1] > kl[:, 0]).all()
    last = [acc[-1] for acc in line["accuracy"]]
    assert last == pytest.approx((np.sum(local["correct"], 1) / np.sum(local["test"])).tolist())


def test_accuracy_on_local_data_grows(everything: fr.Result) -> None:
    line = everything.probes["own_data"][-1]
    assert np.mean(line["local"]) > np.mean(line["global"])


def test_features_are_those_of_the_models(everything: fr.Result) -> None:
    assert everything.directory is not None
    saved = safetensors.torch.load_file(everything.directory / "probes" / "features.safetensors")
    test = prepare_run(everything.experiment).data.test
    clients = everything.probes["local"][-1]["clients"]
    assert set(saved) == {"global", "y", *(f"local-{c}" for c in clients)}
    with torch.no_grad():
        expected = everything.model()(test.batch(slice(None)))[0]
    assert torch.equal(saved["y"], test.y)
    assert torch.allclose(saved["global"], expected, atol=1e-6)


def test_metrics_of_fedcsd_on_a_batch_by_hand() -> None:
    z_t = torch.tensor([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0], [1.0, 1.1, 0.0]])
    y = torch.tensor([0, 0, 1, 0])  # right, wrong and unsure of the label, wrong, wrong but p_y > 1/3
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    s = Step(z, z, z, y, {"teacher": Output(z_t, z_t)}, False)
    metrics = FedCSD(use_similarity=False, tau=2.0).sample_metrics(s, Local(*[None] * len(Local._fields)))  # type: ignore[arg-type]
    q = F.softmax(z_t / 2, -1)
    assert torch.allclose(metrics["target_entropy"], -(q * q.log()).sum(-1))
    assert torch.allclose(metrics["target_kl"], (q * (q.log() - F.log_softmax(z / 2, -1))).sum(-1), atol=1e-6)
    assert metrics["filter_rate"].nan_to_num(-1).tolist() == [-1, 1, 1, 0]


@pytest.mark.parametrize(("method", "keys"), [
    ("fedcsd", {"target_entropy", "target_kl", "filter_rate"}),
    ("fedcad", {"trust", "alpha"}),
    ("fedssd", {"trust", "credibility"}),
])  # fmt: skip
def test_distillation_metrics_are_recorded(method: str, keys: set[str]) -> None:
    (line,) = fr.run(tables("distillation", method=method, rounds=1)).probes["distillation"]
    assert set(line) == {"round", *keys}
    if "alpha" in keys:
        assert 0.25 <= line["trust"] <= 0.5
        assert len(line["alpha"]) == 10
    if "credibility" in keys:
        assert np.array(line["credibility"]).shape == (10, 10)


def test_fedavg_has_no_distillation_metrics() -> None:
    assert fr.run(tables("distillation", rounds=1)).probes == {}


def test_unknown_probes_are_errors() -> None:
    with pytest.raises(fr.UserError) as error:
        fr.Experiment(run={"probes": ["confusoin"]})
    assert (error.value.code, error.value.key) == ("config.unknown_name", "run.probes")
    assert '"confusion"' in str(error.value.hint)


def test_a_run_starts_from_the_model_of_another(tmp_path: Path) -> None:
    first = fr.run(tables(), out=tmp_path / "first")
    for start in (tmp_path / "first", tmp_path / "first" / "model.safetensors"):
        ready = prepare_run(fr.Experiment(**(tables() | {"run": {"start": str(start)}})))
        assert torch.equal(ready.server.w, first.server.w)


def test_a_start_model_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    fr.run(tables(), out=tmp_path / "first")
    other = tables() | {"model": {"name": "mlp", "hidden": [7]}, "run": {"start": str(tmp_path / "first")}}
    with pytest.raises(fr.UserError) as error:
        prepare_run(fr.Experiment(**other))
    assert (error.value.code, error.value.key) == ("model.wrong_weights", "run.start")
    assert "size mismatch" in str(error.value), "torch's own reason"
    for broken in (tmp_path / "nowhere", tmp_path / "first" / "config.toml"):
        with pytest.raises(fr.UserError) as error:
            prepare_run(fr.Experiment(**(tables() | {"run": {"start": str(broken)}})))
        assert (error.value.code, error.value.key) == ("model.unreadable_file", "run.start")
        assert str(broken) in str(error.value)
