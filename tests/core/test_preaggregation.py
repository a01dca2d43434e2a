"""Mixing before a rule, by hand; limits on what a client claims."""

import pytest
import torch

import fedrecall as fr
from fedrecall.core.exchange import Exchange, ReplyPolicy
from fedrecall.core.method import Method
from fedrecall.core.preaggregation import Bucketing, ExampleCountLimit, NearestNeighbourMixing
from fedrecall.core.robust import AggregationRule, Clip, ExchangeInfo
from fedrecall.core.types import Reply, average_replies
from support.tiny_federation import ListEngine, flat, server, vectors


def replies(values: list[float]) -> list[Reply]:
    return [
        Reply({"w": torch.tensor([x]), "counters": torch.tensor([i])}, i + 1, {}, {}, i) for i, x in enumerate(values)
    ]


def apply(rule: AggregationRule, received: list[Reply], t: int = 0, seed: int = 0) -> list[Reply]:
    return list(rule.apply(iter(received), ExchangeInfo("train", {"w": torch.zeros(1)}, len(received), t, seed=seed)))


def test_nearest_neighbours_by_hand() -> None:
    mixed = apply(NearestNeighbourMixing(1), replies([0.0, 1.0, 2.0, 100.0]))
    assert [float(r.up["w"]) for r in mixed] == pytest.approx([1.0, 1.0, 1.0, 103 / 3])
    assert [r.n for r in mixed] == [1, 2, 3, 4]
    assert [int(r.up["counters"]) for r in mixed] == [1] * 4
    with pytest.raises(fr.UserError) as error:
        apply(NearestNeighbourMixing(2), replies([0.0, 1.0, 2.0, 100.0]))
    assert (error.value.code, error.value.key) == ("robust.too_few_replies", "server.preaggregation")


def test_buckets_share_the_replies_and_their_mean() -> None:
    values = [float(3**i) for i in range(7)]  # every sum of some of them tells which
    buckets = apply(Bucketing(2), replies(values))
    assert [round(float(r.up["w"]) * k, 3) for r, k in zip(buckets, (2, 2, 2, 1), strict=True)] != sorted(values)
    assert sum(float(r.up["w"]) * k for r, k in zip(buckets, (2, 2, 2, 1), strict=True)) == pytest.approx(sum(values))
    assert sum(r.n for r in buckets) == sum(range(1, 8))
    again, other, later = (apply(Bucketing(2), replies(values), t, s) for t, s in ((0, 0), (0, 1), (1, 0)))
    assert [r.up["w"] for r in again] == [r.up["w"] for r in buckets]
    assert [r.up["w"] for r in other] != [r.up["w"] for r in buckets]
    assert [r.up["w"] for r in later] != [r.up["w"] for r in buckets]


def test_a_number_of_examples_is_limited_by_the_median() -> None:
    claims = {10: 0.0, 20: 0.0, 30: 0.0, 10**9: 9.0}
    received = [Reply({"w": torch.tensor([w])}, n, {}, {}) for n, w in claims.items()]
    limited = apply(ExampleCountLimit(4.0), received)
    assert [r.n for r in limited] == [10, 20, 30, 100]
    assert float(average_replies(limited)["w"]) == pytest.approx(9 * 100 / 160)
    assert float(average_replies(received)["w"]) == pytest.approx(9.0, abs=1e-5), "without it, it owns the mean"


@pytest.mark.parametrize(("weights", "uniform"), [("size", False), ("uniform", True)])
def test_buffers_have_the_weights_of_the_rule(weights: str, uniform: bool) -> None:
    """A claim of 10^9 examples owns the buffers only where replies are weighted by size."""
    f = flat(batch_norm=True)
    engine = ListEngine(Method(), f, [vectors(20, seed=k) for k in range(3)])
    start = fr.Server(f, f.w, f.b, f.int_buffers, server(f, Method()).optimiser, weights=weights)

    class Claims:
        size = population = 3

        def run(self, task: str, down: fr.Payload):
            for r in engine.cohort(0, range(3)).run(task, down):
                yield r._replace(n=10**9) if r.client == 1 else r

        def accept(self, reply: Reply) -> None:
            pass

    received = {r.client: r.up["b"] for r in Claims().run("train", {"w": f.w, "b": f.b, "counters": f.int_buffers})}
    exchange = Exchange(start, Claims(), ReplyPolicy(rules=(Clip(1e9),)))
    list(exchange.run("train", {"w": f.w}))
    owned = torch.allclose(exchange.with_averaged_buffers(start).b, received[1], atol=1e-4)
    assert owned is not uniform


@pytest.mark.parametrize(
    ("server_section", "weights"),
    [
        ({}, "size"),
        ({"robust": "median"}, "uniform"),
        ({"robust": "median", "weights": "size"}, "size"),
        ({"weights": "uniform"}, "uniform"),
    ],
)
def test_unset_weights_are_uniform_with_a_robust_rule_and_recorded(
    server_section: dict[str, str], weights: str, tmp_path
) -> None:
    small = {"federation": {"clients": 5}, "local": {"epochs": 1, "batch": 100}, "engine": {"name": "serial"}}
    result = fr.run({**small, "server": server_section, "run": {"rounds": 1}}, out=tmp_path / "run")
    assert result.server.weights == result.experiment.server.weights == weights
    assert fr.Experiment.load(tmp_path / "run" / "config.toml").server.weights == weights


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"server": {"preaggregation": "bucketing"}}, "server.preaggregation"),
        (
            {"server": {"robust": "median", "preaggregation": {"name": "nearest-neighbours", "attackers": 5}}},
            "server.preaggregation",
        ),
        (
            {"server": {"robust": {"name": "krum", "attackers": 2}, "preaggregation": "bucketing"}},
            "server.robust",
        ),
        (
            {"server": {"robust": "median", "preaggregation": {"name": "bucketing", "size": 1}}},
            "server.preaggregation.size",
        ),
        ({"federation": {"max_examples_ratio": 0.5}}, "federation.max_examples_ratio"),
        # A client that has its own reply rejected must not end the run by leaving too few for the rule.
        ({"server": {"robust": {"name": "krum", "attackers": 2}}, "engine": {"min_replies": 6}}, "server.robust"),
        (
            {
                "server": {"robust": "median", "preaggregation": {"name": "nearest-neighbours", "attackers": 2}},
                "engine": {"min_replies": 4},
            },
            "server.preaggregation",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_errors(settings: dict[str, object], key: str) -> None:
    with pytest.raises(fr.UserError) as error:
        fr.Experiment(**settings)
    assert error.value.key == key
