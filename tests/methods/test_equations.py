"""Every loss with every option compared with slow references: values and gradients in z, h and w, in float64."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fedrecall import METHODS
from fedrecall.core.types import Local, Output, Step
from support import reference as ref
from support.method_bench import client, make_step


@dataclass(frozen=True)
class Case:
    """Random batch with every input that a loss may need."""

    z: Tensor
    h: Tensor
    w: Tensor
    y: Tensor
    zg: Tensor  # the received model's logits and features
    hg: Tensor
    zt: Tensor  # another teacher's
    hp: Tensor  # the previous model's features
    counts: Tensor
    alpha: Tensor
    A: Tensor
    P: Tensor
    G: Tensor
    w_t: Tensor
    g_k: Tensor
    votes: Tensor

    @property
    def majority(self) -> set[int]:
        return ref.majority_set(self.counts.tolist())

    @property
    def prototypes(self) -> dict[int, Tensor]:
        return {c: row for c, row in enumerate(self.G) if row.any()}


def case(seed: int) -> Case:
    rng = torch.Generator().manual_seed(seed)
    C, B, D, d = 2 + seed % 4, 1 + seed % 3 * 2, 3, 4

    def normal(*shape: int, scale: float = 2.0) -> Tensor:
        return scale * torch.randn(*shape, generator=rng, dtype=torch.float64)

    y = torch.randint(0, C, (B,), generator=rng)
    counts = torch.bincount(y, minlength=C) * 3 + torch.randint(0, 2, (C,), generator=rng) * 2
    A = torch.eye(C, dtype=torch.float64) * 3 + torch.rand(C, C, generator=rng, dtype=torch.float64)
    P, G = normal(C, C), normal(C, D)
    P[seed % C], G[(seed + 1) % C] = 0, 0  # a class that nobody holds
    teacher = normal(B, C)
    return Case(
        z=normal(B, C, scale=20.0 if seed == 7 else 2.0),
        h=normal(B, D),
        w=normal(d),
        y=y,
        zg=teacher + 2 * torch.eye(C, dtype=torch.float64)[y],  # right more often than not
        hg=normal(B, D),
        zt=normal(B, C),
        hp=normal(B, D),
        counts=counts,
        alpha=torch.rand(C, generator=rng, dtype=torch.float64),
        A=A / A.sum(1, keepdim=True),
        P=P,
        G=G,
        w_t=normal(d),
        g_k=normal(d),
        votes=torch.tensor([0.3, 0.7], dtype=torch.float64),
    )


def mixed(c: Case) -> tuple[Step, Local]:
    """Return the step and the client of a case, with leaves for z, h and w."""
    z, h, w = (t.clone().requires_grad_() for t in (c.z, c.h, c.w))
    frozen = {"global": Output(c.hg, c.zg), "previous": Output(c.hp, c.zt), "teacher": Output(c.hg, c.zg)}
    step = make_step(z, c.y, frozen, h=h, w=w)
    down = {"alpha": c.alpha, "A": c.A, "P": c.P, "G": c.G}
    r = client(c.y, c.z.shape[1], counts=c.counts, down=down, memory={"g": c.g_k}, w=c.w_t, t=3)
    return step, r


def slopes(loss: Tensor, s: Step) -> list[Tensor]:
    inputs = [s.z, s.h, s.w]
    actual = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(actual, inputs, strict=True)]


def same(seed: int, build: Callable[[Case, Step, Local], tuple[Tensor, Tensor]]) -> None:
    c = case(seed)
    s, r = mixed(c)
    actual, expected = build(c, s, r)
    assert float(actual.detach()) == pytest.approx(float(expected.detach()), rel=1e-11, abs=1e-13)
    for g, e in zip(slopes(actual, s), slopes(expected, s), strict=True):
        torch.testing.assert_close(g, e, rtol=1e-10, atol=1e-12)


def kd(c: Case, s: Step, **options: object) -> Tensor:
    return ref.fedcsd(s.z, c.zg, s.y, c.P, **options)


def features(c: Case, s: Step, mu: float) -> Tensor:
    rows = [ref.mean([(s.h[i, j] - c.hg[i, j]) ** 2 for j in range(s.h.shape[1])]) for i in range(len(s.y))]
    return ref.cross_entropy(s.z, s.y) + mu * ref.mean(rows)


def squares(c: Case, s: Step, a: float) -> Tensor:
    """Return the MSE row: a mean_i sum_c (z_g - z)^2."""
    rows = [sum((c.zg[i, k] - s.z[i, k]) ** 2 for k in range(s.z.shape[1])) for i in range(len(s.y))]
    return ref.cross_entropy(s.z, s.y) + a * ref.mean(rows)


def fedprox(c: Case, s: Step, mu: float) -> Tensor:
    return ref.cross_entropy(s.z, s.y) + mu / 2 * sum((s.w[j] - c.w_t[j]) ** 2 for j in range(len(s.w)))


Loss = Callable[[Case, Step], Tensor]
EQUATIONS: list[tuple[str, dict, Loss]] = [
    ("fedavg", {}, lambda c, s: ref.cross_entropy(s.z, s.y)),
    ("fedavgm", {}, lambda c, s: ref.cross_entropy(s.z, s.y)),
    ("scaffold", {}, lambda c, s: ref.cross_entropy(s.z, s.y)),
    ("fednova", {}, lambda c, s: ref.cross_entropy(s.z, s.y)),
    ("fedprox", {"mu": 0.7}, lambda c, s: fedprox(c, s, 0.7)),
    ("feddyn", {"alpha": 0.3}, lambda c, s: fedprox(c, s, 0.3) - ref.dot(c.g_k, s.w)),
    ("fedrs", {"alpha": 0.5}, lambda c, s: ref.fedrs(s.z, s.y, c.counts.tolist(), 0.5)),
    ("fedrs", {"alpha": 0.3}, lambda c, s: ref.fedrs(s.z, s.y, c.counts.tolist(), 0.3)),
    ("fedrs", {"alpha": 0.0}, lambda c, s: ref.fedrs(s.z, s.y, c.counts.tolist(), 0.0)),
    ("fedrs", {"alpha": 0.3, "soft": True}, lambda c, s: ref.fedrs(s.z, s.y, c.counts.tolist(), 0.3, soft=True)),
    ("fedsam", {}, lambda c, s: ref.cross_entropy(s.z, s.y)),
    ("fedexp", {}, lambda c, s: ref.cross_entropy(s.z, s.y)),
    ("feddf", {}, lambda c, s: ref.cross_entropy(s.z, s.y)),
    ("ccvr", {}, lambda c, s: ref.cross_entropy(s.z, s.y)),
    ("fedacg", {"beta": 0.35}, lambda c, s: fedprox(c, s, 0.7)),
    ("fedlc", {"tau": 0.7}, lambda c, s: ref.fedlc(s.z, s.y, c.counts.tolist(), 0.7)),
    ("fedlc", {"tau": 0.0}, lambda c, s: ref.cross_entropy(s.z, s.y)),
    ("feddecorr", {"beta": 0.7}, lambda c, s: ref.feddecorr(s.z, s.h, s.y, 0.7)),
    ("feddecorr", {"beta": 0.7, "paper": True}, lambda c, s: ref.feddecorr(s.z, s.h, s.y, 0.7, paper=True)),
    ("fedavg-ls", {"smoothing": 0.2}, lambda c, s: ref.label_smoothing(s.z, s.y, 0.2)),
    ("fedavg-kd", {"beta": 0.7, "tau": 3}, lambda c, s: ref.fedavg_kd(s.z, c.zg, s.y, 0.7, 3)),
    ("fedlsd", {"alpha": 0.4, "tau": 3}, lambda c, s: ref.fedlsd(s.z, c.zg, s.y, 0.4, 3)),
    ("fedlsd", {"alpha": 0.4, "tau": 3, "kd_scale": "T2"}, lambda c, s: ref.fedlsd(s.z, c.zg, s.y, 0.4, 3, "T2")),
    ("fedlsd", {"alpha": 0.4, "tau": 3, "kd_scale": "sum"}, lambda c, s: ref.fedlsd(s.z, c.zg, s.y, 0.4, 3, "sum")),
    ("fedntd", {"beta": 0.7, "tau": 3}, lambda c, s: ref.fedlmd(s.z, c.zg, s.y, set(), 0.7, 3)),
    ("fedntd", {"beta": 0.7, "tau": 0.5}, lambda c, s: ref.fedlmd(s.z, c.zg, s.y, set(), 0.7, 0.5)),
    ("fedntd", {"beta": 0.7, "tau": 3, "teacher": False}, lambda c, s: ref.fedlmd(s.z, None, s.y, set(), 0.7, 3)),
    ("fedlmd", {"beta": 0.7, "tau": 3}, lambda c, s: ref.fedlmd(s.z, c.zg, s.y, c.majority, 0.7, 3)),
    ("fedlmd", {"beta": 0.7, "tau": 0.5}, lambda c, s: ref.fedlmd(s.z, c.zg, s.y, c.majority, 0.7, 0.5)),
    ("fedlmd-tf", {"beta": 0.7, "tau": 3, "switch": 3}, lambda c, s: ref.fedlmd(s.z, c.zg, s.y, c.majority, 0.7, 3)),
    ("fedcad", {"tau": 3}, lambda c, s: ref.fedcad(s.z, c.zg, s.y, c.alpha, 3)),
    ("fedcad", {"tau": 3, "phi_tau": 1}, lambda c, s: ref.fedcad(s.z, c.zg, s.y, c.alpha, 3)),
    ("fedcad", {"tau": 3, "kd_scale": "T2"}, lambda c, s: ref.fedcad(s.z, c.zg, s.y, c.alpha, 3, "T2")),
    ("fedcad", {"tau": 3, "kd_scale": "sum"}, lambda c, s: ref.fedcad(s.z, c.zg, s.y, c.alpha, 3, "sum")),
    *(
        (
            "fedssd",
            {"m_max": 0.8, "weighting": weighting, "reduction": red},
            lambda c, s, weighting=weighting, red=red: ref.fedssd(s.z, c.zg, s.y, c.A, 0.8, weighting, red),
        )
        for weighting in ("squared", "linear")
        for red in ("sum", "mean")
    ),
    *(
        ("fedcsd", {"mu": 0.6, "tau": 4} | o, lambda c, s, o=o: kd(c, s, mu=0.6, tau=4, **o))
        for o in [
            {},
            {"use_similarity": False},
            {"use_mask": "hard"},
            {"use_mask": "none"},
            {"use_similarity": False, "use_mask": "none"},
            {"mask_on": "refined"},
            {"mask_on": "refined", "use_mask": "hard"},
            {"convex": True},
            {"convex": True, "use_mask": "none", "use_similarity": False},
        ]
    ),
    (
        "fedcsd",
        {"mu": 0.6, "tau": 4, "grad_through_target": True},
        lambda c, s: kd(c, s, mu=0.6, tau=4, grad_through_target=True, form=ref.kl),
    ),
    ("moon", {"mu": 0.7, "tau": 0.3}, lambda c, s: ref.moon(s.z, s.h, c.hg, c.hp, s.y, 0.7, 0.3)),
    ("fedproto", {"lam": 0.7}, lambda c, s: ref.fedproto(s.z, s.h, s.y, c.prototypes, 0.7)),
    ("grid", {"beta": 0.01, "divergence": "features"}, lambda c, s: features(c, s, 0.01)),
    ("grid", {"beta": 0.2, "divergence": "l2"}, lambda c, s: squares(c, s, 0.2)),
    ("grid", {"beta": 0.2, "divergence": "kl"}, lambda c, s: ref.fedavg_kd(s.z, c.zg, s.y, 0.2, 1)),
    (  # the logit distillation of FedCSD's Figure 1
        "grid",
        {"beta": 0.001, "divergence": "ce", "tau": 10},
        lambda c, s: kd(c, s, mu=0.001, tau=10, use_similarity=False, use_mask="none"),
    ),
]


@pytest.mark.parametrize(
    ("name", "hyper", "expected"), EQUATIONS, ids=[f"{n}-{'-'.join(map(str, h.values()))}" for n, h, _ in EQUATIONS]
)
@pytest.mark.parametrize("seed", range(8))
def test_loss_and_its_gradient(name: str, hyper: dict, expected: Loss, seed: int) -> None:
    same(seed, lambda c, s, r: (METHODS[name](**hyper).loss(s, r), expected(c, s)))


@pytest.mark.parametrize("seed", range(8))
def test_fedgkd_with_one_teacher_and_with_a_vote(seed: int) -> None:
    def build(c: Case, s: Step, r: Local, teachers: dict[str, Tensor], votes: Tensor) -> tuple[Tensor, Tensor]:
        down = {"votes": votes} if len(votes) > 1 else {}
        step = s._replace(frozen={name: Output(c.hg, z) for name, z in teachers.items()})
        actual = METHODS["fedgkd"](coef=0.4, tau=2, vote=len(votes) > 1).loss(step, r._replace(down=down))
        return actual, ref.fedgkd(s.z, list(teachers.values()), votes, s.y, 0.4, 2)

    vote = torch.ones(1, dtype=torch.float64)
    same(seed, lambda c, s, r: build(c, s, r, {"teacher": c.zt}, vote))
    same(seed, lambda c, s, r: build(c, s, r, {"teacher 0": c.zg, "teacher 1": c.zt}, c.votes))


@pytest.mark.parametrize("seed", range(8))
def test_methods_without_a_teacher_in_this_round(seed: int) -> None:
    def alone(name: str, hyper: dict, expected: Loss) -> None:
        def build(c: Case, s: Step, r: Local) -> tuple[Tensor, Tensor]:
            actual = METHODS[name](**hyper).loss(s._replace(frozen={}), r._replace(t=0, down={}))
            return actual, expected(c, s)

        same(seed, build)

    bare: Loss = lambda c, s: ref.cross_entropy(s.z, s.y)  # noqa: E731
    uniform: Loss = lambda c, s: ref.fedlmd(s.z, None, s.y, c.majority, 0.7, 2)  # noqa: E731
    alone("moon", {}, bare)  # first participation
    alone("fedproto", {}, bare)  # first round
    alone("fedgkd", {}, bare)
    alone("fedlmd-tf", {"beta": 0.7, "tau": 2}, uniform)
    alone("fedlmd-tf", {"beta": 0.7, "tau": 2, "switch": 1}, uniform)


@pytest.mark.parametrize("seed", range(8))
def test_fedcurv_is_the_sum_of_the_others_quadratics_but_for_a_constant(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    u, w_j = torch.rand(3, 4, generator=rng).double(), torch.randn(3, 4, generator=rng).double()
    client_id = 1
    method = METHODS["fedcurv"](lam=0.3)
    sums, mine = (
        {"u": a.sum(0), "v": b.sum(0)}
        for a, b in ((u, u * w_j), (u[client_id : client_id + 1], (u * w_j)[client_id:][:1]))
    )

    def build(c: Case, s: Step, r: Local) -> tuple[Tensor, Tensor]:
        r = r._replace(down=sums, memory=mine)
        actual = method.loss(s, r._replace(down=r.down | method.prepare(r, None)))
        quadratic = sum(u[j, i] * (s.w[i] - w_j[j, i]) ** 2 for j in (0, 2) for i in range(4))
        constant = sum(u[j, i] * w_j[j, i] ** 2 for j in (0, 2) for i in range(4))
        return actual, ref.cross_entropy(s.z, s.y) + 0.3 * (quadratic - constant)

    same(seed, build)
