import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import fedrecall as fr
from fedrecall.core.exchange import Diverged
from fedrecall.runs.records import summarise
from fedrecall.runs.setup import load_and_partition, prepare_run
from support.own_code import Alternate

QUICK = {"run": {"rounds": 3}, "local": {"epochs": 1}}


def test_run_directory(tmp_path: Path) -> None:
    records = []
    experiment = fr.Experiment(**QUICK, federation={"clients": 8, "sample": 3})
    result = fr.run(experiment, out=tmp_path / "a", watch=records.append)
    names = {p.name for p in (tmp_path / "a").iterdir()}
    assert names == {
        "card.md",
        "preprocess.json",
        "config.toml", "rounds.jsonl", "summary.json", "environment.json", "model.safetensors",
        "partition.json", "partition.safetensors", "predictions.safetensors",
    }  # fmt: skip

    lines = [json.loads(line) for line in (tmp_path / "a" / "rounds.jsonl").read_text().splitlines()]
    assert lines == result.rounds == records
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert set(lines[0]) == {
        "round",
        "accuracy",
        "loss",
        "train_loss",
        "seconds",
        "bytes_up",
        "bytes_down",
        "clients",
        "replies",
    }
    assert all(len(line["clients"]) == 3 for line in lines)
    assert lines[0]["bytes_up"] == lines[0]["bytes_down"] == 4 * 15_010

    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary == result.summary
    assert summary["final"] == lines[-1]["accuracy"]
    assert summary["bytes_up"] == 3 * 3 * 4 * 15_010

    again = fr.Experiment.load(tmp_path / "a" / "config.toml")
    assert again == result.experiment
    assert again.model is not None, "the configuration is complete"
    assert fr.run(again).summary["final"] == summary["final"]

    partition = json.loads((tmp_path / "a" / "partition.json").read_text())
    assert np.sum(partition["counts"]) == 1433
    assert json.loads((tmp_path / "a" / "environment.json").read_text())["partition"] == partition["hash"]

    saved = safetensors.torch.load_file(tmp_path / "a" / "model.safetensors")
    model = result.model()
    assert set(saved) == set(model.state_dict())
    model.load_state_dict(saved)
    assert torch.equal(torch.cat([p.flatten() for p in model.parameters()]), result.server.w)


def test_an_experiment_may_be_tables_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "quick.toml").write_text("[run]\nrounds = 3\n[local]\nepochs = 1\n")
    results = [fr.run(source) for source in (fr.Experiment(**QUICK), QUICK, tmp_path / "quick.toml")]
    assert len({r.summary["final"] for r in results}) == 1


def test_the_model_predicts_what_was_scored() -> None:
    result = fr.run(fr.Experiment(**QUICK))
    test = load_and_partition(result.experiment).test
    _, z = result.model()(test.batch(slice(None)))
    assert float((z.argmax(-1) == test.y).float().mean()) == pytest.approx(result.summary["final"])


def test_all_methods_start_from_the_same_weights_and_see_the_same_cohorts() -> None:
    settings = {**QUICK, "federation": {"clients": 9, "sample": 2}}
    results = [fr.run(fr.Experiment(**settings, method={"name": name})) for name in ("fedavg", "fedprox", "fedavgm")]
    assert len({r.summary["initial"] for r in results}) == 1
    assert len({str([line["clients"] for line in r.rounds]) for r in results}) == 1


def test_seeds_are_independent_settings() -> None:
    def run(**seeds: int) -> fr.Result:
        return fr.run(
            fr.Experiment(local={"epochs": 1}, federation={"clients": 9, "sample": 2}, run={"rounds": 2, **seeds})
        )

    base = run(seed=1)
    other_init, other_sample, other_partition = (
        run(seed=1, init_seed=2),
        run(seed=1, sample_seed=2),
        run(seed=1, partition_seed=2),
    )
    clients = [[line["clients"] for line in r.rounds] for r in (base, other_init, other_sample, other_partition)]
    assert clients[0] == clients[1] == clients[3] != clients[2]
    assert base.summary["initial"] == other_sample.summary["initial"] == other_partition.summary["initial"]
    assert base.summary["initial"] != other_init.summary["initial"]
    assert run(seed=1).rounds[-1]["loss"] == base.rounds[-1]["loss"]


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    fr.run(fr.Experiment(run={"rounds": 1}, local={"epochs": 1}))
    assert torch.get_num_threads() == before


def test_local_accuracy_is_computed_if_set() -> None:
    result = fr.run(fr.Experiment(local={"epochs": 1}, run={"rounds": 2, "local_accuracy": True}))
    assert all(0 < line["local_accuracy"] < 1 for line in result.rounds)
    assert result.rounds[-1]["local_accuracy"] < result.rounds[-1]["accuracy"], (
        "skewed clients know less than their mean"
    )


def test_a_personal_method_is_scored_by_its_clients_models(tmp_path: Path) -> None:
    method = {"name": "fedproto", "share_weights": False}
    result = fr.run(fr.Experiment(method=method, run={"rounds": 4}), out=tmp_path / "a")
    assert all(line["accuracy"] == line["local_accuracy"] for line in result.rounds)
    assert result.rounds[-1]["loss"] is None
    assert result.summary["final"] > 0.3
    assert result.rounds[-1]["bytes_up"] == 4 * 10 * 200, "prototypes only"
    assert not (tmp_path / "a" / "model.safetensors").exists()
    with pytest.raises(fr.UserError) as error:
        result.model()
    assert (error.value.code, error.value.key) == ("method.no_global_model", "method")


def test_evaluating_less_often(tmp_path: Path) -> None:
    result = fr.run(fr.Experiment(local={"epochs": 1}, run={"rounds": 5, "evaluate_every": 2}), out=tmp_path / "a")
    assert [line["accuracy"] is not None for line in result.rounds] == [False, True, False, True, True]


@pytest.mark.parametrize(
    "server",
    [{"weights": "uniform"}, {"momentum": 0.5}, {"optimiser": "adam"}, {"optimiser": "yogi"}, {"optimiser": "adagrad"}],
)
def test_server_settings_take_effect_and_learn(server: dict[str, object]) -> None:
    plain, changed = (fr.run(fr.Experiment(run={"rounds": 8}, server=s)) for s in ({}, server))
    assert not torch.equal(plain.server.w, changed.server.w)
    assert changed.summary["best"] > 0.6


def test_learning_rate_decay_and_prox_take_effect() -> None:
    plain = fr.run(fr.Experiment(**QUICK))
    for local in ({"lr_decay": 0.5}, {"prox": 1.0}, {"weight_decay": 0.1}, {"drop_last": True}):
        other = fr.run(fr.Experiment(run={"rounds": 3}, local={"epochs": 1, **local}))
        assert not torch.equal(plain.server.w, other.server.w), local


def test_auxiliary_set() -> None:
    ready = prepare_run(fr.Experiment(data={"aux_per_class": 5}))
    assert torch.bincount(ready.server.auxiliary.y).tolist() == [5] * 10
    assert len(ready.clients.train) == 1433
    held_out = prepare_run(fr.Experiment(data={"aux_per_class": 5, "aux": "holdout"}))
    assert len(held_out.clients.train) == 1433 - 50
    assert held_out.data.partition.sizes.sum() == 1433 - 50


@pytest.mark.parametrize(
    "method",
    [{"name": "fedcad"}, {"name": "fedssd"}, {"name": "fedgkd", "vote": True}, {"name": "grid", "trust": "class"}],
)
def test_methods_that_need_auxiliary_data_are_errors_without(method: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(fr.Experiment(method=method, data={"aux_per_class": 0}), out=tmp_path / "a")
    assert (error.value.code, error.value.key) == ("config.conflict", "data.aux_per_class")
    assert not (tmp_path / "a").exists()
    assert fr.run(fr.Experiment(**QUICK, method={"name": "fedcad", "estimate": "local"}, data={"aux_per_class": 0}))


def test_python_objects_are_recorded_and_required_to_resume(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(90, 4)).astype(np.float32), rng.integers(0, 3, 90))
    objects = {"data": data, "model": nn.Linear(4, 3), "partition": Alternate()}
    fr.run(fr.Experiment(**QUICK, federation={"clients": 3}), **objects, out=tmp_path / "a")
    tables = tomllib.loads((tmp_path / "a" / "config.toml").read_text())
    assert tables["data"]["name"] == tables["model"]["name"] == tables["federation"]["partition"]["name"] == "own"
    for missing in objects:
        with pytest.raises(fr.UserError) as error:
            fr.run(tmp_path / "a" / "config.toml", **{k: v for k, v in objects.items() if k != missing})
        assert (error.value.code, error.value.key) == ("config.needs_python_object", missing)
        assert f"{missing}=" in str(error.value.hint)
    fr.run(tmp_path / "a" / "config.toml", **objects)


def test_a_run_without_clients_that_train_is_an_error() -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(fr.Experiment(local={"batch": 5000, "drop_last": True}))
    assert (error.value.code, error.value.key) == ("round.no_training_step", "local.drop_last")
    assert "5000" in str(error.value)


def test_the_summary_counts_the_rounds_of_the_record(tmp_path: Path) -> None:
    with pytest.raises(fr.UserError):
        fr.run(fr.Experiment(local={"batch": 5000, "drop_last": True}), out=tmp_path / "run")
    assert fr.load(tmp_path / "run").runs[0].summary["rounds"] == 0
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_users_arrays_module_and_client_column() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    x = rng.normal(size=(300, 4)).astype(np.float32) + y[:, None]
    groups = rng.integers(0, 5, 300)
    module = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
    experiment = fr.Experiment(
        federation={"clients": 5, "partition": {"name": "groups"}}, run={"rounds": 8}, local={"lr": 0.05}
    )
    before = [p.clone() for p in module.parameters()]
    result = fr.run(experiment, data=(x, y, groups), model=module)
    assert result.summary["final"] > 0.7
    assert torch.equal(fr.run(experiment, data=(x, y, groups), model=module).server.w, result.server.w)
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True)), (
        "your module is not changed"
    )
    module.load_state_dict(result.model().state_dict())


def test_flower_partitioner_is_accepted() -> None:
    partitioner = pytest.importorskip("flwr_datasets.partitioner").IidPartitioner(4)
    result = fr.run(fr.Experiment(**QUICK, federation={"clients": 4}), partition=partitioner)
    assert result.summary["final"] > 0.1


@pytest.mark.parametrize(
    ("tables", "code", "key", "fact"),
    [
        ({"data": {"name": "cifar"}}, "config.unknown_name", "data.name", '"cifar10"'),
        ({"model": {"name": "cnn"}}, "model.unsupported_input", "model.name", "16x16"),
        ({"federation": {"clients": 2000}}, "partition.too_many_clients", "federation.clients", "1433"),
        ({"federation": {"clients": 500}}, "partition.too_many_clients", "federation.clients", "min_size"),
        (
            {"federation": {"partition": {"name": "shards", "s": 3}, "clients": 7}},
            "partition.not_divisible",
            "federation.partition.s",
            "7",
        ),
        ({"federation": {"partition": {"name": "groups"}}}, "partition.missing_groups", "federation.partition", ""),
        ({"data": {"name": "table", "label": "y"}}, "config.missing_key", "data.path", "table"),
        ({"data": {"augment": "moon"}}, "config.conflict", "data.augment", "moon"),
        ({"data": {"name": "mnist", "root": "nowhere"}}, "data.not_found", "nowhere", "mnist"),
    ],
)
def test_invalid_experiments_are_errors_before_anything_is_written(
    tables: dict[str, object], code: str, key: str, fact: str, tmp_path: Path
) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.run(fr.Experiment(**tables), out=tmp_path / "out")
    assert (error.value.code, error.value.key) == (code, key)
    assert fact in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_directory_with_another_run_is_an_error(tmp_path: Path) -> None:
    fr.run(fr.Experiment(**QUICK), out=tmp_path / "a")
    before = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    with pytest.raises(fr.UserError) as error:
        fr.run(fr.Experiment(**QUICK), out=tmp_path / "a")
    assert (error.value.code, error.value.key) == ("run.directory_not_empty", str(tmp_path / "a"))
    assert "--out" in str(error.value.hint)
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()} == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(fr.UserError) as error:
        fr.run(fr.Experiment(**QUICK), out=tmp_path / "file")
    assert (error.value.code, error.value.key) == ("run.not_a_directory", str(tmp_path / "file"))


def test_a_run_that_diverges_is_recorded_as_failed(tmp_path: Path) -> None:
    with pytest.raises(Diverged) as error:
        fr.run(fr.Experiment(run={"rounds": 9}, local={"lr": 1e6, "epochs": 1}), out=tmp_path / "a")
    assert error.value.code in ("round.diverged", "reply.not_finite")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["failed"] == str(error.value)
    assert summary["rounds"] < 9
    assert tomllib.loads((tmp_path / "a" / "config.toml").read_text())["local"]["lr"] == 1e6


def line(number: int, accuracy: float | None) -> dict[str, object]:
    return {
        "round": number,
        "accuracy": accuracy,
        "seconds": 1.0,
        "bytes_up": 10,
        "bytes_down": 20,
        "clients": [1, 2],
        "replies": 2,
    }


def test_summary_of_a_hand_made_curve() -> None:
    curve = [0.1, 0.5, None, 0.7, 0.7, 0.6]
    summary = summarise([line(i + 1, a) for i, a in enumerate(curve)], 0.05, [0.5, 0.65, 0.9])
    assert summary["initial"] == 0.05
    assert (summary["final"], summary["best"], summary["best_round"]) == (0.6, 0.7, 4)
    assert summary["last10"] == pytest.approx(np.mean([0.1, 0.5, 0.7, 0.7, 0.6]))
    assert summary["rounds_to_target"] == {"0.5": 2, "0.65": 4, "0.9": None}
    assert (summary["bytes_up"], summary["bytes_down"], summary["seconds"]) == (120, 240, 6.0)
