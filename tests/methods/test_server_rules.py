"""Complete runs of methods with state across rounds, compared with plain re-implementations, in float64.

Four rounds with partial participation: clients come, stay away and come back; some replies are lost. Every round's
weights, buffers and server state are compared, and the clients' client_states at the end.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from fedrecall import METHODS
from fedrecall.core.optim import ClientAdam, ClientSGD, ServerSGD
from fedrecall.core.schedules import Decay
from fedrecall.core.training import LocalTraining
from fedrecall.core.types import Reply, Server
from support import reference as ref
from support import reference_rivals as rivals
from support import reference_rounds as rounds
from support import reference_teachers as teachers
from support.method_bench import COHORTS, RoundOutcome, make_clients, network, run_cohorts
from support.reference_rounds import Plain, State

Lost = Mapping[int, Collection[int]]
NORMS = pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "batch norm"])
ALL_REPLY: Lost = {}
TROUBLE = pytest.mark.parametrize(
    ("batch_norm", "lost"), [(False, ALL_REPLY), (True, {0: {1}, 2: {0}})], ids=["plain", "batch norm, replies lost"]
)
AUX = make_clients([(3, 2, 4)])[0]


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


def run_both(
    name: str,
    hyper: dict,
    expected: Callable[[Plain], list[State]],
    *,
    batch_norm: bool = False,
    lost: Lost = ALL_REPLY,
    rho: float = 0.9,
    prox: float = 0.0,
    decay: float = 1.0,
    adam: ClientAdam | None = None,
    cohorts: Sequence[Sequence[int]] = COHORTS,
    **rules: object,
) -> list[tuple[RoundOutcome, State]]:
    """Run both, compare weights and buffers of every round, and return both."""
    training = LocalTraining(
        epochs=2, batch=4, optimiser=adam or ClientSGD(lr=0.1, momentum=rho), prox=prox, schedule=Decay(decay)
    )
    net, data = network(batch_norm=batch_norm), [(v.x, v.y) for v in make_clients()]
    actual = run_cohorts(
        METHODS[name](**hyper), net=net, lost=lost, training=training, aux=AUX, cohorts=cohorts, **rules
    )
    p = Plain(network(batch_norm=batch_norm), data, cohorts, lost, rho=rho, mu=prox, pairs=batch_norm, decay=decay)
    if adam is not None:
        p.lr, p.adam = adam.lr, (adam.beta1, adam.beta2, adam.eps)
    pairs = list(zip(actual, expected(p), strict=True))
    for g, e in pairs:
        same(g.server.w, e["w"])
        same(g.server.b, e["b"])
    return pairs


@TROUBLE
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_fedavg(weights: str, batch_norm: bool, lost: Lost) -> None:
    run_both(
        "fedavg", {}, lambda p: rounds.fedavg(p, weights=weights), batch_norm=batch_norm, lost=lost, weights=weights
    )


@NORMS
def test_fedprox(batch_norm: bool) -> None:
    def loss(now: State, k: int, t: int) -> rounds.Loss:
        return lambda rows, w, h, z, y: ref.cross_entropy(z, y) + 0.4 / 2 * ((w - now["w"]) ** 2).sum()

    run_both("fedprox", {"mu": 0.4}, lambda p: rounds.fedavg(p, loss), batch_norm=batch_norm)
    run_both("fedavg", {}, rounds.fedavg, batch_norm=batch_norm, prox=0.4)


@pytest.mark.parametrize("variant", [{}, {"damped": True}, {"nesterov": True}])
def test_fedavgm(variant: dict) -> None:
    hyper = {"beta_s": 0.7, "eta_s": 0.8} | variant
    pairs = run_both("fedavgm", hyper, lambda p: rounds.fedavgm(p, 0.7, 0.8, **variant), batch_norm=True)
    for g, e in pairs:
        same(g.server.extra["v"], e["v"])


@TROUBLE
@pytest.mark.parametrize("mode", ["grad", "post_step"])
@pytest.mark.parametrize("rho", [0.9, 0.0])
def test_scaffold(mode: str, rho: float, batch_norm: bool, lost: Lost) -> None:
    kwargs = {"batch_norm": batch_norm, "lost": lost, "rho": rho, "decay": 0.7}  # the rate is the round's
    pairs = run_both("scaffold", {"mode": mode}, lambda p: rounds.scaffold(p, mode), **kwargs)
    for g, e in pairs:
        same(g.server.extra["c"], e["c"])
        assert set(g.client_states) == set(e["c_k"])
        for k, memory in g.client_states.items():
            same(memory["c"], e["c_k"][k])


def test_scaffold_with_uniform_weights() -> None:
    run_both("scaffold", {}, lambda p: rounds.scaffold(p, "grad", weights="uniform"), weights="uniform")


ADAM = ClientAdam(0.05, 0.8, 0.99, 1e-4)


@TROUBLE
def test_scaffold_with_adam(batch_norm: bool, lost: Lost) -> None:
    kwargs = {"batch_norm": batch_norm, "lost": lost, "decay": 0.7, "adam": ADAM}
    for g, e in run_both("scaffold", {}, lambda p: rounds.scaffold(p, "mean"), **kwargs):
        same(g.server.extra["c"], e["c"])
        for k, memory in g.client_states.items():
            same(memory["c"], e["c_k"][k])


def test_the_mean_gradient_is_option_two_of_scaffold_for_plain_sgd() -> None:
    run_both("scaffold", {}, lambda p: rounds.scaffold(p, "mean"), rho=0.0, decay=0.7)


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_feddyn_with_adam(weights: str) -> None:
    for g, e in run_both("feddyn", {"weights": weights}, lambda p: rounds.feddyn(p, 0.1, weights=weights), adam=ADAM):
        same(g.server.extra["h"], e["h"])


@TROUBLE
@pytest.mark.parametrize(("rho", "prox"), [(0.9, 0.0), (0.0, 0.0), (0.0, 0.3)])
def test_fednova(rho: float, prox: float, batch_norm: bool, lost: Lost) -> None:
    run_both("fednova", {}, rounds.fednova, rho=rho, prox=prox, batch_norm=batch_norm, lost=lost, decay=0.7)


def test_fednova_as_in_public_code() -> None:
    run_both("fednova", {"ccvr_code": True}, lambda p: rounds.fednova(p, ccvr=True))


@TROUBLE
@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_feddyn(weights: str, batch_norm: bool, lost: Lost) -> None:
    hyper = {"alpha": 0.3, "weights": weights}
    pairs = run_both(
        "feddyn", hyper, lambda p: rounds.feddyn(p, 0.3, weights=weights), batch_norm=batch_norm, lost=lost, rho=0.0
    )
    for g, e in pairs:
        same(g.server.extra["h"], e["h"])
        assert set(g.client_states) == set(e["g"])
        for k, memory in g.client_states.items():
            same(memory["g"], e["g"][k])


@TROUBLE
@pytest.mark.parametrize(
    ("fisher", "size"), [("per_sample", 500), ("per_sample", 3), ("per_batch", 3), ("per_batch", 4)]
)
def test_fedcurv(fisher: str, size: int, batch_norm: bool, lost: Lost) -> None:
    hyper = {"lam": 0.02, "fisher": fisher, "size": size}
    pairs = run_both(
        "fedcurv",
        hyper,
        lambda p: rounds.fedcurv(p, 0.02, size, per_batch=fisher == "per_batch"),
        batch_norm=batch_norm,
        lost=lost,
    )
    for g, e in pairs:
        for name in ("u", "v"):
            same(g.server.extra[name], sum(e[name].values()))
            for k, memory in g.client_states.items():
                same(memory[name], e[name][k])


@TROUBLE
@pytest.mark.parametrize("hyper", [{}, {"adaptive": True, "eta": 0.3}, {"beta": 0.4}, {"beta": 0.4, "adaptive": True}])
def test_fedsam(hyper: dict, batch_norm: bool, lost: Lost) -> None:
    given = {"rho": 0.3} | hyper
    pairs = run_both("fedsam", given, lambda p: rivals.fedsam(p, **given), batch_norm=batch_norm, lost=lost, decay=0.7)
    for g, e in pairs:
        if "beta" in hyper:
            same(g.server.extra["direction"], e["direction"])


@TROUBLE
def test_fedexp(batch_norm: bool, lost: Lost) -> None:
    hyper, rules = {"eps": 1e-4, "eps_decay": 0.5}, {"batch_norm": batch_norm, "lost": lost, "cohorts": [range(4)] * 4}
    pairs = run_both("fedexp", hyper, lambda p: rivals.fedexp(p, 1e-4, decay=0.5), **rules)
    assert max(e["eta"] for _, e in pairs) > 1
    for g, e in pairs:
        same(g.server.evaluated_state, torch.cat([e["evaluated"], e["b"]]))
    last = run_both("fedexp", hyper | {"average_last": False}, lambda p: rivals.fedexp(p, 1e-4, decay=0.5))
    assert all(torch.equal(g.server.evaluated_state, g.server.state) for g, _ in last)


@TROUBLE
@pytest.mark.parametrize(("steps", "batch"), [(6, 4), (5, 100)])
def test_feddf(steps: int, batch: int, batch_norm: bool, lost: Lost) -> None:
    hyper = {"steps": steps, "batch": batch, "lr": 0.01, "tau": 2.0}
    run_both("feddf", hyper, lambda p: rivals.feddf(p, AUX.x, **hyper), batch_norm=batch_norm, lost=lost)


@TROUBLE
def test_ccvr_trains_as_fedavg(batch_norm: bool, lost: Lost) -> None:
    run_both("ccvr", {}, rounds.fedavg, batch_norm=batch_norm, lost=lost)


@TROUBLE
def test_ditto(batch_norm: bool, lost: Lost) -> None:
    pairs = run_both("ditto", {"lam": 0.3}, lambda p: rivals.ditto(p, 0.3), batch_norm=batch_norm, lost=lost)
    for g, e in pairs:
        assert set(g.client_states) == set(e["own"])
        for k, memory in g.client_states.items():
            same(memory["personal"], e["own"][k])


@TROUBLE
def test_fedacg(batch_norm: bool, lost: Lost) -> None:
    hyper = {"lam": 0.6, "beta": 0.2}
    pairs = run_both("fedacg", hyper, lambda p: rivals.fedacg(p, **hyper), batch_norm=batch_norm, lost=lost)
    for g, e in pairs:
        same(g.server.extra["m"], e["m"])


@NORMS
def test_moon(batch_norm: bool) -> None:
    run_both("moon", {"mu": 2.0, "tau": 0.4}, lambda p: rounds.moon(p, 2.0, 0.4), batch_norm=batch_norm)


@TROUBLE
@pytest.mark.parametrize("buffer", [1, 2, 3, 9])
def test_fedgkd(buffer: int, batch_norm: bool, lost: Lost) -> None:
    hyper = {"buffer": buffer, "coef": 0.8, "tau": 2.0}
    run_both("fedgkd", hyper, lambda p: teachers.fedgkd(p, buffer, 0.8, 2.0), batch_norm=batch_norm, lost=lost)


@NORMS
def test_fedgkd_vote(batch_norm: bool) -> None:
    hyper = {"buffer": 2, "coef": 0.8, "tau": 2.0, "vote": True}
    run_both("fedgkd", hyper, lambda p: teachers.fedgkd(p, 2, 0.8, 2.0, (AUX.x, AUX.y)), batch_norm=batch_norm)


@NORMS
@pytest.mark.parametrize(
    ("hyper_parameters", "reference_options"),
    [
        ({}, {}),
        ({"use_tma": False}, {"use_tma": False}),
        ({"prototypes": "local"}, {"local": True}),
        ({"use_similarity": False}, {"use_similarity": False}),
        ({"use_mask": "none"}, {"use_mask": "none"}),
        ({"teacher_bn": "batch"}, {"by_batch": True}),
    ],
)
def test_fedcsd(hyper_parameters: dict, reference_options: dict, batch_norm: bool) -> None:
    hyper = {"mu": 0.5, "tau": 3.0, "alpha": 0.6}
    pairs = run_both(
        "fedcsd",
        hyper | hyper_parameters,
        lambda p: teachers.fedcsd(p, 0.5, 3.0, 0.6, **reference_options),
        batch_norm=batch_norm,
    )
    for g, e in pairs:
        if hyper_parameters.get("use_tma", True):
            same(g.server.extra["teacher"], torch.cat(e["teacher"]))


def test_fedcsd_teacher_of_clients_that_always_take_part_is_the_servers() -> None:
    hyper, all_clients = {"mu": 0.5, "tau": 3.0, "alpha": 0.6}, [range(4)] * 4
    server, client = (
        run_cohorts(METHODS["fedcsd"](**hyper, teacher_at=at), net=network(batch_norm=True), cohorts=all_clients)
        for at in ("server", "client")
    )
    assert torch.equal(server[-1].server.state, client[-1].server.state)
    assert all(torch.equal(m["teacher"], server[-1].server.extra["teacher"]) for m in client[-1].client_states.values())


def test_fedcsd_teacher_of_a_client_averages_the_models_it_received() -> None:
    played = run_cohorts(
        METHODS["fedcsd"](mu=0.5, tau=3.0, alpha=0.6, teacher_at="client"), net=network(batch_norm=True)
    )
    teachers: dict[int, Tensor] = {}
    for p, members in zip(played, COHORTS, strict=True):
        for k in members:
            teachers[k] = 0.6 * teachers[k] + 0.4 * p.before.state if k in teachers else p.before.state
        assert set(p.client_states) == set(teachers)
        for k, memory in p.client_states.items():
            same(memory["teacher"], teachers[k])


PROTO = [
    ({}, {}),
    ({"weighting": "size"}, {"by_count": True}),
    ({"collect": "last_epoch"}, {"last_epoch": True}),
    ({"absent": "drop"}, {"drop": True}),
    ({"share_weights": False}, {"share": False}),
]


@TROUBLE
@pytest.mark.parametrize(("hyper_parameters", "reference_options"), PROTO)
def test_fedproto(hyper_parameters: dict, reference_options: dict, batch_norm: bool, lost: Lost) -> None:
    pairs = run_both(
        "fedproto",
        {"lam": 0.6} | hyper_parameters,
        lambda p: teachers.fedproto(p, 0.6, **reference_options),
        batch_norm=batch_norm,
        lost=lost,
        rho=0.0,  # with momentum a class's features all die; see test_edges
    )
    for g, e in pairs:
        for c in range(3):
            same(g.server.extra["G"][c], e["G"].get(c, torch.zeros(8, dtype=torch.float64)))
        for k, memory in g.client_states.items():
            if "share_weights" in hyper_parameters:
                same(memory["own"], torch.cat([e["own"][k]["w"], e["own"][k]["b"]]))


CAD = {"beta": 0.2, "gamma": 0.9, "tau": 2.0}


@NORMS
@pytest.mark.parametrize("phi_tau", [None, 1.0])
@pytest.mark.parametrize("estimate", ["aux", "local"])
def test_fedcad(estimate: str, phi_tau: float | None, batch_norm: bool) -> None:
    def expected(p: Plain) -> list[State]:
        def term(z: Tensor, zg: Tensor, y: Tensor, now: State, k: int) -> Tensor:
            x, labels = (AUX.x, AUX.y) if estimate == "aux" else p.clients[k]
            alpha = ref.fedcad_alpha(p.outputs(now["w"], now["b"], x)[1], labels, 3, 0.2, 0.9, phi_tau or 2.0)
            return ref.fedcad(z, zg, y, alpha, 2.0)

        return teachers.distilled(p, term)

    run_both("fedcad", CAD | {"estimate": estimate, "phi_tau": phi_tau}, expected, batch_norm=batch_norm)


@NORMS
@pytest.mark.parametrize("matrix", ["hard", "soft"])
@pytest.mark.parametrize("weighting", ["squared", "linear"])
def test_fedssd(matrix: str, weighting: str, batch_norm: bool) -> None:
    def expected(p: Plain) -> list[State]:
        def term(z: Tensor, zg: Tensor, y: Tensor, now: State, k: int) -> Tensor:
            A = ref.fedssd_matrix(p.outputs(now["w"], now["b"], AUX.x)[1], AUX.y, 3, soft=matrix == "soft")
            return ref.fedssd(z, zg, y, A, 2.0, weighting)

        return teachers.distilled(p, term)

    run_both("fedssd", {"m_max": 2.0, "weighting": weighting, "matrix": matrix}, expected, batch_norm=batch_norm)


@NORMS
def test_fedlmd(batch_norm: bool) -> None:
    def term(z: Tensor, zg: Tensor, y: Tensor, now: State, k: int) -> Tensor:
        counts = torch.bincount(make_clients()[k].y, minlength=3).tolist()
        return ref.fedlmd(z, zg, y, ref.majority_set(counts), 0.7, 2.0)

    run_both("fedlmd", {"beta": 0.7, "tau": 2.0}, lambda p: teachers.distilled(p, term), batch_norm=batch_norm)


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("mean_examples", [None, 40.0])
def test_fixed_point_of_feddyn(weights: str, mean_examples: float | None) -> None:
    """Quadratic losses c/2 (w - m)^2, minimised exactly: the method converges to the minimum of a mean of them."""
    c, m, n = (torch.tensor(values, dtype=torch.float64) for values in ([1.0, 3.0, 0.5], [0.0, 1.0, 4.0], [10, 40, 70]))
    method = METHODS["feddyn"](alpha=0.7, weights=weights, mean_examples=mean_examples)
    w = torch.zeros(1, dtype=torch.float64)
    server = Server(None, w, w[:0], w[:0], ServerSGD(), method.init(w))  # type: ignore[arg-type]
    cohort = SimpleNamespace(size=3, population=3)
    states = [method.memory(w)] * 3
    for _ in range(400):
        replies = []
        for k in range(3):
            r = SimpleNamespace(w=server.w, memory=states[k], data=torch.zeros(int(n[k])))
            alpha = method.alpha_of(r)
            minimum = (c[k] * m[k] + states[k]["g"] + alpha * server.w) / (c[k] + alpha)
            up, states[k] = method.reply(minimum, 1, r)
            replies.append(Reply(up, int(n[k]), states[k], {}, k))
        server = method.aggregate(server, replies, cohort)
    share = n if mean_examples is not None else torch.ones(3)
    assert float(server.w) == pytest.approx(float((share * c * m).sum() / (share * c).sum()), rel=1e-6)
