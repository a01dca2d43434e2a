"""Invalid replies: each is rejected with its own code, and the round completes with the others."""

import copy
import json
import pickle
import re
from collections.abc import Callable

import pytest
import torch

from fedrecall import METHODS, UserError
from fedrecall.core.client_report import ReportRequest
from fedrecall.core.dry_run import DryRun
from fedrecall.core.exchange import Diverged
from fedrecall.core.method import Method
from fedrecall.core.reply_validation import Reason, RejectedReply, ReplyValidator
from fedrecall.core.types import Reply
from fedrecall.simulation import SerialEngine
from fedrecall.testing.federation import model, simulated_clients
from support.malicious_client import Poison, run_with_attacker


def with_up(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Poison:
    return lambda r: r._replace(up={**r.up, name: change(r.up[name])})


def with_report(**report: torch.Tensor) -> Poison:
    return lambda r: r._replace(metrics={**r.metrics, **report})


def set_first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def put(t: torch.Tensor) -> torch.Tensor:
        t = t.clone()
        t.view(-1)[-1] = value
        return t

    return put


POISONED: dict[str, tuple[Poison, str, str]] = {  # the lie, the code of its reason, and a fact that the text must have
    "nan": (with_up("w", set_first(float("nan"))), "reply.not_finite", "w"),
    "infinity": (with_up("w", set_first(float("-inf"))), "reply.not_finite", "w"),
    "nan in the buffers": (with_up("b", set_first(float("nan"))), "reply.not_finite", "b"),
    "short": (with_up("w", lambda w: w[:-1]), "reply.wrong_shape", "w"),
    "folded": (with_up("w", lambda w: w[None]), "reply.wrong_shape", "torch.float32 [1, "),
    "another type": (with_up("w", lambda w: w.double()), "reply.wrong_shape", "torch.float64"),
    "another name": (
        lambda r: r._replace(up={"v": r.up["w"], "b": r.up["b"]}),
        "reply.missing_tensor",
        "counters, w",
    ),
    "one name more": (lambda r: r._replace(up={**r.up, "x": r.up["w"]}), "reply.unexpected_tensor", "x"),
    "nothing": (lambda r: r._replace(up={}), "reply.missing_tensor", "b, counters, w"),
    "huge": (with_up("w", lambda w: w + 1e30), "reply.norm_too_large", "w"),
    "no examples": (lambda r: r._replace(n=0), "reply.invalid_example_count", "from 1 to 9"),
    "fewer than none": (lambda r: r._replace(n=-5), "reply.invalid_example_count", "-5"),
    "absurdly many": (lambda r: r._replace(n=10**15), "reply.invalid_example_count", "1000000000000000"),
    "half an example": (lambda r: r._replace(n=2.5), "reply.invalid_example_count", "2.5"),
    "huge buffers": (with_up("b", lambda b: b + 1e30), "reply.norm_too_large", "b"),
    "huge counters": (with_up("counters", lambda c: c + 2**60), "reply.norm_too_large", "counters"),
    "a negative variance": (with_up("b", lambda b: -b - 1), "reply.invalid_value", "b"),
    "complex": (with_up("w", lambda w: w.to(torch.complex64)), "reply.wrong_shape", "torch.complex64"),
    "truth values": (with_up("w", lambda w: w > 0), "reply.wrong_shape", "torch.bool"),
    "empty": (with_up("w", lambda w: w[:0]), "reply.wrong_shape", "torch.float32 [0]"),
    "a line of its own": (
        lambda r: r._replace(up={**r.up, "x\ny": r.up["w"]}),
        "reply.unexpected_tensor",
        "x y",
    ),
    "a loss that is not finite": (with_report(loss=torch.tensor(torch.nan)), "reply.not_finite", "loss"),
    "a loss too many": (with_report(loss=torch.zeros(2)), "reply.wrong_shape", "torch.float32 [2]"),
    "a loss of another kind": (with_report(loss=torch.tensor(1)), "reply.wrong_shape", "torch.int64 []"),
    "news": (with_report(news=torch.zeros(10**6)), "reply.unexpected_tensor", "news"),
    "predictions of no class": (
        with_report(predicted=torch.full((15,), 10**12)),
        "reply.invalid_value",
        "predicted",
    ),
    "predictions of other examples": (
        with_report(predicted=torch.zeros(5, dtype=torch.int64)),
        "reply.wrong_shape",
        "predicted",
    ),
    "too right": (with_report(local_accuracy=torch.tensor(1.5)), "reply.invalid_value", "local_accuracy"),
    "another client's": (with_report(client=torch.tensor(1)), "reply.wrong_client", "client 1"),
    "a loss of twice the digits": (with_report(loss=torch.tensor(1.0).double()), "reply.wrong_shape", "torch.float64"),
    "an accuracy of twice the digits": (
        with_report(local_accuracy=torch.tensor(0.5).double()),
        "reply.wrong_shape",
        "local_accuracy",
    ),
    "a loss that would overflow a mean": (with_report(loss=torch.tensor(3e38)), "reply.invalid_value", "loss"),
    "features that were not requested": (
        with_report(features=torch.zeros(15, 8)),
        "reply.unexpected_tensor",
        "features",
    ),
    "a shift that is not finite": (
        with_report(shift=torch.full((2, 3), torch.nan).double()),
        "reply.not_finite",
        "shift",
    ),
    "a shift of more epochs": (with_report(shift=torch.zeros(10**5, 3).double()), "reply.wrong_shape", "shift"),
    "a share above 1": (with_report(own_data=torch.tensor([0.5, 1.5]).double()), "reply.invalid_value", "own_data"),
    "no report": (lambda r: r._replace(metrics={}), "reply.missing_tensor", "client"),
    "half a report": (
        lambda r: r._replace(metrics={k: t for k, t in r.metrics.items() if k != "predicted"}),
        "reply.missing_tensor",
        "predicted",
    ),
    "text with escapes": (
        lambda r: r._replace(up={**r.up, "\x1b[31mred\u202e": r.up["w"]}),
        "reply.unexpected_tensor",
        "[31mred",
    ),
    "a list in the place of a tensor": (
        lambda r: r._replace(up={**r.up, "w": [1.0]}),
        "reply.unreadable",
        "AttributeError",
    ),
}
EVERYTHING = ReportRequest(predictions=True, own_data=True, shift=True)


@pytest.mark.parametrize("case", POISONED)
def test_an_invalid_reply_is_rejected_and_counted_and_the_round_completes(case: str) -> None:
    poison, code, fact = POISONED[case]
    done = run_with_attacker(Method(), poison, report=EVERYTHING)
    expected = run_with_attacker(
        Method(), lambda r: r._replace(n=0)
    )  # the same client left out for the plainest of reasons
    for r in done:
        assert [(rejection.client, rejection.code) for rejection in r.rejected] == [(3, code)]
        assert re.search(rf"(^|\W){re.escape(fact)}", r.rejected[0].reason), r.rejected[0].reason
        assert r.rejected[0].reason.isprintable()
        assert len(r.rejected[0].reason) <= 1000
        assert r.replies == 4
        assert len(r.client_metrics) == 4
        assert len(r.clients) == 5
    assert torch.equal(done[-1].server.state, expected[-1].server.state), "nothing of it is left"


@pytest.mark.parametrize("name", METHODS)
def test_valid_replies_are_accepted_with_every_method(name: str) -> None:
    method = METHODS[name]()
    request = ReportRequest(predictions=True, own_data=True, shift=True, distillation=True, features=True, last=1)
    done = run_with_attacker(method, lambda r: r, least=5, report=request)
    assert [r.rejected for r in done] == [[], []]
    unguarded = run_with_attacker(method, lambda r: r, least=None, form=False)
    assert torch.equal(done[-1].server.state, unguarded[-1].server.state), "screening changes no bit"


@pytest.mark.parametrize("name", METHODS)
def test_an_invalid_value_in_any_tensor_of_a_method_is_rejected(name: str) -> None:
    def poison(r: Reply) -> Reply:
        return r._replace(up={k: set_first(float("nan"))(t) if t.is_floating_point() else t for k, t in r.up.items()})

    done = run_with_attacker(METHODS[name](), poison)
    assert all(r.replies == 4 and {rejection.client for rejection in r.rejected} == {3} for r in done)
    assert torch.isfinite(done[-1].server.state).all()


@pytest.mark.parametrize(
    ("name", "poison", "code", "fact"),
    [
        ("scaffold", with_up("dc", lambda t: t + 1e30), "reply.norm_too_large", "dc"),
        ("fedcurv", with_up("u", lambda t: t - 3e37), "reply.norm_too_large", "u"),
        ("fedproto", with_up("G", lambda t: t * 1e30), "reply.norm_too_large", "G"),
        ("fednova", with_up("a", lambda t: t * 0 + 1e-45), "reply.invalid_value", "a = "),
        ("fednova", with_up("a", lambda t: -t), "reply.invalid_value", "a = -"),
    ],
)
def test_other_tensors_than_weights_are_bounded_too(name: str, poison: Poison, code: str, fact: str) -> None:
    done = run_with_attacker(METHODS[name](), poison)
    for r in done:
        assert [(rejection.client, rejection.code) for rejection in r.rejected] == [(3, code)]
        assert re.search(rf"\b{re.escape(fact)}", r.rejected[0].reason), r.rejected[0].reason
    expected = run_with_attacker(METHODS[name](), lambda r: r._replace(n=0))
    assert torch.equal(done[-1].server.state, expected[-1].server.state)
    assert all(torch.equal(t, expected[-1].server.extra[k]) for k, t in done[-1].server.extra.items())


@pytest.mark.parametrize("counts", [[-1.0, 2.0, 0.0], [1e5, 0.0, 0.0]])
def test_counts_of_classes_are_of_the_examples(counts: list[float]) -> None:
    poison = with_up("counts", lambda _: torch.tensor(counts))
    reason = METHODS["fedproto"](weighting="size").validate_reply(poison(Reply({"counts": torch.ones(3)}, 3, {}, {})))
    assert isinstance(reason, Reason)
    assert reason.code == "reply.invalid_value"
    assert "counts" in reason
    assert "3 examples" in reason
    assert all(len(r.rejected) == 1 for r in run_with_attacker(METHODS["fedproto"](weighting="size"), poison))


def test_a_client_has_a_class_or_not() -> None:
    def poison(r: Reply) -> Reply:
        return r if "has" not in r.up else r._replace(up={**r.up, "has": r.up["has"] * 1e-40})

    done = run_with_attacker(METHODS["fedcsd"](), poison)
    assert [[(x.client, x.code) for x in r.rejected] for r in done] == [[(3, "reply.invalid_value")]] * 2
    assert all(re.search(r"\bhas\b", r.rejected[0].reason) for r in done)


def test_a_method_may_give_a_reason_without_a_code() -> None:
    class Wary(Method):
        def validate_reply(self, reply: Reply) -> str | None:
            return "too good to be true" if reply.client == 3 else None

    done = run_with_attacker(Wary(), lambda r: r)
    assert [[tuple(x) for x in r.rejected] for r in done] == [[(3, "too good to be true")]] * 2
    assert [[x.code for x in r.rejected] for r in done] == [["reply.rejected"]] * 2


def test_a_reason_is_copied_with_its_code_and_stored_as_its_text() -> None:
    reason = RejectedReply(3, Reason("reply.not_finite", "w is not finite"))
    assert copy.deepcopy(reason).code == reason.code == pickle.loads(pickle.dumps(reason)).code
    assert json.dumps(reason._asdict()) == '{"client": 3, "reason": "w is not finite"}'


def test_a_global_model_that_is_not_finite_ends_the_run_before_it_is_stored() -> None:
    class Overflows(Method):
        def aggregate(self, server, replies, cohort):
            return server.step(server.mean(replies)["w"] * 1e38 * 10)

    with pytest.raises(Diverged) as error:
        run_with_attacker(Overflows(), lambda r: r)
    assert (error.value.code, error.value.key) == ("round.diverged", "local.lr")
    assert "round 1" in str(error.value)
    assert "global model" in str(error.value)


def test_too_few_replies_are_a_user_error() -> None:
    with pytest.raises(UserError) as error:
        run_with_attacker(Method(), POISONED["nan"][0], least=5)
    assert (error.value.code, error.value.key) == ("round.too_few_replies", "engine.min_replies")
    for fact in ("round 1", "4 of the 5", "engine.min_replies = 5", "client 3", "reply.not_finite"):
        assert fact in str(error.value)
    assert "\n" not in str(error.value)


def test_without_min_replies_a_rejected_reply_ends_the_run() -> None:
    with pytest.raises(Diverged) as error:
        run_with_attacker(Method(), POISONED["nan"][0], least=None, form=False)
    assert (error.value.code, error.value.key) == ("reply.not_finite", "engine.min_replies")
    for fact in ("round 1", "client 3", "w is not finite", "local.lr"):
        assert fact in str(error.value)


@pytest.mark.parametrize("form", [True, False])
def test_a_method_may_send_fewer_digits(form: bool) -> None:
    class Half(Method):
        def reply(self, w, steps, r):
            return {"w": w.half()}, r.memory

        def aggregate(self, server, replies, cohort):
            return super().aggregate(server, (r._replace(up={"w": r.up["w"].float()}) for r in replies), cohort)

    assert [r.rejected for r in run_with_attacker(Half(), lambda r: r, least=5 if form else None, form=form)] == [
        [],
        [],
    ]


def test_a_configured_limit() -> None:
    f, w = model(), simulated_clients(Method())
    (expected,) = list(SerialEngine(w, f).cohort(0, [0]).run("train", {"w": f.w}))
    far = float((expected.up["w"] - f.w).norm())
    down = {"w": f.w}
    assert ReplyValidator(max_norm=1.01 * far).find_error(expected, "train", down, 0) is None
    reason = ReplyValidator(max_norm=0.99 * far).find_error(expected, "train", down, 0)
    assert reason is not None
    assert reason.code == "reply.norm_too_large"
    assert f"{far:.3g}" in reason
    assert f"{0.99 * far:.3g}" in reason


@pytest.mark.parametrize(("factor", "accepted"), [(0.9, True), (1.1, False)])
def test_the_default_limit_is_a_thousand_times_the_model(factor: float, accepted: bool) -> None:
    w = torch.tensor([3.0, 4.0])
    reply = Reply({"w": w + torch.tensor([6000.0, 0.0]) * factor}, 1, {}, {})
    assert (ReplyValidator(min_replies=1).find_error(reply, "train", {"w": w}, 0) is None) == accepted
    assert ReplyValidator().find_error(reply, "train", {"w": w}, 0) is None, (
        "where none may be missing, a wild run shows itself"
    )


def test_the_dry_run_is_made_once_and_changes_no_state() -> None:
    class Counted(Method):
        performed = 0

        def reply(self, w, steps, r):
            type(self).performed += 1
            return super().reply(w, steps, r)

    f = model()
    before, state = f.w.clone(), torch.get_rng_state()
    dry_run = DryRun(simulated_clients(Counted()), f)
    forms = [dry_run.expected_spec("train", {"w": f.w}, t) for t in range(3)]
    assert Counted.performed == 1
    number = (torch.float32, torch.Size([]))
    assert (
        forms[0]
        == forms[2]
        == ({"w": (torch.float32, f.w.shape)}, ({"steps": number, "loss": number}, {"steps": number}))
    )
    assert torch.equal(f.w, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_dry_run_refuses_a_method_that_writes_to_the_payload_and_gives_it_a_copy() -> None:
    class Vandal(Method):
        def reply(self, w, steps, r):
            r.w.zero_()
            return super().reply(w, steps, r)

    f = model()
    before = f.w.clone()
    with pytest.raises(UserError) as error:
        DryRun(simulated_clients(Vandal()), f).expected_spec("train", {"w": f.w}, 0)
    assert (error.value.code, error.value.key) == ("method.writes_to_payload", "method")
    assert torch.equal(f.w, before)
