"""Clients and settings at the edge: without a step, with one example, rules that would falsify a method's replies."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedrecall as fr
from fedrecall.core.exchange import Exchange, ReplyPolicy
from fedrecall.core.flat_model import EVAL_BATCH, FlatModel, eval_slices
from fedrecall.core.optim import ServerSGD
from fedrecall.core.privacy import GaussianMechanism, PrivateAggregation
from fedrecall.core.private_part import private_names
from fedrecall.core.reply_validation import ReplyValidator
from fedrecall.core.types import Payload, Reply, Server
from fedrecall.data.examples import Examples
from fedrecall.data.partition import Partition
from fedrecall.data.transforms import Transform
from fedrecall.models.base import FeatureClassifier
from support.errors import refused
from support.method_bench import network
from support.tiny_federation import local

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 40)
QUICK = {"engine": {"name": "serial"}, "local": {"epochs": 1, "batch": 8}}


def clients_of(*sizes: int) -> Partition:
    return Partition(np.arange(sum(sizes)), np.cumsum([0, *sizes]), sum(sizes), {"name": "own"}, 0)


def normalised() -> nn.Module:
    return FeatureClassifier(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), 8, 3)


@pytest.mark.parametrize(("model", "drop_last", "small"), [(normalised, False, 1), ("mlp", True, 7)])
def test_a_round_whose_clients_make_no_step(model: object, drop_last: bool, small: int) -> None:
    data = fr.from_arrays(X, Y, test=0.2)
    rest = len(data.train_y) - small
    config = QUICK | {"local": QUICK["local"] | {"drop_last": drop_last}}
    result = fr.run(config, data=data, model=model, partition=clients_of(small, rest), clients=2, sample=1, rounds=6)
    without = [record for record in result.rounds if record["train_loss"] is None]
    assert 0 < len(without) < 6
    for record in without[1:]:
        assert record["clients"] == [0]
        before = result.rounds[record["round"] - 2] if record["round"] > 1 else None
        assert before is None or record["accuracy"] == before["accuracy"], "the weights stay"


def test_clients_of_which_none_can_train() -> None:
    config = QUICK | {"local": {"batch": 50, "drop_last": True}}
    refused(lambda: fr.run(config, data=(X, Y), clients=2, rounds=1), "round.no_training_step", "no client can train")


def test_the_last_slice_of_an_evaluation() -> None:
    n = EVAL_BATCH + 1
    assert [s.stop - s.start for s in eval_slices(n)] == [EVAL_BATCH, 1]
    assert [s.stop - s.start for s in eval_slices(n, at_least_two=True)] == [n]
    assert [s.stop - s.start for s in eval_slices(1, at_least_two=True)] == [1]
    assert eval_slices(0, at_least_two=True) == []


@pytest.mark.parametrize("n", [1, EVAL_BATCH + 1])
def test_outputs_by_batch_statistics_of_one_left_over_example(n: int) -> None:
    f = FlatModel(normalised())
    data = Examples(torch.randn(n, 6), torch.zeros(n, dtype=torch.int64), Transform())
    outputs = f.outputs(f.join(f.w, f.b), data, batch_statistics=True)
    assert outputs.z.shape == (n, 3)
    assert outputs.z.isfinite().all()


class HeadFirst(nn.Module):
    """A module whose head is registered before its body."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.body = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return h, self.head(h)


def test_ccvr_needs_the_head_last() -> None:
    run = {"data": (X, Y), "clients": 2, "method": "ccvr", "rounds": 1}
    refused(lambda: fr.run(QUICK, model=HeadFirst, **run), "model.no_head", "last")
    for model in ("mlp", lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))):
        assert fr.run(QUICK, model=model, **run).summary["rounds"] == 1


@pytest.mark.parametrize(
    ("method", "settings", "works"),
    [
        ("ccvr", {"server": {"robust": {"name": "median"}}}, False),
        ("ccvr", {"server": {"robust": {"name": "clip", "norm": 1000.0}}}, False),
        ("fednova", {"server": {"robust": {"name": "clip"}}}, False),
        ("fednova", {"server": {"robust": {"name": "median"}}}, True),
        ("ditto", {"federation": {"private": "head"}}, False),
        ("fedavg", {"federation": {"private": "head"}, "server": {"robust": {"name": "clip"}}}, True),
    ],
)
def test_settings_that_a_method_excludes(method: str, settings: dict[str, dict[str, object]], works: bool) -> None:
    def run() -> fr.Result:
        return fr.run(QUICK | settings, method=method, data=(X, Y), clients=3, rounds=1)

    if works:
        assert run().summary["rounds"] == 1
    else:
        refused(run, "config.conflict", next(iter(settings)))


def test_feddyn_counts_examples_and_not_tokens() -> None:
    data = fr.from_tokens([["a", "b", "c"], ["b", "c", "a"]] * 10, [["X", "Y", "X"], ["Y", "X", "Y"]] * 10)
    examples = Examples(data.train_x, data.train_y, data.test_transform)
    r = local(FlatModel(network()), examples)
    assert fr.METHODS["feddyn"](alpha=0.1, mean_examples=float(len(examples))).alpha_of(r) == pytest.approx(0.1)


class HalfAnswers:
    """A cohort of four clients, of which two reply."""

    size = 4
    population = 4

    def __init__(self, w: Tensor) -> None:
        self.w = w

    def run(self, task: str, down: Payload) -> Iterator[Reply]:
        yield from (Reply({"w": self.w + 1}, 1, {}, {}) for _ in range(2))

    def accept(self, reply: Reply) -> None:
        pass


@pytest.mark.parametrize(("is_private", "size"), [(False, 2), (True, 4)])
def test_a_missing_reply_counts_in_the_size_of_a_private_cohort(is_private: bool, size: int) -> None:
    f = FlatModel(network())
    rule = PrivateAggregation(GaussianMechanism(1.0, 0.1, 1e-5), 0, 4)
    policy = ReplyPolicy(ReplyValidator(min_replies=1), (rule,) if is_private else ())
    cohort = Exchange(Server(f, f.w, f.b, f.int_buffers, ServerSGD()), HalfAnswers(f.w), policy)
    assert len(list(cohort.run("train", {"w": f.w}))) == 2
    assert cohort.size == size


def test_normalisation_layers_that_stay_at_the_client() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.RMSNorm(8), nn.Linear(8, 3))
    assert {name.partition(".")[0] for name in private_names(module, "norm")} == {"1", "2"}


def test_the_tabular_network_takes_images() -> None:
    inputs = {"image": RNG.integers(0, 255, (40, 3, 8, 8), dtype=np.uint8), "age": RNG.normal(size=40)}
    assert fr.run(QUICK, data=(inputs, Y), model="tabular", clients=2, rounds=1).summary["rounds"] == 1
