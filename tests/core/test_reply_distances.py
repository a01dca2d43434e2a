"""Distances between replies over all groups of tensors, and what they are for: no tensor is left to an attacker."""

from dataclasses import replace

import pytest
import torch

from fedrecall import METHODS
from fedrecall.core.exchange import Exchange, ReplyPolicy
from fedrecall.core.method import Method
from fedrecall.core.preaggregation import Bucketing, NearestNeighbourMixing
from fedrecall.core.reply_distances import mix, squared_distances
from fedrecall.core.robust import AggregationRule, Clip, GeometricMedian, Krum, Median, TrimmedMean
from fedrecall.core.types import Reply, Server
from support.malicious_client import MaliciousEngine
from support.tiny_federation import ListEngine, flat, server, vectors


def reply(**up: float | list[float]) -> Reply:
    return Reply({name: torch.tensor(value) for name, value in up.items()}, 1, {}, {})


def test_one_group_has_its_plain_distances() -> None:
    distances = squared_distances([reply(w=[0.0, 0.0]), reply(w=[3.0, 4.0]), reply(w=[0.0, 1.0])])
    torch.testing.assert_close(distances, torch.tensor([[0, 25, 1], [25, 0, 18], [1, 18, 0]], dtype=torch.float64))


def test_several_groups_are_divided_by_their_medians_and_added() -> None:
    """Squared distances 1, 4, 1 in w (median 1) and 100, 900, 400 in b (median 400); integers have none."""
    three = [
        reply(w=[0.0], b=[0.0], counters=[1]),
        reply(w=[1.0], b=[10.0], counters=[5]),
        reply(w=[2.0], b=[30.0], counters=[9]),
    ]
    distances = squared_distances(three)
    expected = torch.tensor([[0, 1.25, 6.25], [1.25, 0, 2], [6.25, 2, 0]], dtype=torch.float64)
    torch.testing.assert_close(distances, expected)


def test_where_most_pairs_agree_another_value_is_far_away() -> None:
    five = [reply(w=[float(i)], a=1.0) for i in range(4)] + [reply(w=[1.5], a=1.001)]
    distances = squared_distances(five)
    assert (distances[4, :4] > distances[1, 2]).all()
    assert distances[1, 2] == 1


def test_a_combination_of_replies() -> None:
    mixed = mix([reply(w=[1.0, 2.0], c=3), reply(w=[3.0, 6.0], c=5)], torch.tensor([0.75, 0.25]))
    assert {name: t.tolist() for name, t in mixed.items()} == {"w": [1.5, 3.0]}


RULES: dict[str, tuple[AggregationRule, ...]] = {
    "median": (Median(),),
    "trimmed mean": (TrimmedMean(0.25),),
    "geometric median": (GeometricMedian(),),
    "clip": (Clip(),),
    "clip to a norm": (Clip(1.0),),
    "krum": (Krum(1),),
    "multi-krum": (Krum(1, keep=4),),
    "mixing": (NearestNeighbourMixing(1), TrimmedMean(0.25)),
    "bucketing": (Bucketing(2), Median()),
}


def one_round(method: Method, rules: tuple[AggregationRule, ...], name: str, add: float) -> Server:
    """Return the server after a round in which client 3 of 8 adds a number to one tensor of its reply."""
    f = flat(batch_norm=True)
    engine = ListEngine(method, f, [vectors(20, seed=k) for k in range(8)])
    start = replace(server(f, method), weights="uniform")
    poisoned = MaliciousEngine(engine, lambda r: r._replace(up={**r.up, name: r.up[name] + add}))
    exchange = Exchange(start, poisoned.cohort(0, range(8)), ReplyPolicy(rules=rules))
    return exchange.with_averaged_buffers(method.round(start, exchange))


def distance(a: Server, b: Server) -> float:
    pairs = [(a.w, b.w), (a.b, b.b), *((t, b.extra[name]) for name, t in a.extra.items())]
    return max(float((x - y).norm() / (1 + y.norm())) for x, y in pairs)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize(("method", "name"), [("fedavg", "b"), ("scaffold", "dc"), ("fedcurv", "u"), ("fedavg", "w")])
def test_no_tensor_of_a_reply_is_left_to_one_attacker_of_eight(
    method: str, name: str, rules: tuple[AggregationRule, ...]
) -> None:
    """Honest weights do not hide buffers or variates + 10^4."""
    honest = one_round(METHODS[method](), (), name, 0.0)
    assert distance(one_round(METHODS[method](), rules, name, 1e4), honest) < 1
    assert distance(one_round(METHODS[method](), (), name, 1e4), honest) > 100, "the plain mean falls"


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_counts_of_one_attacker_are_not_the_cohorts(rules: tuple[AggregationRule, ...]) -> None:
    honest = one_round(Method(), (), "counters", 0)
    assert one_round(Method(), rules, "counters", 10**6).int_buffers.tolist() == honest.int_buffers.tolist()
