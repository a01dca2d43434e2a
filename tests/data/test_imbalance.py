from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedrecall as fr
from fedrecall.data.imbalance import Exponential, frequency_groups, with_imbalance
from fedrecall.runs.forgetting import frequency_metrics
from fedrecall.runs.setup import load_and_partition


def test_long_tailed_cifar_has_the_usual_sizes() -> None:
    sizes = Exponential(ratio=100).class_sizes(np.full(10, 5000))
    assert sizes.tolist() == [5000, 2997, 1797, 1077, 646, 387, 232, 139, 83, 50]
    assert Exponential(ratio=1).class_sizes(np.array([5, 9, 2])).tolist() == [5, 9, 2]
    assert Exponential(ratio=1e6).class_sizes(np.array([9, 9, 9])).tolist() == [9, 1, 1]
    assert Exponential().class_sizes(np.array([7])).tolist() == [7]


def test_rows_are_drawn_by_the_seed_and_the_test_set_stays() -> None:
    y = torch.arange(300) % 3
    data = fr.from_arrays(torch.arange(300.0)[:, None], y, test=(torch.zeros(3, 1), torch.arange(3)))
    first, again, other = (
        with_imbalance(data, Exponential(ratio=4), np.random.default_rng(seed)) for seed in (0, 0, 1)
    )
    assert torch.bincount(first.train_y).tolist() == [100, 50, 25]
    assert torch.equal(first.train_x, again.train_x)
    assert not torch.equal(first.train_x, other.train_x)
    assert torch.equal(first.train_x[:, 0].long() % 3, first.train_y)
    assert torch.equal(first.test_x, data.test_x)
    assert with_imbalance(data, None, np.random.default_rng(0)) is data


def test_groups_are_thirds_by_frequency() -> None:
    groups = frequency_groups(np.array([1, 9, 5, 5, 2, 8, 7, 3, 4, 6]))
    assert {name: part.tolist() for name, part in groups.items()} == {
        "many": [1, 5, 6], "medium": [2, 3, 8, 9], "few": [0, 4, 7]
    }  # fmt: skip


TABLES = {
    "data": {"imbalance": {"name": "exponential", "ratio": 20}, "aux_per_class": 8},
    "federation": {"clients": 4, "partition": {"name": "dirichlet", "alpha": 1.0, "min_size": 2}},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"epochs": 1},
    "engine": {"name": "serial"},
    "run": {"rounds": 1, "local_accuracy": True},
}


def test_the_auxiliary_set_is_drawn_afterwards() -> None:
    data = load_and_partition(fr.Experiment(**TABLES))
    counts = torch.bincount(data.client_examples.y, minlength=10)
    assert counts.tolist() == sorted(counts.tolist(), reverse=True)
    assert counts[0] / counts[-1] == pytest.approx(20, rel=0.2)
    assert torch.bincount(data.auxiliary.y, minlength=10).tolist() == counts.clamp(max=8).tolist()


def test_records_have_accuracy_and_forgetting_by_frequency() -> None:
    record = fr.run(fr.Experiment(**TABLES)).rounds[-1]
    assert list(record["frequency"]) == ["many", "medium", "few"]
    weights = np.array([3, 4, 3]) / 10  # digits has about as many test examples of each class
    assert np.dot(weights, list(record["frequency"].values())) == pytest.approx(record["accuracy"], abs=0.03)
    plain = fr.run(fr.Experiment(**TABLES | {"data": {}})).rounds[-1]
    assert not {"frequency", "forgotten_frequency"} & set(plain)


def test_forgetting_by_frequency_by_hand() -> None:
    y = torch.tensor([0, 0, 1, 1, 2, 2])  # class 2 is the most frequent one of the clients, class 0 the rarest
    train = SimpleNamespace(class_counts=lambda classes: torch.tensor([1, 5, 9]))
    context = SimpleNamespace(test=SimpleNamespace(y=y), train=train, classes=3)
    received = SimpleNamespace(predicted=torch.tensor([1, 1, 1, 1, 2, 0]))  # right: examples 2, 3 and 4
    predicted = [[0, 0, 2, 1, 2, 2], [0, 0, 1, 0, 0, 2], [0, 0, 1, 1, 2, 2]]
    reports = [{"predicted": torch.tensor(p)} for p in predicted]
    score = SimpleNamespace(predicted=torch.tensor([0, 1, 1, 1, 2, 2]))
    result = SimpleNamespace(score=score, received=received, client_metrics=reports)
    assert frequency_metrics(context, result) == {  # type: ignore[arg-type]
        "frequency": {"many": 1.0, "medium": 1.0, "few": 0.5},
        "forgotten_frequency": {"many": pytest.approx(1 / 3), "medium": pytest.approx(1 / 3), "few": None},
    }
    unknown = SimpleNamespace(score=None, received=None, client_metrics=reports)
    assert frequency_metrics(context, unknown) == {}  # type: ignore[arg-type]


def test_forgetting_by_frequency_in_a_run() -> None:
    record = fr.run(fr.Experiment(**TABLES | {"run": {"rounds": 2, "local_accuracy": True}})).rounds[-1]
    by_group = [share for share in record["forgotten_frequency"].values() if share is not None]
    assert min(by_group) - 0.05 <= record["forgotten"] <= max(by_group) + 0.05
    assert "forgotten_frequency" not in fr.run(fr.Experiment(**TABLES | {"run": {"rounds": 1}})).rounds[-1]


def test_comparisons_show_the_groups() -> None:
    config = TABLES | {"local": {"epochs": 3, "lr": 0.1}, "run": {"rounds": 12, "local_accuracy": True}}
    config["data"] = {"imbalance": {"name": "exponential", "ratio": 3}}
    comparison = fr.compare(["fedavg"], config=config, seeds=1, progress=False)
    (table, *_), records = comparison.tables(), comparison.runs[0].records
    row = dict(zip(table.header[1:], table.rows[0][1], strict=True))
    for group in ("many", "medium", "few"):
        expected = np.mean([record["frequency"][group] for record in records[-10:]])
        assert row[group].value == pytest.approx(100 * expected, abs=0.01)
    forgotten = [record["forgotten_frequency"]["few"] for record in records]
    expected = np.mean([share for share in forgotten if share is not None])
    assert row["forgotten, few"].value == pytest.approx(100 * expected, abs=0.01)
    assert "few" in comparison.tables(brief=True)[0].header


def test_an_invalid_ratio_is_an_error() -> None:
    for make in (lambda: Exponential(ratio=0.5), lambda: fr.Experiment(data={"imbalance": {"ratio": 0.5}})):
        with pytest.raises(fr.UserError) as error:
            make()
        assert (error.value.code, error.value.key) == ("config.invalid_value", "data.imbalance.ratio")
