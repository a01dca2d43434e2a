"""Cost of experiments, compared with numbers computed by hand."""

import os
import time
from pathlib import Path

import pytest

from fedrecall import Experiment, run
from fedrecall.data.catalog import DATASETS
from fedrecall.studies import cost, papers
from fedrecall.studies.definitions import experiment_ids
from fedrecall.studies.study import Study

PASSES = [  # million passes of one run: rounds x clients a round x epochs x examples a client
    ("fedcad-table-1", "CIFAR-10", 50),
    ("fedcad-table-1", "CIFAR-100", 50),
    ("fedssd-table-1", "CIFAR-10", 50),
    ("fedssd-table-1", "Tiny-ImageNet", 30),
    ("fedcsd-table-1", "CIFAR-100 0.5", 25),
    ("fedcsd-table-1", "FEMNIST 0.5", 171),
    ("fedcsd-table-2", "Amazon", 0.12),
    ("fedlmd-table-3", "CIFAR-10 s=2", 5),
    ("fedlmd-table-3", "CIFAR-100 LDA 0.1", 5),
    ("fedlmd-table-3", "MNIST s=2", 6),
    ("fedlmd-table-3", "CINIC-10 LDA 0.1", 9),
]


@pytest.mark.parametrize(("name", "column", "millions"), PASSES)
def test_passes_of_a_run(name: str, column: str, millions: float) -> None:
    study = papers.load_study(name, rows=["FedAvg"], columns=[column], seeds=1)
    found = cost.cost(study)
    assert found.runs == 1
    # FEMNIST's digits are split for the test here as LEAF splits, and Office's cost is rounded to 0.12.
    assert found.passes / 1e6 == pytest.approx(millions, rel=0.01 if millions > 1 else 0.04)


def test_a_study_costs_what_its_runs_cost_together() -> None:
    assert cost.cost(papers.load_definition("fedlmd-table-1")) == (4, 20e6)
    assert cost.cost(papers.load_study("fedlmd-table-1", fraction=0.1, seeds=2)) == (8, 4e6)
    assert cost.cost(papers.load_definition("fedcad-table-3")).passes == 4 * 3 * 100 * 10 * 50_000 * (0.1 + 0.3 + 0.5)
    # One global model, and four ways on from it with 1 to 50 epochs.
    assert cost.cost(papers.load_definition("fedcsd-fig-1")) == (25, 25e6 + 4 * 151 * 50_000)
    assert cost.cost(papers.load_definition("fedcsd-table-2")).runs == 9  # five columns of the same runs


def test_every_named_data_set_has_a_size() -> None:
    assert set(cost.IMAGE_SIDES) == set(DATASETS)
    femnist = DATASETS["femnist"].sizes[0]
    assert cost.FEMNIST_SUBSET_SIZES[10] == 341_873 + 40_832  # training and test digits as NIID-Bench counts them
    assert cost.FEMNIST_SUBSET_SIZES[26] == femnist - cost.FEMNIST_SUBSET_SIZES[10]
    e = Experiment(data={"name": "office-caltech-10"}, federation={"clients": 4, "partition": {"name": "groups"}})
    assert cost.sample_passes(e) == pytest.approx(20 * 5 * (766 + 898 + 125 + 236), rel=0.001)


def test_users_data_is_counted(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    table.write_text("a,b,label\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(100)))
    study = Study(
        id="own",
        title="own",
        base={"data": {"name": "table", "path": str(table), "label": "label"}, "run": {"rounds": 2}},
        rows={"FedAvg": {}},
        columns={"own": {"local": {"epochs": 3}}},
    )
    assert cost.cost(study).passes == 2 * 3 * 80
    assert 0 < cost.estimated_hours(study) < 0.01


def test_hours_follow_the_work() -> None:
    names = ("FedAvg", "FedAvg+KD")
    plain, taught = (cost.estimated_hours(papers.load_study("fedlmd-table-1", rows=[name])) for name in names)
    # 5 M passes and 200 evaluations of 10,000 images, at a third of a pass; a teacher adds a third to the training.
    test = 200 * 10_000 / 3e6
    assert taught / plain == pytest.approx((5 * 4 / 3 + test) / (5 + test))
    half = cost.estimated_hours(papers.load_study("fedlmd-table-1", rows=["FedAvg"], fraction=0.5))
    assert half == pytest.approx(plain / 2)
    local = cost.estimated_hours(papers.load_study("fedcad-fig-4", rows=["FedAvg"], seeds=1))
    alone = cost.estimated_hours(papers.load_study("fedcad-table-1", rows=["FedAvg"], columns=["CIFAR-10"], seeds=1))
    assert local / alone == pytest.approx((50 + 11 * 100 * 10_000 / 3e6) / (50 + 100 * 10_000 / 3e6))


def test_hours_are_of_the_right_size() -> None:
    e = Experiment(
        data={"name": "digits"},
        federation={"clients": 1, "partition": {"name": "iid"}},
        model={"name": "mlp"},
        local={"epochs": 20},
        run={"rounds": 3},
        engine={"name": "serial"},
    )
    study = Study(id="s", title="s", base=e.to_tables(), rows={"a": {}}, columns={"b": {}})
    foretold = 3600 * cost.estimated_hours(study)
    began = time.process_time()
    run(e)
    assert 0.2 < foretold / (time.process_time() - began) < 5


def test_more_clients_than_cores_share_them() -> None:
    def hours(sample: int) -> float:
        return cost.estimated_hours(
            Study(
                id="s",
                title="s",
                base={"federation": {"clients": 100, "sample": sample}, "run": {"rounds": 100, "evaluate_every": 100}},
                rows={"a": {"model": {"name": "mlp"}}},
                columns={"b": {"local": {"epochs": 50}}},
            )
        )

    assert hours(100) / hours(1) == pytest.approx(100 / min(os.cpu_count() or 1, 100), rel=0.01)


def test_no_large_network_is_timed_for_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing the experiments takes seconds."""
    requested = []
    monkeypatch.setattr(cost, "_seconds_per_example", lambda *network: requested.append(network) or 1.0)
    for name in experiment_ids():
        cost.estimated_hours(papers.load_definition(name))
    assert set(requested) == {(*cost.REFERENCE_NETWORK, False)}


def test_relative_cost_of_a_network() -> None:
    usual = cost._seconds_per_example(*cost.REFERENCE_NETWORK, False)
    for network in (("cnn-32-64", (3, 32, 32)), ("resnet8", (3, 32, 32))):
        assert 1 / 3 < cost._seconds_per_example(*network, False) / usual / cost.RELATIVE_COST[network] < 3


def test_a_second_gradient_per_step_doubles_the_training() -> None:
    facts = cost._data_facts(Experiment())
    plain, sam = (cost._work(Experiment(method={"name": name}), facts) for name in ("fedavg", "fedsam"))
    assert sam - plain == pytest.approx(cost.sample_passes(Experiment()))
