"""Properties that the papers state or imply: gradients, bounds and first steps."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall import METHODS
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.method import Method
from fedrecall.core.types import Output, Step
from fedrecall.methods.fedssd import descent_rate
from support.method_bench import client, make_clients, make_step, network
from support.reference import majority_set
from support.tiny_federation import local

SEEDS = pytest.mark.parametrize("seed", range(6))


def normal(seed: int, *shape: int, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def term(method: Method, z: Tensor, zg: Tensor, y: Tensor, **fields: object) -> tuple[Tensor, Tensor]:
    """Return (the term added to the cross-entropy, its gradient in the logits)."""
    z = z.clone().requires_grad_()
    frozen = {"global": zg, "teacher": zg}
    added = method.loss(make_step(z, y, frozen), client(y, z.shape[1], **fields)) - F.cross_entropy(z, y)
    return added.detach(), torch.autograd.grad(added, z)[0]


@SEEDS
@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("name", ["fedntd", "fedlmd", "fedlmd-tf"])
def test_not_true_distillation_leaves_the_true_logit_alone(name: str, tau: float, seed: int) -> None:
    y = torch.tensor([0, 1, 2, 0])
    slope = term(METHODS[name](tau=tau), normal(seed, 4, 5), normal(seed + 99, 4, 5), y)[1]
    assert (slope[torch.arange(4), y] == 0).all()
    assert (slope.abs() > 1e-6).sum() > 4


@SEEDS
@pytest.mark.parametrize("name", ["fedlmd", "fedlmd-tf"])
def test_fedlmd_pushes_majority_logits_down(name: str, seed: int) -> None:
    y, counts = torch.tensor([0, 1, 2, 4]), torch.tensor([9, 1, 9, 0, 1])
    majority = sorted(majority_set(counts.tolist()))
    assert majority == [0, 2]
    z, zg = normal(seed, 4, 5), normal(seed + 99, 4, 5)
    step = torch.zeros(4, 5, dtype=torch.float64)
    if name == "fedlmd":
        step = zg
    slope = term(METHODS[name](tau=2.0), z, step, y, counts=counts)[1]
    others = [(i, c) for i in range(4) for c in majority if c != int(y[i])]
    assert all(slope[i, c] > 0 for i, c in others)


@SEEDS
def test_fedntd_of_two_classes_is_zero(seed: int) -> None:
    added, slope = term(
        METHODS["fedntd"](beta=3, tau=2), normal(seed, 4, 2), normal(seed + 9, 4, 2), torch.tensor([0, 1, 1, 0])
    )
    assert added == 0
    assert not slope.any()


def weights(m_max: float, zg: Tensor, y: Tensor, A: Tensor) -> Tensor:
    """Return FedSSD's M [B, C]: with z = z_g + 1 the linear term's gradient is 2 M / B."""
    slope = term(METHODS["fedssd"](m_max=m_max, weighting="linear"), zg + 1, zg, y, down={"A": A})[1]
    return slope * len(y) / 2


@SEEDS
def test_fedssd_weights_are_bounded_and_grow_with_the_teachers_belief(seed: int) -> None:
    A = torch.eye(4, dtype=torch.float64) * seed + torch.rand(4, 4, dtype=torch.float64, generator=torch.Generator())
    A = torch.eye(4, dtype=torch.float64) if seed == 0 else A / A.sum(1, keepdim=True)
    y = torch.tensor([0, 1, 2, 3])
    zg = normal(seed, 4, 4)
    before = weights(0.3, zg, y, A)
    for _ in range(12):
        assert (before >= -1e-15).all()
        assert (before <= 0.9 * 0.3 + 1e-15).all()
        zg = zg + torch.eye(4, dtype=torch.float64)[y]
        after = weights(0.3, zg, y, A)
        assert (after >= before - 1e-15).all()
        before = after
    if seed == 0:  # a perfect teacher that is sure
        assert weights(0.3, 100 * torch.eye(4, dtype=torch.float64), y, A) == pytest.approx(0.27)


@SEEDS
@pytest.mark.parametrize("phi_tau", [None, 1.0, 0.5])
def test_fedcad_trust_is_between_its_bounds(phi_tau: float | None, seed: int) -> None:
    y = torch.arange(4).repeat(3)
    for beta, gamma in ((0.3, 0.7), (0.0, 1.0), (0.1, 0.1), (0.7, 0.9)):
        method = METHODS["fedcad"](beta=beta, gamma=gamma, phi_tau=phi_tau)
        alpha = method.class_trust(normal(seed, 12, 4, scale=10.0), y)
        assert (alpha >= beta - 1e-15).all()
        assert (alpha <= gamma + 1e-15).all()
        sure = torch.eye(4, dtype=torch.float64)[y] * 2000
        assert method.class_trust(sure, y) == pytest.approx(gamma, abs=1e-15)
        assert method.class_trust(-sure, y) == pytest.approx(beta, abs=1e-15)


@SEEDS
@pytest.mark.parametrize("options", [{}, {"mask_on": "refined"}, {"grad_through_target": True}])
def test_fedcsd_ignores_the_scale_of_prototype_rows(options: dict, seed: int) -> None:
    z, zg, P = normal(seed, 4, 5), normal(seed + 9, 4, 5), normal(seed + 99, 5, 5)
    method, y = METHODS["fedcsd"](mu=0.5, tau=3.0, use_mask="none", **options), torch.tensor([0, 1, 2, 4])
    factors = torch.tensor([0.01, 1.0, 7.0, 1e3, 0.3], dtype=torch.float64)
    for a, b in zip(
        term(method, z, zg, y, down={"P": P}), term(method, z, zg, y, down={"P": P * factors[:, None]}), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    turned = term(method, z, zg, y, down={"P": -P})[0]
    assert abs(turned - term(method, z, zg, y, down={"P": P})[0]) > 1e-6


def first_step(name: str, hyper: dict, sizes: tuple[int, ...] = (5, 2, 0), t: int = 1) -> tuple[Tensor, Tensor]:
    """Return (added term, its gradient in the logits) where the student is the received model."""
    f, data = FlatModel(network()), make_clients([sizes])[0]
    method = METHODS[name](**hyper)
    r = local(f, data, t=t)
    P = torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).double()
    r = r._replace(
        down={"teacher": f.w, "A": torch.eye(3).double(), "P": P, "u": f.w * 0, "v": f.w * 0}, memory={"previous": f.w}
    )
    outputs = f.outputs(f.w, data)
    h, z = (part.clone().requires_grad_() for part in outputs)
    frozen = {name: f.outputs(w, data) for name, w in method.frozen(r).items()}
    w = f.w.clone().requires_grad_()
    added = method.loss(Step(w, h, z, data.y, frozen), r) - F.cross_entropy(z, data.y)
    slopes = torch.autograd.grad(added, [z, h, w], allow_unused=True)
    return added.detach(), torch.cat([s.flatten() for s in slopes if s is not None])


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("fedprox", {"mu": 1.0}),
        ("fedntd", {"tau": 2.0}),
        ("fedavg-kd", {"tau": 2.0}),
        ("fedgkd", {"buffer": 1, "coef": 1.0}),
        ("fedssd", {"m_max": 1.0}),
        ("fedssd", {"m_max": 1.0, "weighting": "linear"}),
        ("grid", {"divergence": "features"}),
    ],
)
def test_terms_that_start_at_zero(name: str, hyper: dict) -> None:
    added, slope = first_step(name, hyper)
    assert abs(added) < 1e-14
    assert slope.abs().max() < 1e-14


@pytest.mark.parametrize(("name", "hyper"), [("fedlmd", {}), ("fedcsd", {"use_mask": "none", "mu": 1.0})])
def test_masks_and_refinement_make_a_difference_from_the_first_step(name: str, hyper: dict) -> None:
    added, slope = first_step(name, hyper)
    assert added > 1e-3
    assert slope.abs().max() > 1e-4


def test_moon_with_the_received_model_for_a_previous_one_is_a_constant() -> None:
    h, same = normal(0, 4, 3).requires_grad_(), normal(1, 4, 3)
    z, y = normal(2, 4, 3), torch.tensor([0, 1, 2, 0])
    step = make_step(z, y, {"global": Output(same, z), "previous": Output(same, z)}, h=h)
    loss = METHODS["moon"](mu=1.0).loss(step, client(y, 3))
    assert float(loss.detach() - F.cross_entropy(z, y)) == pytest.approx(math.log(2))
    assert torch.autograd.grad(loss, h)[0].abs().max() < 1e-16


@SEEDS
def test_fedprox_pulls_with_mu_times_the_distance(seed: int) -> None:
    w, w_t = normal(seed, 6).requires_grad_(), normal(seed + 9, 6)
    z, y = normal(seed, 2, 3), torch.tensor([0, 1])
    loss = METHODS["fedprox"](mu=0.3).loss(make_step(z, y, w=w), client(y, 3, w=w_t))
    torch.testing.assert_close(torch.autograd.grad(loss, w)[0], 0.3 * (w.detach() - w_t), rtol=1e-14, atol=1e-15)


def test_distillation_never_moves_the_teacher() -> None:
    """No gradient reaches a teacher's logits, nor FedCSD's target through the student, unless set."""
    y, zg = torch.tensor([0, 1, 2]), normal(1, 3, 3).requires_grad_()
    down = {"alpha": torch.full((3,), 0.5).double(), "A": torch.eye(3).double(), "P": normal(5, 3, 3)}
    for name in ("fedlsd", "fedntd", "fedgkd", "fedcad", "fedlmd", "fedavg-kd", "fedcsd", "grid"):
        z = normal(2, 3, 3).requires_grad_()
        frozen = {"teacher": zg} if name in {"fedgkd", "fedcsd"} else {"global": zg}
        loss = METHODS[name]().loss(make_step(z, y, frozen), client(y, 3, down=down))
        assert torch.autograd.grad(loss, zg, allow_unused=True)[0] is None, name


@SEEDS
@pytest.mark.parametrize("weighting", ["squared", "linear"])
def test_lemma_1_of_fedssd_bounds_the_distillation(weighting: str, seed: int) -> None:
    """Linear logits f(w) = x w: they are sqrt(2 L_f)-Lipschitz in w with sqrt(2 L_f) = max ||x||."""
    n, features, classes, m_max = 16, 5, 4, 0.7
    x, w, w_t = normal(seed, n, features), normal(seed + 1, features, classes), normal(seed + 2, features, classes)
    A = F.softmax(4 * torch.eye(classes, dtype=torch.float64) + normal(seed + 3, classes, classes), -1)
    y = (x @ w_t).argmax(-1)  # labels that the teacher knows: the weights are far from zero
    method = METHODS["fedssd"](m_max=m_max, weighting=weighting)
    added = float(term(method, x @ w, x @ w_t, y, down={"A": A})[0]) / 2  # the lemma has a factor 1/2
    L_f = float(x.square().sum(1).max()) / 2
    drift = float((w - w_t).square().sum())
    bound = (m_max**2 if weighting == "squared" else m_max) * L_f * drift  # what the stated assumption gives
    assert 0 < added <= bound
    assert L_f >= 1
    assert bound <= (m_max**2 if weighting == "squared" else m_max) * L_f**2 * drift, "the printed constant"


def test_the_bound_of_lemma_1_is_reached_up_to_the_largest_weight() -> None:
    """One example, one class, all of the drift along it: only M <= 0.9 m_max is lost."""
    method = METHODS["fedssd"](m_max=0.5)
    z, zg = torch.tensor([[3.0, -40.0]], dtype=torch.float64), torch.tensor([[5.0, -40.0]], dtype=torch.float64)
    added = float(term(method, z, zg, torch.tensor([0]), down={"A": torch.eye(2, dtype=torch.float64)})[0])
    assert added == pytest.approx(0.9 * 0.5 * (5 - 3) ** 2)


@pytest.mark.parametrize(("S", "smallest"), [(3, 23.4), (5, 9.2), (10, 4.9), (20, 3.4), (100, 2.2)])
def test_condition_of_theorem_1(S: int, smallest: float) -> None:
    def rho(a: float, scale: float = 1.0) -> float:
        return descent_rate(a * scale, 1.0, scale, eta=0.01, B=1.0, S=S)

    assert rho(smallest + 0.06) > 0 > rho(smallest - 0.06)
    assert rho(smallest + 0.06, 100.0) > 0 > rho(smallest - 0.06, 100.0), "only the ratio to L_F counts"
    assert descent_rate(1e9, 1.0, 1.0, eta=0.01, B=1.0, S=2) < 0, "two clients are never enough"
    assert descent_rate(0.0, 1.0, 1.0, eta=0.01, B=1.0, S=S) == -math.inf
