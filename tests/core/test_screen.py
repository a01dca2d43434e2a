"""Replies that no honest client sends: each is refused for its own reason, and the round goes on with the others."""

import re
from collections.abc import Callable

import pytest
import torch

from fedrecall import METHODS, UserError
from fedrecall.core.exchange import Diverged
from fedrecall.core.method import Method
from fedrecall.core.screen import Screen
from fedrecall.core.types import Reply
from fedrecall.engines import Serial
from fedrecall.engines.rehearsal import Rehearsal
from fedrecall.testing.federation import model, world
from support.lying import Lie, go


def with_up(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Lie:
    return lambda r: r._replace(up={**r.up, name: change(r.up[name])})


def with_report(**said: torch.Tensor) -> Lie:
    return lambda r: r._replace(report={**r.report, **said})


def one(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def put(t: torch.Tensor) -> torch.Tensor:
        t = t.clone()
        t.view(-1)[-1] = value
        return t

    return put


LIES: dict[str, tuple[Lie, str]] = {
    "nan": (with_up("w", one(float("nan"))), "its w is not finite"),
    "infinity": (with_up("w", one(float("-inf"))), "its w is not finite"),
    "nan in the buffers": (with_up("b", one(float("nan"))), "its b is not finite"),
    "short": (with_up("w", lambda w: w[:-1]), r"its w is torch.float32 \[\d+\], not torch.float32 \[\d+\]"),
    "folded": (with_up("w", lambda w: w[None]), r"its w is torch.float32 \[1, \d+\]"),
    "another type": (with_up("w", lambda w: w.double()), "its w is torch.float64"),
    "another name": (lambda r: r._replace(up={"v": r.up["w"], "b": r.up["b"]}), "it lacks counters, w"),
    "one name more": (lambda r: r._replace(up={**r.up, "x": r.up["w"]}), "it carries x, which nobody asked for"),
    "nothing": (lambda r: r._replace(up={}), "it lacks b, counters, w"),
    "huge": (with_up("w", lambda w: w + 1e30), r"its update has norm \d\.\d+e\+\d+, above"),
    "no examples": (lambda r: r._replace(n=0), "it says that it has 0 examples, which is not from 1 to 9"),
    "fewer than none": (lambda r: r._replace(n=-5), "it says that it has -5 examples"),
    "absurdly many": (lambda r: r._replace(n=10**15), "it says that it has 1000000000000000 examples"),
    "half an example": (lambda r: r._replace(n=2.5), r"it says that it has 2\.5 examples"),
    "huge buffers": (with_up("b", lambda b: b + 1e30), r"its b has norm \S+, above"),
    "huge counters": (with_up("counters", lambda c: c + 2**60), r"its counters has norm \S+, above"),
    "a negative variance": (with_up("b", lambda b: -b - 1), "its b has a negative variance"),
    "complex": (with_up("w", lambda w: w.to(torch.complex64)), "its w is torch.complex64"),
    "truth values": (with_up("w", lambda w: w > 0), "its w is torch.bool"),
    "empty": (with_up("w", lambda w: w[:0]), r"its w is torch.float32 \[0\]"),
    "a line of its own": (lambda r: r._replace(up={**r.up, "x\ny": r.up["w"]}), "it carries x y, which nobody"),
    "a loss that is not finite": (with_report(loss=torch.tensor(torch.nan)), "its training loss is not finite"),
    "a loss too many": (with_report(loss=torch.zeros(2)), r"its report of loss is torch.float32 \[2\]"),
    "a loss of another kind": (with_report(loss=torch.tensor(1)), r"its report of loss is torch.int64 \[\]"),
    "news": (with_report(news=torch.zeros(10**6)), "it reports news, which nobody asked for"),
    "predictions of no class": (
        with_report(predicted=torch.full((12,), 10**12)),
        "its report of predicted is not of the test set",
    ),
    "predictions of other examples": (
        with_report(predicted=torch.zeros(5, dtype=torch.int64)),
        "its report of predicted is not of the test set",
    ),
    "too right": (with_report(local_accuracy=torch.tensor(1.5)), "its report of local_accuracy is no share"),
    "another client's": (with_report(client=torch.tensor(1)), "its report is of client 1"),
}


@pytest.mark.parametrize("case", LIES)
def test_a_lie_is_refused_counted_and_survived(case: str) -> None:
    lie, reason = LIES[case]
    done = go(Method(), lie)
    honest = go(Method(), lambda r: r._replace(n=0))  # the same client left out for the plainest of reasons
    for r in done:
        assert [refusal.client for refusal in r.refused] == [3]
        assert re.match(reason, r.refused[0].reason), r.refused[0].reason
        assert r.replies == 4
        assert len(r.reports) == 4
        assert len(r.clients) == 5
    assert torch.equal(done[-1].server.state, honest[-1].server.state), "nothing of it is left"


@pytest.mark.parametrize("name", METHODS)
def test_honest_replies_pass_with_every_method(name: str) -> None:
    method = METHODS[name]()
    done = go(method, lambda r: r, least=5)
    assert [r.refused for r in done] == [[], []]
    unguarded = go(method, lambda r: r, least=None, form=False)
    assert torch.equal(done[-1].server.state, unguarded[-1].server.state), "screening changes no bit"


@pytest.mark.parametrize("name", METHODS)
def test_a_lie_in_whatever_a_method_sends_is_refused(name: str) -> None:
    def lie(r: Reply) -> Reply:
        return r._replace(up={k: one(float("nan"))(t) if t.is_floating_point() else t for k, t in r.up.items()})

    done = go(METHODS[name](), lie)
    assert all(r.replies == 4 and {refusal.client for refusal in r.refused} == {3} for r in done)
    assert torch.isfinite(done[-1].server.state).all()


@pytest.mark.parametrize(
    ("name", "lie", "reason"),
    [
        ("scaffold", with_up("dc", lambda t: t + 1e30), "its dc has norm"),
        ("fedcurv", with_up("u", lambda t: t - 3e37), "its u has norm"),
        ("fedproto", with_up("G", lambda t: t * 1e30), "its G has norm"),
        ("fednova", with_up("a", lambda t: t * 0 + 1e-45), r"its a is \S+, which no number of steps gives"),
        ("fednova", with_up("a", lambda t: -t), r"its a is -\S+, which no number of steps gives"),
    ],
)
def test_beside_the_weights_lies_are_bounded_too(name: str, lie: Lie, reason: str) -> None:
    done = go(METHODS[name](), lie)
    for r in done:
        assert [refusal.client for refusal in r.refused] == [3]
        assert re.match(reason, r.refused[0].reason), r.refused[0].reason
    expected = go(METHODS[name](), lambda r: r._replace(n=0))
    assert torch.equal(done[-1].server.state, expected[-1].server.state)
    assert all(torch.equal(t, expected[-1].server.extra[k]) for k, t in done[-1].server.extra.items())


@pytest.mark.parametrize("counts", [[-1.0, 2.0, 0.0], [1e5, 0.0, 0.0]])
def test_counts_of_classes_are_of_the_examples(counts: list[float]) -> None:
    lie = with_up("counts", lambda _: torch.tensor(counts))
    reason = METHODS["fedproto"](weighting="size").doubt(lie(Reply({"counts": torch.ones(3)}, 3, {}, {})))
    assert reason == "its counts of examples are not of 3 examples"
    assert all(len(r.refused) == 1 for r in go(METHODS["fedproto"](weighting="size"), lie))


def test_a_client_has_a_class_or_not() -> None:
    def lie(r: Reply) -> Reply:
        return r if "has" not in r.up else r._replace(up={**r.up, "has": r.up["has"] * 1e-40})

    assert [[x.reason for x in r.refused] for r in go(METHODS["fedcsd"](), lie)] == [
        ["its has is not of zeros and ones"]
    ] * 2


def test_a_global_model_that_is_not_finite_ends_the_run_before_it_is_kept() -> None:
    class Overflows(Method):
        def merge(self, server, replies, cohort):
            return server.step(server.mean(replies)["w"] * 1e38 * 10)

    with pytest.raises(Diverged, match=r"^round 1: the global model is not finite"):
        go(Overflows(), lambda r: r)


def test_too_few_replies_are_one_clear_line() -> None:
    with pytest.raises(
        UserError, match=r"^round 1: 4 of the 5 clients replied; engine\.min_replies = 5; 1 were refused, .*not finite"
    ):
        go(Method(), LIES["nan"][0], least=5)


def test_where_none_may_be_missing_the_run_stops_and_says_why() -> None:
    with pytest.raises(Diverged, match=r"^round 1: the reply of client 3 is refused: its w is not finite; .*local\.lr"):
        go(Method(), LIES["nan"][0], least=None, form=False)


@pytest.mark.parametrize("form", [True, False])
def test_a_method_may_send_fewer_digits(form: bool) -> None:
    class Half(Method):
        def reply(self, w, steps, r):
            return {"w": w.half()}, r.memory

        def merge(self, server, replies, cohort):
            return super().merge(server, (r._replace(up={"w": r.up["w"].float()}) for r in replies), cohort)

    assert [r.refused for r in go(Half(), lambda r: r, least=5 if form else None, form=form)] == [[], []]


def test_a_limit_of_ones_own() -> None:
    f, w = model(), world(Method())
    (honest,) = list(Serial(w, f).cohort(0, [0]).run("train", {"w": f.w}))
    far = float((honest.up["w"] - f.w).norm())
    down = {"w": f.w}
    assert Screen(max_norm=1.01 * far).why_not(honest, "train", down) is None
    assert "above" in str(Screen(max_norm=0.99 * far).why_not(honest, "train", down))


@pytest.mark.parametrize(("factor", "taken"), [(0.9, True), (1.1, False)])
def test_without_one_the_limit_is_a_thousand_times_the_model(factor: float, taken: bool) -> None:
    w = torch.tensor([3.0, 4.0])
    reply = Reply({"w": w + torch.tensor([6000.0, 0.0]) * factor}, 1, {}, {})
    assert (Screen(min_replies=1).why_not(reply, "train", {"w": w}) is None) == taken
    assert Screen().why_not(reply, "train", {"w": w}) is None, "where none may be missing, a wild run shows itself"


def test_the_rehearsal_is_performed_once_and_leaves_no_trace() -> None:
    class Counted(Method):
        performed = 0

        def reply(self, w, steps, r):
            type(self).performed += 1
            r.w.zero_()  # a method that vandalises what came down harms only its copy
            return super().reply(w, steps, r)

    f = model()
    before, state = f.w.clone(), torch.get_rng_state()
    rehearsal = Rehearsal(world(Counted()), f)
    forms = [rehearsal.form("train", {"w": f.w}) for _ in range(3)]
    assert Counted.performed == 1
    assert forms[0] == forms[2] == {"w": (torch.float32, f.w.shape)}
    assert torch.equal(f.w, before)
    assert torch.equal(torch.get_rng_state(), state)
