"""Aggregation rules applied to the replies before the method receives them."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean

from fedrecall import UserError
from fedrecall.core import robust
from fedrecall.core.exchange import Exchange, ReplyPolicy
from fedrecall.core.method import Method
from fedrecall.core.robust import AggregationRule, Clip, ExchangeInfo, Krum, Median, TrimmedMean
from fedrecall.core.types import Reply, average_replies
from support.tiny_federation import ListEngine, flat, server, vectors

W = torch.zeros(3)


def replies(rows: Sequence[Sequence[float]], **more: Sequence[float]) -> list[Reply]:
    tensors = torch.tensor(rows, dtype=torch.float32)
    beside = [{name: torch.tensor(values[i]) for name, values in more.items()} for i in range(len(rows))]
    return [Reply({"w": w, **beside[i]}, 10**i, {}, {}, i) for i, w in enumerate(tensors)]


def apply_rule(rule: AggregationRule, received: list[Reply], w: torch.Tensor = W) -> list[Reply]:
    return list(rule.apply(iter(received), ExchangeInfo("train", {"w": w}, len(received), 0)))


ROWS = st.integers(1, 9).flatmap(
    lambda n: st.lists(st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3), min_size=n, max_size=n)
)


@settings(deadline=None, max_examples=50)
@given(ROWS, st.floats(0, 0.49))
def test_centres_match_the_definitions(rows: list[list[float]], share: float) -> None:
    received = replies(rows)
    median, trimmed = apply_rule(Median(), received), apply_rule(TrimmedMean(share), received)
    assert len(median) == len(trimmed) == len(received)
    np.testing.assert_allclose(average_replies(median)["w"], np.median(np.float32(rows), 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(average_replies(trimmed)["w"], trim_mean(np.float32(rows), share), rtol=1e-4, atol=1e-4)
    assert [r.client for r in median] == [r.client for r in received]


def test_any_weighting_of_equal_replies_is_the_centre_to_the_bit() -> None:
    out = apply_rule(Median(), replies([[0.1, 7, -3], [0.3, 1, 2], [0.7, 5, 1], [0.2, 2, 2]]))
    assert torch.equal(average_replies(out)["w"], average_replies(out, "uniform")["w"])
    assert torch.equal(average_replies(out)["w"], out[0].up["w"])


def test_long_vectors_are_sorted_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    received = [
        Reply({"w": torch.randn(7, 3, generator=torch.Generator().manual_seed(i))}, 1, {}, {}) for i in range(5)
    ]
    at_once = apply_rule(TrimmedMean(0.2), received)[0].up["w"]
    monkeypatch.setattr(robust, "SORT_CHUNK", 4)
    assert torch.equal(apply_rule(TrimmedMean(0.2), received)[0].up["w"], at_once)
    assert at_once.shape == (7, 3)


def test_other_tensors_of_a_reply_are_centred_too_and_integers_stay_integers() -> None:
    (first, *_) = apply_rule(
        Median(), replies([[1.0] * 3, [2.0] * 3, [9.0] * 3], c=[1.0, 5.0, 100.0], counters=[4, 4, 10**9])
    )
    assert first.up["c"] == 5
    assert first.up["counters"] == 4
    assert first.up["counters"].dtype == torch.int64


def test_clipping() -> None:
    w = torch.tensor([1.0, 1.0, 1.0])
    short, long = apply_rule(Clip(5.0), replies([[1, 1, 2], [31, 41, 1]]), w)
    assert torch.equal(short.up["w"], torch.tensor([1.0, 1.0, 2.0])), "a short update stays, to the bit"
    torch.testing.assert_close(long.up["w"], torch.tensor([4.0, 5.0, 1.0]))
    by_median = apply_rule(Clip(), replies([[1, 1, 2], [1, 1, 4], [1, 1, 1001]]), w)
    torch.testing.assert_close(by_median[2].up["w"], torch.tensor([1.0, 1.0, 4.0]))
    no_update = replies([[0, 0, 0]])
    assert torch.equal(apply_rule(Clip(1.0), no_update)[0].up["w"], W)


def test_krum_by_hand() -> None:
    """Five on a line at 0, 1, 2, 4 and 100, f = 1: scores are sums over the two nearest, 5, 2, 5, 13, ..."""
    received = replies([[x, 0, 0] for x in (0, 1, 2, 4, 100)])
    assert [r.client for r in apply_rule(Krum(attackers=1), received)] == [1]
    assert [r.client for r in apply_rule(Krum(attackers=1, keep=2), received)] == [0, 1]
    for rule, some, needed in ((Krum(attackers=1), received[:4], 5), (Krum(attackers=1, keep=4), received, 7)):
        with pytest.raises(UserError) as error:
            apply_rule(rule, some)
        assert (error.value.code, error.value.key) == ("robust.too_few_replies", "server.robust")
        assert f"{needed} replies" in str(error.value)
        assert f"{len(some)} were" in str(error.value)


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda: TrimmedMean(0.5), "share", "0.5"),
        (lambda: Clip(0.0), "norm", "0.0"),
        (lambda: Clip(float("nan")), "norm", "nan"),
        (lambda: Krum(-1), "attackers", "-1"),
        (lambda: Krum(1, 0), "keep", "0"),
    ],
)
def test_invalid_settings_are_errors(make, name: str, value: str) -> None:
    with pytest.raises(UserError) as error:
        make()
    assert (error.value.code, error.value.key) == ("config.invalid_value", f"server.robust.{name}")
    assert f"server.robust.{name} = {value}" in str(error.value)


MALICIOUS_VALUES = {"far": 1e6, "near": 3.0}


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.25), Krum(2), Krum(2, 3)])
@pytest.mark.parametrize("distance", MALICIOUS_VALUES)
def test_two_attackers_of_eight_cannot_move_the_centre_out_of_the_benign_range(
    rule: AggregationRule, distance: str
) -> None:
    benign = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    received = [
        Reply({"w": w}, 1, {}, {}, i)
        for i, w in enumerate([*benign, *(torch.full((2, 5), MALICIOUS_VALUES[distance]))])
    ]
    out = average_replies(apply_rule(rule, received, torch.zeros(5)), "uniform")["w"]
    assert (out >= benign.min(0).values).all()
    assert (out <= benign.max(0).values).all()
    assert not (average_replies(received, "uniform")["w"] <= benign.max(0).values).all(), "the plain mean does"


def test_the_method_receives_as_many_replies_as_the_rule_selects() -> None:
    engine = ListEngine(Method(), flat(batch_norm=True), [vectors(20, seed=k) for k in range(6)])
    exchange = Exchange(server(engine.f, Method()), engine.cohort(0, range(6)), ReplyPolicy(rules=(Krum(1, keep=2),)))
    selected = list(exchange.run("train", {"w": engine.f.w}))
    assert len(selected) == 2
    assert exchange.size == exchange.replies == len(exchange.reports) == 6, "clients whose replies were accepted"
    assert all(set(r.up) == {"w"} for r in selected), "buffers are the core's"
    settled = exchange.with_averaged_buffers(server(engine.f, Method()))
    assert not torch.equal(settled.b, engine.f.b)
