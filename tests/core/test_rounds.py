import re
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from fedrecall.core.exchange import Diverged, Exchange, ReplyPolicy
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientSGD, ServerSGD
from fedrecall.core.preaggregation import Bucketing
from fedrecall.core.robust import AggregationRule, Krum
from fedrecall.core.rounds import RoundSchedule, run_rounds, sample_clients
from fedrecall.core.training import LocalTraining, train
from fedrecall.core.types import Reply, average_replies
from fedrecall.errors import UserError
from fedrecall.methods import METHODS
from support.tiny_federation import ListEngine, flat, local, server, vectors

CLIENTS = [vectors(20 + 9 * k, seed=k) for k in range(4)]
PLAN = RoundSchedule(rounds=3, population=4, sample=3, seed=0)


def make_engine(method: Method = Method(), *, clients=CLIENTS, lost=(), **kwargs) -> ListEngine:
    return ListEngine(method, flat(**kwargs), clients, lost=lost)


def final(method: Method, plan: RoundSchedule = PLAN, optimiser=ServerSGD(), **kwargs) -> Tensor:
    engine = make_engine(method, **kwargs)
    *_, last = run_rounds(method, server(engine.f, method, optimiser), engine, plan)
    return last.server.state


def test_sampling_depends_on_seed_and_round_only() -> None:
    plan = RoundSchedule(rounds=1, population=100, sample=10, seed=3)
    cohorts = [sample_clients(plan, t) for t in range(5)]
    assert cohorts == [sample_clients(replace(plan, rounds=9), t) for t in range(5)]
    assert len({tuple(c) for c in cohorts}) == 5
    assert all(len(set(c)) == 10 and c == sorted(c) for c in cohorts)
    assert sample_clients(replace(plan, seed=4), 0) != cohorts[0]
    assert sample_clients(replace(plan, sample=100), 0) == list(range(100))


def test_fedavg_is_the_mean_weighted_by_samples() -> None:
    engine = make_engine()
    first = next(iter(run_rounds(Method(), server(engine.f, Method()), engine, PLAN)))
    expected = torch.zeros_like(engine.f.w, dtype=torch.float64)
    total = sum(len(CLIENTS[k]) for k in first.clients)
    for k in first.clients:
        w = train(Method(), local(engine.f, CLIENTS[k], training=engine.training), 0, k).up["w"]
        expected += len(CLIENTS[k]) / total * w.double()
    torch.testing.assert_close(first.server.w.double(), expected, rtol=0, atol=1e-6)


def test_one_client_is_plain_sgd_to_the_bit() -> None:
    engine = make_engine(clients=CLIENTS[:1])
    plan = RoundSchedule(rounds=2, population=1, sample=1, seed=0)
    *_, last = run_rounds(Method(), server(engine.f, Method()), engine, plan)
    w = engine.f.w
    for t in range(2):
        w = train(Method(), local(engine.f, CLIENTS[0], training=engine.training, t=t, w=w), 0, 0).up["w"]
    assert torch.equal(last.server.w, w)


def test_strength_zero_is_fedavg_to_the_bit() -> None:
    assert torch.equal(final(METHODS["fedprox"](mu=0.0)), final(Method()))
    assert torch.equal(final(METHODS["fedavgm"](beta_s=0.0)), final(Method()))
    assert not torch.equal(final(METHODS["fedprox"](mu=0.1)), final(Method()))


def test_a_method_equals_the_corresponding_settings() -> None:
    proximal = ListEngine(Method(), flat(), CLIENTS, training=LocalTraining(2, 7, ClientSGD(0.1), prox=0.3))
    *_, last = run_rounds(Method(), server(proximal.f, Method()), proximal, PLAN)
    assert torch.equal(last.server.w, final(METHODS["fedprox"](mu=0.3)))
    for kwargs in ({}, {"damped": True}, {"nesterov": True}):
        setting = final(Method(), optimiser=ServerSGD(momentum=0.7, **kwargs))
        assert torch.equal(setting, final(METHODS["fedavgm"](beta_s=0.7, **kwargs)))


def test_buffers_are_averaged_by_samples_whatever_the_server_rule() -> None:
    engine = make_engine(batch_norm=True)
    for optimiser in (ServerSGD(), ServerSGD(lr=3.0, momentum=0.9)):
        first = next(iter(run_rounds(Method(), server(engine.f, Method(), optimiser), engine, PLAN)))
        replies = [train(Method(), local(engine.f, CLIENTS[k], training=engine.training), 0, k) for k in first.clients]
        total = sum(r.n for r in replies)
        expected = sum(r.n / total * r.up["b"] for r in replies)
        torch.testing.assert_close(first.server.b, expected)
        assert (first.server.b[8:] > 0).all(), "a variance"
        assert first.server.int_buffers.tolist() == [max(int(r.up["counters"]) for r in replies)]


def test_bytes_are_four_a_float() -> None:
    engine = make_engine()
    for done in run_rounds(Method(), server(engine.f, Method()), engine, PLAN):
        assert done.bytes_up == done.bytes_down == 4 * len(engine.f.w)
    with_buffers = make_engine(batch_norm=True)
    done = next(iter(run_rounds(Method(), server(with_buffers.f, Method()), with_buffers, PLAN)))
    assert done.bytes_up == done.bytes_down == 4 * (len(with_buffers.f.w) + 16) + 8  # and one integer counter


@dataclass(frozen=True)
class TwoExchanges(Method):
    def round(self, server, cohort):
        replies = list(cohort.run("train", {"w": server.w}))
        assert cohort.size == len(replies)
        return self.aggregate(server, cohort.run("train", {"w": server.w, "hint": server.w[:1]}), cohort)


def test_a_payload_is_sent_once_a_round() -> None:
    method = TwoExchanges()
    engine = make_engine(method)
    first, second, _ = run_rounds(method, server(engine.f, method), engine, PLAN)
    assert first.bytes_down == second.bytes_down == 4 * (len(engine.f.w) + 1)
    assert first.bytes_up == 2 * 4 * len(engine.f.w)


def test_lost_replies_are_not_averaged() -> None:
    plan = replace(PLAN, sample=4, rounds=1)
    lossy, engine = make_engine(lost=(1, 2)), make_engine()
    (done,) = run_rounds(Method(), server(lossy.f, Method()), lossy, plan)
    replies = [r for k, r in enumerate(engine.cohort(0, range(4)).run("train", {"w": engine.f.w})) if k in (0, 3)]
    assert torch.equal(done.server.w, average_replies(replies)["w"])
    exchange = Exchange(server(lossy.f, Method()), lossy.cohort(0, range(4)))
    assert exchange.size == 4
    list(exchange.run("train", {"w": lossy.f.w}))
    assert exchange.size == 2
    assert exchange.population == 4


@pytest.mark.parametrize("rule", [Krum(attackers=0), Bucketing(2)])
def test_the_size_is_the_number_of_accepted_replies_with_every_rule(rule: AggregationRule) -> None:
    engine = make_engine()
    policy = ReplyPolicy(rules=(rule,))
    exchange = Exchange(server(engine.f, Method()), engine.cohort(0, range(4)), policy)
    assert len(list(exchange.run("train", {"w": engine.f.w}))) < 4
    assert exchange.size == 4


def test_a_round_without_replies_is_a_user_error() -> None:
    engine = make_engine(lost=(0, 1, 2, 3))
    with pytest.raises(UserError) as error:
        next(iter(run_rounds(Method(), server(engine.f, Method()), engine, PLAN)))
    assert (error.value.code, error.value.key) == ("round.too_few_replies", "engine.min_replies")
    assert "round 1" in str(error.value)
    assert "none of the 3 clients" in str(error.value)


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    engine = ListEngine(Method(), flat(), CLIENTS, training=LocalTraining(2, 7, ClientSGD(1e20)))
    with pytest.raises(Diverged) as error:
        list(run_rounds(Method(), server(engine.f, Method()), engine, PLAN))
    assert (error.value.code, error.value.key) == ("round.diverged", "local.lr")
    assert re.match(r"round \d", str(error.value))


def test_evaluation_every_other_round_and_after_the_last() -> None:
    engine = make_engine()
    plan = replace(PLAN, rounds=5, evaluate_every=2)
    done = list(run_rounds(Method(), server(engine.f, Method()), engine, plan))
    assert [r.score is not None for r in done] == [False, True, False, True, True]
    assert [r.number for r in done] == [1, 2, 3, 4, 5]


def test_a_run_resumes_from_the_servers_round() -> None:
    engine = make_engine()
    done = list(run_rounds(Method(), server(engine.f, Method()), engine, PLAN))
    again = list(run_rounds(Method(), done[0].server, make_engine(), PLAN))
    assert [r.number for r in again] == [2, 3]
    assert torch.equal(again[-1].server.w, done[-1].server.w)


def reply(value: float, n: int) -> Reply:
    return Reply({"w": torch.tensor([float(value)])}, n, {}, {})


def test_mean() -> None:
    assert average_replies([reply(1, 100), reply(2, 300)])["w"].item() == pytest.approx(1.75)
    assert average_replies([reply(1, 100), reply(2, 300)], "uniform")["w"].item() == pytest.approx(1.5)
    odd = 0.1 + 1e-7
    assert average_replies([reply(odd, n) for n in (3, 7, 11)])["w"].item() == reply(odd, 1).up["w"].item(), (
        "equal ones, to the bit"
    )
    equal = [reply(v, 500) for v in (0.1, 0.7, -0.3)]
    assert torch.equal(average_replies(equal)["w"], average_replies(equal, "uniform")["w"])
