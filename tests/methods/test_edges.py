"""Edge cases: absent and lone classes, zero logits, lost replies, clients without a step."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall import METHODS
from fedrecall.core.method import Method
from fedrecall.core.optim import ClientSGD
from fedrecall.core.training import LocalTraining
from fedrecall.core.types import Local, Output, Step
from support import reference as ref
from support.method_bench import client, make_clients, make_step, network, run_cohorts
from support.tiny_federation import Vectors

Z = torch.tensor([[1, 2, 0.5, -1], [0.2, -0.3, 1.5, 0]], dtype=torch.float64)
ZG = torch.tensor([[0.5, 3, 1.5, -0.5], [1, 0, -0.5, -1]], dtype=torch.float64)
Y = torch.tensor([1, 2])


def added(
    name: str, hyper: dict, z: Tensor = Z, zg: Tensor = ZG, y: Tensor = Y, **fields: object
) -> tuple[float, Tensor]:
    z = z.clone().requires_grad_()
    frozen = {} if name == "fedlmd-tf" else {"global": zg, "teacher": zg}
    term = METHODS[name](**hyper).loss(make_step(z, y, frozen), client(y, z.shape[1], **fields)) - F.cross_entropy(z, y)
    return float(term.detach()), torch.autograd.grad(term, z)[0]


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", ["fedlmd", "fedlmd-tf"])
def test_a_sample_of_the_only_minority_class_adds_nothing(name: str, tau: float) -> None:
    """Holds for a temperature below one, too."""
    counts = torch.tensor([5, 5, 1, 5])
    value, slope = added(name, {"tau": tau}, counts=counts)
    expected = ref.fedlmd(Z, None if name == "fedlmd-tf" else ZG, Y, {0, 1, 3}, 1.0, tau, parts=True)
    assert value == pytest.approx(tau**2 * float(expected[0]) / 2)
    assert not slope[1].any()
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize("mask", ["not-true", "minority"])
@pytest.mark.parametrize("divergence", ["kl", "ce"])
def test_the_grid_adds_nothing_there_either(mask: str, divergence: str) -> None:
    for tau in (0.5, 1.0, 2.0):
        hyper = {"mask": mask, "divergence": divergence, "tau": tau}
        slope = added("grid", hyper, counts=torch.tensor([5, 5, 1, 5]))[1]
        assert torch.isfinite(slope).all()
        assert mask == "not-true" or not slope[1].any()


def test_one_kept_class_costs_minus_the_log_of_the_students_masked_probability() -> None:
    value, _ = added("fedlmd", {}, Z[:1], ZG[:1], Y[:1], counts=torch.tensor([5, 1, 1, 5]))  # y = 1: class 2 is left
    p = [math.exp(v) for v in Z[0]]
    assert value == pytest.approx(-math.log(p[2] / (p[0] + p[2] + p[3])))


@pytest.mark.parametrize("name", ["fedntd", "fedlmd", "fedlmd-tf"])
def test_a_single_class_has_nothing_to_distil(name: str) -> None:
    z = torch.tensor([[0.3], [2.0]], dtype=torch.float64)
    for tau in (0.5, 1.0):
        value, slope = added(name, {"tau": tau}, z, -z, torch.tensor([0, 0]))
        assert value == 0
        assert not slope.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["fedntd", "fedlmd", "fedlmd-tf"])
def test_masks_are_safe_in_half_precision(name: str, dtype: torch.dtype) -> None:
    value, slope = added(name, {}, Z.to(dtype), ZG.to(dtype), counts=torch.tensor([1, 6, 1, 6]))
    expected, _ = added(name, {}, counts=torch.tensor([1, 6, 1, 6]))
    assert value == pytest.approx(expected, rel=0.05)
    assert torch.isfinite(slope).all()


def test_a_balanced_client_has_no_majority_and_a_tie_is_none() -> None:
    for counts in ([2, 2, 2, 2], [1, 1, 1, 1]):
        assert added("fedlmd", {}, counts=torch.tensor(counts))[0] == pytest.approx(added("fedntd", {})[0], rel=1e-14)
    strict = added("fedlmd", {}, counts=torch.tensor([2, 4, 2, 0]))  # class 0 and 2 lie at the mean exactly
    assert strict[0] == pytest.approx(float(ref.mean(ref.fedlmd(Z, ZG, Y, {1}, 1, 1, parts=True))))


@pytest.mark.parametrize("through", [False, True])
def test_fedcsd_with_zero_logits_and_zero_rows(through: bool) -> None:
    P = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0], [1, 0, 0, 0], [0, -1, 0, 0]], dtype=torch.float64)
    hyper = {"mu": 1.0, "tau": 2.0, "use_mask": "none", "grad_through_target": through}
    z = torch.stack([Z[0], torch.zeros(4, dtype=torch.float64)])
    value, slope = added("fedcsd", hyper, z, down={"P": P})
    form = ref.kl if through else ref.soft_ce
    targets = [
        ref.softmax(torch.stack([d * v for d, v in zip(ref.fedcsd_dhat(z[i], P)[1], ZG[i], strict=True)]), 2.0)
        for i in (0, 1)
    ]
    assert value == pytest.approx(float(4 * sum(form(z[i], targets[i], 2.0) for i in (0, 1)) / 2))
    assert torch.isfinite(slope).all()


def test_fedcsd_mask_is_strict() -> None:
    uniform = torch.zeros(2, 4, dtype=torch.float64)
    assert added("fedcsd", {"mu": 1.0, "use_similarity": False}, zg=uniform)[0] == 0


def test_fedcad_without_evidence_trusts_least() -> None:
    method = METHODS["fedcad"](beta=0.2, gamma=0.8, estimate="local")
    r = client(Y, 4)
    alpha = method.prepare(r, lambda name: Output(ZG, ZG))["alpha"]
    assert alpha[[0, 3]].tolist() == [0.2, 0.2]
    assert alpha.tolist() == pytest.approx(ref.fedcad_alpha(ZG, Y, 4, 0.2, 0.8, 2.0), abs=1e-14)


def only_two_classes() -> Vectors:
    return make_clients([(3, 0, 4)])[0]


def test_classes_without_an_auxiliary_sample() -> None:
    server = run_cohorts(METHODS["fedcad"](beta=0.2, gamma=0.8), aux=only_two_classes(), cohorts=[[0]])[0].before
    alpha = METHODS["fedcad"](beta=0.2, gamma=0.8).broadcast(server)["alpha"]
    assert alpha[1] == 0.2
    assert (alpha[[0, 2]] > 0.2).all()
    for matrix in ("hard", "soft"):
        A = METHODS["fedssd"](matrix=matrix).broadcast(server)["A"]
        z = server.f.outputs(server.w, only_two_classes()).z
        expected = ref.fedssd_matrix(z, only_two_classes().y, 3, soft=matrix == "soft")
        torch.testing.assert_close(A, torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=1e-15)
        assert not A[1].any()
        assert ref.fedssd_class(A.tolist())[1] == 0


def test_fedssd_of_a_network_that_predicts_one_class_or_is_certain() -> None:
    A = torch.zeros(4, 4, dtype=torch.float64)
    A[:, 2] = 1
    assert added("fedssd", {"m_max": 1.0, "weighting": "linear"}, down={"A": A})[0] == 0
    certain = torch.tensor([[-900, 900, 0, 0], [0, 0, 900, -900]], dtype=torch.float64)
    value, slope = added("fedssd", {"m_max": 1.0}, zg=certain, down={"A": torch.eye(4, dtype=torch.float64)})
    assert math.isfinite(value)
    assert torch.isfinite(slope).all()


def test_fedrs_without_a_missing_class_is_cross_entropy() -> None:
    assert added("fedrs", {"alpha": 0.5}, counts=torch.tensor([1, 2, 3, 4]))[0] == 0


# --- prototypes ------------------------------------------------------------------------------


def test_a_prototype_of_zeros_is_a_prototype() -> None:
    """SPEC 2.9 has a presence flag per class: a mean of zeros is a prototype."""
    data = make_clients([(3, 2, 0), (2, 3, 0)])
    net = network()
    zero_features = data[1]
    zero_features.x[zero_features.y == 0] = 0
    with torch.no_grad():
        net.a.bias.fill_(-0.5)  # the input 0 has no active feature, the others have
    still = METHODS["fedproto"]()

    played = run_cohorts(
        still, net=net, clients=data, cohorts=[[0, 1]], training=LocalTraining(1, 10, ClientSGD(lr=0.0))
    )[0]
    h = [played.server.f.outputs(played.server.w, d).h for d in data]
    means = [h[k][data[k].y == 0].mean(0) for k in (0, 1)]
    assert means[0].any()
    assert not means[1].any()
    torch.testing.assert_close(played.server.extra["G"][0], (means[0] + means[1]) / 2)


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_fedproto_last_epoch_averages_what_it_saw(weighting: str) -> None:
    """With batch norm a batch of one is skipped: means are over the evaluated features, other classes send none."""
    data = make_clients([(5, 0, 0), (3, 0, 2)])
    for d in data:
        d.x[:] = d.x[0]  # equal samples normalise to 0, so every feature seen is the batch norm's bias
    net = network(batch_norm=True)
    bias = torch.linspace(0.1, 0.8, 8, dtype=torch.float64)
    net.norm.bias.data.copy_(bias)
    method = METHODS["fedproto"](collect="last_epoch", weighting=weighting)
    for t in range(6):  # in some of these rounds client 1's lone fifth sample is of the second class
        training = LocalTraining(1, 4, ClientSGD(lr=0.0))
        played = run_cohorts(method, net=net, clients=data, cohorts=[[0]] * t + [[0, 1]], training=training)[-1]
        for row in played.server.extra["G"][[0, 2]]:
            torch.testing.assert_close(row, bias)


def test_fedproto_last_epoch_of_a_class_that_was_not_seen() -> None:
    data = make_clients([(4, 0, 1), (0, 0, 4)])
    for d in data:
        d.x[:] = d.x[0]
    net = network(batch_norm=True)
    net.norm.bias.data.fill_(0.5)
    training, skipped = LocalTraining(1, 4, ClientSGD(lr=0.0)), []
    for weighting in ("uniform", "size"):
        method = METHODS["fedproto"](collect="last_epoch", weighting=weighting)
        for t in range(12):
            played = run_cohorts(method, net=net, clients=data, cohorts=[[1]] * t + [[0, 1]], training=training)[-1]
            skipped.append(not played.replies[0].up["G"][2].any())  # client 0's only sample of the class was skipped
            torch.testing.assert_close(played.server.extra["G"][2], torch.full((8,), 0.5, dtype=torch.float64))
    assert any(skipped)


# --- clients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_client_without_a_step_leaves_the_model_as_it_was(name: str) -> None:
    """One sample with batch norm makes no step; FedDF's server would make some of its own."""
    method = METHODS[name](steps=0) if name == "feddf" else METHODS[name]()
    played = run_cohorts(
        method, net=network(batch_norm=True), clients=make_clients([(1, 0, 0)]), cohorts=[[0]], aux=AUX
    )[0]
    assert torch.equal(played.server.state, played.before.state)


AUX = make_clients([(2, 2, 2)])[0]
MIXED = ((3, 2, 1), (1, 0, 0), (0, 2, 2))


def test_clients_without_a_step_in_stateful_methods() -> None:
    kwargs = {"net": network(batch_norm=True), "clients": make_clients(MIXED), "cohorts": [[0, 1, 2], [0, 1]]}
    scaffold = run_cohorts(METHODS["scaffold"](), **kwargs)
    assert not scaffold[-1].client_states[1]["c"].any()
    assert scaffold[-1].client_states[0]["c"].any()
    feddyn = run_cohorts(METHODS["feddyn"](), **kwargs)
    assert not feddyn[0].client_states[1]["g"].any()
    nova = run_cohorts(METHODS["fednova"](), **(kwargs | {"cohorts": [[0, 1]]}))[0]
    alone = run_cohorts(METHODS["fednova"](), **(kwargs | {"cohorts": [[0]]}))[0]
    torch.testing.assert_close(nova.server.w, alone.server.w, rtol=1e-12, atol=1e-14)  # the client drops out
    b = (6 * alone.server.b + 1 * alone.before.b) / 7  # but its buffers are FedAvg's
    torch.testing.assert_close(nova.server.b, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedcurv", "moon"])
def test_a_client_that_is_not_sampled_or_lost_keeps_its_state(name: str) -> None:
    rounds = run_cohorts(METHODS[name](), cohorts=[[0, 1, 2], [1, 3], [0, 1]], lost={2: {1}})
    first, second, third = (r.client_states for r in rounds)
    assert set(first) == {0, 1, 2}
    assert set(second) == {0, 1, 2, 3}
    for k in (0, 2):
        assert all(torch.equal(first[k][n], second[k][n]) for n in first[k])
    assert all(torch.equal(second[1][n], third[1][n]) for n in second[1])  # its reply was lost
    assert any(not torch.equal(second[0][n], third[0][n]) for n in second[0])


def test_fedcurv_of_a_single_client_has_no_penalty() -> None:
    rounds = [[0]] * 3
    curved, plain = (run_cohorts(METHODS[n](), cohorts=rounds)[-1].server.w for n in ("fedcurv", "fedavg"))
    torch.testing.assert_close(curved, plain, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", METHODS)
def test_one_class_each(name: str) -> None:
    rounds = run_cohorts(
        METHODS[name](), clients=make_clients([(3, 0, 0), (0, 0, 4)]), cohorts=[[0, 1], [1], [0, 1]], aux=AUX
    )
    assert torch.isfinite(rounds[-1].server.w).all()


def test_with_batch_statistics_the_teacher_is_evaluated_on_the_students_batch() -> None:
    """SPEC 1.2 and 1.4: with batch statistics teacher and student have equal outputs at the first step."""
    net = network()
    net.norm = torch.nn.BatchNorm1d(8, track_running_stats=False).double()
    gaps: list[float] = []

    @dataclass(frozen=True)
    class Listener(Method):
        def frozen(self, r: Local) -> dict[str, Tensor]:
            return {"global": r.w}

        def loss(self, s: Step, r: Local) -> Tensor:
            gaps.append(float((s.z - s.frozen["global"].z).detach().abs().max()))
            return F.cross_entropy(s.z, s.y)

    run_cohorts(Listener(), net=net, cohorts=[[0]], training=LocalTraining(1, 4, ClientSGD(lr=0.0)))
    assert len(gaps) == 2
    assert max(gaps) < 1e-12
