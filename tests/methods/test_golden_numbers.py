"""Numbers computed by hand, compared with the methods' hooks, in float64."""

import math
from types import SimpleNamespace

import pytest
import torch

from fedrecall import METHODS
from fedrecall.core.losses import cosine, credibility, kl, label_probability, soft_ce, soft_targets
from fedrecall.core.optim import ServerSGD
from fedrecall.core.types import Output, Reply, Server
from support import reference
from support.method_bench import client, make_step


def tensor(*rows: object) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


Z = tensor([1, 2, 0.5, -1], [0.2, -0.3, 1.5, 0])
ZG = tensor([0.5, 3, 1.5, -0.5], [1, 0, -0.5, -1])
Y = torch.tensor([1, 2])
CE = 0.5012890766
GLOBAL = make_step(Z, Y, {"global": ZG})
COUNTS = {  # label counts whose strict majority set is the key
    (): [2, 2, 2, 2],
    (1,): [1, 5, 1, 1],
    (1, 3): [1, 6, 1, 6],
    (0, 1, 3): [5, 5, 1, 5],
}


def value(name: str, step=GLOBAL, *, hyper=None, **fields: object) -> float:
    return float(METHODS[name](**(hyper or {})).loss(step, client(Y, 4, **fields)))


def close(x: object, decimals: int = 8) -> object:
    """Return an approximation to this number of decimals."""
    return pytest.approx(x, rel=0, abs=0.51 * 10**-decimals)


def aggregated(
    name: str, w: float, replies: list[Reply], extra=None, *, hyper=None, population: int = 4, **rules: object
):
    method, weight = METHODS[name](**(hyper or {})), torch.tensor([w], dtype=torch.float64)
    none = torch.zeros(0)
    server = Server(None, weight, none, none, ServerSGD(), extra=method.init(weight) | (extra or {}), **rules)
    return method.aggregate(server, iter(replies), SimpleNamespace(size=len(replies), population=population))


def test_primitives() -> None:
    assert torch.nn.functional.cross_entropy(Z, Y, reduction="none").tolist() == close([0.4951819, 0.50739626])
    q = soft_targets(ZG, 2.0)
    assert soft_ce(Z, q, 2.0).tolist() == close([1.22609614, 1.47739867])
    assert float(soft_ce(Z, q, 2.0).mean()) == close(1.3517474038, 10)
    assert kl(Z, q, 2.0).tolist() == close([0.04123808, 0.16353714])
    assert float(kl(Z, q, 2.0).mean()) == close(0.1023876079, 10)
    assert float(kl(Z, soft_targets(ZG, 1.0), 1.0).mean()) == close(0.3771325344, 10)


@pytest.mark.parametrize(
    ("name", "hyper", "expected"),
    [
        ("fedavg", {}, CE),
        ("fedlsd", {"alpha": 0.3, "tau": 2, "kd_scale": "none"}, 0.7564265747),
        ("fedlsd", {"alpha": 0.3, "tau": 2, "kd_scale": "T2"}, 1.9729992382),
        ("fedlsd", {"alpha": 0.3, "tau": 2, "kd_scale": "sum"}, 1.1619507959),  # 0.7 CE + 0.3 * 2 soft CE
        ("fedavg-kd", {"beta": 1, "tau": 1}, 0.8784216110),
        ("fedavg-ls", {"smoothing": 0.1}, 0.6275390766),
        ("fedavg-ls", {}, 0.6275390766),
        ("fedntd", {"beta": 1, "tau": 1}, 0.7158676006),
        ("fedntd", {"beta": 1, "tau": 3}, 0.7432303431),
    ],
)
def test_losses_of_the_table(name: str, hyper: dict, expected: float) -> None:
    assert value(name, hyper=hyper) == close(expected, 10)


@pytest.mark.parametrize(
    ("hyper", "expected"),
    [
        ({"tau": 1}, 0.2145785240),
        ({"tau": 3}, 0.2419412666),
        ({"tau": 1, "teacher": False}, 0.1551691633),
        ({"tau": 2, "teacher": False}, 0.1744094694),
    ],
)
def test_fedntd_term(hyper: dict, expected: float) -> None:
    assert value("fedntd", hyper=hyper) - value("fedavg") == close(expected, 10)


def test_fedrs() -> None:
    assert value("fedrs", hyper={"alpha": 0.5}, counts=torch.tensor([2, 1, 3, 0])) == close(0.5110356103, 10)


@pytest.mark.parametrize(
    ("counts", "tau", "expected"),
    [
        ([16, 81, 256, 1], 1.0, 0.4210888766),  # margins 1/2, 1/3, 1/4, 1
        ([16, 81, 256, 0], 1.0, 0.3757236085),  # class 3 leaves the softmax
        ([16, 16, 16, 16], 5.0, CE),
        ([16, 81, 256, 0], 0.0, CE),
        ([16, 81, 256, 1], 0.1, 0.4916759315),  # FL-bench's loss
        ([3, 5, 2, 0], 1.0, 0.4105914091),  # FL-bench's with the count 1e-8: a margin of 100 leaves ten digits
    ],
)
def test_fedlc(counts: list[int], tau: float, expected: float) -> None:
    assert value("fedlc", hyper={"tau": tau}, counts=torch.tensor(counts)) == close(expected, 10)


H = tensor([1, 2], [3, -2])  # two columns of two values: standardised they are -+ 1/sqrt(2) and +- 1/sqrt(2)


@pytest.mark.parametrize(
    ("paper", "expected"),
    # K = [[1, -1], [-1, 1]]; the code: mean of the off-diagonal squares, 1, by the batch of two; the paper: 4 / 2^2
    [(False, 0.5), (True, 1.0)],
)
def test_feddecorr(paper: bool, expected: float) -> None:
    loss = value("feddecorr", make_step(Z, Y, h=H), hyper={"beta": 1.0, "paper": paper})
    assert loss - value("fedavg") == close(expected, 7)  # 1e-8 is added to the variance
    alone = make_step(Z[:1], Y[:1], h=H[:1])
    assert value("feddecorr", alone, hyper={"paper": paper}) == value("fedavg", alone)


def test_feddecorr_has_the_number_of_the_official_code() -> None:
    h, y = torch.cat([Z, ZG]), torch.tensor([1, 2, 0, 3])
    with_penalty, plain = (
        float(METHODS[name](**hyper).loss(make_step(h, y, h=h), client(y, 4)))
        for name, hyper in (("feddecorr", {"beta": 1.0}), ("fedavg", {}))
    )
    assert with_penalty - plain == close(0.9697819725, 10)


@pytest.mark.parametrize(
    ("hyper", "expected"),
    [({}, [0.06, 0.08]), ({"adaptive": True, "eta": 0.0}, [0.06, 0.16])],
)
def test_fedsam(hyper: dict, expected: list[float]) -> None:
    g, w = (tensor(3, 4), tensor(0, 0)) if not hyper else (tensor(3, 2), tensor(1, -2))
    offset = METHODS["fedsam"](rho=0.1, **hyper).perturbation(g, w, None)
    assert offset.tolist() == close(expected, 14)  # adaptive: T g = (3, 4), T^2 g = (3, 8)


def test_mofedsam() -> None:
    method = METHODS["fedsam"](beta=0.1)
    mixed = method.correct(tensor(1, 2), client(Y, 4, down={"direction": tensor(3, -1)}))
    assert mixed.tolist() == close([0.1 + 2.7, 0.2 - 0.9], 14)
    replies = [Reply({"w": tensor(0.4), "length": torch.tensor(0.5).double()}, n, {}, {}) for n in (1, 3)]
    assert aggregated("fedsam", 1.0, replies, hyper={"beta": 0.1}).extra["direction"].tolist() == close([1.2], 14)


@pytest.mark.parametrize(
    ("updates", "eps", "eta"),
    # updates 2 and -1: mean square 2.5, squared mean 0.25, eta_g = 0.5 * 2.5 / (0.25 + 2 eps)
    [((1, 1), 0.0, 1.0), ((2, -1), 0.0, 5.0), ((2, -1), 0.1875, 2.0), ((2, -1), 9.0, 1.0)],
)
def test_fedexp(updates: tuple[float, float], eps: float, eta: float) -> None:
    replies = [Reply({"w": tensor(1.0 + d)}, 10, {}, {}) for d in updates]
    mean = sum(updates) / 2
    assert float(aggregated("fedexp", 1.0, replies, hyper={"eps": eps}).w) == close(1 + eta * mean, 12)


def test_fedexp_has_the_numbers_of_the_official_code() -> None:
    """eta_g = 1.2937542896, by clients of 10, 30 and 60 examples."""
    updates = tensor([0.3, -0.2, 0.5], [-0.4, 0.1, 0.2], [0.1, 0.6, -0.3])
    replies = [Reply({"w": 1 + d}, n, {}, {}) for d, n in zip(updates, (10, 30, 60), strict=True)]
    method, start = METHODS["fedexp"](eps=0.001), torch.ones(3, dtype=torch.float64)
    server = Server(None, start, torch.zeros(0), torch.zeros(0), ServerSGD())
    found = method.aggregate(server, iter(replies), SimpleNamespace(size=3, population=3))
    assert (found.w - 1).tolist() == close([-0.0388126287, 0.4786890872, -0.0905628003], 10)


def test_fedacg() -> None:
    """Start 1 + 0.5 * 0.4 = 1.2; updates -0.2 and 0.4; m = 0.5 * 0.4 + 0.1; w = 1 + m."""
    replies = [Reply({"w": tensor(w)}, n, {}, {}) for w, n in ((1.0, 1), (1.6, 9))]
    server = aggregated("fedacg", 1.0, replies, {"m": tensor(0.4)}, hyper={"lam": 0.5})
    assert (float(server.extra["m"]), float(server.w)) == close((0.3, 1.3), 14)


def test_fedgkd() -> None:
    step = make_step(Z, Y, {"teacher": ZG})
    assert value("fedgkd", step, hyper={"coef": 0.1, "tau": 1}) == close(0.5390023300, 10)


@pytest.mark.parametrize(
    ("kd_scale", "expected"), [("none", 0.8172223472), ("T2", 2.3285143318), ("sum", 1.3209863420)]
)
def test_fedcad(kd_scale: str, expected: float) -> None:
    method = METHODS["fedcad"](beta=0.25, gamma=0.5, tau=2, kd_scale=kd_scale)
    # Logits [log q, log(1 - q) / 3, ...] times tau give the label exactly probability q.
    Q = [0.2, 0.6, 0.4, 0.1]
    z = torch.full((4, 4), 0.0, dtype=torch.float64)
    for y, q in enumerate(Q):
        z[y] = 2 * math.log((1 - q) / 3)
        z[y, y] = 2 * math.log(q)
    alpha = method.class_trust(z, torch.arange(4))
    assert alpha.tolist() == close([0.30, 0.40, 0.35, 0.275], 14)
    assert float(method.loss(GLOBAL, client(Y, 4, down={"alpha": alpha}))) == close(expected, 10)


LMD = {  # majority set: (tau 1, tau 2), with a teacher and without
    (1, 3): ((0.6121112089, 2.4877269858), (0.4988745284, 2.3658975963)),
    (): ((0.2145785240, 0.2381769400), (0.1551691633, 0.1744094694)),
    (1,): ((0.3898445045, 0.9770789924), (0.2912350507, 0.8520063523)),
    (0, 1, 3): ((0.5274784598, 2.0278451341), (0.5274784598, 2.0278451341)),
}


@pytest.mark.parametrize("majority", LMD)
@pytest.mark.parametrize("tau", [1, 2])
def test_fedlmd(majority: tuple[int, ...], tau: int) -> None:
    counts = torch.tensor(COUNTS[majority])
    assert reference.majority_set(counts.tolist()) == set(majority)
    with_teacher, without = LMD[majority]
    assert value("fedlmd", hyper={"tau": tau}, counts=counts) - value("fedavg") == close(with_teacher[tau - 1], 10)
    bare = make_step(Z, Y)
    assert value("fedlmd-tf", bare, hyper={"tau": tau}, counts=counts) - value("fedavg") == close(
        without[tau - 1], 1e-9
    )


@pytest.mark.parametrize(
    ("name", "majority", "expected"),
    [
        ("fedlmd", (1, 3), [0.33828310, 0.88593932]),
        ("fedlmd-tf", (1, 3), [0.11180974, 0.88593932]),
        ("fedlmd", (1,), [0.23524296, 0.54444605]),
        ("fedlmd", (0, 1, 3), [1.05495692, 0.0]),
        ("fedntd", (), [0.23524296, 0.19391409]),
    ],
)
def test_fedlmd_and_fedntd_per_sample(name: str, majority: tuple[int, ...], expected: list[float]) -> None:
    for i in range(2):
        frozen = {} if name == "fedlmd-tf" else {"global": ZG[i : i + 1]}
        step = make_step(Z[i : i + 1], Y[i : i + 1], frozen)
        r = client(Y, 4, counts=torch.tensor(COUNTS[majority]))
        term = METHODS[name]().loss(step, r) - METHODS["fedavg"]().loss(step, r)
        assert float(term) == close(expected[i])


A = tensor([0.70, 0.10, 0.15, 0.05], [0.05, 0.80, 0.10, 0.05], [0.20, 0.10, 0.60, 0.10], [0.10, 0.05, 0.25, 0.60])


def test_fedssd_parts() -> None:
    assert credibility(A).tolist() == close([0.56, 0.72, 0.45, 0.54], 14)
    assert label_probability(ZG, Y).tolist() == close([0.74883227, 0.12925005])
    # With weights M the gradient of a linear term is 2 M (z - z_g) / B: it shows the brackets.
    z = Z.clone().requires_grad_()
    term = METHODS["fedssd"](m_max=1, weighting="linear").loss(
        make_step(z, Y, {"global": ZG}), client(Y, 4, down={"A": A})
    ) - torch.nn.functional.cross_entropy(z, Y)
    (slope,) = torch.autograd.grad(term, z)
    bracket = slope * 2 / (2 * (Z - ZG))
    assert bracket[0].tolist() == close([0.17934683, 0.25916021, 0.12447513, 0.16937016])
    assert bracket[1].tolist() == close([0, 0, 0, 0])
    m_sample = (bracket[0] + 0.1) / credibility(A)
    assert m_sample.tolist() == close([0.49883363] * 4)
    assert reference.fedssd_sample(ZG[1], 2) == close(0.06686017)


@pytest.mark.parametrize(
    ("m_max", "weighting", "expected"),
    [(1, "squared", 0.0489354787), (1, "linear", 0.2354072951), (0.01, "linear", 0.0023540730)],
)
def test_fedssd(m_max: float, weighting: str, expected: float) -> None:
    loss = value("fedssd", hyper={"m_max": m_max, "weighting": weighting}, down={"A": A})
    assert loss - value("fedavg") == close(expected, 10)


def test_fedssd_as_printed_is_almost_zero() -> None:
    loss = value("fedssd", hyper={"m_max": 0.01, "weighting": "squared"}, down={"A": A})
    assert loss - value("fedavg") == close(4.893547874e-06, 15)


P = tensor([2, 0.5, -0.5, -1], [0.3, 1.8, 0.2, -0.7], [0, 0.4, 1.2, -0.6], [0, 0, 0, 0])


def test_fedcsd() -> None:
    step, hyper = make_step(Z, Y, {"teacher": ZG}), {"mu": 0.001, "tau": 10}
    delta = cosine(Z, P)
    assert delta[0].tolist() == close([0.63960215, 0.95689481, 0.57142857, 0])
    assert delta[1].tolist() == close([-0.1381975, -0.05938686, 0.77784447, 0])
    assert delta.softmax(-1)[0].tolist() == close([0.26075585, 0.35812325, 0.2435716, 0.1375493])
    assert delta.softmax(-1)[1].tolist() == close([0.17453287, 0.18884446, 0.43622364, 0.20039904])
    assert (label_probability(ZG, Y) > 0.25).tolist() == [True, False]
    total = value("fedcsd", step, hyper=hyper, down={"P": P})
    assert total == close(0.5706917466, 10)
    assert (total - value("fedavg")) / 0.001 == close(69.4026699876, 10)
    with_kl = value("fedcsd", step, hyper=hyper | {"grad_through_target": True}, down={"P": P})
    assert with_kl == close(0.5014246272, 10)
    assert (with_kl - value("fedavg")) / 0.001 == close(0.1355506465, 10)


def test_moon() -> None:
    h = tensor([1, 0, 1], [0, 1, 1])
    zeros = torch.zeros_like(Z)
    frozen = {
        "global": Output(tensor([1, 1, 0], [0, 1, 0.5]), zeros),
        "previous": Output(tensor([0, 1, 1], [1, 0, 0]), zeros),
    }
    term = value("moon", make_step(Z, Y, frozen, h=h), hyper={"mu": 1, "tau": 0.5}) - value("fedavg")
    assert term == close(0.4164384799, 10)
    for i, expected in enumerate([math.log(2), 0.13972978]):  # similarities 0.5 / 0.5, and 0.9486833 / 0
        sample = {name: Output(out.h[i : i + 1], zeros[:1]) for name, out in frozen.items()}
        step = make_step(Z[i : i + 1], Y[i : i + 1], sample, h=h[i : i + 1])
        bare = float(METHODS["fedavg"]().loss(step, client(Y, 4)))
        assert value("moon", step, hyper={"mu": 1, "tau": 0.5}) - bare == close(expected)


def test_fedproto() -> None:
    G = torch.zeros(4, 2, dtype=torch.float64)
    G[1] = tensor(1.5, 1)
    step = make_step(Z, Y, h=tensor([1, 2], [0, -1]))
    assert value("fedproto", step, hyper={"lam": 1}, down={"G": G}) - value("fedavg") == close(0.3125, 14)


def test_fedcurv_penalty() -> None:
    step = make_step(Z, Y, w=tensor(0.5, -1))
    loss = value("fedcurv", step, hyper={"lam": 0.1}, down={"P": tensor(2, 1), "Q": tensor(1, -0.5)})
    assert loss - value("fedavg") == close(-0.05, 14)


def test_feddyn() -> None:
    w, hyper = tensor(1.0), {"alpha": 0.1}
    replies = []
    for w_k, g, expected in ((0.6, 0.0, 0.04), (0.9, 0.05, 0.06)):
        r = client(Y, 4, w=w, memory={"g": tensor(g)})
        up, memory = METHODS["feddyn"](**hyper).reply(tensor(w_k), 5, r)
        assert float(memory["g"]) == close(expected, 14)
        replies.append(Reply(up, 10 * len(replies) + 1, memory, {}))  # sizes differ; the mean is unweighted
    server = aggregated("feddyn", 1.0, replies, hyper=hyper)
    assert float(server.extra["h"]) == close(0.0125, 14)
    assert float(server.w) == close(0.625, 14)


@pytest.mark.parametrize(("steps", "expected"), [(5, 13.1441), (10, 41.381059609), (50, 410.463839769), (0, 0.0)])
def test_fednova_reach(steps: int, expected: float) -> None:
    up, memory = METHODS["fednova"]().reply(tensor(0.0), steps, client(Y, 4))
    assert float(up["a"]) == close(expected, 9)
    assert memory == {}


def test_fednova() -> None:
    r = client(Y, 4)
    replies = [
        Reply(METHODS["fednova"]().reply(tensor(w), steps, r)[0], n, {}, {})
        for w, steps, n in ((0.4, 5, 100), (0.7, 10, 300))
    ]
    assert float(aggregated("fednova", 1.0, replies).w) == close(0.421703613, 9)
    assert float(aggregated("fedavg", 1.0, replies).w) == close(0.625, 14)


def test_fedavgm() -> None:
    first = aggregated("fedavgm", 1.0, [Reply({"w": tensor(0.8)}, 3, {}, {})], hyper={"beta_s": 0.9})
    assert (float(first.w), float(first.extra["v"])) == close((0.8, 0.2), 14)
    second = aggregated("fedavgm", 0.8, [Reply({"w": tensor(0.5)}, 3, {}, {})], first.extra, hyper={"beta_s": 0.9})
    assert (float(second.w), float(second.extra["v"])) == close((0.32, 0.48), 14)
